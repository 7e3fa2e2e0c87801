// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * One enter and one return program serve all hooked driver functions; the attach cookie is the row
 * of the hook table. A call becomes one record, written at return, when its result is known.
 *
 * Rules: no per-CPU scratch memory (uprobe programs can be preempted), every failed reserve is
 * counted by class and process, records are written in full, stack usage stays small.
 *
 * Functions that are not static take only numbers: the verifier checks them once, while it checks a
 * static function again for every path that leads to a call.
 */
#include <linux/bpf.h>
#if defined(__TARGET_ARCH_arm64)
/* As in asm/ptrace.h, which a build for another processor does not have. */
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
};
#else
#include <linux/ptrace.h>
#endif
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define VS_SIZE(name, bytes) _Static_assert(sizeof(struct name) == (bytes), #name)
#include "wire.h"
#include "state.h"
#include "arch.h"
#include "emit.h"
#include "context.h"
#include "graph.h"
#include "kernel_name.h"
#include "launch.h"
#include "copy.h"
#include "window.h"
#include "python.h"
#include "stack.h"
#include "loss.h"
#include "call.h"
#include "allocators.h"
#include "unknown.h"
#include "process_lifecycle.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Always 0. User space sets constants before load, so the compiler does not know it; the verifier
 * does. */
const volatile __u32 never = 0;

/*
 * Makes the functions of a program keep their variables on the stack of the thread.
 *
 * Since Linux 6.13, functions with much stack keep it in memory of the CPU instead. A program whose
 * thread is preempted would find it overwritten by the next thread that runs the same program on
 * that CPU: the kernel assumes that programs of this type are not interrupted by themselves, which
 * is not so for probes of user space. Programs with a tail call are excepted. This one is never
 * made, and the verifier removes it.
 */
#define USE_STACK_OF_THREAD(ctx)                                                                   \
	do {                                                                                       \
		if (never)                                                                         \
			bpf_tail_call(ctx, NULL, 0);                                               \
	} while (0)

/* Some kernels pass the context. */
extern bool bpf_session_is_return(void) __ksym __weak;
extern bool bpf_session_is_return___context(void *ctx) __ksym __weak;

static __always_inline bool is_return(void *ctx)
{
	if (bpf_ksym_exists(bpf_session_is_return___context))
		return bpf_session_is_return___context(ctx);
	return bpf_session_is_return();
}

/* Attach mode session: one program for both sides. Returning 1 at entry skips the return side. */
SEC("uprobe.session")
int call_session(struct pt_regs *ctx)
{
	__u64 hook = bpf_get_attach_cookie(ctx);

	USE_STACK_OF_THREAD(ctx);
	if (is_return(ctx)) {
		call_return(ctx, hook);
		return 0;
	}
	return call_enter(ctx, hook);
}

extern __u64 *bpf_session_cookie(void) __ksym __weak;
extern __u64 *bpf_session_cookie___context(void *ctx) __ksym __weak;

/* Returns the 8 bytes that the two sides of a call share. */
static __always_inline __u64 *session_cookie(void *ctx)
{
	if (bpf_ksym_exists(bpf_session_cookie___context))
		return bpf_session_cookie___context(ctx);
	return bpf_session_cookie();
}

SEC("uprobe.session")
int launch_session(struct pt_regs *ctx)
{
	__u64 hook = bpf_get_attach_cookie(ctx);
	__u64 *shared = session_cookie(ctx);

	USE_STACK_OF_THREAD(ctx);
	if (is_return(ctx)) {
		launch_return(ctx, hook, *shared);
		return 0;
	}
	return launch_enter(ctx, hook, shared);
}

static __always_inline void launch_at_entry(struct pt_regs *ctx, __u64 hook)
{
	__u64 unused;

	launch_enter(ctx, hook, &unused);
}

#define PROBE(section, name, statement)                                                            \
	SEC(section)                                                                               \
	int name(struct pt_regs *ctx)                                                              \
	{                                                                                          \
		__u64 hook = bpf_get_attach_cookie(ctx);                                           \
                                                                                                   \
		USE_STACK_OF_THREAD(ctx);                                                          \
		statement;                                                                         \
		return 0;                                                                          \
	}

/* Attach mode multi: one multi link per side; launches are probed at entry only. */
PROBE("uprobe.multi", call_multi_enter, call_enter(ctx, hook))
PROBE("uretprobe.multi", call_multi_return, call_return(ctx, hook))
PROBE("uprobe.multi", launch_multi, launch_at_entry(ctx, hook))

/* Attach mode single: single uprobes with a cookie. */
PROBE("uprobe", call_single_enter, call_enter(ctx, hook))
PROBE("uretprobe", call_single_return, call_return(ctx, hook))
PROBE("uprobe", launch_single, launch_at_entry(ctx, hook))

/* Blocks of allocators in processes, probed at entry only in every attach mode. */
PROBE("uprobe.multi", block_multi, block_enter(ctx, hook))
PROBE("uprobe", block_single, block_enter(ctx, hook))

/* Memory functions of a newer driver, probed at entry only in every attach mode. */
PROBE("uprobe.multi", unknown_multi, unknown_enter(hook))
PROBE("uprobe", unknown_single, unknown_enter(hook))

/* Empty programs, the baseline for measurements. */
SEC("uprobe.session")
int empty_call(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe.multi")
int empty_launch(struct pt_regs *ctx)
{
	return 0;
}
