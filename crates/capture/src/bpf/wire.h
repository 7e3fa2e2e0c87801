/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Record format and shared constants of the probes and user space. build.rs generates the Rust
 * side from this file. It only understands #define NAME number, enums with explicit values, structs
 * of fixed-width fields, arrays and earlier structs, and VS_SIZE assertions.
 */
#ifndef VS_WIRE_H
#define VS_WIRE_H

#define VS_MAX_HOOKS 256
/* Attach cookie of the self-test, not a row of the hook table. */
#define VS_SELF_TEST  256
#define VS_ARGS	      6
#define VS_OUTS	      2
#define VS_NAME	      16
#define VS_DESCRIPTOR 136
/* "No argument" in struct vs_hook. */
#define VS_NONE 255
/* Bit in element_bytes: the size is of all channels, not of one. */
#define VS_ALL_CHANNELS 128
/* "No such field" among the offsets of Python's structures. */
#define VS_NO_FIELD 65535
/* Size of a lost allocation whose size could not be read: more than any device has. */
#define VS_UNKNOWN_BYTES 1099511627776
/* Matches every exec generation of the process. */
#define VS_ANY_EXEC_GEN 65535
/* Topmost levels of a thread's context stack that are kept; a power of two. */
#define VS_CONTEXTS 256
/* Maximum nesting of hooked calls in one thread. */
#define VS_INFLIGHT 4
/* Launch shapes kept per kernel and CPU. */
#define VS_SHAPES 4
/* Bandwidth classes; see bandwidth_of() in the engine. */
#define VS_BANDWIDTHS 128
/* Maximum lengths of kernel names, with the terminating zero: most names fit the short one. */
#define VS_SHORT_NAME 512
#define VS_LONG_NAME  8192
/* Maximum number of return addresses that identify a known stack. */
#define VS_SLOTS 128
/* Known stacks per (ip, sp); further ones are sent again. Frameworks call the driver through the
 * same few functions at the same depth, whatever the outer frames are. */
#define VS_STACKS_PER_KEY 32
/* The same on kernels without bpf_loop(). */
#define VS_STACKS_PER_KEY_NO_LOOP 4
/* Maximum number of outer return addresses that uretprobes have replaced. */
#define VS_HIJACKED_RETURNS 8
/* Maximum number of addresses of a frame-pointer walk. */
#define VS_ADDRESSES_MAX 128
/* Maximum number of frames of a Python stack. */
#define VS_PYTHON_MAX 128
/* Bytes read of a Python frame, of a frame object, and of a code object. Only what is needed: a
 * frame can be at the very end of its mapping. */
#define VS_PYTHON_FRAME	       80
#define VS_PYTHON_FRAME_OBJECT 112
#define VS_PYTHON_CODE	       96
/* Pointers into the same region (2 MiB) point to the same kind of memory; as in the engine. */
#define VS_REGION_LOG2 21
/* Sizes of stack copies. */
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
	VS_CONTEXT_DEVICE = 8,	/* struct vs_context_device: a query returned a context's device */
	VS_KERNEL_NAME = 9,	/* struct vs_kernel_name, followed by the name */
	VS_STACK = 10,		/* struct vs_stack, followed by a copy of the stack */
	VS_ADDRESSES = 11,	/* struct vs_addresses */
	VS_PYTHON = 12,		/* struct vs_python_stack */
	VS_BLOCK = 13,		/* struct vs_block */
};

/* Configuration of the probes, set before load; the verifier prunes what it switches off. */
struct vs_load_config {
	__u64 wakeup_at; /* fill level of the ring at which the reader is woken */
	/* Fill level of the ring from which blocks are dropped and counted as lost. The rest is
	 * reserved for driver calls, so that tensors cannot make their totals inexact. */
	__u64 block_ring_limit;
	__u32 filter; /* enum vs_filter */
	__u32 tracer_pid;
	__u32 cpus;	       /* number of possible CPUs */
	__u32 stacks;	       /* enum vs_stacks: stacks of allocating calls */
	__u32 blocks;	       /* enum vs_blocks: blocks of allocators in processes */
	__u8 use_task_storage; /* state of threads is kept in their tasks */
	__u8 use_stack_windows;
	__u8 count_activity; /* count launches and copies */
	__u8 check_every_launch;
	__u8 can_skip_returns; /* session probes: the entry program can skip the return side */
	__u8 can_loop;	       /* the kernel has bpf_loop(); without it no Python stacks */
	__u8 reserved[6];
};
VS_SIZE(vs_load_config, 48);

/* How stacks of calls that allocate memory or create an object are captured. */
enum vs_stacks {
	VS_STACKS_OFF = 0,
	VS_STACKS_FRAME_POINTER = 1, /* walk the frame pointers in the probe */
	VS_STACKS_COPY = 2,	     /* copy the stack for user space to unwind */
};

/* What is recorded about blocks of allocators in processes. */
enum vs_blocks {
	VS_BLOCKS_OFF = 0,
	VS_BLOCKS_TOTALS = 1,  /* without stacks */
	VS_BLOCKS_SAMPLED = 2, /* stacks of all blocks, or of a sample if there are many */
	VS_BLOCKS_FULL = 3,
};

/* Sampling of stacks: see `sampling.rs` of the engine. A thread that captures more than
 * VS_SAMPLE_STACKS in a period doubles its interval; with less than a quarter it halves it. */
#define VS_SAMPLE_MIN_SHARE	 16 /* one in 16 blocks is sampled, however small they are */
#define VS_SAMPLE_STACKS	 256
#define VS_SAMPLE_PERIOD	 27 /* binary logarithm of nanoseconds */
#define VS_SAMPLE_FIRST_INTERVAL 10 /* binary logarithm of bytes */
#define VS_SAMPLE_LAST_INTERVAL	 34

/* Probed functions of allocators; attach cookies of their probes. */
enum vs_block_call {
	VS_BLOCK_TORCH = 0,	/* a block was allocated or freed */
	VS_BLOCK_TORCH_OOM = 1, /* an allocation failed */
	VS_BLOCK_CUPY_ALLOC = 2,
	VS_BLOCK_CUPY_FREE = 3,
	VS_BLOCK_XLA = 4, /* a block was allocated or freed */
	VS_BLOCK_RMM_ALLOC = 5,
	VS_BLOCK_RMM_FREE = 6,
};

/* The structure that the CUDA runtime passes instead of a fat binary. */
enum vs_fatbin_wrapper {
	VS_FATBIN_WRAPPER = 1180844977, /* 0x466243b1, its first word */
	VS_FATBIN_WRAPPER_VERSION = 1,	/* its second word */
	VS_FATBIN_WRAPPER_DATA = 8,	/* offset of the pointer to the fat binary */
};

/* What a probe does with a call; from VS_ACTION_CAPTURE_BEGIN on in addition to recording it. */
enum vs_action {
	VS_ACTION_RECORD = 0,		/* a record for every call */
	VS_ACTION_CONTEXT_SET = 1,	/* replace the top of the thread's stack by argument 0 */
	VS_ACTION_CONTEXT_PUSH = 2,	/* push argument 0 */
	VS_ACTION_CONTEXT_POP = 3,	/* pop the top */
	VS_ACTION_CONTEXT_CREATE = 4,	/* record; push out value 0 */
	VS_ACTION_CONTEXT_DESTROY = 5,	/* record; pop argument 0 if it is the top */
	VS_ACTION_CONTEXT_GET = 6,	/* out value 0 is the top */
	VS_ACTION_CONTEXT_DEVICE = 7,	/* out value 0 is the device of a context */
	VS_ACTION_CAPTURE_BEGIN = 8,	/* record; stream-ordered calls may create nodes */
	VS_ACTION_CAPTURE_END = 9,	/* record */
	VS_ACTION_GRAPH_NODE = 10,	/* record; graphs of the process have memory nodes */
	VS_ACTION_GRAPH_LAUNCH = 11,	/* record if graphs of the process have memory nodes */
	VS_ACTION_NAME = 12,		/* out value 0 is a kernel, its name is in size_argument */
	VS_ACTION_GET_NAME = 13,	/* out value 0 is the name of the kernel in argument 1 */
	VS_ACTION_LAUNCH = 14,		/* count; the shape is in registers and on the stack */
	VS_ACTION_LAUNCH_CONFIG = 15,	/* count; the shape is in a structure */
	VS_ACTION_COPY = 16,		/* count; record if it failed */
	VS_ACTION_STREAM_DESTROY = 17,	/* record; a capture on argument 0 has ended */
	VS_ACTION_LAUNCH_UNSHAPED = 18, /* count; the shape was set before, by other calls */
	VS_ACTION_LAUNCH_LIST = 19,	/* count each launch of a list of CUDA_LAUNCH_PARAMS */
};

enum vs_hook_flag {
	VS_STREAM_ORDERED = 1, /* creates a graph node if the stream is capturing */
	VS_OBJECT = 2,	       /* creates or destroys an object; a loss is also counted as one */
	VS_WITH_STACK = 4,     /* creates an object: its stack is captured */
	VS_ENDS_CONTEXT = 8,   /* may end a context and the captures on its streams */
	VS_DATA = 16,	       /* the descriptor is data that may be shorter */
	VS_BY_VALUE = 32,      /* the descriptor is an argument that is passed in memory */
	VS_FILE = 64,	   /* shares memory by a file descriptor if argument 2 is VS_POSIX_FILE */
	VS_FILE_OUT = 128, /* that descriptor is out value 0, else argument 1 */
};

/* Values of CUmemAllocationHandleType. */
enum vs_share_type {
	VS_POSIX_FILE = 1,
	VS_FABRIC = 8, /* 64 bytes */
};

/* Direction of a copy. */
enum vs_direction {
	VS_H2D = 0,
	VS_D2H = 1,
	VS_D2D = 2,
	VS_H2H = 3,
	VS_PEER = 4,
	VS_ARRAY = 5,
	VS_MEMSET = 6,
	VS_UNIFIED = 7, /* follows from the pointers */
};

/* How the size of a copy or of a lost allocation is determined. */
enum vs_copy_size {
	VS_MEASURE_ARGUMENT = 0, /* size argument * size factor * element */
	VS_MEASURE_2D = 1,	 /* CUDA_MEMCPY2D in argument 0, also gives the direction */
	VS_MEASURE_3D = 2,	 /* CUDA_MEMCPY3D in argument 0, also gives the direction */
	VS_MEASURE_BATCH = 3,	 /* destinations*, sources*, sizes*, count */
	/* only for lost allocations: */
	VS_MEASURE_PITCH = 4,	  /* out value 1 * size factor */
	VS_MEASURE_ARRAY = 5,	  /* CUDA_ARRAY_DESCRIPTOR in the descriptor argument */
	VS_MEASURE_ARRAY3D = 6,	  /* CUDA_ARRAY3D_DESCRIPTOR */
	VS_MEASURE_MIPMAPPED = 7, /* the same; the mip levels are in the size factor argument */
	/* Copies again. */
	VS_MEASURE_VOLUMES = 8, /* count, CUDA_MEMCPY3D_BATCH_OP* */
};

/* What a lost record counts as. */
enum vs_loss_class {
	VS_CLASS_ALLOCATE = 0,
	VS_CLASS_FREE = 1,
	VS_CLASS_OTHER = 2,
	VS_CLASS_COPY = 3,
	VS_CLASS_OBJECT = 4, /* only creates or destroys an object */
	VS_CLASS_LAUNCH = 5,
};

enum vs_name_flag {
	VS_NAME_TRUNCATED = 1,	 /* the name is longer than the bytes that follow */
	VS_NAME_FROM_MEMORY = 2, /* read from the driver's object, not from a call */
};

enum vs_call_flag {
	VS_CONTEXT_KNOWN = 1,  /* context is the calling thread's current one (0: none) */
	VS_DEVICE_KNOWN = 2,   /* device is the calling thread's current one */
	VS_OUT_UNREADABLE = 4, /* an out value or descriptor could not be read */
	VS_STACK_KNOWN = 8,    /* stack is a number assigned by user space, not a token */
	VS_STACK_LOST = 16,    /* the stack did not fit into the ring */
	VS_PYTHON_LOST = 32,   /* the Python stack did not fit into the ring */
	VS_CAPTURE_ENDED = 64, /* the call ended the capture */
	VS_SKIPPED = 128,      /* the block was not sampled */
};

enum vs_filter {
	VS_FILTER_NONE = 0,    /* every process */
	VS_FILTER_TARGETS = 1, /* processes in the map `targets` */
	VS_FILTER_FOLLOW = 2,  /* those and their future children */
};

/* A row of the hook table in the form that the probes use. */
struct vs_hook {
	__u8 action;
	__u8 loss_class;
	__u8 size_argument; /* requested bytes, counted if the record is lost; or a kernel's name */
	__u8 size_factor;   /* argument to multiply the size by */
	__u8 out_argument[2];	  /* pointers whose targets are read at return */
	__u8 out_bytes[2];	  /* 4 or 8 */
	__u8 descriptor_argument; /* or a context, for VS_ACTION_CONTEXT_DEVICE */
	__u8 descriptor_bytes;
	__u8 flags;
	__u8 measure;
	__u8 direction;
	__u8 asynchronous;
	__u8 element;	      /* bytes per unit of the size argument */
	__u8 stream_argument; /* of an asynchronous copy */
};
VS_SIZE(vs_hook, 16);

/* Start of every record. */
struct vs_head {
	__u16 kind;
	__u16 hook;   /* row of the hook table; in struct vs_block an enum vs_block_call */
	__s32 result; /* of the call; exec generation in VS_PROCESS, VS_EXEC, names, stacks */
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
	__u64 stack;  /* token of the stack record, or number of the stack; 0: none */
	__u64 python; /* token of the Python stack record; 0: none */
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

struct vs_context_device {
	struct vs_head head;
	__u64 context;
	__s32 device;
	__u32 reserved;
};
VS_SIZE(vs_context_device, 40);

struct vs_kernel_name {
	struct vs_head head;
	__u64 kernel;
	__u64 text;   /* address of the name in the process */
	__u32 length; /* bytes that follow, without the zero; 0: the name could not be read */
	__u32 flags;  /* enum vs_name_flag */
	/* earlier launches under this handle, of the kernel that had it before */
	__u64 calls;
	__u64 captured;
	__u64 checked;
	__u64 failed;
	__u64 start; /* start time of the process, nanoseconds since boot */
};
VS_SIZE(vs_kernel_name, 88);

/* Graph state of a process. */
struct vs_graph_state {
	__u64 id;	/* changes when the captures of the process are dropped; never reused */
	__u32 captures; /* number of capturing streams */
	__u32 memory;	/* some graph has memory nodes, so launches are recorded */
};
VS_SIZE(vs_graph_state, 16);

struct vs_capture_key {
	__u64 stream;
	__u32 pid;
	__u32 thread; /* of a default stream, which is per thread; else 0 */
	__u64 owner;  /* id of the graph state */
};
VS_SIZE(vs_capture_key, 24);

/* Key of the launch counters. */
struct vs_launch_key {
	__u64 target; /* a kernel, or a graph exec */
	__u32 pid;
	__u16 graph;
	__u16 exec_gen; /* exec generation of the process */
	__u64 start;	/* start time of the process, since boot: pids are reused */
};
VS_SIZE(vs_launch_key, 24);

struct vs_shape {
	__u32 grid[3];
	__u32 block[3];
	__u32 shared_bytes;
	__u32 count;
};
VS_SIZE(vs_shape, 32);

/* Launches of one key on one CPU; counts never decrease. */
struct vs_launches {
	__u64 calls;
	__u64 captured;	 /* of those: captured into a graph, not launched */
	__u64 checked;	 /* of those: result was checked */
	__u64 failed;	 /* of the checked ones: failed */
	__u64 last_at;	 /* in jiffies: cheap, and precise enough to compare CPUs */
	__u32 last;	 /* index of the last shape */
	__u32 ok_streak; /* consecutive checked launches that succeeded */
	__u32 busy;	 /* the shapes are being written */
	__u32 other;	 /* launches whose shape is not kept */
	struct vs_shape shapes[4];
};
VS_SIZE(vs_launches, 184);

/* Key of the copy counters. */
struct vs_copy_key {
	__u32 pid;
	__u8 direction;
	__u8 asynchronous;
	__u16 exec_gen; /* exec generation of the process */
	/* regions of the pointers if they decide the direction, else 0 */
	__u64 to;
	__u64 from;
	__u64 start; /* start time of the process, nanoseconds since boot */
};
VS_SIZE(vs_copy_key, 32);

/* Copies of one key; counts never decrease. */
struct vs_copies {
	__u64 calls;
	__u64 bytes;
	__u64 nanos;
	__u64 to; /* pointers of the last copy */
	__u64 from;
	__u64 bandwidths[128];
};
VS_SIZE(vs_copies, 1064);

/* A return address on the stack that a uretprobe, of this or another tracer, has replaced. */
struct vs_hijacked_return {
	__u64 at;      /* stack address of the slot */
	__u64 address; /* original return address */
};
VS_SIZE(vs_hijacked_return, 16);

/* Copy of the stack of the caller of a driver function, after the function has returned. */
struct vs_stack {
	struct vs_head head; /* result: exec generation */
	__u64 token;
	__u64 ip;
	__u64 sp;
	__u64 bp;
	__u32 bytes; /* of the stack, from sp upwards, that follow */
	__u32 hijacked_count;
	struct vs_hijacked_return hijacked[8];
};
VS_SIZE(vs_stack, 192);

/* Return addresses of a frame-pointer walk, innermost first. */
struct vs_addresses {
	struct vs_head head; /* result: exec generation */
	__u64 token;
	__u32 count;
	__u32 hijacked_count;
	struct vs_hijacked_return hijacked[8];
	__u64 addresses[128];
};
VS_SIZE(vs_addresses, 1192);

/* Where to find the Python stack of a thread of one process. Offsets are in bytes. Offsets into
 * frames and code objects are in units of 8 bytes, from the start of what is read of them. */
struct vs_python {
	__u64 interpreters;	/* address of the pointer to the first interpreter */
	__u16 interpreter_next; /* in an interpreter: the next one */
	__u16 threads;		/* in an interpreter: the first thread */
	__u16 thread_next;	/* in a thread: the next one */
	__u16 thread_id;	/* in a thread: pthread_self() */
	__u16 thread_frame;	/* in a thread: the frame, or a structure with it */
	__u16 frame_of;		/* in that structure; VS_NO_FIELD: none, it is the frame */
	__u16 code_from;	/* offset at which the read of a code object starts */
	__u16 version;		/* 0x030b: 3.11 */
	__u8 frame_code;	/* word of a frame: its code object, tagged in the lowest bits */
	__u8 frame_instruction; /* word: the instruction, or its index */
	__u8 frame_previous;	/* word: the calling frame */
	__u8 frame_owner;	/* byte: owner of the frame */
	__u8 owner_entry;     /* frames with this owner or a higher one are the interpreter's own */
	__u8 frame_is_entry;  /* byte: 1 if the frame entered the interpreter; or VS_NONE */
	__u8 every_is_entry;  /* every frame enters the interpreter */
	__u8 code_name;	      /* word of a code object: the qualified name, or the name */
	__u8 code_lines;      /* word: the line table */
	__u8 code_first_line; /* 4-byte unit: the first line */
	__u16 exec_gen;	      /* exec generation of the process */
	__u8 reserved[4];
};
VS_SIZE(vs_python, 40);

struct vs_python_frame {
	__u64 code;
	__u64 instruction;
	__u64 name;
	__u64 lines;
	__u32 first_line;
	/* This frame entered the interpreter; without code: the frame before it did. */
	__u32 entry;
};
VS_SIZE(vs_python_frame, 40);

/* Python frames of a thread, innermost first. */
struct vs_python_stack {
	struct vs_head head; /* result: exec generation */
	__u64 token;
	__u32 count;
	__u32 truncated; /* there are more frames */
	struct vs_python_frame frames[128];
};
VS_SIZE(vs_python_stack, 5160);

/* Stacks that user space already has, identified by their return addresses. */
struct vs_known_stack_key {
	__u64 ip;
	__u64 sp;
	__u32 pid;
	__u16 exec_gen;
	__u16 index; /* several stacks can share the rest of the key */
};
VS_SIZE(vs_known_stack_key, 24);

struct vs_slot {
	__u64 offset; /* from sp */
	__u64 value;
};
VS_SIZE(vs_slot, 16);

struct vs_known_stack {
	__u64 number;
	__u32 count;
	__u32 bytes;		   /* of the stack, from sp to the end of the last slot */
	struct vs_slot slots[128]; /* ascending */
};
VS_SIZE(vs_known_stack, 2064);

/* A list of frames that was sent to user space. */
struct vs_sent_frames_key {
	__u64 token;
	__u32 pid;
	__u16 exec_gen;
	__u16 kind;
};
VS_SIZE(vs_sent_frames_key, 16);

/* An allocator in a process handed out or freed a block, or failed to. */
struct vs_block {
	struct vs_head head; /* hook: enum vs_block_call */
	__u64 address;
	__u64 bytes;	 /* signed: negative for a free */
	__u64 allocated; /* PyTorch: allocated bytes on the device after the call */
	__u64 reserved;	 /* PyTorch: bytes of the device that the allocator holds */
	__u64 stack;
	__u64 python;
	__u64 pool;    /* address of the pool; 0: one per device */
	__s32 device;  /* -1: that of the memory with the block */
	__u16 flags;   /* enum vs_call_flag */
	__u8 interval; /* binary logarithm of the sampling interval; 0: all blocks have a stack */
	__u8 unused;
};
VS_SIZE(vs_block, 88);

/* An exec generation of a process. All zero: unknown processes. */
struct vs_lost_key {
	__u32 pid;
	__u16 exec_gen; /* exec generation of the process */
	__u16 reserved;
	__u64 start; /* start time of the process, nanoseconds since boot */
};
VS_SIZE(vs_lost_key, 16);

/* Calls of one function by one exec generation of a process. */
struct vs_unknown_key {
	__u32 pid;
	__u16 exec_gen; /* exec generation of the process */
	__u16 function; /* number of the function: the attach cookie */
	__u64 start;	/* start time of the process, nanoseconds since boot */
};
VS_SIZE(vs_unknown_key, 16);

/* Lost records of one exec generation; counts never decrease. */
struct vs_lost {
	__u64 allocations;
	__u64 allocated_bytes;
	__u64 frees;
	__u64 failures;
	__u64 other;
	__u64 launches;
	__u64 copies;
	__u64 stacks;  /* stacks of delivered calls */
	__u64 objects; /* created or destroyed; those that affect memory also count as other */
	__u64 tensors;
	__u64 processes; /* 1 if it ended without having been announced */
	__u32 replaced;	 /* 1 if it ended by an exec */
	__u32 announced; /* 1 if it was announced although the map `processes` was full */
};
VS_SIZE(vs_lost, 96);

/* Configuration that user space changes while the probes run. */
struct vs_runtime_config {
	/* When the newest library was attached (boot clock). A thread that started later started
	 * without a context, so its context is known from its first call on. */
	__u64 attached_at;
	/* Subtracted from the configured enum vs_stacks, so that zero means as configured. */
	__u32 stack_mode_reduction;
	/* The reader sleeps: the next record wakes it and clears this. */
	__u32 reader_waits;
};
VS_SIZE(vs_runtime_config, 16);

/* Counters of the probes themselves. */
struct vs_counters {
	__u64 lost;	 /* lost records of any class */
	__u64 records;	 /* records delivered */
	__u64 calls;	 /* hooked calls seen at return */
	__u64 unmatched; /* returns without an entry (attached during the call) */
	__u64 no_state;	 /* threads for which no state could be kept */
	__u64 self_test; /* hits of the self-test */
	__u64 graphs;	 /* graph states that ended; captures of theirs may be left */
	__u64 unknown;	 /* calls of unknown memory functions */
};
VS_SIZE(vs_counters, 64);

#endif
