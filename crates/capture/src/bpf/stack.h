/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Native call stacks of allocating calls. A stack is captured after the driver function has
 * returned: the instruction pointer, the stack pointer and the callee-saved registers are then
 * those of the caller, and our own uretprobe has been removed from the stack. At the entry of a
 * function the same is known: callee-saved registers are untouched and the return address is on
 * top.
 *
 * Each stack crosses the ring once. With frame pointers the probe walks the stack and sends the
 * addresses if their hash is new. Otherwise it sends a copy of the stack. User space unwinds it and
 * stores the slots of the return addresses, so that the probe finds a known stack by reading those
 * few words.
 */
#ifndef VS_STACK_H
#define VS_STACK_H

/* Maximum length of a frame-pointer walk on kernels without bpf_loop(). */
#define SHORT_WALK 32

/* Registers of the caller after the return. */
struct caller {
	__u64 ip;
	__u64 sp;
	__u64 bp;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_known_stack_key);
	__type(value, struct vs_known_stack);
} known_stacks SEC(".maps");

/* Returns the innermost pending uretprobe of an outer function. */
static __always_inline struct return_instance___x *first_hijacked(__u64 sp)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	struct return_instance___x *instance = BPF_CORE_READ(task, utask, return_instances);

	/* On some kernels the list still has the call that is returning. */
	for (int i = 0; i < VS_INFLIGHT; i++) {
		if (!instance || BPF_CORE_READ(instance, stack) + CALL_BYTES > sp)
			break;
		instance = BPF_CORE_READ(instance, next);
	}
	return instance;
}

static __always_inline __u32 fill_hijacked(struct vs_hijacked_return *list,
					   struct return_instance___x *instance)
{
	__u32 count = 0;

	for (int i = 0; i < VS_HIJACKED_RETURNS; i++) {
		list[i].at = instance ? BPF_CORE_READ(instance, stack) : 0;
		list[i].address = instance ? BPF_CORE_READ(instance, orig_ret_vaddr) : 0;
		if (instance) {
			count++;
			instance = BPF_CORE_READ(instance, next);
		}
	}
	return count;
}

/* Returns the size of the stack above sp: up to the arguments of the process, or to the thread
 * control block that the C library keeps at the top of a thread's stack. */
static __always_inline __u32 stack_bytes(__u64 sp)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	__u64 first = BPF_CORE_READ(task, mm, start_stack) + 16 - sp;
	__u64 other = thread_pointer() - sp;

	if (other < first)
		first = other;
	return first < VS_COPY_BIG ? first : VS_COPY_BIG;
}

/* Copies as much as can be read. A read beyond the end of the mapping fails as a whole, so smaller
 * sizes are tried. */
static __always_inline __u32 copy_stack(void *to, __u32 bytes, const __u32 room, __u64 sp)
{
	for (int i = 0; i < 8; i++) {
		if (bytes > room)
			bytes = room;
		if (!bpf_probe_read_user(to, bytes, (void *)sp))
			return bytes;
		bytes /= 2;
	}
	return 0;
}

static __always_inline void fill_stack(const struct caller *caller, struct vs_stack *record,
				       __u64 token, struct return_instance___x *hijacked)
{
	fill_head(&record->head, VS_STACK);
	record->head.result = own_exec_gen();
	record->token = token;
	record->ip = caller->ip;
	record->sp = caller->sp;
	record->bp = caller->bp;
	record->hijacked_count = fill_hijacked(record->hijacked, hijacked);
}

/* One record size for each stack size: the verifier requires constant sizes. */
#define SEND_COPY(room)                                                                            \
	do {                                                                                       \
		struct vs_stack *record;                                                           \
                                                                                                   \
		record = bpf_ringbuf_reserve(&stack_records, sizeof(*record) + (room), 0);         \
		if (!record)                                                                       \
			return 1;                                                                  \
		fill_stack(&caller, record, token, hijacked);                                      \
		record->bytes = copy_stack(record + 1, bytes, room, sp);                           \
		/* Wake the reader: unwinding needs the process, which may exit soon. */           \
		bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);                                   \
	} while (0)

/* Sends a copy of the stack. Returns 1 if it does not fit into the ring. */
__noinline int send_copy(__u64 ip, __u64 sp, __u64 bp, __u64 token)
{
	struct caller caller = {ip, sp, bp};
	struct return_instance___x *hijacked;
	__u32 bytes;

	/* Kernels before 6.8 also verify global functions that are not called: no maps exist. */
	if (!load_config.stacks)
		return 1;
	hijacked = first_hijacked(sp);
	bytes = stack_bytes(sp);
	if (bytes <= VS_COPY_SMALL)
		SEND_COPY(VS_COPY_SMALL);
	else if (bytes <= VS_COPY_MEDIUM)
		SEND_COPY(VS_COPY_MEDIUM);
	else
		SEND_COPY(VS_COPY_BIG);
	return 0;
}

/* Reads a word of the stack. Returns 1 if it cannot be read. */
static __always_inline int stack_word(struct window *window, struct loop_state *loop, __u64 address,
				      __u64 *word)
{
	__u64 offset;

	if (!window)
		return bpf_probe_read_user(word, 8, (void *)address) != 0;
	if (address < loop->from || address + 8 > loop->to) {
		__u64 length = loop->end - address;

		if (length > WINDOW)
			length = WINDOW;
		loop->from = address;
		loop->to = address + length;
		if (length < 8 || bpf_probe_read_user(window->bytes, length, (void *)address)) {
			loop->to = address;
			return bpf_probe_read_user(word, 8, (void *)address) != 0;
		}
	}
	offset = (address - loop->from) & (WINDOW - 1);
	__builtin_memcpy(word, window->bytes + offset, 8);
	return 0;
}

static __always_inline bool is_known(const struct vs_known_stack *known, __u64 sp)
{
	for (__u32 i = 0; i < VS_SLOTS; i++) {
		if (i >= known->count)
			break;
		if (read_user_u64(sp + known->slots[i].offset) != known->slots[i].value)
			return 0;
	}
	return 1;
}

/* Search over the known stacks of one key and the slots of each, in one loop: nested loops take the
 * verifier long. The window is shared by all of them. */
struct known_search {
	struct window *window; /* may be null */
	struct loop_state *loop;
	const struct vs_known_stack *known; /* the current candidate */
	__u64 number;
};

/* Selects the known stack of the key as candidate. Returns 1 if it does not exist. */
static __always_inline long select_known(struct known_search *search, __u32 round)
{
	struct loop_state *loop = search->loop;
	const struct vs_known_stack *known = bpf_map_lookup_elem(&known_stacks, &loop->key);

	if (!known)
		return 1;
	search->known = known;
	loop->first = round;
	if (loop->end < loop->key.sp + known->bytes)
		loop->end = loop->key.sp + known->bytes;
	return 0;
}

static long next_slot(__u32 round, struct known_search *search)
{
	const struct vs_known_stack *known = search->known;
	struct loop_state *loop = search->loop;
	__u32 slot = round - loop->first;
	__u64 value;

	if (slot >= known->count) {
		search->number = known->number;
		return 1;
	}
	slot &= VS_SLOTS - 1;
	if (!stack_word(search->window, loop, loop->key.sp + known->slots[slot].offset, &value) &&
	    value == known->slots[slot].value)
		return 0;
	loop->key.index++;
	return loop->key.index >= VS_STACKS_PER_KEY || select_known(search, round + 1);
}

/* Returns the number of the stack if user space already has it, else 0. */
static __noinline __u64 find_known_stack(const struct caller *caller, struct loop_state *loop)
{
	struct known_search search = {.loop = loop};

	loop->from = loop->to = loop->end = 0;
	loop->key.ip = caller->ip;
	loop->key.sp = caller->sp;
	loop->key.pid = bpf_get_current_pid_tgid() >> 32;
	loop->key.exec_gen = own_exec_gen();
	loop->key.index = 0;
	if (load_config.can_loop) {
		if (select_known(&search, 0))
			return 0;
		search.window = own_window();
		bpf_loop(VS_STACKS_PER_KEY * (VS_SLOTS + 1), next_slot, &search, 0);
		return search.number;
	}
	for (__u16 index = 0; index < VS_STACKS_PER_KEY_NO_LOOP; index++) {
		struct vs_known_stack *known;

		loop->key.index = index;
		known = bpf_map_lookup_elem(&known_stacks, &loop->key);
		if (!known)
			return 0;
		if (is_known(known, caller->sp))
			return known->number;
	}
	return 0;
}

struct fp_walk {
	struct window *window; /* may be null */
	struct loop_state *loop;
	struct vs_addresses *record; /* receives the addresses; may be null */
	__u64 pointer;
	__u64 above;
	__u64 hash;
	__u32 count;
};

static __always_inline bool next_pointer(__u32 i, struct fp_walk *walk)
{
	struct vs_addresses *record = walk->record;
	__u64 next, address;

	if (walk->pointer < walk->above ||
	    stack_word(walk->window, walk->loop, walk->pointer, &next) ||
	    stack_word(walk->window, walk->loop, walk->pointer + 8, &address) || !address)
		return 1;
	address = code_address(address);
	walk->above = walk->pointer + 16;
	walk->pointer = next;
	walk->hash = mix(walk->hash, address);
	walk->count = i + 2;
	if (record && i + 1 < VS_ADDRESSES_MAX)
		record->addresses[i + 1] = address;
	return 0;
}

static long next_pointer_in_loop(__u32 i, struct fp_walk *walk)
{
	return next_pointer(i, walk);
}

/* Follows the frame pointers and stores the addresses in the record, if any. Returns their hash. */
static __noinline __u64 walk_frame_pointers(const struct caller *caller, struct loop_state *loop,
					    struct vs_addresses *record)
{
	__u64 sp = caller->sp;
	struct fp_walk walk = {
		.loop = loop,
		.record = record,
		.pointer = caller->bp,
		.above = sp,
		.hash = mix(VS_ADDRESSES, caller->ip),
		.count = 1,
	};

	if (record)
		record->addresses[0] = caller->ip;
	if (load_config.can_loop) {
		walk.window = own_window();
		loop->from = loop->to = 0;
		loop->end = sp + stack_bytes(sp);
		bpf_loop(VS_ADDRESSES_MAX - 1, next_pointer_in_loop, &walk, 0);
	} else {
		for (__u32 i = 0; i < SHORT_WALK; i++) {
			if (next_pointer(i, &walk))
				break;
		}
	}
	if (record)
		record->count = walk.count;
	return walk.hash;
}

static __noinline int send_fp_stack(const struct caller *caller, struct loop_state *loop,
				    __u64 token, struct return_instance___x *hijacked)
{
	struct vs_addresses *record = bpf_ringbuf_reserve(&stack_records, sizeof(*record), 0);

	if (!record)
		return 1;
	fill_head(&record->head, VS_ADDRESSES);
	record->head.result = own_exec_gen();
	record->token = token;
	record->hijacked_count = fill_hijacked(record->hijacked, hijacked);
	walk_frame_pointers(caller, loop, record);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __always_inline int capture_fp_stack(const struct caller *caller,
					    struct thread_state *thread, struct stack_ref *ref)
{
	struct return_instance___x *hijacked = first_hijacked(caller->sp);
	__u64 token = walk_frame_pointers(caller, &thread->loop, NULL);

	ref->stack = token;
	/* The hash lacks the original addresses of hijacked returns: use a unique token. */
	if (hijacked)
		ref->stack = token = mix(token, bpf_ktime_get_ns());
	else if (was_sent(token, VS_ADDRESSES))
		return 0;
	if (send_fp_stack(caller, &thread->loop, token, hijacked))
		return 1;
	if (!hijacked)
		mark_sent(token, VS_ADDRESSES);
	return 0;
}

static __always_inline int capture_stack_copy(const struct caller *caller,
					      struct thread_state *thread, struct stack_ref *ref)
{
	struct return_instance___x *hijacked = first_hijacked(caller->sp);

	if (!hijacked) {
		ref->stack = find_known_stack(caller, &thread->loop);
		if (ref->stack) {
			ref->flags |= VS_STACK_KNOWN;
			return 0;
		}
	}
	thread->stacks++;
	ref->stack = bpf_get_current_pid_tgid() << 32 | thread->stacks;
	return send_copy(caller->ip, caller->sp, caller->bp, ref->stack);
}

/* Captures the stack of the current call and stores the reference in the thread's state. */
__noinline int capture_stack(__u64 ip, __u64 sp, __u64 bp)
{
	struct caller caller = {ip, sp, bp};
	struct thread_state *thread = thread_find();
	struct stack_ref *ref;
	int lost;

	/* Kernels before 6.8 also verify global functions that are not called: no maps exist. */
	if (!load_config.stacks || !thread)
		return 0;
	ref = &thread->ref;
	if (load_config.stacks == VS_STACKS_COPY && effective_stack_mode() == VS_STACKS_COPY)
		lost = capture_stack_copy(&caller, thread, ref);
	else
		lost = capture_fp_stack(&caller, thread, ref);

	if (lost) {
		ref->stack = 0;
		ref->flags |= VS_STACK_LOST;
	}
	if (capture_python_stack())
		lost = 1;
	if (lost)
		count_lost_stack();
	return 0;
}

#endif
