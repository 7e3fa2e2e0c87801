/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Copies and memsets, counted by process, direction and mode. */
#ifndef VS_COPY_H
#define VS_COPY_H

/* CUmemorytype in copy descriptors. */
#define MEMORY_HOST    1
#define MEMORY_DEVICE  2
#define MEMORY_ARRAY   3
#define MEMORY_UNIFIED 4

/* Copies of a batch that are read; further ones count as lost. */
#define BATCH 64

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_copy_key);
	__type(value, struct vs_copies);
} copies SEC(".maps");

static const struct vs_copies no_copies = {};

struct copy {
	__u64 bytes;
	__u64 nanos;
	__u64 to;
	__u64 from;
	__u32 direction;
	__u32 asynchronous;
};

__noinline int count_lost_copies(__u32 pid, __u64 count)
{
	struct vs_lost *lost = lost_of(pid);

	if (lost)
		__sync_fetch_and_add(&lost->copies, count);
	COUNT(lost);
	return 0;
}

/* Bandwidth class, quarters of a log2 as in bandwidth_of() of the engine; 0 below 1 KiB/s. */
__noinline __u32 bandwidth_class(__u64 bytes, __u64 nanos)
{
	__u64 rate, top;
	__u32 octave = 0;

	if (!nanos)
		nanos = 1;
	/* Bytes per second; large copies in units of 64 KiB, as the product would overflow. */
	rate = bytes < 1ULL << 34 ? bytes * 1000000000ULL / nanos
				  : ((bytes >> 16) * 1000000000ULL / nanos) << 16;
	if (rate < 1024)
		return 0;
	top = rate;
	if (top >> 32) {
		octave += 32;
		top >>= 32;
	}
	if (top >> 16) {
		octave += 16;
		top >>= 16;
	}
	if (top >> 8) {
		octave += 8;
		top >>= 8;
	}
	if (top >> 4) {
		octave += 4;
		top >>= 4;
	}
	if (top >> 2) {
		octave += 2;
		top >>= 2;
	}
	if (top >> 1)
		octave += 1;
	octave = 1 + (octave - 10) * 4 + ((rate >> (octave - 2)) & 3);
	return octave < VS_BANDWIDTHS ? octave : VS_BANDWIDTHS - 1;
}

static __noinline int copy_add(const struct copy *copy)
{
	struct vs_copy_key key = {};
	struct vs_copies *sum;
	__u32 class;

	if (!copy)
		return 0;
	key.pid = bpf_get_current_pid_tgid() >> 32;
	key.direction = copy->direction;
	key.asynchronous = copy->asynchronous;
	key.exec_gen = own_exec_gen();
	key.start = own_start();
	if (copy->direction == VS_UNIFIED) {
		key.to = (copy->to >> VS_REGION_LOG2) + 1;
		key.from = (copy->from >> VS_REGION_LOG2) + 1;
	}
	sum = bpf_map_lookup_elem(&copies, &key);
	if (!sum) {
		bpf_map_update_elem(&copies, &key, &no_copies, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&copies, &key);
	}
	if (!sum) {
		count_lost_copies(key.pid, 1);
		return 0;
	}
	sum->to = copy->to;
	sum->from = copy->from;
	__sync_fetch_and_add(&sum->bytes, copy->bytes);
	if (!copy->asynchronous) {
		__sync_fetch_and_add(&sum->nanos, copy->nanos);
		class = bandwidth_class(copy->bytes, copy->nanos);
		__sync_fetch_and_add(&sum->bandwidths[class & (VS_BANDWIDTHS - 1)], 1);
	}
	__sync_fetch_and_add(&sum->calls, 1);
	return 0;
}

/* Direction of a copy between two memory types. */
static __always_inline __u32 direction_between(__u32 from, __u32 to)
{
	if (from == MEMORY_ARRAY || to == MEMORY_ARRAY)
		return VS_ARRAY;
	if (from == MEMORY_UNIFIED || to == MEMORY_UNIFIED)
		return VS_UNIFIED;
	if (from == MEMORY_HOST)
		return to == MEMORY_HOST ? VS_H2H : VS_H2D;
	return to == MEMORY_HOST ? VS_D2H : VS_D2D;
}

/* Pointer of one side of a descriptor, which has the memory type, then a host pointer, a device
 * pointer and an array. Unified memory uses the device pointer. */
static __always_inline __u64 side_pointer(__u64 side, __u32 type, bool *failed)
{
	return read_user_checked(side + (type == MEMORY_HOST ? 8 : 16), failed);
}

/* Reads CUDA_MEMCPY2D or CUDA_MEMCPY3D (`deep`). Returns whether it could be read. */
static __always_inline bool copy_described(struct copy *copy, __u64 pointer, bool deep,
					   bool keep_direction)
{
	bool failed = 0;
	__u64 source = pointer + (deep ? 32 : 16), target = pointer + (deep ? 120 : 72);
	__u64 extent = pointer + (deep ? 176 : 112);
	__u32 from = read_user_checked(source, &failed), to = read_user_checked(target, &failed);

	copy->bytes = read_user_checked(extent, &failed) * read_user_checked(extent + 8, &failed);
	if (deep)
		copy->bytes *= read_user_checked(extent + 16, &failed);
	copy->from = side_pointer(source, from, &failed);
	copy->to = side_pointer(target, to, &failed);
	if (!keep_direction)
		copy->direction = direction_between(from, to);
	return !failed;
}

/* Counts each copy of a batch. */
static __noinline int copy_batch(const struct inflight_call *call)
{
	struct copy part = {.direction = VS_UNIFIED, .asynchronous = 1};
	__u64 count;

	if (!call)
		return 0;
	count = call->args[3];
	for (__u32 i = 0; i < BATCH; i++) {
		bool failed = 0;

		if (i >= count)
			return 0;
		part.to = read_user_checked(call->args[0] + i * 8, &failed);
		part.from = read_user_checked(call->args[1] + i * 8, &failed);
		part.bytes = read_user_checked(call->args[2] + i * 8, &failed);
		if (failed)
			count_lost_copies(bpf_get_current_pid_tgid() >> 32, 1);
		else
			copy_add(&part);
	}
	if (count > BATCH)
		count_lost_copies(bpf_get_current_pid_tgid() >> 32, count - BATCH);
	return 0;
}

/* Type of an operand of a CUDA_MEMCPY3D_BATCH_OP. */
#define OPERAND_POINTER 1

/* Counts a copy of a batch of volumes: two operands of 40 bytes with type and pointer, and the
 * extent. The extent of arrays is in elements, whose size is not in the call. */
__noinline int copy_volume(__u64 op)
{
	struct copy part = {.direction = VS_UNIFIED, .asynchronous = 1};
	bool failed = 0;
	__u32 from, to;

	/* Kernels before 6.8 also verify global functions that are not called: no map exists. */
	if (!load_config.count_activity)
		return 0;
	from = read_user_checked(op, &failed);
	to = read_user_checked(op + 40, &failed);
	part.from = read_user_checked(op + 8, &failed);
	part.to = read_user_checked(op + 48, &failed);
	part.bytes = read_user_checked(op + 80, &failed) * read_user_checked(op + 88, &failed) *
		     read_user_checked(op + 96, &failed);
	if (failed || from != OPERAND_POINTER || to != OPERAND_POINTER)
		count_lost_copies(bpf_get_current_pid_tgid() >> 32, 1);
	else
		copy_add(&part);
	return 0;
}

/* Counts each copy of a batch of volumes. */
static __always_inline void copy_volumes(__u64 list, __u64 count)
{
	for (__u32 i = 0; i < BATCH; i++) {
		if (i >= count)
			return;
		copy_volume(list + i * 112);
	}
	if (count > BATCH)
		count_lost_copies(bpf_get_current_pid_tgid() >> 32, count - BATCH);
}

/* Counts the copy of the call that returned last. */
__noinline int copy_return(__u64 hook)
{
	struct thread_state *thread = thread_find();
	const struct inflight_call *call;
	struct copy copy = {};
	__u8 measure, factor;

	/* Kernels before 6.8 also verify global functions that are not called: no map exists. */
	if (!load_config.count_activity || !thread)
		return 0;
	call = &thread->calls[thread->inflight & (VS_INFLIGHT - 1)];
	hook &= VS_MAX_HOOKS - 1;
	measure = hooks[hook].measure;
	factor = hooks[hook].size_factor;

	/* Captured into a graph: nothing is copied yet. */
	if (hooks[hook].asynchronous) {
		__u32 pid = bpf_get_current_pid_tgid() >> 32;
		__u32 captured = captured_as(pid, argument(call, hooks[hook].stream_argument));

		if (captured == MAYBE_CAPTURED)
			count_lost_copies(pid, 1);
		if (captured)
			return 0;
	}
	if (measure == VS_MEASURE_BATCH) {
		copy_batch(call);
		return 0;
	}
	if (measure == VS_MEASURE_VOLUMES) {
		copy_volumes(call->args[1], call->args[0]);
		return 0;
	}
	copy.nanos = bpf_ktime_get_ns() - call->entered;
	copy.direction = hooks[hook].direction;
	copy.asynchronous = hooks[hook].asynchronous;
	if (measure == VS_MEASURE_ARGUMENT) {
		copy.bytes = argument(call, hooks[hook].size_argument) * hooks[hook].element;
		if (factor != VS_NONE)
			copy.bytes *= argument(call, factor);
		copy.to = call->args[0];
		copy.from = call->args[1];
	} else if (!copy_described(&copy, call->args[0], measure == VS_MEASURE_3D,
				   copy.direction == VS_PEER)) {
		count_lost_copies(bpf_get_current_pid_tgid() >> 32, 1);
		return 0;
	}
	copy_add(&copy);
	return 0;
}

#endif
