/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * A cached part of the memory of the calling thread: of its stack, or of its Python frames.
 */
#ifndef VS_WINDOW_H
#define VS_WINDOW_H

/* Size of the cached part. Many single words are inspected, and reading one word costs about as
 * much as reading several hundred. A page, so that a read of the part before an address cannot
 * reach a page that is not mapped. */
#define WINDOW 4096

/* Bytes after it, for an object that begins in it. */
#define WINDOW_MORE 112

struct window {
	__u8 bytes[WINDOW + WINDOW_MORE];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct window);
} stack_windows SEC(".maps");

/* NULL also where the storage is busy: words are then read one by one. */
static __always_inline struct window *own_window(void)
{
	if (!load_config.use_stack_windows)
		return NULL;
	return bpf_task_storage_get(&stack_windows, (void *)bpf_get_current_task_btf(), NULL,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
}

#endif
