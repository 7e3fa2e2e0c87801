/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Unit tests of the probes in user space, for what is hard to reach with real ones: full maps and
 * rings, limits, unreadable memory. The programs are the real ones with the real hook table; the
 * helpers are those of the shim.
 */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <bpf/bpf_helpers.h>

/* Constants of the probes are variables here. */
#define const
#include "vramscope.bpf.c"
#undef const

#include "shim.c"

/* Generated: the rows of the hook table, and their numbers by name. */
#include "hook_rows.h"

static int failures;
static const char *test_name;

static struct {
	const char *name;
	void (*run)(void);
} tests[128];
static unsigned tests_used;

/* Defines a test, and adds it to the list before main(). */
#define TEST(test)                                                                                 \
	static void test(void);                                                                    \
	__attribute__((constructor)) static void test##_add(void)                                  \
	{                                                                                          \
		tests[tests_used].name = #test;                                                    \
		tests[tests_used++].run = test;                                                    \
	}                                                                                          \
	static void test(void)

#define CHECK(condition) CHECK_EQ(!!(condition), 1)
#define CHECK_EQ(left, right)                                                                      \
	do {                                                                                       \
		__u64 left_ = (__u64)(left), right_ = (__u64)(right);                              \
                                                                                                   \
		if (left_ != right_) {                                                             \
			failures++;                                                                \
			printf("%s:%d: %s: %s is %llu, not %llu\n", __FILE__, __LINE__, test_name, \
			       #left, left_, right_);                                              \
		}                                                                                  \
	} while (0)

/* A thread, and its process if it is the main thread. */
struct test_task {
	struct task_struct___x task;
	struct mm_struct___x mm;
	struct signal_struct___x signal;
	struct uprobe_task___x utask;
};

#if defined(__TARGET_ARCH_arm64)
typedef struct user_pt_regs registers;
#define THREAD_POINTER(task) (task)->thread.uw.tp_value
#else
typedef struct shim_registers registers;
#define THREAD_POINTER(task) (task)->thread.fsbase
#endif

/* The stack of the calling thread: the calls of a test are made from its lower part. */
#define STACK_WORDS 4096
static __u64 user_stack[STACK_WORDS];
static struct test_task main_thread, second_thread;
static registers regs;

#define PID	     4711
#define BASE_SP	     ((__u64) & user_stack[1024])
#define TOP_OF_STACK ((__u64) & user_stack[STACK_WORDS])

/* Calls that were entered and did not return. */
static struct {
	__u64 hook;
	__u64 sp;
} entered[64];
static unsigned entered_used;

static void task_init(struct test_task *own, struct test_task *leader, __u64 start)
{
	memset(own, 0, sizeof(*own));
	own->task.tgid = PID;
	own->task.utask = &own->utask;
	own->task.mm = &own->mm;
	own->task.signal = &leader->signal;
	own->task.group_leader = &leader->task;
	own->task.start_boottime = start;
	own->task.self_exec_id = 3;
	own->mm.start_stack = TOP_OF_STACK;
	THREAD_POINTER(&own->task) = TOP_OF_STACK;
	strcpy(own->task.comm, "main");
}

static void run_as(struct test_task *own, __u32 tid)
{
	shim_now.task = &own->task;
	shim_now.pid_tgid = (__u64)PID << 32 | tid;
	memcpy(shim_now.comm, own->task.comm, sizeof(shim_now.comm));
}

static void reset(void)
{
	shim_reset();
	entered_used = 0;
	memcpy((void *)hooks, hook_rows, sizeof(hook_rows));
	memset((void *)element_bytes, 4, sizeof(element_bytes));
	load_config = (struct vs_load_config){
		.wakeup_at = 1000,
		.block_ring_limit = 2000,
		.cpus = SHIM_CPUS,
		.use_task_storage = 1,
		.count_activity = 1,
		.can_skip_returns = 1,
		.can_loop = 1,
	};
	memset((void *)&runtime_config, 0, sizeof(runtime_config));
	memset(user_stack, 0, sizeof(user_stack));
	memset(&regs, 0, sizeof(regs));
	task_init(&main_thread, &main_thread, 1000);
	task_init(&second_thread, &main_thread, 2000);
	main_thread.signal.live.counter = 1;
	run_as(&main_thread, PID);
	runtime_config.attached_at = 500;
}

/* Calls a driver function `depth` words below the base of the stack. */
#define ENTER_AT(depth, hook, ...) enter(depth, hook, (__u64[VS_ARGS]){__VA_ARGS__})
#define ENTER(hook, ...)	   ENTER_AT(0, hook __VA_OPT__(, ) __VA_ARGS__)

static int enter(__u64 depth, __u64 hook, __u64 *args)
{
	int skipped;

	PT_REGS_PARM1(&regs) = args[0];
	PT_REGS_PARM2(&regs) = args[1];
	PT_REGS_PARM3(&regs) = args[2];
	PT_REGS_PARM4(&regs) = args[3];
	PT_REGS_PARM5(&regs) = args[4];
	PT_REGS_PARM6(&regs) = args[5];
	PT_REGS_SP(&regs) = BASE_SP - depth * 8;
	shim_now.cookie = hook;
	shim_now.is_return = 0;
	skipped = call_session((void *)&regs);
	if (!skipped) {
		entered[entered_used].hook = hook;
		entered[entered_used++].sp = PT_REGS_SP(&regs);
	}
	return skipped;
}

/* Returns from a call that was made `depth` words below the base of the stack. */
static void leave_at(__u64 depth, __u64 hook, int result)
{
	PT_REGS_RC(&regs) = (__u64)(__u32)result;
	PT_REGS_SP(&regs) = BASE_SP - depth * 8 + CALL_BYTES;
	shim_now.cookie = hook;
	shim_now.is_return = 1;
	call_session((void *)&regs);
}

/* Returns from the innermost call of a function. */
static void leave(__u64 hook, int result)
{
	__u64 sp = BASE_SP;

	for (unsigned i = entered_used; i--;)
		if (entered[i].hook == hook) {
			sp = entered[i].sp;
			entered_used = i;
			break;
		}
	leave_at((BASE_SP - sp) / 8, hook, result);
}

/* A call that returns at once. */
#define DO_CALL(hook, result, ...)                                                                 \
	do {                                                                                       \
		if (!ENTER(hook __VA_OPT__(, ) __VA_ARGS__))                                       \
			leave(hook, result);                                                       \
	} while (0)

static __u64 launch_cookie;

static int enter_launch(__u64 hook)
{
	shim_now.cookie = hook;
	shim_now.is_return = 0;
	launch_cookie = 0;
	return launch_session((void *)&regs);
}

static void leave_launch(__u64 hook, int result)
{
	PT_REGS_RC(&regs) = (__u64)(__u32)result;
	shim_now.cookie = hook;
	shim_now.is_return = 1;
	launch_session((void *)&regs);
}

bool bpf_session_is_return(void)
{
	return shim_now.is_return;
}

__u64 *bpf_session_cookie(void)
{
	return &launch_cookie;
}

static void *find_record(void *ring, __u16 kind, unsigned n)
{
	for (unsigned i = 0; i < shim.records_used; i++) {
		struct vs_head *head = shim.records[i].data;

		if (shim.records[i].ring == ring && head->kind == kind && !n--)
			return head;
	}
	return NULL;
}

/* Returns the n-th record of a kind in a ring, from 0. If there are fewer, the test fails. */
static void *record(void *ring, __u16 kind, unsigned n)
{
	static __u64 missing[1024];
	void *found = find_record(ring, kind, n);

	CHECK(found != NULL);
	return found ? found : memset(missing, 0, sizeof(missing));
}

static unsigned count_records(void *ring, __u16 kind)
{
	unsigned count = 0;

	while (find_record(ring, kind, count))
		count++;
	return count;
}

static struct vs_call *call_record(unsigned n)
{
	return record(&records, VS_CALL, n);
}

static struct shim_record *last_record(void)
{
	return &shim.records[shim.records_used - 1];
}

static struct vs_lost *losses(void)
{
	struct vs_lost_key key;

	fill_lost_key(&key, PID, own_exec_gen());
	return bpf_map_lookup_elem(&lost_records, &key);
}

/* Returns a field of the losses of the process; 0 if it has none. */
#define LOST(field) (losses() ? losses()->field : 0)

static __u64 unknown_losses(void)
{
	struct vs_lost_key key = {};
	struct vs_lost *lost = bpf_map_lookup_elem(&lost_records, &key);

	return lost ? lost->other + lost->frees + lost->allocations : 0;
}

/* As user space does before it attaches. */
static void add_unknown_losses(void)
{
	struct vs_lost_key key = {};

	bpf_map_update_elem(&lost_records, &key, &no_losses, BPF_ANY);
}

/* Two pages, of which the second cannot be read; returns the end of the first. */
static char *end_of_memory(void)
{
	static char *pages;
	long page = sysconf(_SC_PAGESIZE);

	if (!pages) {
		pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			     -1, 0);
		mprotect(pages + page, page, PROT_NONE);
	}
	return pages + page;
}

#define UNREADABLE ((__u64)end_of_memory())

#include "test_processes.c"
#include "test_contexts.c"
#include "test_calls.c"
#include "test_graphs.c"
#include "test_activity.c"
#include "test_stacks.c"
#include "test_python.c"

int main(void)
{
	for (unsigned i = 0; i < tests_used; i++) {
		test_name = tests[i].name;
		reset();
		tests[i].run();
	}
	shim_reset();
	printf("%u tests, %d failures\n", tests_used, failures);
	return failures != 0;
}
