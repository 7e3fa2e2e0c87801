/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Fork, exec and exit, of processes that called the driver or are traced with their children. */
#ifndef VS_PROCESS_LIFECYCLE_H
#define VS_PROCESS_LIFECYCLE_H

SEC("raw_tp/sched_process_fork")
int process_fork(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct___x *parent = (void *)ctx->args[0];
	struct task_struct___x *child = (void *)ctx->args[1];
	__u32 parent_pid, child_pid;
	__u8 yes = 1;

	if (load_config.filter != VS_FILTER_FOLLOW)
		return 0;
	parent_pid = BPF_CORE_READ(parent, tgid);
	child_pid = BPF_CORE_READ(child, tgid);
	if (parent_pid != child_pid && bpf_map_lookup_elem(&targets, &parent_pid) &&
	    bpf_map_update_elem(&targets, &child_pid, &yes, BPF_ANY))
		/* The child is not traced: count the loss for unknown processes. */
		count_lost(0, VS_CLASS_OTHER, 0, 0);
	return 0;
}

/* Handles the end of an exec generation that is not in the map `processes`. Returns 1 if it was
 * announced anyway. If it was not but lost records, possibly all of its records were lost: marks
 * it, so that the reader learns that it existed. */
static __noinline int end_unlisted(__u32 pid, __u16 exec_gen, bool replaced)
{
	struct vs_lost_key key;
	struct vs_lost *lost;

	fill_lost_key(&key, pid, exec_gen);
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

	/* The previous id of the thread: after an exec it is the main thread. */
	thread_delete(ctx->args[1]);
	/* Graph state ends with an exec, even if the process could not be announced. */
	graph_state_delete(pid);
	if (bpf_map_delete_elem(&processes, &pid) && !end_unlisted(pid, own_exec_gen() - 1, 1))
		return 0;
	emit_lifecycle(VS_EXEC, own_exec_gen());
	return 0;
}

SEC("raw_tp/sched_process_exit")
int process_exit(void *ctx)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	__u64 id = bpf_get_current_pid_tgid();
	__u32 pid = id >> 32;
	bool last = BPF_CORE_READ(task, signal, live.counter) == 0;
	bool called;

	count_unreturned(0);
	called = thread_delete((__u32)id);

	if (called)
		capture_thread_exit(pid);
	if (!last) {
		if (called)
			emit_lifecycle(VS_THREAD_EXIT, 0);
		return 0;
	}
	/* A process that reuses the pid is not a target. */
	if (load_config.filter != VS_FILTER_NONE)
		bpf_map_delete_elem(&targets, &pid);
	graph_state_delete(pid);
	if (bpf_map_delete_elem(&processes, &pid) && !end_unlisted(pid, own_exec_gen(), 0))
		return 0;
	emit_lifecycle(VS_EXIT, 0);
	return 0;
}

#endif
