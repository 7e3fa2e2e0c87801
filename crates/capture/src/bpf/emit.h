/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Writes records into the ring and counts those that do not fit. */
#ifndef VS_EMIT_H
#define VS_EMIT_H

static __always_inline __u64 wakeup_flags(void)
{
	if (runtime_config.reader_waits) {
		runtime_config.reader_waits = 0;
		return BPF_RB_FORCE_WAKEUP;
	}
	/* The reader polls; it is woken only if the ring fills faster than it polls. */
	return bpf_ringbuf_query(&records, BPF_RB_AVAIL_DATA) > load_config.wakeup_at
		       ? BPF_RB_FORCE_WAKEUP
		       : BPF_RB_NO_WAKEUP;
}

static __always_inline void submit(void *record)
{
	COUNT(records);
	bpf_ringbuf_submit(record, wakeup_flags());
}

static const struct vs_lost no_losses = {};

/* Fills the key of an exec generation of the current process. A pid alone is not enough: it may be
 * reused before the reader has seen the losses. */
static __always_inline void fill_lost_key(struct vs_lost_key *key, __u32 pid, __u16 exec_gen)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();

	key->pid = pid;
	key->exec_gen = exec_gen;
	key->reserved = 0;
	key->start = BPF_CORE_READ(task, group_leader, start_boottime);
}

/* Returns the losses of the current exec generation. With pid 0, or if the map is full: those of
 * unknown processes. */
static __always_inline struct vs_lost *lost_of(__u32 pid)
{
	struct vs_lost_key key = {};
	struct vs_lost *lost;

	if (pid)
		fill_lost_key(&key, pid, own_exec_gen());
	lost = bpf_map_lookup_elem(&lost_records, &key);
	if (lost)
		return lost;
	bpf_map_update_elem(&lost_records, &key, &no_losses, BPF_NOEXIST);
	lost = bpf_map_lookup_elem(&lost_records, &key);
	if (lost || !pid)
		return lost;
	__builtin_memset(&key, 0, sizeof(key));
	return bpf_map_lookup_elem(&lost_records, &key);
}

static __always_inline void add_lost(struct vs_lost *lost, __u32 class, __u64 bytes, int result)
{
	if (result)
		__sync_fetch_and_add(&lost->failures, 1);
	else if (class == VS_CLASS_ALLOCATE) {
		__sync_fetch_and_add(&lost->allocated_bytes, bytes);
		__sync_fetch_and_add(&lost->allocations, 1);
	} else if (class == VS_CLASS_FREE)
		__sync_fetch_and_add(&lost->frees, 1);
	else if (class == VS_CLASS_COPY)
		__sync_fetch_and_add(&lost->copies, 1);
	else if (class == VS_CLASS_OBJECT)
		__sync_fetch_and_add(&lost->objects, 1);
	else if (class == VS_CLASS_LAUNCH)
		__sync_fetch_and_add(&lost->launches, 1);
	else
		__sync_fetch_and_add(&lost->other, 1);
}

/* User space reads the losses when the counter has changed, so the counter is updated last. */
__noinline int count_lost(__u32 pid, __u32 class, __u64 bytes, int result)
{
	struct vs_lost *lost = lost_of(pid);

	if (lost)
		add_lost(lost, class, bytes, result);
	COUNT(lost);
	return 0;
}

static __always_inline void fill_head_at(struct vs_head *head, __u16 kind, __u64 now)
{
	__u64 id = bpf_get_current_pid_tgid();

	head->kind = kind;
	head->hook = 0;
	head->result = 0;
	head->pid = id >> 32;
	head->tid = (__u32)id;
	head->at = now;
}

static __always_inline void fill_head(struct vs_head *head, __u16 kind)
{
	fill_head_at(head, kind, bpf_ktime_get_ns());
}

/* Sends a record that consists of a head only; for an exec, `result` is the exec generation. */
static __always_inline void emit_lifecycle(__u16 kind, __s32 result)
{
	struct vs_head *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		count_lost(bpf_get_current_pid_tgid() >> 32, VS_CLASS_OTHER, 0, 0);
		return;
	}
	fill_head(record, kind);
	record->result = result;
	submit(record);
}

/* Announces the process with its first call. If the record does not fit, the next call tries again.
 * A process that ends before is found by its entry in lost_records. Returns 1 if it was announced.
 */
__noinline int announce_process(bool always)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u64 start = own_start();
	struct vs_process *record;
	long error;

	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record) {
		lost_of(pid);
		return 0;
	}
	error = bpf_map_update_elem(&processes, &pid, &start, BPF_NOEXIST);
	if (error == -EEXIST || (error && !always)) {
		/* Another thread was first, or the map is full and the announcement optional. */
		bpf_ringbuf_discard(record, BPF_RB_NO_WAKEUP);
		if (error != -EEXIST)
			lost_of(pid);
		return 0;
	}
	if (error) {
		struct vs_lost *lost = lost_of(pid);

		count_lost(pid, VS_CLASS_OTHER, 0, 0);
		if (lost)
			lost->announced = 1;
	}
	fill_head(&record->head, VS_PROCESS);
	record->head.result = own_exec_gen();
	record->start = start;
	record->uid = (__u32)bpf_get_current_uid_gid();
	record->reserved = 0;
	__builtin_memset(record->name, 0, sizeof(record->name));
	/* The name of a process is that of its main thread. */
	BPF_CORE_READ_STR_INTO(&record->name, task, group_leader, comm);
	COUNT(records);
	/* Wake the reader: it must inspect the process before it exits. */
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 1;
}

/* Announces the process unless this thread knows that it was; one lookup for most threads. */
static __always_inline void announce_once(struct thread_state *thread, __u32 pid)
{
	if (thread->announced)
		return;
	if (bpf_map_lookup_elem(&processes, &pid) || announce_process(1))
		thread->announced = 1;
}

/* Reports the name of a thread with its first call and after each change. */
static __always_inline void announce_thread(struct thread_state *thread)
{
	__u64 name[2] = {};
	struct vs_thread_name *record;

	if (bpf_get_current_comm(name, sizeof(name)))
		return;
	if (name[0] == thread->name[0] && name[1] == thread->name[1])
		return;
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		return; /* tried again with the next call */
	fill_head(&record->head, VS_THREAD);
	__builtin_memcpy(record->name, name, sizeof(name));
	submit(record);
	thread->name[0] = name[0];
	thread->name[1] = name[1];
}

#endif
