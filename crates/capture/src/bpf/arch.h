/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Calling convention, stack and thread pointer of the processor. __TARGET_ARCH_* selects it; the
 * macros PT_REGS_* of libbpf follow the same name.
 */
#ifndef VS_ARCH_H
#define VS_ARCH_H

/* Reads 8 bytes of user memory. Sets `failed` if they cannot be read. */
static __always_inline __u64 read_user_checked(__u64 address, bool *failed)
{
	__u64 word = 0;

	if (bpf_probe_read_user(&word, sizeof(word), (void *)address))
		*failed = 1;
	return word;
}

/* Reads 8 bytes of user memory; 0 if they cannot be read. */
static __always_inline __u64 read_user_u64(__u64 address)
{
	bool failed;

	return read_user_checked(address, &failed);
}

#if defined(__TARGET_ARCH_arm64)

/* Bytes that a call pushes: the return address is in the link register. */
#define CALL_BYTES 0

/* Arguments in front of those of a function that returns a structure in memory: register x8 has its
 * address. */
#define RESULT_ARGUMENTS 0

/* Returns the address of an argument that is passed in memory: a register has it. */
static __always_inline __u64 memory_argument(const struct inflight_call *call, __u8 index)
{
	return argument(call, index);
}

/* Maximum distance from the thread pointer down to pthread_self(): the C library keeps its
 * structure of a thread right below. Structures of two threads are further apart. */
#define THREAD_BYTES 4096

/* Return addresses on the stack can be signed in the bits above those of an address. */
static __always_inline __u64 code_address(__u64 word)
{
	return word & ((1ULL << 48) - 1);
}

static __always_inline __u64 return_address(struct pt_regs *ctx)
{
	return code_address(PT_REGS_RET(ctx));
}

/* Reads arguments 7 to 9 of a call at its entry. Returns nonzero if that fails. */
static __always_inline long late_arguments(struct pt_regs *ctx, __u64 args[3])
{
	args[0] = PT_REGS_PARM7(ctx);
	args[1] = PT_REGS_PARM8(ctx);
	return bpf_probe_read_user(&args[2], sizeof(args[2]), (void *)PT_REGS_SP(ctx));
}

/* The register of the running thread is stored when the thread is suspended: 0 until then. */
static __always_inline __u64 thread_pointer(void)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, thread.uw.tp_value);
}

#else

/* Bytes that a call pushes: the return address. */
#define CALL_BYTES	 8

/* Arguments in front of those of a function that returns a structure in memory: its address. */
#define RESULT_ARGUMENTS 1

/* Returns the address of an argument that is passed in memory: the first on the stack. */
static __always_inline __u64 memory_argument(const struct inflight_call *call, __u8 index)
{
	return call->sp + CALL_BYTES;
}

/* pthread_self() is the thread pointer. */
#define THREAD_BYTES	 0

static __always_inline __u64 code_address(__u64 word)
{
	return word;
}

static __always_inline __u64 return_address(struct pt_regs *ctx)
{
	return read_user_u64(PT_REGS_SP(ctx));
}

/* Reads arguments 7 to 9 of a call at its entry. Returns nonzero if that fails. */
static __always_inline long late_arguments(struct pt_regs *ctx, __u64 args[3])
{
	return bpf_probe_read_user(args, 3 * sizeof(*args), (void *)PT_REGS_SP(ctx) + CALL_BYTES);
}

/* The fs base. */
static __always_inline __u64 thread_pointer(void)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, thread.fsbase);
}

#endif

#endif
