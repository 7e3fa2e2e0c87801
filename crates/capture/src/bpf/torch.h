/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Blocks of PyTorch's caching allocator. The allocator reports each allocated and freed block to a
 * profiler hook in libc10, under its lock, with its totals after the change. One probe at the entry
 * of that function therefore sees every tensor, in order.
 *
 * This is a hot path, with up to a hundred thousand allocations per second: avoid lookups.
 */
#ifndef VS_TORCH_H
#define VS_TORCH_H

/* c10::DeviceType::CUDA. Other devices report to the same function. */
#define CUDA_DEVICE 1

static __noinline int count_lost_tensor(void)
{
	struct vs_lost *lost = lost_of(bpf_get_current_pid_tgid() >> 32);

	if (lost)
		__sync_fetch_and_add(&lost->tensors, 1);
	COUNT(lost);
	return 0;
}

/* Arguments of either probed function. */
struct tensor_call {
	__u64 address;
	__u64 bytes;
	__u64 allocated;
	__u64 reserved;
	__u64 device;
};

static __always_inline void read_call(struct pt_regs *ctx, bool oom, struct tensor_call *call)
{
	__u64 args[5] = {PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx),
			 PT_REGS_PARM4(ctx), PT_REGS_PARM5(ctx)};

	/* Keep the context accesses at constant offsets, as the verifier requires: read all
	 * arguments first, then select. */
	for (int i = 0; i < 5; i++)
		barrier_var(args[i]);
	call->address = oom ? 0 : args[0];
	call->bytes = oom ? args[0] : args[1];
	call->allocated = oom ? args[1] : args[2];
	call->reserved = oom ? args[2] : args[3];
	call->device = oom ? args[3] : args[4];
}

static __noinline int tensor_enter(struct pt_regs *ctx, __u64 call_kind)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	bool oom = call_kind == VS_TENSOR_OOM;
	struct thread_state *thread;
	struct vs_tensor *record;
	struct tensor_call call;

	read_call(ctx, oom, &call);
	/* c10::Device in one register: device type and index, signed bytes. Skip other types and
	 * negative indices. */
	if ((call.device & 0xff) != CUDA_DEVICE || call.device & 0x8000 || !is_target(pid))
		return 0;
	thread = thread_create();
	if (!thread ||
	    bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) > load_config.tensor_ring_limit)
		return count_lost_tensor();
	if (!thread->ready)
		thread_setup(thread);
	announce_once(thread, pid);
	thread->ref = (struct stack_ref){};
	/* At the entry of a function the registers are still those of the caller. */
	if (load_config.tensors == VS_TENSORS_FULL && load_config.stacks &&
	    effective_stack_mode() && (oom || (__s64)call.bytes > 0))
		capture_stack(return_address(ctx), PT_REGS_SP(ctx) + CALL_BYTES, PT_REGS_FP(ctx));
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		return count_lost_tensor();
	fill_head(&record->head, VS_TENSOR);
	record->head.hook = call_kind;
	record->address = call.address;
	record->bytes = call.bytes;
	record->allocated = call.allocated;
	record->reserved = call.reserved;
	record->stack = thread->ref.stack;
	record->python = thread->ref.python;
	record->device = call.device >> 8 & 0x7f;
	record->flags = thread->ref.flags;
	submit(record);
	return 0;
}

#endif
