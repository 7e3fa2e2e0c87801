/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Blocks of allocators in processes. One probe at the entry of a function sees each block:
 *
 * PyTorch reports each allocated and freed block to a profiler hook in libc10, under its lock, with
 * its totals after the change.
 *
 * CuPy's pool fills a Python object for each block, from a chunk of the pool, and reads it when the
 * block is freed.
 *
 * RMM's pool passes each block to a function of its library that splits the free memory it is taken
 * from, and each freed block to one that makes free memory of it.
 *
 * XLA calls a function that can trace each allocated and freed block, with its address and size.
 *
 * This is a hot path, with up to a hundred thousand allocations per second: avoid lookups. A stack
 * costs more than everything else, so a thread with too many blocks captures those of a sample.
 */
#ifndef VS_ALLOCATORS_H
#define VS_ALLOCATORS_H

/* c10::DeviceType::CUDA. Other devices report to the same function. */
#define CUDA_DEVICE 1

static __noinline int count_lost_block(void)
{
	struct vs_lost *lost = lost_of(bpf_get_current_pid_tgid() >> 32);

	if (lost)
		__sync_fetch_and_add(&lost->tensors, 1);
	COUNT(lost);
	return 0;
}

/* Members of CuPy's extension types, in all builds from 12.3 to 14.2: struct PooledMemory has
 * `ptr`, `size` and `device_id` of BaseMemory, then its pool; struct _Chunk has the memory that it
 * is a part of, its offset and its size. */
#define CUPY_MEMORY_PTR	   16
#define CUPY_MEMORY_SIZE   24
#define CUPY_MEMORY_DEVICE 32
#define CUPY_MEMORY_POOL   48
#define CUPY_CHUNK_MEMORY  24
#define CUPY_CHUNK_OFFSET  32
#define CUPY_CHUNK_SIZE	   40

/* Lengths of `MemoryAllocation` and `MemoryDeallocation`. */
#define XLA_ALLOCATION	 16
#define XLA_DEALLOCATION 18

/* A block. */
struct block_call {
	__u64 address;
	__u64 bytes; /* signed: negative for a free */
	__u64 allocated;
	__u64 reserved;
	__u64 pool;
	__s32 device;
};

enum block_result {
	BLOCK_READ,
	BLOCK_IGNORED,
	BLOCK_UNREADABLE,
};

static __always_inline int read_torch(struct block_call *call, const __u64 *args, bool oom)
{
	__u64 device = oom ? args[3] : args[4];

	call->address = oom ? 0 : args[0];
	call->bytes = oom ? args[0] : args[1];
	call->allocated = oom ? args[1] : args[2];
	call->reserved = oom ? args[2] : args[3];
	/* c10::Device in one register: device type and index, signed bytes. Skip other types and
	 * negative indices. */
	if ((device & 0xff) != CUDA_DEVICE || device & 0x8000)
		return BLOCK_IGNORED;
	call->device = device >> 8 & 0x7f;
	return BLOCK_READ;
}

static __always_inline bool read_word(__u64 *to, __u64 address)
{
	return !bpf_probe_read_user(to, sizeof(*to), (const void *)address);
}

/* PooledMemory._init(self, chunk, pool) */
static __always_inline int read_cupy_alloc(struct block_call *call, const __u64 *args)
{
	__u64 chunk = args[1], memory, offset, start, device;

	if (!read_word(&memory, chunk + CUPY_CHUNK_MEMORY) ||
	    !read_word(&offset, chunk + CUPY_CHUNK_OFFSET) ||
	    !read_word(&call->bytes, chunk + CUPY_CHUNK_SIZE) ||
	    !read_word(&start, memory + CUPY_MEMORY_PTR) ||
	    !read_word(&device, memory + CUPY_MEMORY_DEVICE))
		return BLOCK_UNREADABLE;
	call->address = start + offset;
	call->device = (__s32)device;
	call->pool = args[2];
	return BLOCK_READ;
}

/* PooledMemory.free(self): without effect if there is no block. */
static __always_inline int read_cupy_free(struct block_call *call, const __u64 *args)
{
	__u64 memory = args[0], bytes, device;

	if (!read_word(&call->address, memory + CUPY_MEMORY_PTR) ||
	    !read_word(&bytes, memory + CUPY_MEMORY_SIZE) ||
	    !read_word(&device, memory + CUPY_MEMORY_DEVICE) ||
	    !read_word(&call->pool, memory + CUPY_MEMORY_POOL))
		return BLOCK_UNREADABLE;
	call->bytes = -bytes;
	call->device = (__s32)device;
	return call->address ? BLOCK_READ : BLOCK_IGNORED;
}

/* pool_memory_resource_impl::allocate_from_block(this, const block &from, size) and
 * free_block(this, address, size), each with the address of its result in front, unless the
 * processor has a register for that. A block begins with its address. */
static __always_inline int read_rmm(struct block_call *call, const __u64 *args, bool alloc)
{
	__u64 size = args[RESULT_ARGUMENTS + 2];

	call->pool = args[RESULT_ARGUMENTS];
	call->address = args[RESULT_ARGUMENTS + 1];
	call->bytes = alloc ? size : -size;
	call->device = -1;
	if (alloc && !read_word(&call->address, call->address))
		return BLOCK_UNREADABLE;
	return BLOCK_READ;
}

/* BFCAllocator::AddTraceMe(this, name, address, requested bytes, bytes); the name is two words,
 * length and address. */
static __always_inline int read_xla(struct block_call *call, const __u64 *args)
{
	if (args[1] != XLA_ALLOCATION && args[1] != XLA_DEALLOCATION)
		return BLOCK_IGNORED;
	call->pool = args[0];
	call->address = args[3];
	call->bytes = args[1] == XLA_ALLOCATION ? args[5] : -args[5];
	call->device = -1;
	return BLOCK_READ;
}

static __always_inline int read_block(struct pt_regs *ctx, __u64 call_kind, struct block_call *call)
{
	__u64 args[6] = {PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx), PT_REGS_PARM3(ctx),
			 PT_REGS_PARM4(ctx), PT_REGS_PARM5(ctx), PT_REGS_PARM6(ctx)};

	/* Keep the context accesses at constant offsets, as the verifier requires: read all
	 * arguments first, then select. */
	for (int i = 0; i < 6; i++)
		barrier_var(args[i]);
	switch (call_kind) {
	case VS_BLOCK_CUPY_ALLOC:
		return read_cupy_alloc(call, args);
	case VS_BLOCK_CUPY_FREE:
		return read_cupy_free(call, args);
	case VS_BLOCK_XLA:
		return read_xla(call, args);
	case VS_BLOCK_RMM_ALLOC:
	case VS_BLOCK_RMM_FREE:
		return read_rmm(call, args, call_kind == VS_BLOCK_RMM_ALLOC);
	default:
		return read_torch(call, args, call_kind == VS_BLOCK_TORCH_OOM);
	}
}

/* Draws from an exponential distribution of mean 1, in 1/65536: -ln(x) for a random x up to 1. The
 * binary logarithm of x is exact to 16 bits, which are found by squaring. */
__noinline int draw_exponential(void)
{
	__u64 x = bpf_get_prandom_u32() | 1, bits = 31;

	for (__u32 step = 16; step; step /= 2) {
		__u64 is_low = !(x >> (32 - step));

		x <<= is_low * step;
		bits -= is_low * step;
	}
	for (int i = 0; i < 16; i++) {
		__u64 bit;

		x = x * x >> 31;
		bit = x >> 32;
		x >>= bit;
		bits = bits << 1 | bit;
	}
	/* ln(2) in 1/65536 */
	return ((32 << 16) - bits) * 45426 >> 16;
}

static __always_inline void draw_next(struct block_sampling *sampling)
{
	sampling->left = ((__s64)draw_exponential() << (sampling->power & 63)) >> 16;
}

/* Doubles the interval if the thread has captured too many stacks in a period, and halves it for
 * each period with few. */
static __always_inline void adapt_interval(struct block_sampling *sampling, __u64 now)
{
	__u64 periods = (now - sampling->since) >> VS_SAMPLE_PERIOD;
	__u32 power = sampling->power;

	if (!periods) {
		if (sampling->stacks < VS_SAMPLE_STACKS)
			return;
		if (power < VS_SAMPLE_LAST_INTERVAL)
			power = power ? power + 1 : VS_SAMPLE_FIRST_INTERVAL;
	} else if (sampling->stacks < periods * (VS_SAMPLE_STACKS / 4)) {
		power = power >= VS_SAMPLE_FIRST_INTERVAL + periods ? power - periods : 0;
	}
	sampling->since = now;
	sampling->stacks = 0;
	sampling->power = power;
	if (power)
		draw_next(sampling);
}

/* Returns whether the stack of a block is captured: a Poisson process over the bytes of the thread.
 */
static __always_inline bool is_sampled(struct block_sampling *sampling, __u64 bytes)
{
	if (sampling->power) {
		/* More is sampled anyway. */
		if (bytes > 1ULL << 40)
			bytes = 1ULL << 40;
		sampling->left -= bytes + (1ULL << (sampling->power & 63)) / VS_SAMPLE_MIN_SHARE;
		if (sampling->left > 0)
			return 0;
		draw_next(sampling);
	}
	sampling->stacks++;
	return 1;
}

/* Captures the stack of an allocating call, if blocks have stacks and it is sampled. Returns the
 * binary logarithm of the sampling interval. */
static __always_inline __u8 capture_block_stack(struct pt_regs *ctx, struct thread_state *thread,
						const struct block_call *call, bool oom, __u64 now)
{
	__u8 interval = 0;

	if (load_config.blocks < VS_BLOCKS_SAMPLED || !load_config.stacks ||
	    !effective_stack_mode() || (!oom && (__s64)call->bytes <= 0))
		return 0;
	if (load_config.blocks == VS_BLOCKS_SAMPLED && !oom) {
		adapt_interval(&thread->sampling, now);
		interval = thread->sampling.power;
		if (!is_sampled(&thread->sampling, call->bytes)) {
			thread->ref.flags = VS_SKIPPED;
			return interval;
		}
	}
	/* At the entry of a function the registers are still those of the caller. */
	capture_stack(return_address(ctx), PT_REGS_SP(ctx) + CALL_BYTES, PT_REGS_FP(ctx));
	return interval;
}

static __noinline int block_enter(struct pt_regs *ctx, __u64 call_kind)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	bool oom = call_kind == VS_BLOCK_TORCH_OOM;
	struct thread_state *thread;
	struct vs_block *record;
	struct block_call call = {};
	__u8 interval;
	__u64 now;
	int result;

	if (!is_target(pid))
		return 0;
	result = read_block(ctx, call_kind, &call);
	if (result == BLOCK_IGNORED)
		return 0;
	if (result == BLOCK_UNREADABLE)
		return count_lost_block();
	thread = thread_create();
	if (!thread ||
	    bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) > load_config.block_ring_limit)
		return count_lost_block();
	if (!thread->ready)
		thread_setup(thread);
	announce_once(thread, pid);
	thread->ref = (struct stack_ref){};
	now = bpf_ktime_get_ns();
	interval = capture_block_stack(ctx, thread, &call, oom, now);
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		return count_lost_block();
	fill_head_at(&record->head, VS_BLOCK, now);
	record->head.hook = call_kind;
	record->address = call.address;
	record->bytes = call.bytes;
	record->allocated = call.allocated;
	record->reserved = call.reserved;
	record->stack = thread->ref.stack;
	record->python = thread->ref.python;
	record->pool = call.pool;
	record->device = call.device;
	record->flags = thread->ref.flags;
	record->interval = interval;
	record->unused = 0;
	submit(record);
	return 0;
}

#endif
