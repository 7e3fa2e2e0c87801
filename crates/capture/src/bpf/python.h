/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The Python stack of the calling thread, read from the interpreter's structures. User space
 * provides their location in each process; a stack is sent only if its hash is new.
 */
#ifndef VS_PYTHON_H
#define VS_PYTHON_H

/* Ring for stacks. Separate from `records`, so that no call is lost if it is full. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 16 * 1024 * 1024);
} stack_records SEC(".maps");

/* Lists of frames that were sent to user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vs_sent_frames_key);
	__type(value, __u8);
} sent_frames SEC(".maps");

/* Processes that run Python. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct vs_python);
} pythons SEC(".maps");

/* Python threads that are searched for the calling one. */
#define MAX_THREADS 512

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

static __always_inline bool was_sent(__u64 token, __u16 kind)
{
	struct vs_sent_frames_key key = {
		.token = token,
		.pid = bpf_get_current_pid_tgid() >> 32,
		.exec_gen = own_exec_gen(),
		.kind = kind,
	};

	return bpf_map_lookup_elem(&sent_frames, &key) != NULL;
}

static __always_inline void mark_sent(__u64 token, __u16 kind)
{
	struct vs_sent_frames_key key = {
		.token = token,
		.pid = bpf_get_current_pid_tgid() >> 32,
		.exec_gen = own_exec_gen(),
		.kind = kind,
	};
	__u8 yes = 1;

	/* If the map is full, the frames are sent with every call. */
	bpf_map_update_elem(&sent_frames, &key, &yes, BPF_ANY);
}

/* Not inlined: its stack frame would add to that of every caller. */
static __noinline int count_lost_stack(void)
{
	struct vs_lost *lost = lost_of(bpf_get_current_pid_tgid() >> 32);

	if (lost)
		__sync_fetch_and_add(&lost->stacks, 1);
	COUNT(lost);
	return 0;
}

/* Returns whether a thread state is that of the thread with this thread pointer: Python identifies
 * threads by pthread_self(). */
static __always_inline bool is_thread(const struct vs_python *python, __u64 state, __u64 pointer)
{
	return pointer - read_user_u64(state + python->thread_id) <= THREAD_BYTES;
}

/* Returns the innermost frame of a thread; 0 if it does not run Python now. */
static __always_inline __u64 first_frame(const struct vs_python *python, __u64 state)
{
	__u64 frame = read_user_u64(state + python->thread_frame);

	return frame && python->frame_of != VS_NO_FIELD ? read_user_u64(frame + python->frame_of)
							: frame;
}

/* State of bpf_loop(), which the verifier need not unroll. */
struct thread_search {
	const struct vs_python *python;
	__u64 self; /* thread pointer */
	__u64 interpreter;
	__u64 state;
	__u64 frame; /* the result */
};

static long next_thread(__u32 round, struct thread_search *search)
{
	const struct vs_python *python = search->python;

	if (!search->interpreter)
		return 1;
	if (!search->state) {
		search->interpreter = read_user_u64(search->interpreter + python->interpreter_next);
		search->state = search->interpreter
					? read_user_u64(search->interpreter + python->threads)
					: 0;
		return 0;
	}
	/* A thread that created another interpreter has a second state there, without frames. */
	if (is_thread(python, search->state, search->self)) {
		search->frame = first_frame(python, search->state);
		if (search->frame)
			return 1;
	}
	search->state = read_user_u64(search->state + python->thread_next);
	return 0;
}

static __noinline __u64 own_frame(const struct vs_python *python, struct thread_state *thread)
{
	struct thread_search search = {.python = python, .self = thread_pointer()};

	if (thread->python && is_thread(python, thread->python, search.self)) {
		search.frame = first_frame(python, thread->python);
		if (search.frame)
			return search.frame;
	}
	search.interpreter = read_user_u64(python->interpreters);
	if (search.interpreter)
		search.state = read_user_u64(search.interpreter + python->threads);
	bpf_loop(MAX_THREADS, next_thread, &search, 0);
	thread->python = search.frame ? search.state : 0;
	return search.frame;
}

struct frame_walk {
	const struct vs_python *python;
	__u64 *words;			/* buffer of the thread */
	struct vs_python_stack *record; /* receives the frames; may be null */
	struct window *window;		/* may be null */
	struct loop_state *loop;
};

/* Frames lie next to each other, outer ones at lower addresses, in chunks of this size; those of
 * calls from native code may also be on the native stack. */
#define FRAME_CHUNK 16384

_Static_assert(VS_PYTHON_FRAME_OBJECT <= WINDOW_MORE, "a frame that begins in the window");

/* Reads the current frame. The window holds its page up to its end, so that outer frames need no
 * other read. Returns 1 if it cannot be read. */
static __always_inline int read_frame(struct frame_walk *walk, __u32 length)
{
	struct window *window = walk->window;
	struct loop_state *loop = walk->loop;
	__u64 frame = loop->frame, page = frame & ~(WINDOW - 1ULL);

	/* A frame elsewhere does not replace the window. */
	if (!window || (loop->to && loop->to - frame > FRAME_CHUNK))
		return bpf_probe_read_user(walk->words, length, (void *)frame) != 0;
	if (frame < loop->from || frame + length > loop->to) {
		__u64 bytes = frame - page + length;

		loop->to = 0;
		if (bytes > sizeof(window->bytes) ||
		    bpf_probe_read_user(window->bytes, bytes, (void *)page))
			return 1;
		loop->from = page;
		loop->to = frame + length;
	}
	__builtin_memcpy(walk->words, window->bytes + ((frame - page) & (WINDOW - 1)),
			 VS_PYTHON_FRAME_OBJECT);
	return 0;
}

static long next_frame(__u32 round, struct frame_walk *walk)
{
	const struct vs_python *python = walk->python;
	struct vs_python_stack *record = walk->record;
	struct loop_state *loop = walk->loop;
	struct vs_python_frame found = {};
	__u64 *words = walk->words;
	__u8 *bytes = (__u8 *)words;
	__u32 length = python->every_is_entry ? VS_PYTHON_FRAME_OBJECT : VS_PYTHON_FRAME;

	if (!loop->frame || read_frame(walk, length))
		return 1;
	loop->frame = words[python->frame_previous & (VS_WORDS - 1)];
	if (bytes[python->frame_owner & (VS_WORDS * 8 - 1)] >= python->owner_entry) {
		found.entry = 1;
	} else {
		found.code = words[python->frame_code & (VS_WORDS - 1)] & ~7ULL;
		found.instruction = words[python->frame_instruction & (VS_WORDS - 1)];
		found.entry = python->every_is_entry;
		if (python->frame_is_entry != VS_NONE)
			found.entry = bytes[python->frame_is_entry & (VS_WORDS * 8 - 1)] & 1;
		if (!bpf_probe_read_user(words, VS_PYTHON_CODE,
					 (void *)(found.code + python->code_from))) {
			found.name = words[python->code_name & (VS_WORDS - 1)];
			found.lines = words[python->code_lines & (VS_WORDS - 1)];
			found.first_line =
				((__u32 *)words)[python->code_first_line & (VS_WORDS * 2 - 1)];
		}
	}
	loop->hash = mix(mix(loop->hash, found.code), found.instruction);
	loop->hash = mix(mix(loop->hash, found.name), found.lines ^ found.entry);
	if (record && round < VS_PYTHON_MAX)
		record->frames[round] = found;
	loop->count = round + 1;
	return 0;
}

/* Walks the frames from the innermost one on. */
static __always_inline void walk_frames(struct frame_walk *walk, struct thread_state *thread,
					__u64 frame)
{
	walk->words = thread->words;
	walk->window = own_window();
	walk->loop = &thread->loop;
	thread->loop.from = thread->loop.to = 0;
	thread->loop.frame = frame;
	thread->loop.hash = VS_PYTHON;
	thread->loop.count = 0;
	bpf_loop(VS_PYTHON_MAX, next_frame, walk, 0);
}

static __noinline int send_python(const struct vs_python *python, struct thread_state *thread,
				  __u64 frame, __u64 token)
{
	struct vs_python_stack *record = bpf_ringbuf_reserve(&stack_records, sizeof(*record), 0);
	struct frame_walk walk = {.python = python, .record = record};

	if (!record)
		return 1;
	fill_head(&record->head, VS_PYTHON);
	record->head.result = own_exec_gen();
	record->token = token;
	walk_frames(&walk, thread, frame);
	record->count = thread->loop.count;
	record->truncated = thread->loop.frame != 0;
	bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __noinline __u64 hash_python(const struct vs_python *python, struct thread_state *thread,
				    __u64 frame)
{
	struct frame_walk walk = {.python = python};

	walk_frames(&walk, thread, frame);
	/* A stack that is cut is not the one that ends there. */
	return mix(thread->loop.hash, thread->loop.frame != 0);
}

/* Captures the Python stack of the current call and stores the reference in the thread's state.
 * Returns 1 if the stack could not be sent. */
__noinline int capture_python_stack(void)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	struct thread_state *thread = thread_find();
	struct vs_python *python;
	struct stack_ref *ref;
	__u64 frame, token;

	/* Kernels before 6.8 also verify global functions that are not called: no maps exist. */
	if (!load_config.stacks || !load_config.can_loop || !thread)
		return 0;
	ref = &thread->ref;
	python = bpf_map_lookup_elem(&pythons, &pid);
	if (!python || (python->exec_gen != own_exec_gen() && python->exec_gen != VS_ANY_EXEC_GEN))
		return 0;
	frame = own_frame(python, thread);
	if (!frame)
		return 0;
	token = hash_python(python, thread, frame);
	if (!was_sent(token, VS_PYTHON)) {
		if (send_python(python, thread, frame, token)) {
			ref->flags |= VS_PYTHON_LOST;
			return 1;
		}
		mark_sent(token, VS_PYTHON);
	}
	ref->python = token;
	return 0;
}

#endif
