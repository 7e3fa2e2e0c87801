/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Kernel names, from calls that pass or return them and from the driver's objects. */
#ifndef VS_KERNEL_NAME_H
#define VS_KERNEL_NAME_H

struct short_name_record {
	struct vs_kernel_name named;
	char name[VS_SHORT_NAME];
};

struct long_name_record {
	struct vs_kernel_name named;
	char name[VS_LONG_NAME];
};

static __always_inline void fill_kernel_name(struct vs_kernel_name *named, __u64 hook, __u64 kernel,
					     __u64 text, long read, __u32 capacity, __u32 flags)
{
	fill_head(&named->head, VS_KERNEL_NAME);
	named->head.hook = hook;
	named->head.result = own_exec_gen();
	named->kernel = kernel;
	named->start = own_start();
	named->text = text;
	named->length = read > 0 ? read - 1 : 0;
	named->flags = flags | (read == capacity ? VS_NAME_TRUNCATED : 0);
}

/* Upper bound of the CPUs that Linux supports. */
#define MAX_CPUS 8192

/* Adds the earlier launches under the handle: a reused handle belonged to another kernel before. */
static __always_inline void add_prior_launches(struct vs_kernel_name *named)
{
	struct vs_launch_key key = {
		.target = named->kernel,
		.pid = named->head.pid,
		.exec_gen = named->head.result,
		.start = named->start,
	};

	named->calls = 0;
	named->captured = 0;
	named->checked = 0;
	named->failed = 0;
	/* bpf_map_lookup_percpu_elem() is newer than the oldest supported kernels. */
	if (!load_config.can_skip_returns || !bpf_map_lookup_elem(&launches, &key))
		return;
	for (__u32 cpu = 0; cpu < MAX_CPUS; cpu++) {
		struct vs_launches *sum;

		if (cpu >= load_config.cpus)
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

/* Sends a kernel name. Records have fixed sizes; few names need the long one. */
static __noinline int name_record(__u64 hook, __u64 kernel, __u64 text, __u32 flags)
{
	struct short_name_record *record;
	struct long_name_record *long_record;
	long read;

	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		goto lost;
	read = bpf_probe_read_user_str(record->name, VS_SHORT_NAME, (void *)text);
	if (read < VS_SHORT_NAME) {
		fill_kernel_name(&record->named, hook, kernel, text, read, VS_SHORT_NAME, flags);
		add_prior_launches(&record->named);
		submit(record);
		return 0;
	}
	bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
	long_record = bpf_ringbuf_reserve(&records, sizeof(*long_record), 0);
	if (!long_record)
		goto lost;
	read = bpf_probe_read_user_str(long_record->name, VS_LONG_NAME, (void *)text);
	fill_kernel_name(&long_record->named, hook, kernel, text, read, VS_LONG_NAME, flags);
	add_prior_launches(&long_record->named);
	submit(long_record);
	return 0;
lost:
	count_lost(bpf_get_current_pid_tgid() >> 32, VS_CLASS_OTHER, 0, 0);
	return 0;
}

/* Offset of the pointer to the kernel's name in the driver's object, as observed in driver 580. Not
 * a documented layout, so user space checks that the result is a plausible kernel name. */
#define NAME_OFFSET 8

/* Reads the name of a kernel at its first launch; no probe may have seen a call that names it. */
static __always_inline void read_kernel_name(__u64 kernel)
{
	__u64 text = 0;

	if (!bpf_probe_read_user(&text, sizeof(text), (void *)(kernel + NAME_OFFSET)) && text)
		name_record(0, kernel, text, VS_NAME_FROM_MEMORY);
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
