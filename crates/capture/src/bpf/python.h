/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The Python stack of the calling thread, read from the interpreter's own structures. User space
 * says where they are in each process; a stack goes over the ring when its hash is new.
 */
#ifndef VS_PYTHON_H
#define VS_PYTHON_H

/* What a call's stack became. */
struct taken_stack {
	__u64 stack;
	__u64 python;
	__u32 flags; /* enum vs_call_flag */
};

/* Stacks on their way. Apart from the calls: when it is full, no call is lost. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
} stack_records SEC(".maps");

/* Lists of frames that are on their way or were there. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_told_key);
	__type(value, __u8);
} told_frames SEC(".maps");

/* Processes that run Python. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct vs_python);
} pythons SEC(".maps");

/* A frame of the interpreter can be the last thing in its mapping, so no more of it is read than
 * there must be. */
#define FRAME_BYTES	   80
#define FRAME_OBJECT_BYTES 112
#define CODE_BYTES	   96

/* Threads that are looked at to find the calling one. */
#define MOST_THREADS 512

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

static __always_inline bool was_told(__u64 token, __u16 kind)
{
	struct vs_told_key key = {
		.token = token,
		.pid = bpf_get_current_pid_tgid() >> 32,
		.program = own_program(),
		.kind = kind,
	};

	return bpf_map_lookup_elem(&told_frames, &key) != NULL;
}

static __always_inline void set_told(__u64 token, __u16 kind)
{
	struct vs_told_key key = {
		.token = token,
		.pid = bpf_get_current_pid_tgid() >> 32,
		.program = own_program(),
		.kind = kind,
	};
	__u8 yes = 1;

	/* When the table is full the frames are sent with every call. */
	bpf_map_update_elem(&told_frames, &key, &yes, BPF_ANY);
}

/* Not inlined: its own room on the stack would count for all that takes a stack. */
static __noinline int count_lost_stack(void)
{
	struct vs_lost *lost = lost_of(bpf_get_current_pid_tgid() >> 32);

	if (lost)
		__sync_fetch_and_add(&lost->stacks, 1);
	COUNT(lost);
	return 0;
}

static __always_inline __u64 user_word(__u64 address)
{
	__u64 word = 0;

	bpf_probe_read_user(&word, sizeof(word), (void *)address);
	return word;
}

/* Python knows threads by what pthread_self() gives, which is where the thread's own memory is. */
static __always_inline __u64 own_thread(void)
{
	struct task_struct___x *task = (void *)bpf_get_current_task();

	if (!bpf_core_field_exists(task->thread.fsbase))
		return 0;
	return BPF_CORE_READ(task, thread.fsbase);
}

/* The innermost frame of a thread, where it runs Python just now. */
static __always_inline __u64 first_frame(const struct vs_python *python, __u64 state)
{
	__u64 frame = user_word(state + python->thread_frame);

	return frame && python->frame_of != VS_NO_FIELD ? user_word(frame + python->frame_of)
							: frame;
}

/* Loops are the kernel's: it need not follow each round beforehand. */
struct thread_search {
	const struct vs_python *python;
	__u64 self;
	__u64 interpreter;
	__u64 state;
	__u64 frame; /* what was found */
};

static long next_thread(__u32 round, struct thread_search *search)
{
	const struct vs_python *python = search->python;

	if (!search->interpreter)
		return 1;
	if (!search->state) {
		search->interpreter = user_word(search->interpreter + python->interpreter_next);
		search->state =
			search->interpreter ? user_word(search->interpreter + python->threads) : 0;
		return 0;
	}
	/* A thread that made another interpreter has a second state there, without frames. */
	if (user_word(search->state + python->thread_id) == search->self) {
		search->frame = first_frame(python, search->state);
		if (search->frame)
			return 1;
	}
	search->state = user_word(search->state + python->thread_next);
	return 0;
}

static __noinline __u64 own_frame(const struct vs_python *python, struct thread_state *thread)
{
	struct thread_search search = {.python = python, .self = own_thread()};

	if (thread->python && user_word(thread->python + python->thread_id) == search.self) {
		search.frame = first_frame(python, thread->python);
		if (search.frame)
			return search.frame;
	}
	search.interpreter = user_word(python->interpreters);
	if (search.interpreter)
		search.state = user_word(search.interpreter + python->threads);
	bpf_loop(MOST_THREADS, next_thread, &search, 0);
	thread->python = search.frame ? search.state : 0;
	return search.frame;
}

struct frame_walk {
	const struct vs_python *python;
	__u64 *words;			/* of the thread */
	struct vs_python_stack *record; /* where the frames are written down, or nowhere */
	__u64 frame;
	__u64 hash;
	__u32 count;
};

static long next_frame(__u32 round, struct frame_walk *walk)
{
	const struct vs_python *python = walk->python;
	struct vs_python_stack *record = walk->record;
	struct vs_python_frame found = {};
	__u64 *words = walk->words;
	__u8 *bytes = (__u8 *)words;
	__u32 length = python->every_is_entry ? FRAME_OBJECT_BYTES : FRAME_BYTES;

	__builtin_memset(words, 0, VS_WORDS * 8);
	if (!walk->frame || bpf_probe_read_user(words, length, (void *)walk->frame))
		return 1;
	walk->frame = words[python->frame_previous & (VS_WORDS - 1)];
	if (bytes[python->frame_owner & (VS_WORDS * 8 - 1)] >= python->owner_entry) {
		found.entry = 1;
	} else {
		found.code = words[python->frame_code & (VS_WORDS - 1)] & ~7ULL;
		found.instruction = words[python->frame_instruction & (VS_WORDS - 1)];
		found.entry = python->every_is_entry;
		if (python->frame_is_entry != VS_NONE)
			found.entry = bytes[python->frame_is_entry & (VS_WORDS * 8 - 1)] & 1;
		if (!bpf_probe_read_user(words, CODE_BYTES,
					 (void *)(found.code + python->code_from))) {
			found.name = words[python->code_name & (VS_WORDS - 1)];
			found.lines = words[python->code_lines & (VS_WORDS - 1)];
			found.first_line =
				((__u32 *)words)[python->code_first_line & (VS_WORDS * 2 - 1)];
		}
	}
	walk->hash = mix(mix(walk->hash, found.code), found.instruction);
	walk->hash = mix(mix(walk->hash, found.name), found.lines ^ found.entry);
	if (record && round < VS_PYTHON_MAX)
		record->frames[round] = found;
	walk->count = round + 1;
	return 0;
}

static __noinline int send_python(const struct vs_python *python, struct thread_state *thread,
				  __u64 frame, __u64 token)
{
	struct vs_python_stack *record = bpf_ringbuf_reserve(&stack_records, sizeof(*record), 0);
	struct frame_walk walk = {
		.python = python, .words = thread->words, .record = record, .frame = frame};

	if (!record)
		return 1;
	fill_head(&record->head, VS_PYTHON);
	record->head.result = own_program();
	record->token = token;
	bpf_loop(VS_PYTHON_MAX, next_frame, &walk, 0);
	record->count = walk.count;
	record->cut = walk.frame != 0;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __noinline __u64 hash_python(const struct vs_python *python, struct thread_state *thread,
				    __u64 frame)
{
	struct frame_walk walk = {
		.python = python, .words = thread->words, .frame = frame, .hash = VS_PYTHON};

	bpf_loop(VS_PYTHON_MAX, next_frame, &walk, 0);
	return walk.hash;
}

/* Returns 1 when the stack could not be sent. */
static __noinline int take_python(struct thread_state *thread, struct taken_stack *taken)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct vs_python *python = bpf_map_lookup_elem(&pythons, &pid);
	__u64 frame, token;

	if (!python || (python->program != own_program() && python->program != VS_ANY_PROGRAM))
		return 0;
	frame = own_frame(python, thread);
	if (!frame)
		return 0;
	token = hash_python(python, thread, frame);
	if (!was_told(token, VS_PYTHON)) {
		if (send_python(python, thread, frame, token)) {
			taken->flags |= VS_PYTHON_LOST;
			return 1;
		}
		set_told(token, VS_PYTHON);
	}
	taken->python = token;
	return 0;
}

#endif
