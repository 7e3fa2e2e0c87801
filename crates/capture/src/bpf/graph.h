/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Which processes have graphs with memory nodes: launches are frequent, and only theirs matter. */
#ifndef VS_GRAPH_H
#define VS_GRAPH_H

static __always_inline struct graph_state *graph_state_create(__u32 pid)
{
	struct graph_state none = {};

	struct graph_state *state;

	bpf_map_update_elem(&graph_states, &pid, &none, BPF_NOEXIST);
	state = bpf_map_lookup_elem(&graph_states, &pid);
	if (!state)
		count_lost(pid, VS_CLASS_OTHER, 0, 0); /* launches will go unseen */
	return state;
}

static __always_inline bool graph_launch_matters(__u32 pid)
{
	struct graph_state *state = bpf_map_lookup_elem(&graph_states, &pid);

	return state && state->memory;
}

/* Results of an end of a capture by which it has ended: none, or one that is about captures, but
 * for CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD (908). */
static __always_inline bool capture_ended(int result)
{
	return !result || (result >= 900 && result < 908);
}

static __always_inline void graph_apply(__u32 pid, __u8 action, __u8 flags, int result)
{
	struct graph_state *state;

	if (action == VS_ACTION_CAPTURE_BEGIN) {
		if (result)
			return;
		state = graph_state_create(pid);
		if (state)
			__sync_fetch_and_add(&state->captures, 1);
	} else if (action == VS_ACTION_CAPTURE_END) {
		if (!capture_ended(result))
			return;
		state = bpf_map_lookup_elem(&graph_states, &pid);
		if (state && state->captures)
			__sync_fetch_and_add(&state->captures, -1);
	} else if (action == VS_ACTION_GRAPH_NODE) {
		state = graph_state_create(pid);
		if (state)
			state->memory = 1;
	} else if (flags & VS_STREAM_ORDERED) {
		state = bpf_map_lookup_elem(&graph_states, &pid);
		if (state && state->captures)
			state->memory = 1;
	}
}

/* The process ends, and its captures with it. */
static __always_inline void graph_forget(__u32 pid)
{
	struct graph_state *state = bpf_map_lookup_elem(&graph_states, &pid);
	__u32 zero = 0;
	__u64 *under_way = bpf_map_lookup_elem(&captures_under_way, &zero);

	if (state && under_way && *under_way >= state->streams)
		__sync_fetch_and_add(under_way, -(__s64)state->streams);
	bpf_map_delete_elem(&graph_states, &pid);
}

static __always_inline void capture_apply(struct thread_state *thread, __u8 action, __u64 stream,
					  int result)
{
	__u32 zero = 0;
	__u64 *under_way = bpf_map_lookup_elem(&captures_under_way, &zero);
	struct stream_key key = {.stream = stream, .pid = bpf_get_current_pid_tgid() >> 32};
	struct graph_state *state;
	__u8 yes = 1;

	if (!count_work || !under_way)
		return;
	state = bpf_map_lookup_elem(&graph_states, &key.pid);
	if (!state)
		return;
	if (action == VS_ACTION_CAPTURE_BEGIN && !result) {
		bpf_map_update_elem(&capturing_streams, &key, &yes, BPF_ANY);
		thread->captures++;
		__sync_fetch_and_add(&state->streams, 1);
		__sync_fetch_and_add(under_way, 1);
	} else if (action == VS_ACTION_CAPTURE_END && capture_ended(result)) {
		bpf_map_delete_elem(&capturing_streams, &key);
		if (thread->captures)
			thread->captures--;
		if (state->streams && *under_way) {
			__sync_fetch_and_add(&state->streams, -1);
			__sync_fetch_and_add(under_way, -1);
		}
	}
}

/* Whether a call on a stream becomes a node: the stream captures, or has joined a capture of the
 * calling thread. */
static __always_inline bool is_captured(__u32 pid, __u64 stream)
{
	__u32 zero = 0;
	__u64 *under_way = bpf_map_lookup_elem(&captures_under_way, &zero);
	struct stream_key key = {.stream = stream, .pid = pid};
	struct thread_state *thread;

	if (!under_way || !*under_way)
		return 0;
	if (bpf_map_lookup_elem(&capturing_streams, &key))
		return 1;
	thread = thread_find();
	return thread && thread->captures;
}

#endif
