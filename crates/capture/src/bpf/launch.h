/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Launches, counted per kernel. They are the most frequent calls, so no record is sent and usually
 * the return side is skipped: the result is checked only while a kernel is new, when its shape
 * changes, and once in VS_CHECK_EVERY launches.
 */
#ifndef VS_LAUNCH_H
#define VS_LAUNCH_H

/* Consecutive successful launches after which a kernel is trusted, per CPU. */
#define VS_TRUSTED_AFTER 16
/* A trusted kernel is checked once in this many launches, per CPU; a power of two. */
#define VS_CHECK_EVERY 64
/* Flag in the session cookie, next to the handle: the launch is captured unless it fails. Handles
 * are user-space addresses, so the bit is free. */
#define VS_CAPTURED (1ULL << 63)

static const struct vs_launches no_launches = {};

/* Creates the counters of a kernel or graph at its first launch. */
static __noinline int launches_create(struct vs_launch_key *key)
{
	__u32 pid;

	if (!key)
		return 0;
	pid = key->pid;
	if (!bpf_map_lookup_elem(&processes, &pid))
		announce_process(0);
	if (!bpf_map_update_elem(&launches, key, &no_launches, BPF_NOEXIST) && !key->graph)
		read_kernel_name(key->target);
	return 0;
}

static __always_inline struct vs_launches *launches_of(struct vs_launch_key *key)
{
	struct vs_launches *sum = bpf_map_lookup_elem(&launches, key);

	if (sum)
		return sum;
	launches_create(key);
	sum = bpf_map_lookup_elem(&launches, key);
	if (!sum)
		count_lost(key->pid, VS_CLASS_LAUNCH, 0, 0);
	return sum;
}

static __always_inline bool same_shape(const struct vs_shape *a, const struct vs_shape *b)
{
	const __u64 *x = (const void *)a, *y = (const void *)b;

	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && a->shared_bytes == b->shared_bytes;
}

/* Counts a shape that is not the last one. If it is new it replaces the rarest shape, whose count
 * moves to `other`. Returns whether the shape is new. */
static __noinline int shape_find(struct vs_launches *sum, const struct vs_shape *shape)
{
	__u32 rarest = 0, least = ~0U;

	if (!sum || !shape)
		return 0;
	for (__u32 i = 0; i < VS_SHAPES; i++) {
		struct vs_shape *known = &sum->shapes[i];

		if (known->count && same_shape(known, shape)) {
			known->count++;
			sum->last = i;
			return 0;
		}
		if (known->count < least) {
			least = known->count;
			rarest = i;
		}
	}
	sum->other += least;
	rarest &= VS_SHAPES - 1;
	sum->shapes[rarest] = *shape;
	sum->shapes[rarest].count = 1;
	sum->last = rarest;
	return 1;
}

/* Counts a shape; returns whether it is new. The shapes have one writer at a time: if a thread runs
 * on this CPU while the writer is preempted, it counts its launch as `other` instead of waiting. */
static __always_inline int shape_count(struct vs_launches *sum, const struct vs_shape *shape)
{
	struct vs_shape *last;
	int is_new = 0;

	if (__sync_val_compare_and_swap(&sum->busy, 0, 1)) {
		__sync_fetch_and_add(&sum->other, 1);
		return 0;
	}
	last = &sum->shapes[sum->last & (VS_SHAPES - 1)];
	if (last->count && same_shape(last, shape))
		last->count++;
	else
		is_new = shape_find(sum, shape);
	__sync_val_compare_and_swap(&sum->busy, 1, 0);
	return is_new;
}

/* A launch of a list: one device of cuLaunchCooperativeKernelMultiDevice. */
struct listed_launch {
	__u64 function;
	__u32 grid[3];
	__u32 block[3];
	__u32 shared_bytes;
	__u32 padding;
	__u64 stream;
	__u64 parameters;
};

/* Maximum number of devices of a list; further launches count as lost. */
#define LISTED_LAUNCHES 64

/* Counts a launch of a list. */
__noinline int launch_listed(__u64 address)
{
	struct vs_launch_key key = {};
	struct listed_launch launch = {};
	struct vs_shape shape = {};
	struct vs_launches *sum;
	__u32 captured;

	/* Kernels before 6.8 also verify global functions that are not called: no map exists. */
	if (!load_config.count_activity)
		return 0;
	key.pid = bpf_get_current_pid_tgid() >> 32;
	if (bpf_probe_read_user(&launch, sizeof(launch), (void *)address)) {
		count_lost(key.pid, VS_CLASS_LAUNCH, 0, 0);
		return 0;
	}
	key.exec_gen = own_exec_gen();
	key.start = own_start();
	key.target = launch.function;
	sum = launches_of(&key);
	if (!sum)
		return 0;
	__sync_fetch_and_add(&sum->calls, 1);
	captured = captured_as(key.pid, launch.stream);
	if (captured == MAYBE_CAPTURED)
		count_lost(key.pid, VS_CLASS_LAUNCH, 0, 0);
	if (captured)
		__sync_fetch_and_add(&sum->captured, 1);
	sum->last_at = bpf_jiffies64();
	__builtin_memcpy(&shape, launch.grid, 28);
	shape_count(sum, &shape);
	return 0;
}

static __always_inline void launch_list(__u64 list, __u32 count)
{
	for (__u32 i = 0; i < LISTED_LAUNCHES; i++) {
		if (i >= count)
			return;
		launch_listed(list + i * sizeof(struct listed_launch));
	}
	count_lost(bpf_get_current_pid_tgid() >> 32, VS_CLASS_LAUNCH, 0, 0);
}

/* Returns 1 if the return side has nothing to do. */
static __always_inline int launch_enter(struct pt_regs *ctx, __u64 hook, __u64 *cookie)
{
	struct vs_launch_key key = {};
	struct vs_shape shape = {};
	struct vs_launches *sum;
	bool has_shape = 1;
	__u64 stream = 0;
	long unreadable;
	int is_new = 1;

	if (hook >= VS_MAX_HOOKS) {
		COUNT(self_test);
		return 0;
	}
	key.pid = bpf_get_current_pid_tgid() >> 32;
	if (!is_target(key.pid))
		return 1;
	key.exec_gen = own_exec_gen();
	key.start = own_start();
	if (hooks[hook].action == VS_ACTION_LAUNCH) {
		/* after the function: grid, block, shared bytes, stream */
		__u64 more[3] = {};

		key.target = PT_REGS_PARM1(ctx);
		shape.grid[0] = PT_REGS_PARM2(ctx);
		shape.grid[1] = PT_REGS_PARM3(ctx);
		shape.grid[2] = PT_REGS_PARM4(ctx);
		shape.block[0] = PT_REGS_PARM5(ctx);
		shape.block[1] = PT_REGS_PARM6(ctx);
		unreadable = late_arguments(ctx, more);
		shape.block[2] = more[0];
		shape.shared_bytes = more[1];
		stream = more[2];
	} else if (hooks[hook].action == VS_ACTION_LAUNCH_UNSHAPED) {
		key.target = PT_REGS_PARM1(ctx);
		if (hooks[hook].stream_argument == 3)
			stream = PT_REGS_PARM4(ctx);
		has_shape = 0;
		unreadable = 0;
	} else if (hooks[hook].action == VS_ACTION_LAUNCH_LIST) {
		launch_list(PT_REGS_PARM1(ctx), PT_REGS_PARM2(ctx));
		return 1;
	} else {
		/* CUlaunchConfig: grid, block, shared, padding, stream */
		__u64 config[5] = {};

		key.target = PT_REGS_PARM2(ctx);
		unreadable =
			bpf_probe_read_user(config, sizeof(config), (void *)PT_REGS_PARM1(ctx));
		__builtin_memcpy(&shape, config, 24);
		shape.shared_bytes = config[3];
		stream = config[4];
	}
	if (unreadable && capturing_state(key.pid)) {
		/* Without its stream, it is unknown whether it is launched or becomes a node. */
		count_lost(key.pid, VS_CLASS_LAUNCH, 0, 0);
		return 1;
	}
	sum = launches_of(&key);
	if (!sum)
		return 1;
	__u64 before = __sync_fetch_and_add(&sum->calls, 1);
	__u32 captured = unreadable ? NOT_CAPTURED : captured_as(key.pid, stream);
	if (captured == MAYBE_CAPTURED)
		count_lost(key.pid, VS_CLASS_LAUNCH, 0, 0);
	sum->last_at = bpf_jiffies64();
	if (unreadable || !has_shape)
		__sync_fetch_and_add(&sum->other, 1);
	else
		is_new = shape_count(sum, &shape);
	if (!load_config.can_skip_returns ||
	    (!load_config.check_every_launch && !is_new && sum->ok_streak >= VS_TRUSTED_AFTER &&
	     before & (VS_CHECK_EVERY - 1))) {
		if (captured)
			__sync_fetch_and_add(&sum->captured, 1);
		return 1;
	}
	*cookie = key.target | (captured ? VS_CAPTURED : 0);
	return 0;
}

static __always_inline void launch_return(struct pt_regs *ctx, __u64 hook, __u64 target)
{
	struct vs_launch_key key = {};
	int result = (int)PT_REGS_RC(ctx);
	struct vs_launches *sum;
	struct vs_call *record;

	if (hook >= VS_MAX_HOOKS) {
		COUNT(self_test);
		return;
	}
	bool captured = target & VS_CAPTURED;
	target &= ~VS_CAPTURED;
	key.pid = bpf_get_current_pid_tgid() >> 32;
	key.target = target;
	key.exec_gen = own_exec_gen();
	key.start = own_start();
	sum = launches_of(&key);
	if (!sum)
		return;
	__sync_fetch_and_add(&sum->checked, 1);
	if (!result) {
		sum->ok_streak++;
		if (captured)
			__sync_fetch_and_add(&sum->captured, 1);
		return;
	}
	sum->ok_streak = 0;
	__sync_fetch_and_add(&sum->failed, 1);
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		count_lost(key.pid, VS_CLASS_OTHER, 0, result);
		return;
	}
	__builtin_memset(record, 0, sizeof(*record));
	fill_head(&record->head, VS_CALL);
	record->head.hook = hook;
	record->head.result = result;
	record->entered = record->head.at;
	record->args[0] = target;
	submit(record);
}

/* Counts the launch of a graph, whose result is known. */
static __always_inline void graph_launch_count(__u32 pid, __u64 exec, int result)
{
	struct vs_launch_key key = {
		.target = exec,
		.pid = pid,
		.graph = 1,
		.exec_gen = own_exec_gen(),
		.start = own_start(),
	};
	struct vs_launches *sum = launches_of(&key);

	if (!sum)
		return;
	__sync_fetch_and_add(&sum->calls, 1);
	__sync_fetch_and_add(&sum->checked, 1);
	if (result)
		__sync_fetch_and_add(&sum->failed, 1);
}

#endif
