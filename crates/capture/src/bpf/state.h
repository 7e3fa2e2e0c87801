/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Maps, configuration, and the state of threads and processes. */
#ifndef VS_STATE_H
#define VS_STATE_H

typedef _Bool bool;
#ifndef NULL
#define NULL ((void *)0)
#endif

#define ENOENT 2
#define EEXIST 17

/* Configuration, set before load; the verifier prunes what it switches off. */
const volatile struct vs_hook hooks[VS_MAX_HOOKS] = {};
const volatile struct vs_load_config load_config = {};

/* Configuration that user space changes at run time. */
volatile struct vs_runtime_config runtime_config = {};

/* Stack mode in use: the configured one less the current reduction. */
static __always_inline __u32 effective_stack_mode(void)
{
	return load_config.stacks > runtime_config.stack_mode_reduction
		       ? load_config.stacks - runtime_config.stack_mode_reduction
		       : VS_STACKS_OFF;
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
	__type(key, struct vs_lost_key); /* the all-zero entry collects what does not fit */
	__type(value, struct vs_lost);
} lost_records SEC(".maps");

/* Calls of memory functions that the hook table does not know. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_unknown_key);
	__type(value, __u64);
} unknown_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u8);
} targets SEC(".maps");

/* Announced processes; an entry lives until the process exits or execs. */
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
	__u32 thread; /* thread that began the capture */
	__u32 count;  /* in the entry of a thread: captures that it began */
};

/* Capturing streams, and the threads that began the captures: captured calls do not run yet. User
 * space deletes entries whose owner has ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_capture_key);
	__type(value, struct capture);
} capturing_streams SEC(".maps");

struct shared_state {
	/* Capturing streams of all processes; while it is 0, launches skip the lookup. */
	__u64 captures;
	/* When a call was last dropped for lack of thread state (boot clock). */
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
	__u32 exec_gen; /* exec generation of the process */
	__u64 start;	/* of the process, nanoseconds since boot: its pid may be used again */
};

/* Contexts whose device was already reported. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct context_key);
	__type(value, __s32);
} reported_contexts SEC(".maps");

struct inflight_call {
	__u64 sp;
	__u64 entered;
	__u64 args[VS_ARGS];
	__u64 hook;
};

/* Words of the buffer for frames and code objects. A power of two larger than any offset, so that
 * an offset can be bounded by a mask. */
#define VS_WORDS 16

/* Reference from a call to its stack. */
struct stack_ref {
	__u64 stack;
	__u64 python;
	__u32 flags; /* enum vs_call_flag */
};

/* Numbers that change in each round of bpf_loop(). Not on the stack: Linux 6.8 verifies the body
 * again until no number on the stack has new bounds, which takes too long. */
struct loop_state {
	__u64 from, to; /* address range that the window holds */
	__u64 end;	/* of the stack */
	__u64 frame;	/* of Python */
	__u64 hash;
	__u32 count;
	__u32 first; /* round at which the known stack was selected */
	struct vs_known_stack_key key;
};

/* Sampling of the blocks of a thread. */
struct block_sampling {
	__u64 since;  /* begin of the period */
	__s64 left;   /* bytes up to the next sample */
	__u32 stacks; /* captured in the period */
	__u32 power;  /* binary logarithm of the interval; 0: none, every block is sampled */
};

struct thread_state {
	struct inflight_call calls[VS_INFLIGHT];
	__u32 inflight;
	__u32 depth; /* levels of the context stack, from its bottom or from the first level seen */
	__u32 known; /* known levels, from the top: at most min(depth, VS_CONTEXTS) */
	__u32 from_empty; /* `depth` counts from the bottom of the stack */
	__s32 device;	  /* returned by a query while the context is unknown; -1: none */
	__u32 ready;	  /* the other fields were initialized */
	__u32 stacks;	  /* number of stack copies sent */
	__u32 announced;  /* the process was announced, no lookup needed */
	__u64 python;	  /* last known address of Python's thread state */
	__u64 name[2];
	/* Buffer for frames and code objects of Python. Not on the stack: a chain of functions of a
	 * probe has 512 bytes of stack in total. */
	__u64 words[VS_WORDS];
	struct loop_state loop;
	struct stack_ref ref; /* result of capture_stack() */
	struct block_sampling sampling;
	__u64 contexts[VS_CONTEXTS]; /* ring: level n is at n modulo the size */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread_state);
} thread_storage SEC(".maps");

/* The same by thread id, for kernels before 6.2: their task storage cannot be read while another
 * thread, preempted on the same CPU, uses it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct thread_state);
} thread_table SEC(".maps");

/* Kernel structures with only the fields that are read; offsets are relocated by BTF (CO-RE). */
struct vs_atomic___x {
	int counter;
} __attribute__((preserve_access_index));

struct signal_struct___x {
	struct vs_atomic___x live;
} __attribute__((preserve_access_index));

/* A pending uretprobe: the kernel keeps the original return address here. */
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
	unsigned long fsbase; /* x86-64 */
	struct {
		unsigned long tp_value;
	} uw; /* arm64 */
} __attribute__((preserve_access_index));

struct fdtable___x {
	unsigned int max_fds;
	void **fd;
} __attribute__((preserve_access_index));

struct files_struct___x {
	struct fdtable___x *fdt;
} __attribute__((preserve_access_index));

struct task_struct___x {
	int tgid;
	struct files_struct___x *files;
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

/* Slots are per CPU, but a program can be preempted between read and write: add atomically. */
#define COUNT(field)                                                                               \
	do {                                                                                       \
		struct vs_counters *own = own_counters();                                          \
		if (own)                                                                           \
			__sync_fetch_and_add(&own->field, 1);                                      \
	} while (0)

static __always_inline struct thread_state *thread_find(void)
{
	if (load_config.use_task_storage)
		return bpf_task_storage_get(&thread_storage, (void *)bpf_get_current_task_btf(),
					    NULL, 0);
	__u64 key = bpf_get_current_pid_tgid();
	return bpf_map_lookup_elem(&thread_table, &key);
}

/* Initial value for thread_table. */
static const struct thread_state empty_thread = {};

static __always_inline struct thread_state *thread_create(void)
{
	if (load_config.use_task_storage)
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
	/* A thread that is newer than the probes started without a context. If calls were dropped
	 * since, its state may already have changed. */
	thread->from_empty = runtime_config.attached_at && start > runtime_config.attached_at &&
			     all && start > all->dropped_at;
}

/* Deletes the state of the calling thread, which has or had that id. Returns whether it had state,
 * or may have had: the storage can be busy. */
static __always_inline bool thread_delete(__u32 tid)
{
	if (load_config.use_task_storage)
		return bpf_task_storage_delete(&thread_storage,
					       (void *)bpf_get_current_task_btf()) != -ENOENT;
	__u64 key = (bpf_get_current_pid_tgid() & ~0xffffffffULL) | tid;
	return !bpf_map_delete_elem(&thread_table, &key);
}

/* Returns the exec generation of the process, which changes with each exec. Counters are read with
 * a delay and must not be mixed up with those of the previous program. */
static __always_inline __u16 own_exec_gen(void)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, self_exec_id);
}

/* Returns the start time of the process, nanoseconds since boot: unique together with the pid. */
static __always_inline __u64 own_start(void)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, group_leader, start_boottime);
}

static __always_inline bool is_target(__u32 pid)
{
	if (pid == load_config.tracer_pid)
		return 0;
	if (load_config.filter == VS_FILTER_NONE)
		return 1;
	return bpf_map_lookup_elem(&targets, &pid) != NULL;
}

static __always_inline __u64 argument(const struct inflight_call *call, __u8 index)
{
	return index < VS_ARGS ? call->args[index] : 0;
}

/* Returns what identifies an open file of the calling process, also if another process got it over
 * a socket; 0 if it is not open. */
static __noinline __u64 open_file(__u32 descriptor)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	struct fdtable___x *table = BPF_CORE_READ(task, files, fdt);
	void **files, *file = NULL;

	if (!table || descriptor >= BPF_CORE_READ(table, max_fds))
		return 0;
	files = BPF_CORE_READ(table, fd);
	bpf_probe_read_kernel(&file, sizeof(file), files + descriptor);
	return (__u64)file;
}

static __always_inline int read_out(const struct inflight_call *call, __u64 hook, int index,
				    __u64 *value)
{
	__u64 pointer = argument(call, hooks[hook].out_argument[index]);

	*value = 0;
	if (!pointer)
		return 0;
	if (hooks[hook].out_bytes[index] == 4)
		return bpf_probe_read_user(value, 4, (void *)pointer) ? VS_OUT_UNREADABLE : 0;
	return bpf_probe_read_user(value, 8, (void *)pointer) ? VS_OUT_UNREADABLE : 0;
}

#endif
