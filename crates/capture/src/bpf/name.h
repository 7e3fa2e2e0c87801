/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Names of kernels, as calls tell them. */
#ifndef VS_NAME_H
#define VS_NAME_H

struct named_short {
	struct vs_named named;
	char name[VS_SHORT_NAME];
};

struct named_long {
	struct vs_named named;
	char name[VS_LONG_NAME];
};

static __always_inline void named_fill(struct vs_named *named, __u64 hook, __u64 kernel, __u64 text,
				       long read, __u32 room, __u32 flags)
{
	fill_head(&named->head, VS_NAMED);
	named->head.hook = hook;
	named->head.result = own_program();
	named->kernel = kernel;
	named->start = own_start();
	named->text = text;
	named->length = read > 0 ? read - 1 : 0;
	named->flags = flags | (read == room ? VS_NAME_CUT : 0);
}

/* More CPUs than Linux has. */
#define MOST_CPUS 8192

/* A handle that is given out again: what was launched under it so far was another kernel. */
static __always_inline void named_before(struct vs_named *named)
{
	struct vs_launch_key key = {
		.target = named->kernel,
		.pid = named->head.pid,
		.program = named->head.result,
		.start = named->start,
	};

	named->calls = 0;
	named->captured = 0;
	named->checked = 0;
	named->failed = 0;
	/* Older kernels have no look at other CPUs. */
	if (!can_skip_returns || !bpf_map_lookup_elem(&launches, &key))
		return;
	for (__u32 cpu = 0; cpu < MOST_CPUS; cpu++) {
		struct vs_launches *sum;

		if (cpu >= cpus)
			return;
		sum = bpf_map_lookup_percpu_elem(&launches, &key, cpu);
		if (!sum)
			return;
		named->calls += sum->calls;
		named->captured += sum->captured;
		named->checked += sum->checked;
		named->failed += sum->failed;
	}
}

/* The record is as long as the longest name that it can hold; few kernels need the longer one. */
static __noinline int name_record(__u64 hook, __u64 kernel, __u64 text, __u32 flags)
{
	struct named_short *record;
	struct named_long *more;
	long read;

	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		goto lost;
	read = bpf_probe_read_user_str(record->name, VS_SHORT_NAME, (void *)text);
	if (read < VS_SHORT_NAME) {
		named_fill(&record->named, hook, kernel, text, read, VS_SHORT_NAME, flags);
		named_before(&record->named);
		submit(record);
		return 0;
	}
	bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
	more = bpf_ringbuf_reserve(&records, sizeof(*more), 0);
	if (!more)
		goto lost;
	read = bpf_probe_read_user_str(more->name, VS_LONG_NAME, (void *)text);
	named_fill(&more->named, hook, kernel, text, read, VS_LONG_NAME, flags);
	named_before(&more->named);
	submit(more);
	return 0;
lost:
	count_lost(bpf_get_current_pid_tgid() >> 32, VS_CLASS_OTHER, 0, 0);
	return 0;
}

/* Where in a driver's object the pointer to a kernel's name is: seen in driver 580. It is no
 * promise, so user space believes only what could be the name of a kernel. */
#define NAME_OFFSET 8

/* A kernel that is launched and that no call has named, as far as the probes know. */
static __always_inline void name_guess(__u64 kernel)
{
	__u64 text = 0;

	if (!bpf_probe_read_user(&text, sizeof(text), (void *)(kernel + NAME_OFFSET)) && text)
		name_record(0, kernel, text, VS_NAME_GUESSED);
}

static __always_inline void name_return(const struct inflight_call *call, __u64 hook)
{
	__u64 out = 0;

	if (read_out(call, hook, 0, &out) || !out)
		return;
	if (hooks[hook].action == VS_ACTION_NAME)
		name_record(hook, out, argument(call, hooks[hook].size_argument), 0);
	else
		name_record(hook, call->args[1], out, 0);
}

#endif
