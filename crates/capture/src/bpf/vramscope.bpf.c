// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * One enter and one return program serve every hooked driver function; the attach cookie is the
 * row of the hook table. A call becomes one record, written at return, when its result is known.
 *
 * Rules: no shared per-CPU scratch (uprobe programs can be preempted), every failed reserve is
 * counted by class and process, records are written in full, the stack stays small.
 */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#define VS_SIZE(name, bytes) _Static_assert(sizeof(struct name) == (bytes), #name)
#include "wire.h"
#include "state.h"
#include "emit.h"
#include "context.h"
#include "graph.h"
#include "name.h"
#include "launch.h"
#include "copy.h"
#include "python.h"
#include "stack.h"
#include "loss.h"
#include "call.h"
#include "torch.h"
#include "life.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Some kernels hand the context to it. */
extern bool bpf_session_is_return(void) __ksym __weak;
extern bool bpf_session_is_return___context(void *ctx) __ksym __weak;

static __always_inline bool is_return(void *ctx)
{
	if (bpf_ksym_exists(bpf_session_is_return___context))
		return bpf_session_is_return___context(ctx);
	return bpf_session_is_return();
}

/* Tier 1: one program, both sides. Returning 1 at entry skips the return side. */
SEC("uprobe.session")
int call_session(struct pt_regs *ctx)
{
	__u64 hook = bpf_get_attach_cookie(ctx);

	if (is_return(ctx)) {
		call_return(ctx, hook);
		return 0;
	}
	return call_enter(ctx, hook);
}

extern __u64 *bpf_session_cookie(void) __ksym __weak;
extern __u64 *bpf_session_cookie___context(void *ctx) __ksym __weak;

/* Eight bytes that the two sides of a call share. */
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

	if (is_return(ctx)) {
		launch_return(ctx, hook, *shared);
		return 0;
	}
	return launch_enter(ctx, hook, shared);
}

/* Tier 2: one multi link a side; launches have one side only. */
SEC("uprobe.multi")
int call_multi_enter(struct pt_regs *ctx)
{
	call_enter(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uretprobe.multi")
int call_multi_return(struct pt_regs *ctx)
{
	call_return(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uprobe.multi")
int launch_multi(struct pt_regs *ctx)
{
	__u64 unused;

	launch_enter(ctx, bpf_get_attach_cookie(ctx), &unused);
	return 0;
}

/* Tier 3: single uprobes with a cookie. */
SEC("uprobe")
int call_single_enter(struct pt_regs *ctx)
{
	call_enter(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uretprobe")
int call_single_return(struct pt_regs *ctx)
{
	call_return(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uprobe")
int launch_single(struct pt_regs *ctx)
{
	__u64 unused;

	launch_enter(ctx, bpf_get_attach_cookie(ctx), &unused);
	return 0;
}

/* Tier 4: kernels without cookies; the row is a constant of the object, which is loaded per row. */
const volatile __u32 constant_hook = VS_CANARY;

SEC("uprobe")
int call_constant_enter(struct pt_regs *ctx)
{
	call_enter(ctx, constant_hook);
	return 0;
}

SEC("uretprobe")
int call_constant_return(struct pt_regs *ctx)
{
	call_return(ctx, constant_hook);
	return 0;
}

SEC("uprobe")
int launch_constant(struct pt_regs *ctx)
{
	__u64 unused;

	launch_enter(ctx, constant_hook, &unused);
	return 0;
}

/* Blocks of PyTorch's cache: the entry alone tells everything, in every tier. */
SEC("uprobe.multi")
int tensor_multi(struct pt_regs *ctx)
{
	tensor_enter(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uprobe")
int tensor_single(struct pt_regs *ctx)
{
	tensor_enter(ctx, bpf_get_attach_cookie(ctx));
	return 0;
}

SEC("uprobe")
int tensor_constant(struct pt_regs *ctx)
{
	tensor_enter(ctx, constant_hook);
	return 0;
}

/* What probes cost that do nothing: ours are measured against them. */
SEC("uprobe.session")
int call_nothing(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe.multi")
int launch_nothing(struct pt_regs *ctx)
{
	return 0;
}
