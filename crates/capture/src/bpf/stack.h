/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Where an allocating call came from. Taken when the driver's function has returned: then the
 * instruction pointer, the stack pointer and the registers that functions preserve are those of its
 * caller, and no probe of ours is left on the stack. At the entry of a function the same is known:
 * the registers that it has to preserve are untouched, and the return address is on top.
 *
 * A stack goes over the ring once. With frame pointers the probe walks it and sends the addresses
 * when their hash is new. Without, it sends a copy of the stack; user space unwinds that and says
 * where on the stack the return addresses were, so that the probe recognises the same stack by
 * reading those few words.
 */
#ifndef VS_STACK_H
#define VS_STACK_H

/* Addresses where the kernel has no loops for programs. */
#define SHORT_WALK 32

/* Where the caller goes on, and what its registers are then. */
struct caller {
	__u64 ip;
	__u64 sp;
	__u64 bp;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_known_key);
	__type(value, struct vs_known);
} known_stacks SEC(".maps");

/* The innermost return that a probe of an outer function waits for. */
static __always_inline struct return_instance___x *first_pending(__u64 sp)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	struct return_instance___x *instance = BPF_CORE_READ(task, utask, return_instances);

	/* Some kernels still have the call that returns just now in the list. */
	for (int i = 0; i < VS_INFLIGHT; i++) {
		if (!instance || BPF_CORE_READ(instance, stack) >= sp)
			break;
		instance = BPF_CORE_READ(instance, next);
	}
	return instance;
}

static __always_inline __u32 fill_pending(struct vs_pending *list,
					  struct return_instance___x *instance)
{
	__u32 count = 0;

	for (int i = 0; i < VS_PENDING; i++) {
		list[i].at = instance ? BPF_CORE_READ(instance, stack) : 0;
		list[i].address = instance ? BPF_CORE_READ(instance, orig_ret_vaddr) : 0;
		if (instance) {
			count++;
			instance = BPF_CORE_READ(instance, next);
		}
	}
	return count;
}

/* How much of the stack there is above sp: up to where the process was given its arguments, or to
 * what the C library keeps at the top of a thread's stack. */
static __always_inline __u32 stack_bytes(__u64 sp)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();
	__u64 first = BPF_CORE_READ(task, mm, start_stack) + 16 - sp;
	__u64 other = VS_COPY_BIG;

	if (bpf_core_field_exists(task->thread.fsbase))
		other = BPF_CORE_READ(task, thread.fsbase) - sp;
	if (other < first)
		first = other;
	return first < VS_COPY_BIG ? first : VS_COPY_BIG;
}

/* Copies as much as can be read. Close to the end of its mapping a big read fails as a whole. */
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
				       __u64 token, struct return_instance___x *pending)
{
	fill_head(&record->head, VS_STACK);
	record->head.result = own_program();
	record->token = token;
	record->ip = caller->ip;
	record->sp = caller->sp;
	record->bp = caller->bp;
	record->pending = fill_pending(record->list, pending);
}

/* A size of record for each size of stack: the kernel wants to know it beforehand. */
#define SEND_COPY(room)                                                                            \
	do {                                                                                       \
		struct vs_stack *record;                                                           \
                                                                                                   \
		record = bpf_ringbuf_reserve(&stack_records, sizeof(*record) + (room), 0);         \
		if (!record)                                                                       \
			return 1;                                                                  \
		fill_stack(caller, record, token, pending);                                        \
		record->bytes = copy_stack(record + 1, bytes, room, caller->sp);                   \
		/* Soon: the process may end, and with it what is needed to unwind. */             \
		bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);                                   \
	} while (0)

static __noinline int send_copy(const struct caller *caller, __u64 token,
				struct return_instance___x *pending)
{
	__u32 bytes = stack_bytes(caller->sp);

	if (bytes <= VS_COPY_SMALL)
		SEND_COPY(VS_COPY_SMALL);
	else if (bytes <= VS_COPY_MEDIUM)
		SEND_COPY(VS_COPY_MEDIUM);
	else
		SEND_COPY(VS_COPY_BIG);
	return 0;
}

/* A piece of the calling thread's stack. Many words are read one by one, and a read of one word
 * costs as much as that of some hundred. */
#define WINDOW 4096

struct window {
	__u8 bytes[WINDOW + 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct window);
} stack_windows SEC(".maps");

/* The kernel has task storage. */
const volatile bool use_stack_windows = 0;

/* NULL also where the storage is busy: words are then read one by one. */
static __always_inline struct window *own_window(void)
{
	if (!use_stack_windows)
		return NULL;
	return bpf_task_storage_get(&stack_windows, (void *)bpf_get_current_task_btf(), NULL,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
}

/* What the window shows: addresses, from and to. */
struct view {
	struct window *window;
	__u64 from;
	__u64 to;
	__u64 end; /* there is no stack from there on */
};

/* Reads a word of the stack. Returns 1 when that cannot be done. */
static __always_inline int stack_word(struct view *view, __u64 address, __u64 *word)
{
	__u64 offset;

	if (!view->window)
		return bpf_probe_read_user(word, 8, (void *)address) != 0;
	if (address < view->from || address + 8 > view->to) {
		__u64 length = view->end - address;

		if (length > WINDOW)
			length = WINDOW;
		view->from = address;
		view->to = address + length;
		if (length < 8 ||
		    bpf_probe_read_user(view->window->bytes, length, (void *)address)) {
			view->to = address;
			return bpf_probe_read_user(word, 8, (void *)address) != 0;
		}
	}
	offset = (address - view->from) & (WINDOW - 1);
	__builtin_memcpy(word, view->window->bytes + offset, 8);
	return 0;
}

static __always_inline bool is_known(const struct vs_known *known, __u64 sp)
{
	for (__u32 i = 0; i < VS_SLOTS; i++) {
		if (i >= known->count)
			break;
		if (user_word(sp + known->slots[i].offset) != known->slots[i].value)
			return 0;
	}
	return 1;
}

/* Goes through the known stacks that begin at one place, and through the addresses of each, in one
 * loop: loops in loops take the kernel long to check. What was read of the stack for one of them
 * serves the next, too. */
struct known_search {
	struct view view;
	struct vs_known_key key;
	const struct vs_known *known; /* the one that is looked at */
	__u64 number;
	__u32 first; /* the round in which that began */
};

/* Turns to the next known stack. Returns 1 when there is none. */
static __always_inline long turn_to(struct known_search *search, __u32 round)
{
	const struct vs_known *known = bpf_map_lookup_elem(&known_stacks, &search->key);

	if (!known)
		return 1;
	search->known = known;
	search->first = round;
	if (search->view.end < search->key.sp + known->bytes)
		search->view.end = search->key.sp + known->bytes;
	return 0;
}

static long next_word(__u32 round, struct known_search *search)
{
	const struct vs_known *known = search->known;
	__u32 slot = round - search->first;
	__u64 value;

	if (slot >= known->count) {
		search->number = known->number;
		return 1;
	}
	slot &= VS_SLOTS - 1;
	if (!stack_word(&search->view, search->key.sp + known->slots[slot].offset, &value) &&
	    value == known->slots[slot].value)
		return 0;
	search->key.turn++;
	return search->key.turn >= VS_TURNS || turn_to(search, round + 1);
}

/* The number of a stack that user space knows; 0 when it does not. */
static __noinline __u64 recognise(const struct caller *caller)
{
	struct known_search search = {
		.key =
			{
				.ip = caller->ip,
				.sp = caller->sp,
				.pid = bpf_get_current_pid_tgid() >> 32,
				.program = own_program(),
			},
	};

	if (can_loop) {
		if (turn_to(&search, 0))
			return 0;
		search.view.window = own_window();
		bpf_loop(VS_TURNS * (VS_SLOTS + 1), next_word, &search, 0);
		return search.number;
	}
	for (__u16 turn = 0; turn < VS_FEW_TURNS; turn++) {
		struct vs_known *known;

		search.key.turn = turn;
		known = bpf_map_lookup_elem(&known_stacks, &search.key);
		if (!known)
			return 0;
		if (is_known(known, caller->sp))
			return known->number;
	}
	return 0;
}

struct pointer_walk {
	struct view view;
	struct vs_addresses *record; /* where the addresses are written down, or nowhere */
	__u64 pointer;
	__u64 above;
	__u64 hash;
	__u32 count;
};

static __always_inline bool next_pointer(__u32 i, struct pointer_walk *walk)
{
	struct vs_addresses *record = walk->record;
	__u64 next, address;

	if (walk->pointer < walk->above || stack_word(&walk->view, walk->pointer, &next) ||
	    stack_word(&walk->view, walk->pointer + 8, &address) || !address)
		return 1;
	walk->above = walk->pointer + 16;
	walk->pointer = next;
	walk->hash = mix(walk->hash, address);
	walk->count = i + 2;
	if (record && i + 1 < VS_ADDRESSES_MAX)
		record->addresses[i + 1] = address;
	return 0;
}

static long looped_pointer(__u32 i, struct pointer_walk *walk)
{
	return next_pointer(i, walk);
}

/* Follows the frame pointers; writes the addresses down where there is a record. Gives their hash.
 */
static __noinline __u64 walk_pointers(const struct caller *caller, struct vs_addresses *record)
{
	__u64 sp = caller->sp;
	struct pointer_walk walk = {
		.record = record,
		.pointer = caller->bp,
		.above = sp,
		.hash = mix(VS_ADDRESSES, caller->ip),
		.count = 1,
	};

	if (record)
		record->addresses[0] = caller->ip;
	if (can_loop) {
		walk.view.window = own_window();
		walk.view.end = sp + stack_bytes(sp);
		bpf_loop(VS_ADDRESSES_MAX - 1, looped_pointer, &walk, 0);
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

static __noinline int send_pointers(const struct caller *caller, __u64 token,
				    struct return_instance___x *pending)
{
	struct vs_addresses *record = bpf_ringbuf_reserve(&stack_records, sizeof(*record), 0);

	if (!record)
		return 1;
	fill_head(&record->head, VS_ADDRESSES);
	record->head.result = own_program();
	record->token = token;
	record->pending = fill_pending(record->list, pending);
	walk_pointers(caller, record);
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __always_inline int take_pointers(const struct caller *caller, struct taken_stack *taken)
{
	struct return_instance___x *pending = first_pending(caller->sp);
	__u64 token = walk_pointers(caller, NULL);

	taken->stack = token;
	/* Hidden addresses are not in the hash. */
	if (pending)
		taken->stack = token = mix(token, bpf_ktime_get_ns());
	else if (was_told(token, VS_ADDRESSES))
		return 0;
	if (send_pointers(caller, token, pending))
		return 1;
	if (!pending)
		set_told(token, VS_ADDRESSES);
	return 0;
}

static __always_inline int take_copy(const struct caller *caller, struct thread_state *thread,
				     struct taken_stack *taken)
{
	struct return_instance___x *pending = first_pending(caller->sp);

	if (!pending) {
		taken->stack = recognise(caller);
		if (taken->stack) {
			taken->flags |= VS_STACK_KNOWN;
			return 0;
		}
	}
	thread->stacks++;
	taken->stack = bpf_get_current_pid_tgid() << 32 | thread->stacks;
	return send_copy(caller, taken->stack, pending);
}

static __noinline int take_stack(const struct caller *caller, struct thread_state *thread,
				 struct taken_stack *taken)
{
	int lost;

	if (stacks == VS_STACKS_COPY && stacks_now() == VS_STACKS_COPY)
		lost = take_copy(caller, thread, taken);
	else
		lost = take_pointers(caller, taken);

	if (lost) {
		taken->stack = 0;
		taken->flags |= VS_STACK_LOST;
	}
	if (walk_python && take_python(thread, taken))
		lost = 1;
	if (lost)
		count_lost_stack();
	return 0;
}

#endif
