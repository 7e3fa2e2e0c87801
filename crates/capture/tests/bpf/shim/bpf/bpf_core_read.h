/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Reads of kernel structures: those of the test. As in the kernel, a null pointer reads as zero. */
#ifndef SHIM_BPF_CORE_READ_H
#define SHIM_BPF_CORE_READ_H

#define READ_1(from, a) ((from)->a)
#define READ_2(from, a, b)                                                                         \
	({                                                                                         \
		typeof((from)->a->b) value_ = 0;                                                   \
                                                                                                   \
		if ((from)->a)                                                                     \
			value_ = (from)->a->b;                                                     \
		value_;                                                                            \
	})
#define READ_N(_1, _2, name, ...)	       name
#define BPF_CORE_READ(from, ...)	       READ_N(__VA_ARGS__, READ_2, READ_1)(from, __VA_ARGS__)
#define BPF_CORE_READ_STR_INTO(to, from, a, b) __builtin_memcpy(to, (from)->a->b, sizeof(*(to)))

#endif
