/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The BPF helpers in user space, for unit tests of the probes: maps are lists, tasks and the clock
 * are variables, and user memory is that of the test.
 */
#ifndef SHIM_BPF_HELPERS_H
#define SHIM_BPF_HELPERS_H

#define SEC(name)
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __noinline	__attribute__((noinline))
#define __ksym
#define __weak __attribute__((weak))

#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

#define bpf_ksym_exists(symbol) (!!(symbol))
#define barrier_var(variable)	asm volatile("" : "+r"(variable))

/* The properties of a map are in the types of its fields. */
#define SHIM_TYPE(map)	  (sizeof(*(map)->type) / sizeof(int))
#define SHIM_ENTRIES(map) (sizeof(*(map)->max_entries) / sizeof(int))
#define MAP_OF(map)                                                                                \
	shim_map((map), #map, SHIM_TYPE(map), sizeof(*(map)->key), sizeof(*(map)->value),          \
		 SHIM_ENTRIES(map))

struct shim_map;
struct shim_map *shim_map(void *id, const char *name, unsigned long type, unsigned long key_bytes,
			  unsigned long value_bytes, unsigned long max_entries);
void *shim_lookup(struct shim_map *map, const void *key, unsigned cpu);
long shim_update(struct shim_map *map, const void *key, const void *value, unsigned long flags);
long shim_delete(struct shim_map *map, const void *key);
void *shim_storage(void *id, unsigned long bytes, void *task, int create);
long shim_storage_delete(void *id, void *task);
void *shim_reserve(void *ring, unsigned long bytes);
void shim_submit(void *record, unsigned long flags);
void shim_discard(void *record);
unsigned long shim_available(void *ring);
long shim_read_user(void *to, unsigned long bytes, const void *from);
long shim_read_user_string(char *to, unsigned long capacity, const void *from);

/* The running thread, and what the kernel knows of it. */
extern struct shim_now {
	void *task;
	unsigned long pid_tgid;
	unsigned cpu;
	unsigned long time;
	unsigned long cookie;
	int is_return;
	char comm[16];
	unsigned long random;
} shim_now;

/* A repeatable sequence. */
static inline unsigned shim_random(void)
{
	shim_now.random = shim_now.random * 6364136223846793005UL + 1442695040888963407UL;
	return shim_now.random >> 32;
}

#define bpf_map_lookup_elem(map, key)		   shim_lookup(MAP_OF(map), key, shim_now.cpu)
#define bpf_map_lookup_percpu_elem(map, key, cpu)  shim_lookup(MAP_OF(map), key, cpu)
#define bpf_map_update_elem(map, key, value, flag) shim_update(MAP_OF(map), key, value, flag)
#define bpf_map_delete_elem(map, key)		   shim_delete(MAP_OF(map), key)

#define bpf_task_storage_get(map, task, initial, flags)                                            \
	shim_storage(map, sizeof(*(map)->value), task, (flags) & BPF_LOCAL_STORAGE_GET_F_CREATE)
#define bpf_task_storage_delete(map, task) shim_storage_delete(map, task)

#define bpf_ringbuf_reserve(ring, bytes, flags) shim_reserve(ring, bytes)
#define bpf_ringbuf_submit(record, flags)	shim_submit(record, flags)
#define bpf_ringbuf_discard(record, flags)	shim_discard(record)
#define bpf_ringbuf_query(ring, what)		shim_available(ring)

#define bpf_probe_read_user(to, bytes, from)	 shim_read_user(to, bytes, from)
#define bpf_probe_read_user_str(to, bytes, from) shim_read_user_string(to, bytes, from)

#define bpf_probe_read_kernel(to, bytes, from) __builtin_memcpy(to, from, bytes)

#define bpf_get_current_task()	       ((unsigned long)shim_now.task)
#define bpf_get_current_task_btf()     (shim_now.task)
#define bpf_get_current_pid_tgid()     (shim_now.pid_tgid)
#define bpf_get_current_uid_gid()      (1000UL << 32 | 1001)
#define bpf_get_attach_cookie(ctx)     (shim_now.cookie)
#define bpf_ktime_get_ns()	       (++shim_now.time)
#define bpf_ktime_get_boot_ns()	       (++shim_now.time)
#define bpf_get_prandom_u32()	       shim_random()
#define bpf_jiffies64()		       (shim_now.time)
#define bpf_tail_call(ctx, map, index) __builtin_trap()

#define bpf_get_current_comm(to, bytes) (__builtin_memcpy(to, shim_now.comm, bytes), 0)

#define bpf_loop(rounds, body, context, flags)                                                     \
	({                                                                                         \
		unsigned round_;                                                                   \
                                                                                                   \
		for (round_ = 0; round_ < (rounds); round_++)                                      \
			if (body(round_, context))                                                 \
				break;                                                             \
		(long)round_;                                                                      \
	})

#endif
