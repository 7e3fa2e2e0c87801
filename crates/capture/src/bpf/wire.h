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
/* context slots a thread's stack of contexts has; deeper pushes make the device unknown */
#define VS_CONTEXTS 8
/* calls of one thread that can be inside the driver at once, nested */
#define VS_INFLIGHT 4

enum vs_record_kind {
	VS_CALL = 1,		/* struct vs_call */
	VS_CALL_DESCRIPTOR = 2, /* struct vs_call_descriptor */
	VS_PROCESS = 3,		/* struct vs_process: first call of a process */
	VS_THREAD = 4,		/* struct vs_thread_name: first call of a thread, or a new name */
	VS_EXEC = 5,		/* struct vs_head */
	VS_EXIT = 6,		/* struct vs_head */
	VS_THREAD_EXIT = 7,	/* struct vs_head */
	VS_LEARNED = 8,		/* struct vs_learned: a query told a context's device */
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
};

enum vs_hook_flag {
	VS_STREAM_ORDERED = 1, /* while a stream captures, such a call makes a graph's node */
};

/* What is lost when a record is. */
enum vs_class {
	VS_CLASS_ALLOCATE = 0,
	VS_CLASS_FREE = 1,
	VS_CLASS_OTHER = 2,
};

enum vs_call_flag {
	VS_CONTEXT_KNOWN = 1,  /* context is the calling thread's current one (0: it has none) */
	VS_DEVICE_KNOWN = 2,   /* device is the calling thread's current one */
	VS_OUT_UNREADABLE = 4, /* an out value or descriptor could not be read */
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
	__u8 reserved;
};
VS_SIZE(vs_hook, 12);

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
};
VS_SIZE(vs_call, 112);

struct vs_call_descriptor {
	struct vs_call call;
	__u8 descriptor[136];
};
VS_SIZE(vs_call_descriptor, 248);

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

/* Records that could not be delivered, per process; only ever grows. */
struct vs_lost {
	__u64 allocations;
	__u64 allocated_bytes;
	__u64 frees;
	__u64 failures;
	__u64 other;
	__u64 launches;
	__u64 copies;
};
VS_SIZE(vs_lost, 56);

/* Counters of the probes themselves. */
struct vs_counters {
	__u64 lost;	 /* records of any class that could not be delivered */
	__u64 records;	 /* records delivered */
	__u64 calls;	 /* hooked calls seen at return */
	__u64 unmatched; /* returns without an entry (attached in the middle of the call) */
	__u64 no_state;	 /* threads for which no state could be kept */
	__u64 canary;	 /* hits of the self-test */
};
VS_SIZE(vs_counters, 48);

#endif
