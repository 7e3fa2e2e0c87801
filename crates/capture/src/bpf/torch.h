/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Blocks of PyTorch's caching allocator. It tells each that it gives out or takes back to a
 * function of libc10, under its lock, with its own sums after that; there nobody but a profiler
 * listens. So one probe at the entry of that function sees every tensor, in the order in which they
 * come and go.
 *
 * This is the hot path of a program that allocates a hundred thousand times a second: nothing is
 * looked up that is not needed.
 */
#ifndef VS_TORCH_H
#define VS_TORCH_H

/* c10::DeviceType::CUDA. Other devices tell the same function of their memory. */
#define CUDA_DEVICE 1

/* From this fill of the ring on blocks are dropped and counted: what is left is for the driver's
 * calls, so that no number of tensors makes their figures inexact. */
const volatile __u64 tensors_until = 8 * 1024 * 1024;

static __noinline int count_lost_tensor(void)
{
	struct vs_lost *lost = lost_of(bpf_get_current_pid_tgid() >> 32);

	if (lost)
		__sync_fetch_and_add(&lost->tensors, 1);
	COUNT(lost);
	return 0;
}

/* The registers of the caller at the first instruction of a function, or where nothing was done yet
 * but reading. */
static __always_inline void fill_caller(struct pt_regs *ctx, struct caller *caller)
{
	caller->ip = user_word(PT_REGS_SP(ctx));
	caller->sp = PT_REGS_SP(ctx) + 8;
	caller->bp = PT_REGS_FP(ctx);
}

static __noinline int take_tensor_stack(struct pt_regs *ctx, struct thread_state *thread,
					struct taken_stack *taken)
{
	struct caller caller;

	fill_caller(ctx, &caller);
	return take_stack(&caller, thread, taken);
}

/* What a call tells, whichever function it is. */
struct tensor_call {
	__u64 address;
	__u64 bytes;
	__u64 allocated;
	__u64 reserved;
	__u64 device;
};

static __always_inline void read_call(struct pt_regs *ctx, bool refused, struct tensor_call *call)
{
	__u64 args[5] = {PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx),
			 PT_REGS_PARM4(ctx), PT_REGS_PARM5(ctx)};

	/* All are read where the kernel can see it, and chosen from afterwards. */
	for (int i = 0; i < 5; i++)
		barrier_var(args[i]);
	call->address = refused ? 0 : args[0];
	call->bytes = refused ? args[0] : args[1];
	call->allocated = refused ? args[1] : args[2];
	call->reserved = refused ? args[2] : args[3];
	call->device = refused ? args[3] : args[4];
}

static __noinline int tensor_enter(struct pt_regs *ctx, __u64 which)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	bool refused = which == VS_TENSOR_REFUSED;
	struct taken_stack taken = {};
	struct thread_state *thread;
	struct vs_tensor *record;
	struct tensor_call call;

	read_call(ctx, refused, &call);
	/* Of CUDA, and of a device with a number: both are bytes with a sign in one register. */
	if ((call.device & 0xff) != CUDA_DEVICE || call.device & 0x8000 || !is_target(pid))
		return 0;
	thread = thread_create();
	if (!thread || bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) > tensors_until)
		return count_lost_tensor();
	if (!thread->ready)
		thread_setup(thread);
	announce_once(thread, pid);
	if (tensors == VS_TENSORS_FULL && stacks && stacks_now() &&
	    (refused || (__s64)call.bytes > 0))
		take_tensor_stack(ctx, thread, &taken);
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		return count_lost_tensor();
	fill_head(&record->head, VS_TENSOR);
	record->head.hook = which;
	record->address = call.address;
	record->bytes = call.bytes;
	record->allocated = call.allocated;
	record->reserved = call.reserved;
	record->stack = taken.stack;
	record->python = taken.python;
	record->device = call.device >> 8 & 0x7f;
	record->flags = taken.flags;
	submit(record);
	return 0;
}

#endif
