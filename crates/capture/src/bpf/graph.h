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

static __always_inline void graph_apply(__u32 pid, __u8 action, __u8 flags)
{
	struct graph_state *state;

	if (action == VS_ACTION_CAPTURE_BEGIN) {
		state = graph_state_create(pid);
		if (state)
			__sync_fetch_and_add(&state->captures, 1);
	} else if (action == VS_ACTION_CAPTURE_END) {
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

#endif
