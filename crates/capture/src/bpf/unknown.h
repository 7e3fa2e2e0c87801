/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Counts calls of memory functions of a newer driver: what they allocate is not known. */
#ifndef VS_UNKNOWN_H
#define VS_UNKNOWN_H

static __always_inline __u64 *unknown_counter(__u32 pid, __u16 function)
{
	struct vs_unknown_key key = {
		.pid = pid,
		.exec_gen = own_exec_gen(),
		.function = function,
		.start = own_start(),
	};
	__u64 none = 0, *calls = bpf_map_lookup_elem(&unknown_calls, &key);

	if (calls)
		return calls;
	if (!bpf_map_lookup_elem(&processes, &pid))
		announce_process(0);
	bpf_map_update_elem(&unknown_calls, &key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&unknown_calls, &key);
}

static __noinline int unknown_enter(__u64 function)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u64 *calls;

	if (!is_target(pid))
		return 0;
	calls = unknown_counter(pid, function);
	if (!calls)
		return count_lost(pid, VS_CLASS_OTHER, 0, 0);
	__sync_fetch_and_add(calls, 1);
	/* User space reads the map when this has changed. */
	COUNT(unknown);
	return 0;
}

#endif
