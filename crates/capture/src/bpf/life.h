/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Births and deaths: only of processes that called the driver, or that are to be followed. */
#ifndef VS_LIFE_H
#define VS_LIFE_H

SEC("raw_tp/sched_process_fork")
int process_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct___x *parent = (void *)ctx->args[0];
	struct task_struct___x *child = (void *)ctx->args[1];
	__u32 parent_pid, child_pid;
	__u8 yes = 1;

	if (filter != VS_FILTER_FOLLOW)
		return 0;
	parent_pid = BPF_CORE_READ(parent, tgid);
	child_pid = BPF_CORE_READ(child, tgid);
	if (parent_pid != child_pid && bpf_map_lookup_elem(&targets, &parent_pid) &&
	    bpf_map_update_elem(&targets, &child_pid, &yes, BPF_ANY))
		/* The child is not traced, so no process is known that this belongs to. */
		count_lost(0, VS_CLASS_OTHER, 0, 0);
	return 0;
}

/* A program ends that the table of processes had no room for. Returns 1 if it was announced all the
 * same. If it was not and lost records, nothing of it may have been delivered: the reader learns
 * that there was one. */
static __noinline int end_untabled(__u32 pid, __u16 program, bool replaced)
{
	struct vs_lost_key key;
	struct vs_lost *lost;

	fill_lost_key(&key, pid, program);
	lost = bpf_map_lookup_elem(&lost_records, &key);
	if (!lost || lost->announced)
		return lost != NULL;
	lost->replaced = replaced;
	lost->processes = 1;
	COUNT(lost);
	return 0;
}

SEC("raw_tp/sched_process_exec")
int process_exec(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;

	/* The id that the thread had: from now on it is the first one. */
	thread_forget(ctx->args[1]);
	/* What is kept of a program ends with it, also where the process could not be announced. */
	graph_forget(pid);
	if (bpf_map_delete_elem(&processes, &pid) && !end_untabled(pid, own_program() - 1, 1))
		return 0;
	emit_life(VS_EXEC, own_program());
	return 0;
}

SEC("raw_tp/sched_process_exit")
int process_exit(void *ctx)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	__u64 id = bpf_get_current_pid_tgid();
	__u32 pid = id >> 32;
	bool last = BPF_CORE_READ(task, signal, live.counter) == 0;
	bool called = thread_forget((__u32)id);

	if (called)
		capture_thread_exit(pid);
	if (!last) {
		if (called)
			emit_life(VS_THREAD_EXIT, 0);
		return 0;
	}
	/* Another process that gets the pid is not a target. */
	if (filter != VS_FILTER_NONE)
		bpf_map_delete_elem(&targets, &pid);
	graph_forget(pid);
	if (bpf_map_delete_elem(&processes, &pid) && !end_untabled(pid, own_program(), 0))
		return 0;
	emit_life(VS_EXIT, 0);
	return 0;
}

#endif
