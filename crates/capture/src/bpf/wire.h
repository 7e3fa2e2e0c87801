/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The contract between the probes and user space. build.rs reads this file and writes the Rust
 * side of it, so keep to what it understands: #define NAME number, enums with explicit values,
 * structs of fixed-width fields, arrays and earlier structs, and VS_SIZE assertions.
 */
#ifndef VS_WIRE_H
#define VS_WIRE_H

#define VS_MAX_HOOKS 256
/* the cookie of the self-test, outside the table */
#define VS_CANARY     256
#define VS_ARGS	      6
#define VS_OUTS	      2
#define VS_NAME	      16
#define VS_DESCRIPTOR 136
/* "no argument" in a hook's description */
#define VS_NONE 255
/* "of all channels" in the table of element sizes of arrays */
#define VS_WHOLE 128
/* "no such field" among the offsets of Python's structures */
#define VS_NO_FIELD 65535
/* bytes of a lost allocation whose size could not be read: more than any device has */
#define VS_UNKNOWN_BYTES 1099511627776
/* "whatever program the process runs" */
#define VS_ANY_PROGRAM 65535
/* levels of a thread's context stack that are kept, counted from the top; a power of two */
#define VS_CONTEXTS 256
/* calls of one thread that can be inside the driver at once, nested */
#define VS_INFLIGHT 4
/* shapes of launches that are kept of each kernel, per CPU */
#define VS_SHAPES 4
/* classes of bandwidth; see bandwidth_of() of the engine */
#define VS_BANDWIDTHS 128
/* longest names of kernels, with their zero: most, and all others */
#define VS_SHORT_NAME 512
#define VS_LONG_NAME  8192
/* return addresses by which a stack that is known already is recognised */
#define VS_SLOTS 128
/* known stacks that begin at the same place; others are sent again. Calls of a framework come
 * through the same few functions at the same depth, whatever they are for */
#define VS_TURNS 32
/* the same where the kernel has no loops for programs */
#define VS_FEW_TURNS 4
/* return addresses of outer functions that are in the kernel's hands */
#define VS_PENDING 8
/* addresses of a walk along frame pointers */
#define VS_ADDRESSES_MAX 128
/* frames of a Python stack */
#define VS_PYTHON_MAX 128
/* sizes of a copy of a stack */
#define VS_COPY_SMALL  4096
#define VS_COPY_MEDIUM 16384
#define VS_COPY_BIG    65536

enum vs_record_kind {
	VS_CALL = 1,		/* struct vs_call */
	VS_CALL_DESCRIPTOR = 2, /* struct vs_call_descriptor */
	VS_PROCESS = 3,		/* struct vs_process: first call of a process */
	VS_THREAD = 4,		/* struct vs_thread_name: first call of a thread, or a new name */
	VS_EXEC = 5,		/* struct vs_head */
	VS_EXIT = 6,		/* struct vs_head */
	VS_THREAD_EXIT = 7,	/* struct vs_head */
	VS_LEARNED = 8,		/* struct vs_learned: a query told a context's device */
	VS_NAMED = 9,		/* struct vs_named, followed by the name: a kernel's */
	VS_STACK = 10,		/* struct vs_stack, followed by a copy of the stack */
	VS_ADDRESSES = 11,	/* struct vs_addresses */
	VS_PYTHON = 12,		/* struct vs_python_stack */
	VS_TENSOR = 13,		/* struct vs_tensor */
};

/* Which stacks are taken of calls that allocate or make an object. */
enum vs_stacks {
	VS_STACKS_OFF = 0,
	VS_STACKS_POINTERS = 1, /* a walk along frame pointers */
	VS_STACKS_COPY = 2,	/* a copy of the stack, for user space to unwind */
};

/* What is told of the blocks of a framework's cache. */
enum vs_tensors {
	VS_TENSORS_OFF = 0,
	VS_TENSORS_TOTALS = 1, /* without stacks */
	VS_TENSORS_FULL = 2,
};

/* Functions of PyTorch's cache: cookies of their probes. */
enum vs_tensor_call {
	VS_TENSOR_CHANGED = 0, /* a block was given out or taken back */
	VS_TENSOR_REFUSED = 1, /* there was no memory for one */
};

/* What a probe does; from VS_ACTION_CAPTURE_BEGIN on besides recording. See struct vs_hook. */
enum vs_action {
	VS_ACTION_RECORD = 0,	       /* a record for every call */
	VS_ACTION_CONTEXT_SET = 1,     /* the top of the thread's stack becomes argument 0 */
	VS_ACTION_CONTEXT_PUSH = 2,    /* argument 0 is pushed */
	VS_ACTION_CONTEXT_POP = 3,     /* the top is popped */
	VS_ACTION_CONTEXT_CREATE = 4,  /* record, and out value 0 is pushed */
	VS_ACTION_CONTEXT_DESTROY = 5, /* record, and argument 0 is popped where it is the top */
	VS_ACTION_CONTEXT_GET = 6,     /* out value 0 tells the top */
	VS_ACTION_CONTEXT_DEVICE = 7,  /* out value 0 tells the device of a context */
	VS_ACTION_CAPTURE_BEGIN = 8,   /* record, and stream-ordered calls may make nodes */
	VS_ACTION_CAPTURE_END = 9,     /* record */
	VS_ACTION_GRAPH_NODE = 10,     /* record, and graphs of the process have memory */
	VS_ACTION_GRAPH_LAUNCH = 11,   /* record, where graphs of the process have memory */
	VS_ACTION_NAME = 12,	      /* out value 0 is a kernel, the text is the size argument's */
	VS_ACTION_TOLD_NAME = 13,     /* out value 0 is the text of the kernel in argument 1 */
	VS_ACTION_LAUNCH = 14,	      /* summed; the shape is in registers and on the stack */
	VS_ACTION_LAUNCH_CONFIG = 15, /* summed; the shape is in a structure */
	VS_ACTION_COPY = 16,	      /* summed; a failed one is recorded */
	VS_ACTION_STREAM_DESTROY = 17, /* record, and a capture on argument 0 has ended */
};

enum vs_hook_flag {
	VS_STREAM_ORDERED = 1, /* while a stream captures, such a call makes a graph's node */
	VS_OBJECT = 2,	       /* makes or destroys an object: its loss is counted as such, too */
	VS_WITH_STACK = 4,     /* makes an object: its stack is taken */
	VS_ENDS_CONTEXT = 8,   /* may end a context, with the captures on its streams */
};

/* Which way a copy goes. */
enum vs_direction {
	VS_TO_DEVICE = 0,
	VS_TO_HOST = 1,
	VS_ON_DEVICE = 2,
	VS_ON_HOST = 3,
	VS_PEER = 4,
	VS_ARRAY = 5,
	VS_FILL = 6,
	VS_UNIFIED = 7, /* as the pointers say */
};

/* How the bytes of a copy, or of a lost allocation, are found. */
enum vs_measure {
	VS_MEASURE_ARGUMENT = 0, /* size argument, times the factor, times the element */
	VS_MEASURE_2D = 1,	 /* CUDA_MEMCPY2D in argument 0, which also says the direction */
	VS_MEASURE_3D = 2,	 /* CUDA_MEMCPY3D in argument 0, the same */
	VS_MEASURE_BATCH = 3,	 /* destinations*, sources*, sizes*, count */
	/* of an allocation whose record is lost */
	VS_MEASURE_PITCH = 4,	  /* out value 1 times the factor */
	VS_MEASURE_ARRAY = 5,	  /* CUDA_ARRAY_DESCRIPTOR in the descriptor argument */
	VS_MEASURE_ARRAY3D = 6,	  /* CUDA_ARRAY3D_DESCRIPTOR */
	VS_MEASURE_MIPMAPPED = 7, /* the same, with the mip levels in the size factor argument */
};

/* What is lost when a record is. */
enum vs_class {
	VS_CLASS_ALLOCATE = 0,
	VS_CLASS_FREE = 1,
	VS_CLASS_OTHER = 2,
	VS_CLASS_COPY = 3,
	VS_CLASS_OBJECT = 4, /* an object began or ended, and nothing else */
	VS_CLASS_LAUNCH = 5,
};

enum vs_name_flag {
	VS_NAME_CUT = 1,     /* it is longer than what follows */
	VS_NAME_GUESSED = 2, /* found where drivers keep it, not told by a call */
};

enum vs_call_flag {
	VS_CONTEXT_KNOWN = 1,  /* context is the calling thread's current one (0: it has none) */
	VS_DEVICE_KNOWN = 2,   /* device is the calling thread's current one */
	VS_OUT_UNREADABLE = 4, /* an out value or descriptor could not be read */
	VS_STACK_KNOWN = 8,    /* stack is a number that user space gave, not a token */
	VS_STACK_LOST = 16,    /* there was no room for the stack */
	VS_PYTHON_LOST = 32,   /* there was no room for the Python stack */
	VS_CAPTURE_OVER = 64,  /* the capture that the call should end has ended */
};

enum vs_filter {
	VS_FILTER_NONE = 0,    /* every process */
	VS_FILTER_TARGETS = 1, /* only processes in the map `targets` */
	VS_FILTER_FOLLOW = 2,  /* those and the children they make */
};

/* A row of the hook table, as the probes need it. */
struct vs_hook {
	__u8 action;
	__u8 loss_class;
	__u8 size_argument;   /* bytes asked for, for counting what a lost record would have said */
	__u8 size_factor;     /* a second argument to multiply with */
	__u8 out_argument[2]; /* pointers whose targets are read at return */
	__u8 out_bytes[2];    /* 4 or 8 */
	__u8 descriptor_argument;
	__u8 descriptor_bytes;
	__u8 flags;
	__u8 measure;
	__u8 direction;
	__u8 asynchronous;
	__u8 element;	      /* bytes that the size argument counts in */
	__u8 stream_argument; /* of an asynchronous copy */
};
VS_SIZE(vs_hook, 16);

struct vs_head {
	__u16 kind;
	__u16 hook;
	__s32 result;
	__u32 pid;
	__u32 tid;
	__u64 at;
};
VS_SIZE(vs_head, 24);

struct vs_call {
	struct vs_head head;
	__u64 entered;
	__u64 context;
	__u64 args[6];
	__u64 outs[2];
	__s32 device;
	__u32 flags;
	__u64 stack;  /* token of a record of the stack, or its number; 0: none */
	__u64 python; /* token of a record of the Python stack; 0: none */
};
VS_SIZE(vs_call, 128);

struct vs_call_descriptor {
	struct vs_call call;
	__u8 descriptor[136];
};
VS_SIZE(vs_call_descriptor, 264);

struct vs_process {
	struct vs_head head;
	__u64 start;
	__u32 uid;
	__u32 reserved;
	__u8 name[16];
};
VS_SIZE(vs_process, 56);

struct vs_thread_name {
	struct vs_head head;
	__u8 name[16];
};
VS_SIZE(vs_thread_name, 40);

struct vs_learned {
	struct vs_head head;
	__u64 context;
	__s32 device;
	__u32 reserved;
};
VS_SIZE(vs_learned, 40);

struct vs_named {
	struct vs_head head;
	__u64 kernel;
	__u64 text;   /* where the name is, in the process */
	__u32 length; /* bytes of it that follow, without the zero; 0: it could not be read */
	__u32 flags;  /* enum vs_name_flag */
	/* launches under this handle so far: of whatever had it before */
	__u64 calls;
	__u64 captured;
	__u64 checked;
	__u64 failed;
	__u64 start; /* of the process, nanoseconds since boot */
};
VS_SIZE(vs_named, 88);

/* Graphs of a process. */
struct vs_graph_state {
	__u64 id;	/* of the program, until its captures are forgotten; never used again */
	__u32 captures; /* streams that capture */
	__u32 memory;	/* some graph has memory nodes, so launches matter */
};
VS_SIZE(vs_graph_state, 16);

struct vs_capture_key {
	__u64 stream;
	__u32 pid;
	__u32 thread; /* of a default stream, which each thread has for itself; else 0 */
	__u64 owner;  /* id of the graph state */
};
VS_SIZE(vs_capture_key, 24);

/* Which launches are added up in one place. */
struct vs_launch_key {
	__u64 target; /* a kernel, or a graph that can be launched */
	__u32 pid;
	__u16 graph;
	__u16 program; /* which of those that the process has run */
	__u64 start;   /* of the process, nanoseconds since boot: its pid may be used again */
};
VS_SIZE(vs_launch_key, 24);

struct vs_shape {
	__u32 grid[3];
	__u32 block[3];
	__u32 shared_bytes;
	__u32 count;
};
VS_SIZE(vs_shape, 32);

/* Launches of one key on one CPU; only ever grows. */
struct vs_launches {
	__u64 calls;
	__u64 captured; /* of those: recorded into a graph, and not launched yet */
	__u64 checked;	/* of those: whose result was looked at */
	__u64 failed;	/* of those: that failed */
	__u64 last_at;	/* in jiffies: cheap, and good enough to compare CPUs */
	__u32 last;	/* the place of the last shape */
	__u32 trust;	/* checked launches in a row that were fine */
	__u32 busy;	/* the shapes are being written */
	__u32 other;	/* launches whose shape could not be kept */
	struct vs_shape shapes[4];
};
VS_SIZE(vs_launches, 184);

/* Which copies are added up in one place. */
struct vs_copy_key {
	__u32 pid;
	__u8 direction;
	__u8 asynchronous;
	__u16 program;
	/* the neighbourhoods of the pointers, where they decide the direction; else 0 */
	__u64 to;
	__u64 from;
	__u64 start; /* of the process, nanoseconds since boot */
};
VS_SIZE(vs_copy_key, 32);

/* Copies of one key; only ever grows. */
struct vs_copies {
	__u64 calls;
	__u64 bytes;
	__u64 nanos;
	__u64 to; /* one pair of pointers */
	__u64 from;
	__u64 bandwidths[128];
};
VS_SIZE(vs_copies, 1064);

/* A return address that a probe of somebody has replaced on the stack. */
struct vs_pending {
	__u64 at;      /* where on the stack */
	__u64 address; /* what belongs there */
};
VS_SIZE(vs_pending, 16);

/* The stack below the caller of a driver function, when that has returned. */
struct vs_stack {
	struct vs_head head; /* result: the number of the process's program */
	__u64 token;
	__u64 ip;
	__u64 sp;
	__u64 bp;
	__u32 bytes;   /* of the stack, from sp upwards; they follow */
	__u32 pending; /* entries of the list */
	struct vs_pending list[8];
};
VS_SIZE(vs_stack, 192);

/* Return addresses along the frame pointers, innermost first. */
struct vs_addresses {
	struct vs_head head; /* result: the number of the process's program */
	__u64 token;
	__u32 count;
	__u32 pending;
	struct vs_pending list[8];
	__u64 addresses[128];
};
VS_SIZE(vs_addresses, 1192);

/* How to find the Python stack of a thread of one process. Offsets are in bytes, those of frames
 * and code in words of 8 bytes from the beginning of what is read of them. */
struct vs_python {
	__u64 interpreters;	/* where the pointer to the first interpreter is */
	__u16 interpreter_next; /* in an interpreter */
	__u16 threads;		/* the first thread */
	__u16 thread_next;	/* in a thread */
	__u16 thread_id;	/* pthread_self() */
	__u16 thread_frame;	/* the frame, or what has it */
	__u16 frame_of;		/* in what has it; VS_NO_FIELD: it is there itself */
	__u16 code_from;	/* what is read of a code object begins there */
	__u16 version;		/* 0x030b: 3.11 */
	__u8 frame_code; /* word of a frame: its code object, with marks in the lowest bits */
	__u8 frame_instruction; /* word: the instruction, or the number of it */
	__u8 frame_previous;	/* word: the frame that called */
	__u8 frame_owner;	/* byte: who the frame belongs to */
	__u8 owner_entry;	/* from that owner on the frame is the interpreter's own */
	__u8 frame_is_entry;	/* byte: 1 where the interpreter was called anew; or VS_NONE */
	__u8 every_is_entry;	/* the interpreter is called anew for each frame */
	__u8 code_name;		/* word of the code: the qualified name, or the name */
	__u8 code_lines;	/* word: the table of lines */
	__u8 code_first_line;	/* half word: the first line */
	__u16 program;		/* which of those that the process has run */
	__u8 reserved[4];
};
VS_SIZE(vs_python, 40);

struct vs_python_frame {
	__u64 code;
	__u64 instruction;
	__u64 name;
	__u64 lines;
	__u32 first_line;
	/* The interpreter was called anew for this frame; without code: for the one before it. */
	__u32 entry;
};
VS_SIZE(vs_python_frame, 40);

/* The Python frames of a thread, innermost first. */
struct vs_python_stack {
	struct vs_head head; /* result: the number of the process's program */
	__u64 token;
	__u32 count;
	__u32 cut; /* there are more */
	struct vs_python_frame frames[128];
};
VS_SIZE(vs_python_stack, 5160);

/* Stacks that user space knows are recognised by their return addresses. */
struct vs_known_key {
	__u64 ip;
	__u64 sp;
	__u32 pid;
	__u16 program;
	__u16 turn; /* several stacks can have the rest of the key */
};
VS_SIZE(vs_known_key, 24);

struct vs_slot {
	__u64 offset; /* from sp */
	__u64 value;
};
VS_SIZE(vs_slot, 16);

struct vs_known {
	__u64 number;
	__u32 count;
	__u32 bytes;		   /* of the stack, up to the end of the last slot */
	struct vs_slot slots[128]; /* ascending */
};
VS_SIZE(vs_known, 2064);

/* Lists of frames that user space was told of. */
struct vs_told_key {
	__u64 token;
	__u32 pid;
	__u16 program;
	__u16 kind;
};
VS_SIZE(vs_told_key, 16);

/* PyTorch's cache gave out a block, took one back, or had none. */
struct vs_tensor {
	struct vs_head head; /* hook: enum vs_tensor_call */
	__u64 address;
	__u64 bytes;	 /* with a sign: below zero where it was taken back */
	__u64 allocated; /* all that is given out on the device after that */
	__u64 reserved;	 /* all that it holds of the device */
	__u64 stack;
	__u64 python;
	__s32 device;
	__u32 flags; /* enum vs_call_flag */
};
VS_SIZE(vs_tensor, 80);

/* A program that a process ran. All zero: unknown processes. */
struct vs_lost_key {
	__u32 pid;
	__u16 program; /* which of those that the process has run */
	__u16 reserved;
	__u64 start; /* of the process, nanoseconds since boot */
};
VS_SIZE(vs_lost_key, 16);

/* Records that could not be delivered, per program; only ever grows. */
struct vs_lost {
	__u64 allocations;
	__u64 allocated_bytes;
	__u64 frees;
	__u64 failures;
	__u64 other;
	__u64 launches;
	__u64 copies;
	__u64 stacks;  /* of delivered calls */
	__u64 objects; /* that began or ended; those that matter to memory are among other, too */
	__u64 tensors;
	__u64 processes; /* 1 once the program has ended without having been announced */
	__u32 replaced;	 /* 1 if that was by an exec */
	__u32 announced; /* 1 once it was, although the table of processes has no room for it */
};
VS_SIZE(vs_lost, 96);

/* What user space changes while the probes run. */
struct vs_now {
	/* When the newest library was attached (boot clock): a thread that started later began
	 * without a context, so its context is known from its first call. */
	__u64 attached_at;
	/* enum vs_stacks: the most that is taken now, which is not more than `stacks`; as a
	 * difference, so that zero is what was asked for. */
	__u32 stacks_less;
	__u32 unused;
};
VS_SIZE(vs_now, 16);

/* Counters of the probes themselves. */
struct vs_counters {
	__u64 lost;	 /* records of any class that could not be delivered */
	__u64 records;	 /* records delivered */
	__u64 calls;	 /* hooked calls seen at return */
	__u64 unmatched; /* returns without an entry (attached in the middle of the call) */
	__u64 no_state;	 /* threads for which no state could be kept */
	__u64 canary;	 /* hits of the self-test */
	__u64 graphs;	 /* ids of graph states that ended: captures of theirs may be left */
};
VS_SIZE(vs_counters, 56);

#endif
