/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The stack of contexts of each thread, kept here because these calls are hot in some frameworks.
 * Each allocation carries the context on top; only creation, destruction and what a query reveals
 * reach user space.
 *
 * The driver's stack has no limit. The levels at the top are kept, and the number of all: a thread
 * that only pushes is followed for good, and pops below the kept levels make the context unknown
 * until the thread sets one, pushes one, or has popped everything.
 */
#ifndef VS_CONTEXT_H
#define VS_CONTEXT_H

static __always_inline bool context_known(const struct thread_state *thread)
{
	return thread->known || (!thread->depth && thread->from_empty);
}

/* The current context; 0 if none is set or it is unknown. */
static __always_inline __u64 context_top(const struct thread_state *thread)
{
	if (!thread->known)
		return 0;
	return thread->contexts[(thread->depth - 1) & (VS_CONTEXTS - 1)];
}

static __always_inline void context_push(struct thread_state *thread, __u64 context)
{
	thread->device = -1;
	thread->contexts[thread->depth & (VS_CONTEXTS - 1)] = context;
	thread->depth++;
	if (thread->known < VS_CONTEXTS)
		thread->known++;
}

static __always_inline void context_pop(struct thread_state *thread)
{
	thread->device = -1;
	if (thread->depth)
		thread->depth--;
	if (thread->known)
		thread->known--;
}

/* Something happened to the stack that was not seen. */
static __always_inline void context_forget(struct thread_state *thread)
{
	thread->device = -1;
	thread->depth = 0;
	thread->known = 0;
	thread->from_empty = 0;
}

/* cuCtxSetCurrent replaces the top, or pushes onto an empty stack; with null it pops. */
static __always_inline void context_set(struct thread_state *thread, __u64 context)
{
	if (context_known(thread) && context_top(thread) == context)
		return;
	context_pop(thread);
	if (context)
		context_push(thread, context);
}

/* A query returned the current context. Where that is not what was known, the levels below are not
 * known either. */
static __always_inline void context_reveal(struct thread_state *thread, __u64 context)
{
	if (context_known(thread) && context_top(thread) == context)
		return;
	if (context_known(thread) || !context)
		context_forget(thread);
	if (context)
		context_set(thread, context);
	else
		thread->from_empty = 1;
}

/* A destroyed context is popped where it is the current one. Other levels keep it. */
static __always_inline void context_destroy(struct thread_state *thread, __u64 context)
{
	if (!context_known(thread))
		context_forget(thread);
	else if (context_top(thread) == context)
		context_pop(thread);
}

/* A query told the device of a context that may be older than the probes. */
static __always_inline void context_learn(struct thread_state *thread, __u64 context, __s32 device)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct context_key key = {
		.context = context, .pid = pid, .program = own_program(), .start = own_start()};
	struct vs_learned *record;
	__s32 *known;

	if (!context) {
		if (!context_known(thread))
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
		if (out)
			context_push(thread, out);
		else
			context_forget(thread); /* which one could not be read */
		break;
	case VS_ACTION_CONTEXT_DESTROY:
		context_destroy(thread, call->args[0]);
		break;
	case VS_ACTION_CONTEXT_GET:
		context_reveal(thread, out);
		break;
	default:
		break;
	}
}

#endif
