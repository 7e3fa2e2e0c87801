/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* A hooked call: kept at entry, recorded at return. */
#ifndef VS_CALL_H
#define VS_CALL_H

/* Counts a call that is not recorded. One that affects memory and also creates or destroys an
 * object counts twice: by its class and as an object. */
__noinline int count_lost_call(__u64 hook, __u64 bytes, int result)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u8 class;
	struct vs_lost *lost;

	hook &= VS_MAX_HOOKS - 1;
	class = hooks[hook].loss_class;
	if (!result && class != VS_CLASS_OBJECT && hooks[hook].flags & VS_OBJECT) {
		lost = lost_of(pid);
		if (lost)
			__sync_fetch_and_add(&lost->objects, 1);
	}
	count_lost(pid, class, bytes, result);
	return 0;
}

static __always_inline void fill_inflight(struct inflight_call *call, struct pt_regs *ctx,
					  __u64 hook)
{
	call->sp = PT_REGS_SP(ctx);
	call->hook = hook;
	call->args[0] = PT_REGS_PARM1(ctx);
	call->args[1] = PT_REGS_PARM2(ctx);
	call->args[2] = PT_REGS_PARM3(ctx);
	call->args[3] = PT_REGS_PARM4(ctx);
	call->args[4] = PT_REGS_PARM5(ctx);
	call->args[5] = PT_REGS_PARM6(ctx);
	call->entered = bpf_ktime_get_ns();
}

/* Drops a call and counts it as lost, assuming that it will succeed. Returns 1. */
static __noinline int drop_call(struct pt_regs *ctx, __u64 hook)
{
	struct inflight_call call;
	__u64 size;

	fill_inflight(&call, ctx, hook);
	COUNT(no_state);
	size = lost_bytes(&call, hook, 0);
	if (!has_no_effect(&call, hook & (VS_MAX_HOOKS - 1), size, 0))
		count_lost_call(hook, size, 0);
	return 1;
}

/* Returns whether a call is an implementation detail of the hooked call around it, which alone
 * counts. Calls inside context calls do count; calls that create or destroy an object only hide
 * inner calls that do so too. */
static __always_inline bool is_nested(struct thread_state *thread, __u64 inner)
{
	__u32 outer = thread->inflight;
	__u64 hook;

	if (!outer)
		return 0;
	hook = thread->calls[(outer - 1) & (VS_INFLIGHT - 1)].hook & (VS_MAX_HOOKS - 1);
	if (hooks[hook].flags & hooks[inner].flags & VS_OBJECT)
		return 1;
	return hooks[hook].loss_class != VS_CLASS_OTHER &&
	       hooks[hook].loss_class != VS_CLASS_OBJECT;
}

/* Returns whether a call with this action changes nothing but the thread's own context, or what is
 * known about a context or kernel. */
static __always_inline bool is_lookup(__u8 action)
{
	switch (action) {
	case VS_ACTION_CONTEXT_SET:
	case VS_ACTION_CONTEXT_PUSH:
	case VS_ACTION_CONTEXT_POP:
	case VS_ACTION_CONTEXT_GET:
	case VS_ACTION_CONTEXT_DEVICE:
	case VS_ACTION_NAME:
	case VS_ACTION_GET_NAME:
		return 1;
	default:
		return 0;
	}
}

/* Counts the outermost call from this place on that has an effect, as lost: it does not return, and
 * whether the driver carried it out is unknown. Calls inside it count with it. */
__noinline int count_unreturned(__u32 first)
{
	struct thread_state *thread = thread_find();

	if (!thread)
		return 0;
	for (__u32 i = 0; i < VS_INFLIGHT; i++) {
		struct inflight_call *call = &thread->calls[i];
		__u64 hook = call->hook & (VS_MAX_HOOKS - 1), size;

		if (i >= thread->inflight)
			break;
		if (i < first || is_lookup(hooks[hook].action))
			continue;
		size = lost_bytes(call, hook, 0);
		if (!has_no_effect(call, hook, size, 0)) {
			count_lost_call(hook, size, 0);
			break;
		}
	}
	return 0;
}

/* Returns whether the function at this place of the stack was called by a jump at the end of
 * another hooked function: it returns for both. */
static __always_inline bool is_tail_call(__u64 sp)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	struct return_instance___x *last = BPF_CORE_READ(task, utask, return_instances);

	return last && BPF_CORE_READ(last, stack) == sp;
}

/* Returns 1 if the return side has nothing to do. */
static __noinline int call_enter(struct pt_regs *ctx, __u64 hook)
{
	struct thread_state *thread;
	__u64 sp = PT_REGS_SP(ctx);
	__u32 slot;

	if (hook >= VS_MAX_HOOKS) {
		COUNT(self_test);
		return 0;
	}
	if (!is_target(bpf_get_current_pid_tgid() >> 32))
		return 1;
	if (hooks[hook].action == VS_ACTION_GRAPH_LAUNCH && !load_config.count_activity &&
	    !needs_graph_record(bpf_get_current_pid_tgid() >> 32))
		return 1;
	thread = thread_create();
	if (!thread) {
		struct shared_state *all = shared_state();

		if (all)
			all->dropped_at = bpf_ktime_get_boot_ns();
		return drop_call(ctx, hook);
	}
	if (!thread->ready) {
		__u32 pid = bpf_get_current_pid_tgid() >> 32;

		thread_setup(thread);
		/* The reader must inspect the process before its first stack can be read. */
		if (load_config.stacks && !bpf_map_lookup_elem(&processes, &pid))
			announce_process(0);
	}
	/* Some frameworks set the same context over and over: nothing changes, whatever the driver
	 * returns. */
	if (hooks[hook].action == VS_ACTION_CONTEXT_SET && context_known(thread) &&
	    context_top(thread) == PT_REGS_PARM1(ctx))
		return 1;

	/* Remove calls that were left without returning (longjmp, exceptions): their stack pointers
	 * are below the current one. */
	slot = thread->inflight;
	for (int i = 0; i < VS_INFLIGHT; i++) {
		if (!slot || thread->calls[(slot - 1) & (VS_INFLIGHT - 1)].sp > sp)
			break;
		slot--;
	}
	if (slot != thread->inflight) {
		bool replaced =
			thread->calls[slot & (VS_INFLIGHT - 1)].sp == sp && is_tail_call(sp);

		count_unreturned(slot + replaced);
		thread->inflight = slot;
	}
	if (slot >= VS_INFLIGHT) {
		if (is_nested(thread, hook))
			return 1;
		if (hooks[hook].action >= VS_ACTION_CONTEXT_SET &&
		    hooks[hook].action <= VS_ACTION_CONTEXT_DESTROY)
			context_set_unknown(thread);
		return drop_call(ctx, hook);
	}
	fill_inflight(&thread->calls[slot & (VS_INFLIGHT - 1)], ctx, hook);
	thread->inflight = slot + 1;
	return 0;
}

/* Removes and returns the call that returns with this stack pointer. A return of another call,
 * whose entry was not kept, must not get its result. */
static __always_inline struct inflight_call *inflight_pop(struct thread_state *thread, __u64 hook,
							  __u64 sp)
{
	__u32 slot = thread->inflight;

	for (int i = 0; i < VS_INFLIGHT; i++) {
		struct inflight_call *call;

		if (!slot)
			return NULL;
		slot--;
		call = &thread->calls[slot & (VS_INFLIGHT - 1)];
		if (call->hook == hook && call->sp + CALL_BYTES == sp) {
			if (thread->inflight != slot + 1)
				count_unreturned(slot + 1);
			thread->inflight = slot;
			return call;
		}
	}
	return NULL;
}

static __always_inline void fill_call(struct vs_call *record, struct thread_state *thread,
				      const struct inflight_call *call, int result, __u64 *out)
{
	__u64 hook = call->hook & (VS_MAX_HOOKS - 1);

	record->head.hook = hook;
	record->head.result = result;
	record->entered = call->entered;
	for (int i = 0; i < VS_ARGS; i++)
		record->args[i] = call->args[i];
	record->flags = thread->ref.flags;
	record->stack = thread->ref.stack;
	record->python = thread->ref.python;
	record->outs[0] = 0;
	record->outs[1] = 0;
	if (!result) {
		record->flags |= read_out(call, hook, 0, &record->outs[0]);
		record->flags |= read_out(call, hook, 1, &record->outs[1]);
	}
	*out = record->outs[0];
	if (!result && hooks[hook].flags & VS_FILE && (__u32)call->args[2] == VS_POSIX_FILE)
		record->outs[1] = open_file(hooks[hook].flags & VS_FILE_OUT ? record->outs[0]
									    : call->args[1]);
	if (hooks[hook].action == VS_ACTION_CAPTURE_END && capture_ended(result))
		record->flags |= VS_CAPTURE_ENDED;
	record->context = context_top(thread);
	if (context_known(thread))
		record->flags |= VS_CONTEXT_KNOWN;
	record->device = thread->device;
	if (thread->device >= 0)
		record->flags |= VS_DEVICE_KNOWN;
}

/* Reads data that may end in the page that it begins in. */
static __always_inline void read_data(__u8 *to, __u32 bytes, __u64 from)
{
	__u32 rest = 4096 - (from & 4095);

	if (bytes > rest)
		bytes = rest;
	if (bytes > VS_DESCRIPTOR)
		bytes = VS_DESCRIPTOR;
	__builtin_memset(to, 0, VS_DESCRIPTOR);
	bpf_probe_read_user(to, bytes, (void *)from);
}

/* Reads the header of an image. The runtime passes a fat binary in a wrapper. */
static __always_inline void read_image(__u8 *to, __u32 bytes, __u64 from)
{
	__u32 *words = (__u32 *)to;

	read_data(to, bytes, from);
	if (words[0] == VS_FATBIN_WRAPPER && words[1] == VS_FATBIN_WRAPPER_VERSION)
		read_data(to, bytes, read_user_u64(from + VS_FATBIN_WRAPPER_DATA));
}

/* Returns the first out value. */
static __always_inline __u64 record_call(struct thread_state *thread,
					 const struct inflight_call *call, int result)
{
	__u64 hook = call->hook & (VS_MAX_HOOKS - 1);
	__u8 bytes = hooks[hook].descriptor_bytes;
	struct vs_call *record;
	__u64 out = 0;

	if (bytes) {
		struct vs_call_descriptor *full;

		full = bpf_ringbuf_reserve(&records, sizeof(*full), 0);
		if (full) {
			__u8 index = hooks[hook].descriptor_argument;
			__u64 from = hooks[hook].flags & VS_BY_VALUE ? memory_argument(call, index)
								     : argument(call, index);

			/* A file descriptor is not a pointer. */
			if (hooks[hook].flags & VS_FILE && (__u32)call->args[2] != VS_FABRIC)
				from = 0;
			fill_head(&full->call.head, VS_CALL_DESCRIPTOR);
			fill_call(&full->call, thread, call, result, &out);
			if (hooks[hook].flags & VS_DATA) {
				read_image(full->descriptor, bytes, from);
				submit(full);
				return out;
			}
			__builtin_memset(full->descriptor, 0, sizeof(full->descriptor));
			if (bytes > VS_DESCRIPTOR)
				bytes = VS_DESCRIPTOR;
			if (bpf_probe_read_user(full->descriptor, bytes, (void *)from))
				full->call.flags |= VS_OUT_UNREADABLE;
			submit(full);
			return out;
		}
	} else {
		record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
		if (record) {
			fill_head(&record->head, VS_CALL);
			fill_call(record, thread, call, result, &out);
			submit(record);
			return out;
		}
	}
	if (result) {
		count_lost_call(hook, 0, result);
	} else {
		__u64 size = lost_bytes(call, hook, 1);

		read_out(call, hook, 0, &out);
		if (!has_no_effect(call, hook, size, out))
			count_lost_call(hook, size, 0);
	}
	return out;
}

/* Handles launches, copies and kernel names. Returns 1 if no record is needed. */
static __always_inline int activity_return(__u32 pid, const struct inflight_call *call, __u64 hook,
					   int result)
{
	__u8 action = hooks[hook].action;

	if (action == VS_ACTION_GRAPH_LAUNCH) {
		graph_launch_count(pid, call->args[0], result);
		return !result && !needs_graph_record(pid);
	}
	if (result ||
	    (action != VS_ACTION_COPY && action != VS_ACTION_NAME && action != VS_ACTION_GET_NAME))
		return 0;
	if (!bpf_map_lookup_elem(&processes, &pid))
		announce_process(0);
	if (action == VS_ACTION_COPY)
		copy_return(hook);
	else
		name_return(call, hook);
	return 1;
}

static __noinline int call_return(struct pt_regs *ctx, __u64 hook)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct thread_state *thread = thread_find();
	int result = (int)PT_REGS_RC(ctx);
	struct inflight_call *call;
	__u64 out = 0;
	__u8 action;

	if (hook >= VS_MAX_HOOKS) {
		COUNT(self_test);
		return 0;
	}
	if (!thread) {
		if (is_target(pid))
			COUNT(unmatched);
		return 0;
	}
	call = inflight_pop(thread, hook, PT_REGS_SP(ctx));
	if (!call) {
		/* Without session probes the return side also runs for calls skipped at entry. */
		if (hooks[hook & (VS_MAX_HOOKS - 1)].action != VS_ACTION_CONTEXT_SET)
			COUNT(unmatched);
		return 0;
	}
	hook &= VS_MAX_HOOKS - 1;
	COUNT(calls);
	action = hooks[hook].action;
	if (is_nested(thread, hook))
		return 0;
	if (load_config.count_activity && activity_return(pid, call, hook, result))
		return 0;
	if (action == VS_ACTION_RECORD || action == VS_ACTION_CONTEXT_CREATE ||
	    action == VS_ACTION_CONTEXT_DESTROY || action >= VS_ACTION_CAPTURE_BEGIN) {
		graph_apply(pid, call->args[0], hook, result);
		announce_once(thread, pid);
		announce_thread(thread);
		thread->ref = (struct stack_ref){};
		if (load_config.stacks && effective_stack_mode() &&
		    (hooks[hook].loss_class == VS_CLASS_ALLOCATE ||
		     hooks[hook].flags & VS_WITH_STACK))
			capture_stack(PT_REGS_IP(ctx), PT_REGS_SP(ctx), PT_REGS_FP(ctx));
		out = record_call(thread, call, result);
	} else if (!result &&
		   (action == VS_ACTION_CONTEXT_GET || action == VS_ACTION_CONTEXT_DEVICE)) {
		if (read_out(call, hook, 0, &out))
			return 0;
		if (action == VS_ACTION_CONTEXT_DEVICE) {
			__u64 context = argument(call, hooks[hook].descriptor_argument);

			context_report_device(thread, context ?: context_top(thread), (__s32)out);
			return 0;
		}
	}
	if (!result)
		context_apply(thread, action, call, out);
	return 0;
}

#endif
