/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The record that the probes of floor.bpf.c send: 64 bytes per call. */
#ifndef FLOOR_H
#define FLOOR_H

enum floor_function {
	FLOOR_ALLOCATE = 0,
	FLOOR_FREE = 1,
};

struct floor_record {
	__u64 at;
	__u64 entered; /* 0 for the probe that keeps only one word of the entry */
	__u64 address;
	__u64 bytes; /* also 0 for that probe */
	__u32 pid;
	__u32 tid;
	__s32 result;
	__u32 function;
	__u64 unused[2];
};
_Static_assert(sizeof(struct floor_record) == 64, "a record has 64 bytes");

#endif
