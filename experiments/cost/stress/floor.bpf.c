// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Minimal probes to compare with: an empty one; one that sends a record of 64 bytes per call, with
 * the one word that session probes pass from entry to return; and the same with the arguments and
 * the time of the entry, stored per thread.
 */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "floor.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
} records SEC(".maps");

struct entry {
	__u64 entered;
	__u64 first;
	__u64 second;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct entry);
} entries SEC(".maps");

volatile __u64 lost = 0;

/* Some kernels pass the context to these functions. */
extern _Bool bpf_session_is_return(void) __ksym __weak;
extern _Bool bpf_session_is_return___context(void *ctx) __ksym __weak;
extern __u64 *bpf_session_cookie(void) __ksym __weak;
extern __u64 *bpf_session_cookie___context(void *ctx) __ksym __weak;

static __always_inline _Bool is_return(void *ctx)
{
	if (bpf_ksym_exists(bpf_session_is_return___context))
		return bpf_session_is_return___context(ctx);
	return bpf_session_is_return();
}

static __always_inline __u64 *session_word(void *ctx)
{
	if (bpf_ksym_exists(bpf_session_cookie___context))
		return bpf_session_cookie___context(ctx);
	return bpf_session_cookie();
}

/* `pointer`: the memory to free, or where the driver writes the address of the allocation. */
static __always_inline void send(struct pt_regs *ctx, __u64 pointer, __u64 bytes, __u64 entered)
{
	struct floor_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	__u64 id = bpf_get_current_pid_tgid();

	if (!record) {
		__sync_fetch_and_add(&lost, 1);
		return;
	}
	record->at = bpf_ktime_get_ns();
	record->entered = entered;
	record->address = pointer;
	record->bytes = bytes;
	record->pid = id >> 32;
	record->tid = (__u32)id;
	record->result = (__s32)PT_REGS_RC(ctx);
	record->function = (__u32)bpf_get_attach_cookie(ctx);
	record->unused[0] = 0;
	record->unused[1] = 0;
	if (record->function == FLOOR_ALLOCATE &&
	    bpf_probe_read_user(&record->address, sizeof(record->address), (void *)pointer))
		record->address = 0;
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

SEC("uprobe.session")
int empty(struct pt_regs *ctx)
{
	return 0;
}

SEC("uprobe.session")
int record(struct pt_regs *ctx)
{
	__u64 *shared = session_word(ctx);

	if (is_return(ctx))
		send(ctx, *shared, 0, 0);
	else
		*shared = PT_REGS_PARM1(ctx);
	return 0;
}

SEC("uprobe.session")
int paired(struct pt_regs *ctx)
{
	struct entry *entry;

	entry = bpf_task_storage_get(&entries, (void *)bpf_get_current_task_btf(), 0,
				     BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!entry)
		return 0;
	if (is_return(ctx)) {
		send(ctx, entry->first, entry->second, entry->entered);
	} else {
		entry->entered = bpf_ktime_get_ns();
		entry->first = PT_REGS_PARM1(ctx);
		entry->second = PT_REGS_PARM2(ctx);
	}
	return 0;
}
