/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* python.h: bounds of the walk over an interpreter's threads and frames. */

/* An interpreter with the layout that the entry in `pythons` describes. */
struct py_code {
	__u64 words[VS_PYTHON_CODE / 8];
};

struct py_frame {
	__u64 code, previous, instruction;
	__u8 owner, is_entry, more[6];
	__u64 rest[10];
};

struct py_thread {
	__u64 next, id, frame;
};

struct py_interpreter {
	__u64 next, threads;
};

static struct py_code codes[2];
static struct py_frame frames[200];
static struct py_thread threads[4];
static struct py_interpreter interpreters[2];
static __u64 first_interpreter;
static struct vs_python python;

#define THREAD_ID THREAD_POINTER(&main_thread.task)

static void start_python(unsigned depth)
{
	__u32 pid = PID;

	load_config.stacks = VS_STACKS_FRAME_POINTER;
	memset(frames, 0, sizeof(frames));
	for (unsigned i = 0; i < depth; i++) {
		frames[i].code = (__u64)&codes[i % 2] | 1; /* tagged */
		frames[i].instruction = i;
		frames[i].previous = i + 1 < depth ? (__u64)&frames[i + 1] : 0;
	}
	codes[0].words[1] = 0xa0;
	codes[1].words[1] = 0xb0;
	first_interpreter = (__u64)&interpreters[0];
	interpreters[0] = (struct py_interpreter){0, (__u64)&threads[0]};
	threads[0] = (struct py_thread){(__u64)&threads[1], THREAD_ID + (1 << 20), 0};
	threads[1] = (struct py_thread){0, THREAD_ID, (__u64)&frames[0]};
	python = (struct vs_python){
		.interpreters = (__u64)&first_interpreter,
		.interpreter_next = 0,
		.threads = 8,
		.thread_next = 0,
		.thread_id = 8,
		.thread_frame = 16,
		.frame_of = VS_NO_FIELD,
		.frame_code = 0,
		.frame_previous = 1,
		.frame_instruction = 2,
		.frame_owner = 24,
		.owner_entry = 3,
		.frame_is_entry = VS_NONE,
		.code_name = 1,
		.code_lines = 2,
		.code_first_line = 6,
		.exec_gen = own_exec_gen(),
	};
	bpf_map_update_elem(&pythons, &pid, &python, BPF_ANY);
}

static struct vs_python_stack *python_stack(unsigned n)
{
	return record(&stack_records, VS_PYTHON, n);
}

TEST(python_frames_are_sent_once)
{
	for (int windows = 0; windows < 2; windows++) {
		struct vs_python_stack *stack;
		struct vs_call *call;

		reset();
		load_config.use_stack_windows = windows;
		start_python(3);
		call = allocate();
		stack = python_stack(0);
		CHECK_EQ(call->python, stack->token);
		CHECK_EQ(stack->count, 3);
		CHECK_EQ(stack->truncated, 0);
		CHECK_EQ(stack->frames[0].code, &codes[0]);
		CHECK_EQ(stack->frames[0].name, 0xa0);
		CHECK_EQ(stack->frames[2].instruction, 2);
		CHECK_EQ(allocate()->python, call->python);
		CHECK_EQ(count_records(&stack_records, VS_PYTHON), 1);
		frames[1].instruction = 99;
		CHECK(allocate()->python != call->python);
	}
}

TEST(python_frames_are_limited)
{
	start_python(VS_PYTHON_MAX);
	allocate();
	CHECK_EQ(python_stack(0)->count, VS_PYTHON_MAX);
	CHECK_EQ(python_stack(0)->truncated, 0);
	start_python(VS_PYTHON_MAX + 1);
	allocate();
	CHECK_EQ(python_stack(1)->count, VS_PYTHON_MAX);
	CHECK_EQ(python_stack(1)->truncated, 1);
	/* A cycle. */
	frames[1].previous = (__u64)&frames[0];
	allocate();
	CHECK_EQ(python_stack(2)->count, VS_PYTHON_MAX);
	CHECK_EQ(python_stack(2)->truncated, 1);
}

TEST(unreadable_frame_ends_the_python_stack)
{
	for (int windows = 0; windows < 2; windows++) {
		struct py_frame *last = (void *)(UNREADABLE - VS_PYTHON_FRAME);

		reset();
		load_config.use_stack_windows = windows;
		start_python(3);
		frames[1].previous = UNREADABLE;
		allocate();
		CHECK_EQ(python_stack(0)->count, 2);
		CHECK_EQ(python_stack(0)->truncated, 1);
		/* A frame may be at the very end of its mapping. */
		memset(last, 0, VS_PYTHON_FRAME);
		last->code = UNREADABLE | 1;
		last->instruction = 7;
		frames[1].previous = (__u64)last;
		allocate();
		CHECK_EQ(python_stack(1)->count, 3);
		/* Its code cannot be read: it has no name. */
		CHECK_EQ(python_stack(1)->frames[2].name, 0);
		CHECK_EQ(python_stack(1)->frames[2].code, UNREADABLE);
	}
}

TEST(entry_frames_have_no_code)
{
	start_python(3);
	frames[1].owner = 3;
	allocate();
	CHECK_EQ(python_stack(0)->frames[1].code, 0);
	CHECK_EQ(python_stack(0)->frames[1].entry, 1);
	python.frame_is_entry = 25;
	python.exec_gen = VS_ANY_EXEC_GEN;
	bpf_map_update_elem(&pythons, &(__u32){PID}, &python, BPF_ANY);
	frames[1].owner = 0;
	frames[2].is_entry = 1;
	allocate();
	CHECK_EQ(python_stack(1)->frames[1].entry, 0);
	CHECK_EQ(python_stack(1)->frames[2].entry, 1);
}

TEST(thread_is_searched_in_all_interpreters_within_bounds)
{
	start_python(2);
	/* The thread created another interpreter: a second state there, without frames. */
	interpreters[0].next = (__u64)&interpreters[1];
	interpreters[1] = (struct py_interpreter){0, (__u64)&threads[2]};
	threads[2] = threads[1];
	threads[1].frame = 0;
	allocate();
	CHECK_EQ(python_stack(0)->count, 2);
	CHECK_EQ(thread_find()->python, &threads[2]);
	/* A cycle of other threads. */
	thread_find()->python = 0;
	threads[1].id = threads[2].id = 1;
	threads[1].next = (__u64)&threads[0];
	CHECK_EQ(allocate()->python, 0);
	CHECK_EQ(thread_find()->python, 0);
	first_interpreter = 0;
	CHECK_EQ(allocate()->python, 0);
	python.interpreters = UNREADABLE;
	bpf_map_update_elem(&pythons, &(__u32){PID}, &python, BPF_ANY);
	CHECK_EQ(allocate()->python, 0);
	CHECK_EQ(count_records(&stack_records, VS_PYTHON), 1);
}

TEST(interpreter_of_the_program_before_is_not_read)
{
	start_python(2);
	main_thread.task.self_exec_id++;
	CHECK_EQ(allocate()->python, 0);
	python.exec_gen = VS_ANY_EXEC_GEN;
	bpf_map_update_elem(&pythons, &(__u32){PID}, &python, BPF_ANY);
	CHECK(allocate()->python != 0);
	/* Without bpf_loop() there are no Python stacks. */
	load_config.can_loop = 0;
	CHECK_EQ(allocate()->python, 0);
}

TEST(python_stack_that_does_not_fit_is_lost)
{
	struct vs_call *call;

	start_python(2);
	shim.full_ring = &stack_records;
	call = allocate();
	CHECK(call->flags & VS_PYTHON_LOST);
	CHECK_EQ(call->python, 0);
	CHECK_EQ(LOST(stacks), 1);
	shim.full_ring = NULL;
	CHECK(allocate()->python != 0);
}
