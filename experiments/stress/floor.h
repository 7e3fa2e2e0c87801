/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* What the probes of floor.bpf.c send, 64 bytes a call. */
#ifndef FLOOR_H
#define FLOOR_H

enum floor_function {
	FLOOR_ALLOCATE = 0,
	FLOOR_FREE = 1,
};

struct floor_record {
	__u64 at;
	__u64 entered; /* 0 where nothing is kept of the entry but one word */
	__u64 address;
	__u64 bytes; /* the same */
	__u32 pid;
	__u32 tid;
	__s32 result;
	__u32 function;
	__u64 unused[2];
};
_Static_assert(sizeof(struct floor_record) == 64, "a record has 64 bytes");

#endif
