/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The stack of contexts of each thread, kept here because these calls are hot in some frameworks.
 * Each allocation carries the context on top; only creation, destruction and what a query reveals
 * reach user space.
 */
#ifndef VS_CONTEXT_H
#define VS_CONTEXT_H

static __always_inline __u64 context_top(struct thread_state *thread)
{
	__u32 depth = thread->depth;

	if (!depth || depth > VS_CONTEXTS)
		return 0;
	return thread->contexts[(depth - 1) & (VS_CONTEXTS - 1)];
}

static __always_inline void context_push(struct thread_state *thread, __u64 context)
{
	__u32 depth = thread->depth;

	thread->device = -1;
	if (depth >= VS_CONTEXTS) {
		/* Deeper than is kept: forget the stack until something tells it again. */
		thread->depth = 0;
		thread->context_known = 0;
		return;
	}
	thread->contexts[depth & (VS_CONTEXTS - 1)] = context;
	thread->depth = depth + 1;
	thread->context_known = 1;
}

static __always_inline void context_pop(struct thread_state *thread)
{
	thread->device = -1;
	if (thread->depth)
		thread->depth--;
	/* What lies below the first context that was seen is not known for a thread that ran
	 * before the probes did. */
	if (!thread->depth && !thread->began_empty)
		thread->context_known = 0;
}

/* cuCtxSetCurrent replaces the top; a null context empties that place. */
static __always_inline void context_set(struct thread_state *thread, __u64 context)
{
	if (thread->context_known && context_top(thread) == context)
		return;
	if (thread->depth)
		thread->depth--;
	thread->device = -1;
	if (context)
		context_push(thread, context);
	else
		thread->context_known = 1;
}

/* A query told the device of a context that may be older than the probes. */
static __always_inline void context_learn(struct thread_state *thread, __u64 context, __s32 device)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct context_key key = {.context = context, .pid = pid};
	struct vs_learned *record;
	__s32 *known;

	if (!context) {
		if (!thread->context_known)
			thread->device = device;
		return;
	}
	known = bpf_map_lookup_elem(&learned_contexts, &key);
	if (known && *known == device)
		return;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		return; /* told again by the next query */
	bpf_map_update_elem(&learned_contexts, &key, &device, BPF_ANY);
	fill_head(&record->head, VS_LEARNED);
	record->context = context;
	record->device = device;
	record->reserved = 0;
	submit(record);
}

static __always_inline void context_apply(struct thread_state *thread, __u8 action,
					  const struct inflight_call *call, __u64 out)
{
	switch (action) {
	case VS_ACTION_CONTEXT_SET:
		context_set(thread, call->args[0]);
		break;
	case VS_ACTION_CONTEXT_PUSH:
		context_push(thread, call->args[0]);
		break;
	case VS_ACTION_CONTEXT_POP:
		context_pop(thread);
		break;
	case VS_ACTION_CONTEXT_CREATE:
		context_push(thread, out);
		break;
	case VS_ACTION_CONTEXT_DESTROY:
		if (thread->context_known && context_top(thread) == call->args[0])
			context_pop(thread);
		break;
	case VS_ACTION_CONTEXT_GET:
		context_set(thread, out);
		break;
	default:
		break;
	}
}

#endif
