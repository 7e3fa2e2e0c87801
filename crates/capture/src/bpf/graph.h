/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Processes that have graphs with memory nodes, and capturing streams. Graph launches are frequent,
 * and only those of such processes affect memory. */
#ifndef VS_GRAPH_H
#define VS_GRAPH_H

/* Highest handle of a default stream. Those that can capture are per thread. */
#define LAST_DEFAULT_STREAM 2
/* Used instead of a stream in a key: all captures that a thread began. */
#define ANY_STREAM (~0ULL)

static __always_inline struct vs_graph_state *graph_state_create(__u32 pid)
{
	struct vs_graph_state new = {.id = bpf_ktime_get_ns()};
	struct vs_graph_state *state;

	bpf_map_update_elem(&graph_states, &pid, &new, BPF_NOEXIST);
	state = bpf_map_lookup_elem(&graph_states, &pid);
	if (!state)
		count_lost(pid, VS_CLASS_OTHER, 0, 0); /* its graph launches will be missed */
	return state;
}

static __always_inline bool needs_graph_record(__u32 pid)
{
	struct vs_graph_state *state = bpf_map_lookup_elem(&graph_states, &pid);

	return state && state->memory;
}

/* Returns whether cuStreamEndCapture has ended the capture. The driver ends it both when it returns
 * the graph and when it returns a capture error; but CUDA_ERROR_STREAM_CAPTURE_UNMATCHED (903)
 * means that no capture began on the stream. The record has a flag for user space. */
static __always_inline bool capture_ended(int result)
{
	return !result || (result >= 900 && result <= 908 && result != 903);
}

static __always_inline void captures_add(struct vs_graph_state *state, __s32 count)
{
	struct shared_state *all = shared_state();

	__sync_fetch_and_add(&state->captures, count);
	if (all)
		__sync_fetch_and_add(&all->captures, (__s64)count);
}

static __always_inline struct capture *capture_find(const struct vs_capture_key *key)
{
	return bpf_map_lookup_elem(&capturing_streams, key);
}

static __always_inline void fill_key(struct vs_capture_key *key, const struct vs_graph_state *state,
				     __u64 stream)
{
	__u64 id = bpf_get_current_pid_tgid();

	key->stream = stream;
	key->pid = id >> 32;
	key->thread = stream <= LAST_DEFAULT_STREAM || stream == ANY_STREAM ? (__u32)id : 0;
	key->owner = state->id;
}

static __noinline int capture_begin(__u32 pid, __u64 stream)
{
	struct vs_graph_state *state = graph_state_create(pid);
	struct capture new = {.thread = (__u32)bpf_get_current_pid_tgid(), .count = 1};
	struct vs_capture_key key;
	struct capture *known;

	if (!state)
		return 0;
	fill_key(&key, state, stream);
	if (capture_find(&key))
		return 0;
	if (bpf_map_update_elem(&capturing_streams, &key, &new, BPF_ANY))
		goto full;
	captures_add(state, 1);
	fill_key(&key, state, ANY_STREAM);
	known = capture_find(&key);
	if (known)
		__sync_fetch_and_add(&known->count, 1);
	else if (bpf_map_update_elem(&capturing_streams, &key, &new, BPF_ANY))
		goto full;
	return 0;
full:
	/* Launches on the stream count as launched, not captured. Its nodes must not be missed. */
	state->memory = 1;
	if (load_config.count_activity)
		count_lost(pid, VS_CLASS_LAUNCH, 0, 0);
	return 0;
}

/* The capture on a stream has ended, by a call of any thread. */
static __noinline int capture_end(__u32 pid, __u64 stream)
{
	struct vs_graph_state *state = bpf_map_lookup_elem(&graph_states, &pid);
	struct vs_capture_key key;
	struct capture *known;

	if (!state || !state->captures)
		return 0;
	fill_key(&key, state, stream);
	known = capture_find(&key);
	if (!known)
		return 0;
	__u32 thread = known->thread;
	bpf_map_delete_elem(&capturing_streams, &key);
	captures_add(state, -1);
	key.stream = ANY_STREAM;
	key.thread = thread;
	known = capture_find(&key);
	if (known && known->count > 1)
		__sync_fetch_and_add(&known->count, -1);
	else if (known)
		bpf_map_delete_elem(&capturing_streams, &key);
	return 0;
}

/* A context ended, and with it its streams and their captures. Which streams these are is not known
 * here, so all captures of the process are dropped. Launches that other streams capture count as
 * launched. */
static __noinline int captures_drop(__u32 pid)
{
	struct vs_graph_state *state = bpf_map_lookup_elem(&graph_states, &pid);

	if (!state || !state->captures)
		return 0;
	captures_add(state, -(__s32)state->captures);
	state->id = bpf_ktime_get_ns();
	state->memory = 1;
	COUNT(graphs);
	if (load_config.count_activity)
		count_lost(pid, VS_CLASS_LAUNCH, 0, 0);
	return 0;
}

/* `stream` is the first argument of the call. */
__noinline int graph_apply(__u32 pid, __u64 stream, __u64 hook, int result)
{
	struct vs_graph_state *state;
	__u8 action, flags;

	hook &= VS_MAX_HOOKS - 1;
	action = hooks[hook].action;
	flags = hooks[hook].flags;
	if (action == VS_ACTION_CAPTURE_END) {
		if (capture_ended(result))
			capture_end(pid, stream);
	} else if (result) {
		return 0;
	} else if (action == VS_ACTION_CAPTURE_BEGIN) {
		capture_begin(pid, stream);
	} else if (action == VS_ACTION_STREAM_DESTROY) {
		capture_end(pid, stream);
	} else if (flags & VS_ENDS_CONTEXT) {
		captures_drop(pid);
	} else if (action == VS_ACTION_GRAPH_NODE) {
		state = graph_state_create(pid);
		if (state)
			state->memory = 1;
	} else if (flags & VS_STREAM_ORDERED) {
		state = bpf_map_lookup_elem(&graph_states, &pid);
		if (state && state->captures)
			state->memory = 1;
	}
	return 0;
}

/* A thread exits. Captures on its default streams end with it; others continue. */
static __always_inline void capture_thread_exit(__u32 pid)
{
	struct shared_state *all = shared_state();
	struct vs_graph_state *state;
	struct vs_capture_key key;

	if (!all || !all->captures)
		return;
	state = bpf_map_lookup_elem(&graph_states, &pid);
	if (!state)
		return;
	for (__u64 stream = 0; stream <= LAST_DEFAULT_STREAM; stream++)
		capture_end(pid, stream);
	fill_key(&key, state, ANY_STREAM);
	bpf_map_delete_elem(&capturing_streams, &key);
}

/* Deletes the state of a process that exits or execs; its captures end. */
static __always_inline void graph_state_delete(__u32 pid)
{
	struct vs_graph_state *state = bpf_map_lookup_elem(&graph_states, &pid);

	if (!state)
		return;
	captures_add(state, -(__s32)state->captures);
	bpf_map_delete_elem(&graph_states, &pid);
	COUNT(graphs);
}

/* The graphs of a process that captures; NULL if it does not. */
static __always_inline struct vs_graph_state *capturing_state(__u32 pid)
{
	struct shared_state *all = shared_state();
	struct vs_graph_state *state;

	if (!all || !all->captures)
		return NULL;
	state = bpf_map_lookup_elem(&graph_states, &pid);
	return state && state->captures ? state : NULL;
}

#define NOT_CAPTURED 0
#define CAPTURED     1
/* The calling thread captures another stream, which this one may have joined: streams join by
 * waiting for an event, and those calls are too frequent to trace. */
#define MAYBE_CAPTURED 2

/* Returns whether a call on a stream becomes a graph node. */
static __always_inline __u32 captured_as(__u32 pid, __u64 stream)
{
	struct vs_graph_state *state = capturing_state(pid);
	struct vs_capture_key key;

	if (!state)
		return NOT_CAPTURED;
	fill_key(&key, state, stream);
	if (capture_find(&key))
		return CAPTURED;
	fill_key(&key, state, ANY_STREAM);
	return capture_find(&key) ? MAYBE_CAPTURED : NOT_CAPTURED;
}

#endif
