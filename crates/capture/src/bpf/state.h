/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Maps, knobs, and what is kept per thread and per process. */
#ifndef VS_STATE_H
#define VS_STATE_H

typedef _Bool bool;
#ifndef NULL
#define NULL ((void *)0)
#endif

#define ENOENT 2
#define EEXIST 17

/* Knobs, set before load; the verifier prunes what they switch off. */
const volatile struct vs_hook hooks[VS_MAX_HOOKS] = {};
const volatile __u32 filter = VS_FILTER_NONE;
/* State of threads is kept in their tasks. */
const volatile bool use_task_storage = 1;
const volatile __u32 own_pid = 0;
/* Launches and copies are counted too. */
const volatile bool count_work = 0;
/* Results can be looked at for some calls only where the kernel has session probes. */
const volatile bool can_skip_returns = 0;
/* enum vs_stacks: of allocating calls. */
const volatile __u32 stacks = VS_STACKS_OFF;
/* Python stacks, too. */
const volatile bool walk_python = 0;
/* The kernel has loops for programs. */
const volatile bool can_loop = 0;
/* enum vs_tensors: what is told of the blocks of a framework's cache. */
const volatile __u32 tensors = VS_TENSORS_OFF;
/* CPUs that there can be. */
const volatile __u32 cpus = 1;

/* What changes while programs run. */
volatile struct vs_now now = {};

/* Stacks that are taken now. */
static __always_inline __u32 stacks_now(void)
{
	return stacks > now.stacks_less ? stacks - now.stacks_less : VS_STACKS_OFF;
}

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
} records SEC(".maps");

struct counters_map {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vs_counters);
};
struct counters_map counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_lost_key); /* all zero collects what no longer fits */
	__type(value, struct vs_lost);
} lost_records SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} targets SEC(".maps");

/* Processes that were announced; an entry lives as long as the program it runs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u64);
} processes SEC(".maps");

/* Processes that capture or build graphs. Launches of all others need no record. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct vs_graph_state);
} graph_states SEC(".maps");

struct capture {
	__u32 thread; /* that began it */
	__u32 count;  /* of a thread: captures that it began */
};

/* Streams that capture, and the threads that began that: what is launched is not launched yet. User
 * space deletes entries whose owner has ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_capture_key);
	__type(value, struct capture);
} capturing_streams SEC(".maps");

struct shared_state {
	/* Streams of all processes that capture; while none does, launches need not look. */
	__u64 captures;
	/* When a call was last dropped because its thread's state could not be kept (boot clock).
	 */
	__u64 dropped_at;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct shared_state);
} shared SEC(".maps");

static __always_inline struct shared_state *shared_state(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&shared, &zero);
}

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_launch_key);
	__type(value, struct vs_launches);
} launches SEC(".maps");

struct context_key {
	__u64 context;
	__u32 pid;
	__u32 program; /* which of those that the process has run */
	__u64 start;   /* of the process, nanoseconds since boot: its pid may be used again */
};

/* Contexts whose device was told by a query already, so that it is recorded once. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct context_key);
	__type(value, __s32);
} learned_contexts SEC(".maps");

struct inflight_call {
	__u64 sp;
	__u64 entered;
	__u64 args[VS_ARGS];
	__u64 hook;
};

/* Of what is read of a frame and of a code object; more than any offset needs, so that an offset
 * can be checked by its lowest bits. */
#define VS_WORDS 16

struct thread_state {
	struct inflight_call calls[VS_INFLIGHT];
	__u32 inflight;
	__u32 depth; /* levels of the context stack, from its bottom or from where it was first seen
		      */
	__u32 known; /* levels that are known, from the top: min(depth, VS_CONTEXTS) at most */
	__u32 from_empty; /* there is nothing below the levels in `depth` */
	__s32 device;	  /* told by a query while the context is unknown; -1: not told */
	__u32 ready;	  /* the fields below and above were set up */
	__u32 stacks;	  /* stacks that were sent of it */
	__u32 announced;  /* its process was, so there is no need to look */
	__u64 python;	  /* Python's own state of the thread, as it was found last */
	__u64 name[2];
	/* Room for what is read of Python: before Linux 6.13 all functions of a probe that call
	 * each other have 512 bytes of stack together. */
	__u64 words[VS_WORDS];
	__u64 contexts[VS_CONTEXTS]; /* a level is at its depth, modulo the size */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_state);
} thread_storage SEC(".maps");

/* Kernels before 6.2: the same, by thread id. Their task storage cannot be read while another
 * thread, preempted on the same CPU, uses it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct thread_state);
} thread_table SEC(".maps");

/* Only the fields that are read, found by name in the running kernel. */
struct vs_atomic___x {
	int counter;
} __attribute__((preserve_access_index));

struct signal_struct___x {
	struct vs_atomic___x live;
} __attribute__((preserve_access_index));

/* A return that a probe waits for: the address that belongs on the stack is kept here. */
struct return_instance___x {
	unsigned long stack;
	unsigned long orig_ret_vaddr;
	struct return_instance___x *next;
} __attribute__((preserve_access_index));

struct uprobe_task___x {
	struct return_instance___x *return_instances;
} __attribute__((preserve_access_index));

struct mm_struct___x {
	unsigned long start_stack;
} __attribute__((preserve_access_index));

struct thread_struct___x {
	unsigned long fsbase;
} __attribute__((preserve_access_index));

struct task_struct___x {
	int tgid;
	struct uprobe_task___x *utask;
	struct mm_struct___x *mm;
	struct thread_struct___x thread;
	struct task_struct___x *group_leader;
	struct signal_struct___x *signal;
	__u64 start_boottime;
	__u32 self_exec_id;
	char comm[VS_NAME];
} __attribute__((preserve_access_index));

static __always_inline struct vs_counters *own_counters(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&counters, &zero);
}

/* Per-CPU slots, but a program can be preempted between read and write: add atomically. */
#define COUNT(field)                                                                               \
	do {                                                                                       \
		struct vs_counters *own = own_counters();                                          \
		if (own)                                                                           \
			__sync_fetch_and_add(&own->field, 1);                                      \
	} while (0)

static __always_inline struct thread_state *thread_find(void)
{
	if (use_task_storage)
		return bpf_task_storage_get(&thread_storage, (void *)bpf_get_current_task_btf(),
					    NULL, 0);
	__u64 key = bpf_get_current_pid_tgid();
	return bpf_map_lookup_elem(&thread_table, &key);
}

/* The template of a thread's state, for the kernels that need one. */
static const struct thread_state empty_thread = {};

static __always_inline struct thread_state *thread_create(void)
{
	if (use_task_storage)
		return bpf_task_storage_get(&thread_storage, (void *)bpf_get_current_task_btf(),
					    NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);
	__u64 key = bpf_get_current_pid_tgid();
	bpf_map_update_elem(&thread_table, &key, &empty_thread, BPF_NOEXIST);
	return bpf_map_lookup_elem(&thread_table, &key);
}

static __always_inline void thread_setup(struct thread_state *thread)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	__u64 start = BPF_CORE_READ(task, start_boottime);
	struct shared_state *all = shared_state();

	thread->ready = 1;
	thread->device = -1;
	/* A thread that started after the probes started without a context; unless calls of it were
	 * dropped. */
	thread->from_empty =
		now.attached_at && start > now.attached_at && all && start > all->dropped_at;
}

/* Of the calling thread, which has or had that id. Returns whether there was state, or may have
 * been: the storage can be busy. */
static __always_inline bool thread_forget(__u32 tid)
{
	if (use_task_storage)
		return bpf_task_storage_delete(&thread_storage,
					       (void *)bpf_get_current_task_btf()) != -ENOENT;
	__u64 key = (bpf_get_current_pid_tgid() & ~0xffffffffULL) | tid;
	return !bpf_map_delete_elem(&thread_table, &key);
}

/* Which program the process runs: another number after each exec. Sums are read a moment later, and
 * must not be taken for those of the program before. */
static __always_inline __u16 own_program(void)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, self_exec_id);
}

/* When the process started, nanoseconds since boot: with its pid, what no other process has. */
static __always_inline __u64 own_start(void)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, group_leader, start_boottime);
}

static __always_inline bool is_target(__u32 pid)
{
	if (pid == own_pid)
		return 0;
	if (filter == VS_FILTER_NONE)
		return 1;
	return bpf_map_lookup_elem(&targets, &pid) != NULL;
}

static __always_inline __u64 argument(const struct inflight_call *call, __u8 index)
{
	return index < VS_ARGS ? call->args[index] : 0;
}

static __always_inline int read_out(const struct inflight_call *call, __u64 hook, int which,
				    __u64 *value)
{
	__u64 pointer = argument(call, hooks[hook].out_argument[which]);

	*value = 0;
	if (!pointer)
		return 0;
	if (hooks[hook].out_bytes[which] == 4)
		return bpf_probe_read_user(value, 4, (void *)pointer) ? VS_OUT_UNREADABLE : 0;
	return bpf_probe_read_user(value, 8, (void *)pointer) ? VS_OUT_UNREADABLE : 0;
}

#endif
