/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The context stack of each thread, kept in the kernel because some frameworks make these calls
 * very often. Each allocation carries the context on top; only context creation, destruction and
 * the results of queries reach user space.
 *
 * The driver's stack has no limit. The topmost levels and the depth are kept, so a thread that only
 * pushes is always tracked. Pops below the kept levels make the context unknown until the thread
 * sets or pushes one, or has popped everything.
 */
#ifndef VS_CONTEXT_H
#define VS_CONTEXT_H

static __always_inline bool context_known(const struct thread_state *thread)
{
	return thread->known || (!thread->depth && thread->from_empty);
}

/* Returns the current context; 0 if none is set or it is unknown. */
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

/* Makes the stack unknown, after a change that was not seen. */
static __always_inline void context_set_unknown(struct thread_state *thread)
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

/* Applies a query that returned the current context. If it differs from the known one, the levels
 * below are unknown too. */
static __always_inline void context_apply_query(struct thread_state *thread, __u64 context)
{
	if (context_known(thread) && context_top(thread) == context)
		return;
	if (context_known(thread) || !context)
		context_set_unknown(thread);
	if (context)
		context_set(thread, context);
	else
		thread->from_empty = 1;
}

/* A destroyed context is popped if it is the current one; other levels keep it. */
static __always_inline void context_destroy(struct thread_state *thread, __u64 context)
{
	if (!context_known(thread))
		context_set_unknown(thread);
	else if (context_top(thread) == context)
		context_pop(thread);
}

/* Reports the device of a context that may be older than the probes, as returned by a query. */
static __always_inline void context_report_device(struct thread_state *thread, __u64 context,
						  __s32 device)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct context_key key = {
		.context = context, .pid = pid, .exec_gen = own_exec_gen(), .start = own_start()};
	struct vs_context_device *record;
	__s32 *known;

	if (!context) {
		if (!context_known(thread))
			thread->device = device;
		return;
	}
	known = bpf_map_lookup_elem(&reported_contexts, &key);
	if (known && *known == device)
		return;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		return; /* the next query tries again */
	bpf_map_update_elem(&reported_contexts, &key, &device, BPF_ANY);
	fill_head(&record->head, VS_CONTEXT_DEVICE);
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
			context_set_unknown(thread); /* the new context could not be read */
		break;
	case VS_ACTION_CONTEXT_DESTROY:
		context_destroy(thread, call->args[0]);
		break;
	case VS_ACTION_CONTEXT_GET:
		context_apply_query(thread, out);
		break;
	default:
		break;
	}
}

#endif
