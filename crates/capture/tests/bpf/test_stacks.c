/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* stack.h and window.h: known stacks, copies, and walks of frame pointers. */

#define IP 0x401000

static struct vs_call *allocate(void)
{
	static __u64 out = 0xd000;

	PT_REGS_IP(&regs) = IP;
	DO_CALL(cuMemAlloc_v2, 0, (__u64)&out, 64);
	return call_record(count_records(&records, VS_CALL) - 1);
}

/* The stack pointer of the caller after the call. */
#define CALLER_SP (BASE_SP + CALL_BYTES)

static void know(__u16 index, __u64 number, __u64 offset, __u64 value)
{
	struct vs_known_stack_key key = {IP, CALLER_SP, PID, own_exec_gen(), index};
	static struct vs_known_stack known;

	memset(&known, 0, sizeof(known));
	known.number = number;
	known.count = 2;
	known.bytes = offset + 8;
	known.slots[0] = (struct vs_slot){8, 0x11};
	known.slots[1] = (struct vs_slot){offset, value};
	bpf_map_update_elem(&known_stacks, &key, &known, BPF_ANY);
}

static __u64 *caller_word(__u64 offset)
{
	return (__u64 *)(CALLER_SP + offset);
}

TEST(unknown_stack_is_copied_and_a_known_one_only_named)
{
	for (int loops = 0; loops < 2; loops++) {
		for (int windows = 0; windows < 2; windows++) {
			struct vs_stack *stack;
			struct vs_call *call;

			reset();
			load_config.stacks = VS_STACKS_COPY;
			load_config.can_loop = loops;
			load_config.use_stack_windows = windows;
			*caller_word(8) = 0x11;
			*caller_word(20000) = 0x22;
			call = allocate();
			stack = record(&stack_records, VS_STACK, 0);
			CHECK_EQ(call->stack, stack->token);
			CHECK_EQ(stack->ip == IP && stack->sp == CALLER_SP, 1);
			CHECK_EQ(call->flags & VS_STACK_KNOWN, 0);
			/* The slot far above is in another window. */
			know(0, 5, 20000, 0x33);
			know(1, 6, 20000, 0x22);
			call = allocate();
			CHECK_EQ(call->stack, 6);
			CHECK(call->flags & VS_STACK_KNOWN);
			*caller_word(20000) = 0x44;
			CHECK_EQ(allocate()->flags & VS_STACK_KNOWN, 0);
			CHECK_EQ(count_records(&stack_records, VS_STACK), 2);
		}
	}
}

TEST(known_stacks_of_one_key_are_limited)
{
	load_config.stacks = VS_STACKS_COPY;
	*caller_word(8) = 0x11;
	for (__u16 index = 0; index < VS_STACKS_PER_KEY; index++)
		know(index, index + 1, 16, index + 100);
	*caller_word(16) = VS_STACKS_PER_KEY - 1 + 100;
	CHECK_EQ(allocate()->stack, VS_STACKS_PER_KEY);
	/* One more than are searched. */
	know(VS_STACKS_PER_KEY, 99, 16, 7);
	*caller_word(16) = 7;
	CHECK_EQ(allocate()->flags & VS_STACK_KNOWN, 0);
	load_config.can_loop = 0;
	*caller_word(16) = VS_STACKS_PER_KEY_NO_LOOP - 1 + 100;
	CHECK_EQ(allocate()->stack, VS_STACKS_PER_KEY_NO_LOOP);
	*caller_word(16) = VS_STACKS_PER_KEY_NO_LOOP + 100;
	CHECK_EQ(allocate()->flags & VS_STACK_KNOWN, 0);
}

TEST(known_stacks_are_of_one_program)
{
	load_config.stacks = VS_STACKS_COPY;
	*caller_word(8) = 0x11;
	*caller_word(16) = 0x22;
	know(0, 5, 16, 0x22);
	CHECK_EQ(allocate()->stack, 5);
	main_thread.task.self_exec_id++;
	CHECK_EQ(allocate()->flags & VS_STACK_KNOWN, 0);
}

TEST(copy_ends_where_the_stack_ends)
{
	struct {
		__u64 above, bytes;
	} cases[] = {{8, 8}, {4096, 4096}, {4097, 4097}, {16384, 16384}, {100000, VS_COPY_BIG}};
	static __u8 big[200000];

	load_config.stacks = VS_STACKS_COPY;
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct vs_stack *stack;

		main_thread.mm.start_stack = (__u64)big + 1000000;
		THREAD_POINTER(&main_thread.task) = (__u64)big + cases[i].above;
		CHECK_EQ(send_copy(IP, (__u64)big, 0, i + 1), 0);
		stack = record(&stack_records, VS_STACK, i);
		CHECK_EQ(stack->bytes, cases[i].bytes);
		CHECK_EQ(stack->hijacked_count, 0);
	}
}

TEST(copy_is_halved_until_it_can_be_read)
{
	struct vs_stack *stack;

	load_config.stacks = VS_STACKS_COPY;
	main_thread.mm.start_stack = THREAD_POINTER(&main_thread.task) = UNREADABLE + 13000;
	send_copy(IP, UNREADABLE - 3000, 0, 1);
	stack = record(&stack_records, VS_STACK, 0);
	CHECK_EQ(stack->bytes, 2000);
	send_copy(IP, UNREADABLE, 0, 1);
	CHECK_EQ(((struct vs_stack *)record(&stack_records, VS_STACK, 1))->bytes, 0);
}

TEST(stack_with_pending_uretprobes_is_never_known)
{
	struct return_instance___x outer = {CALLER_SP + 64, 0x777, NULL};
	struct return_instance___x own = {CALLER_SP - CALL_BYTES - 8, 0x666, &outer};
	struct vs_stack *stack;

	load_config.stacks = VS_STACKS_COPY;
	*caller_word(8) = 0x11;
	*caller_word(16) = 0x22;
	know(0, 5, 16, 0x22);
	/* The call that is returning is still in the list on some kernels. */
	main_thread.utask.return_instances = &own;
	CHECK_EQ(allocate()->flags & VS_STACK_KNOWN, 0);
	stack = record(&stack_records, VS_STACK, 0);
	CHECK_EQ(stack->hijacked_count, 1);
	CHECK_EQ(stack->hijacked[0].at, outer.stack);
	CHECK_EQ(stack->hijacked[0].address, 0x777);
	CHECK_EQ(stack->hijacked[1].at | stack->hijacked[1].address, 0);
}

TEST(stack_that_does_not_fit_is_lost_but_not_its_call)
{
	for (__u32 mode = VS_STACKS_FRAME_POINTER; mode <= VS_STACKS_COPY; mode++) {
		struct vs_call *call;

		reset();
		load_config.stacks = mode;
		shim.full_ring = &stack_records;
		call = allocate();
		CHECK_EQ(call->stack, 0);
		CHECK(call->flags & VS_STACK_LOST);
		CHECK_EQ(LOST(stacks), 1);
		CHECK_EQ(LOST(allocations), 0);
	}
}

/* Builds a chain of frames above the caller; the last one ends it. */
static void chain(unsigned frames)
{
	for (unsigned i = 0; i < frames; i++) {
		*caller_word(i * 32) = i + 1 < frames ? CALLER_SP + (i + 1) * 32 : 0;
		*caller_word(i * 32 + 8) = 0x402000 + i;
	}
	PT_REGS_FP(&regs) = CALLER_SP;
}

TEST(frame_pointers_are_followed_to_the_end)
{
	for (int windows = 0; windows < 2; windows++) {
		struct vs_addresses *addresses;

		reset();
		load_config.stacks = VS_STACKS_FRAME_POINTER;
		load_config.use_stack_windows = windows;
		chain(5);
		allocate();
		addresses = record(&stack_records, VS_ADDRESSES, 0);
		CHECK_EQ(addresses->count, 6);
		CHECK_EQ(addresses->addresses[0], IP);
		CHECK_EQ(addresses->addresses[5], 0x402004);
		/* Sent once. */
		CHECK_EQ(allocate()->stack, addresses->token);
		CHECK_EQ(count_records(&stack_records, VS_ADDRESSES), 1);
		*caller_word(8) = 0x403000;
		CHECK(allocate()->stack != addresses->token);
		CHECK_EQ(count_records(&stack_records, VS_ADDRESSES), 2);
	}
}

TEST(walk_of_frame_pointers_is_bounded)
{
	struct vs_addresses *addresses;

	load_config.stacks = VS_STACKS_FRAME_POINTER;
	/* A cycle ends the walk: frame pointers have to ascend. */
	chain(3);
	*caller_word(64) = CALLER_SP;
	allocate();
	addresses = record(&stack_records, VS_ADDRESSES, 0);
	CHECK_EQ(addresses->count, 4);
	chain(90);
	load_config.can_loop = 0;
	allocate();
	addresses = record(&stack_records, VS_ADDRESSES, 1);
	CHECK_EQ(addresses->count, SHORT_WALK + 1);
	load_config.can_loop = 1;
	PT_REGS_FP(&regs) = UNREADABLE;
	allocate();
	addresses = record(&stack_records, VS_ADDRESSES, 2);
	CHECK_EQ(addresses->count, 1);
}

TEST(long_chain_of_frames_is_cut)
{
	static __u64 frames[2 * VS_ADDRESSES_MAX + 40];
	struct caller caller = {IP, (__u64)frames, (__u64)frames};
	static struct vs_addresses addresses;
	struct loop_state loop = {};

	for (unsigned i = 0; i < VS_ADDRESSES_MAX + 10; i++) {
		frames[2 * i] = (__u64)&frames[2 * i + 2];
		frames[2 * i + 1] = 0x402000 + i;
	}
	walk_frame_pointers(&caller, &loop, &addresses);
	CHECK_EQ(addresses.count, VS_ADDRESSES_MAX);
	CHECK_EQ(addresses.addresses[VS_ADDRESSES_MAX - 1], 0x402000 + VS_ADDRESSES_MAX - 2);
}

TEST(hijacked_walks_are_always_sent)
{
	struct return_instance___x outer = {CALLER_SP + 64, 0x777, NULL};

	load_config.stacks = VS_STACKS_FRAME_POINTER;
	chain(3);
	main_thread.utask.return_instances = &outer;
	CHECK(allocate()->stack != allocate()->stack);
	CHECK_EQ(count_records(&stack_records, VS_ADDRESSES), 2);
}
