//! The columns and the rows, in words: the schema of the file and the tables of
//! `docs/reference/recording-format.md` are both made from here.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};

use super::{VERSION, VERSION_KEY};

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Type {
    /// 16 bits.
    U16,
    /// 32 bits.
    U32,
    /// 64 bits.
    U64,
    /// 32 bits with a sign.
    I32,
    /// True or false.
    Bool,
    /// UTF-8.
    Text,
    /// Nanoseconds since 1970, UTC.
    Time,
    /// A list of 64-bit numbers, each of which may be null.
    Numbers,
}

impl Type {
    /// The type as Arrow calls it.
    #[must_use]
    pub fn arrow(self) -> DataType {
        match self {
            Self::U16 => DataType::UInt16,
            Self::U32 => DataType::UInt32,
            Self::U64 => DataType::UInt64,
            Self::I32 => DataType::Int32,
            Self::Bool => DataType::Boolean,
            Self::Text => DataType::Utf8,
            Self::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
            Self::Numbers => {
                DataType::List(Arc::new(Field::new_list_field(DataType::UInt64, true)))
            }
        }
    }

    /// The word for it in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
            Self::I32 => "int32",
            Self::Bool => "bool",
            Self::Text => "string",
            Self::Time => "timestamp[ns, UTC]",
            Self::Numbers => "list<uint64>",
        }
    }
}

/// Declares the columns once: the enum that code names them by, and the table.
macro_rules! columns {
    ($($column:ident $name:literal $type:ident $about:literal,)*) => {
        /// A column, by its place.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Column { $($column,)* }

        /// Every column in order: name, type, meaning.
        pub const COLUMNS: &[(&str, Type, &str)] = &[$(($name, Type::$type, $about),)*];
    };
}

columns! {
    Row "row" Text "what the row is, see the next table; the only column that is never null",
    At "at" U64 "when it was over, in nanoseconds of the machine's monotonic clock",
    Entered "entered" U64 "when the call was entered; null where it took no time",
    Pid "pid" U32 "the process; 0 for losses that are nobody's",
    Tid "tid" U32 "the thread",
    Address "address" U64 "the pointer, or the handle that `space` tells; of copies the destination",
    Space "space" Text "what `address` is: `address`, `handle`, `array`, `pool` or `external`",
    Handle "handle" U64 "the handle of physical memory, or of an object",
    Bytes "bytes" U64 "how much; of losses the bytes that lost allocating calls asked for",
    Kind "kind" Text "the kind of memory, or of an object",
    Device "device" U16 "the device, as the process counts them",
    Place "place" Text "where physical memory lies: `device` or `host`",
    Context "context" U64 "the context",
    Pool "pool" U64 "the memory pool",
    Stream "stream" U64 "the stream",
    Graph "graph" U64 "the graph",
    Exec "exec" U64 "the executable graph",
    Site "site" U32 "the call stack that it came from: the `site` of a `stack` row",
    Frame "frame" U32 "the number of a `frame` row",
    By "by" Text "`free`: the family of functions that freed it; `kernel_name`: how the name is known",
    Function "function" Text "the driver function that failed; in a `frame` row the function of the program",
    FunctionId "function_id" U16 "the row of the hook table that the function had when it was recorded",
    Code "code" I32 "the `CUresult`; in the `clock` row the seconds east of UTC",
    Gpu "gpu" U16 "the GPU's index on the host",
    Uid "uid" U32 "the owner of the process",
    Start "start" U64 "when the process started, in nanoseconds since boot; 0 when unknown",
    Name "name" Text "the name of the process, thread, kernel, GPU, fact or container",
    Text "text" Text "the value of a fact; the UUID of a GPU; in the `clock` row the time zone",
    Flag "flag" Bool "`process`: it ran before the trace; `driver_account`: the driver lists the process on no other GPU; `pool_of_device`: it is the current one; `graph_instantiate`: launches free what the one before left; `copies`: the calls return before the copy is done",
    Calls "calls" U64 "how many calls were added up",
    Captured "captured" U64 "how many of them were recorded into a graph instead",
    Checked "checked" U64 "how many of them had their result looked at",
    Nanos "nanos" U64 "how long the synchronous calls took, added up",
    Direction "direction" Text "which way bytes went",
    Source "source" U64 "of copies that leave the direction to the pointers: the source",
    Kernel "kernel" U64 "the handle of the kernel",
    Alias "alias" U64 "a second handle of the kernel",
    Numbers "numbers" Numbers "`gpus`: the GPU of each device; `stack`: frames, innermost first; `launches`: groups of eight, grid (3), block (3), shared bytes, calls; `copies`: pairs of bandwidth bucket and calls",
    Last "last" Numbers "of launches: the last grid (3), block (3) and shared bytes",
    Allocations "allocations" U64 "lost: allocating calls",
    Frees "frees" U64 "lost: freeing calls",
    Failures "failures" U64 "lost: failed calls; `launches`: how many of them failed, of those that were checked",
    Other "other" U64 "lost: other records",
    Launches "launches" U64 "lost: launches",
    Copies "copies" U64 "lost: copies and memsets",
    Stacks "stacks" U64 "lost: stacks of allocations that are recorded",
    Objects "objects" U64 "lost: records of objects that began or ended; those that matter to memory are among `other`, too",
    Tensors "tensors" U64 "lost: blocks that PyTorch's cache gave out or took back",
    Processes "processes" U64 "lost: programs that ended without a `process` row",
    Allocated "allocated" U64 "all that PyTorch's cache has given out on the device, as it counts",
    Reserved "reserved" U64 "all that it holds of the device",
    File "file" Text "the source file of a frame",
    Line "line" U32 "the line in it; 0 when unknown",
    Module "module" Text "the library or program of a frame",
    Language "language" Text "what a frame is written in: `native`, `python` or `remark`",
    Reason "reason" Text "why the function of a frame, the name of a kernel, or the tensors of a process are not known",
    Container "container" Text "the id of a container",
    Runtime "runtime" Text "who made it: `docker`, `containerd`, `cri-o`, `podman` or `unknown`",
    PidInside "pid_inside" U32 "the process's number inside of it",
    PodUid "pod_uid" Text "the uid of the pod that it belongs to",
    Pod "pod" Text "the name of that pod",
    Namespace "namespace" Text "the namespace of that pod",
    Utc "utc" Time "in the `clock` row: the wall clock at the moment `at`",
}

impl Column {
    /// Its name in the file.
    pub(super) fn name(self) -> &'static str {
        COLUMNS.get(self as usize).map_or("", |column| column.0)
    }
}

/// The keys of `about` rows.
pub const ABOUT: &[(&str, &str)] = &[
    ("vramscope", "the version of the program that wrote the file"),
    ("hostname", "the machine"),
    ("kernel", "its kernel"),
    ("target", "what was traced"),
    ("work", "`yes` where launches and copies were counted, too"),
];

/// Every row in words: the word, the meaning, the columns besides `row`, `at`, `entered`, `pid` and
/// `tid`.
pub const ROWS: &[(&str, &str, &str)] = &[
    ("about", "a fact about the recording", "name, text"),
    ("clock", "the wall clock of the machine", "utc, text, code"),
    ("gpu", "a GPU of the machine", "gpu, name, text, bytes"),
    ("process", "a process was seen for the first time", "name, uid, start, flag"),
    (
        "container",
        "the container that the process runs in; again when more became known. `name` is what its pod calls it",
        "container, runtime, pid_inside, pod_uid, pod, namespace, name",
    ),
    ("thread_name", "a thread has this name", "name"),
    ("exec", "the process replaced its program", ""),
    ("exit", "the process ended", ""),
    ("thread_exit", "the thread ended", ""),
    (
        "allocate",
        "a call gave memory",
        "address, space, kind, bytes, context, device, pool, stream, site",
    ),
    ("free", "a call gave memory back", "address, space, by, stream"),
    ("physical_create", "`cuMemCreate`", "handle, bytes, place, device, site"),
    ("physical_import", "`cuMemImportFromShareableHandle`", "handle"),
    ("physical_multicast", "`cuMulticastCreate`", "handle"),
    ("physical_retain", "`cuMemRetainAllocationHandle`", "handle"),
    ("physical_release", "`cuMemRelease`", "handle"),
    ("map", "`cuMemMap`", "address, bytes, handle"),
    ("unmap", "`cuMemUnmap`", "address, bytes"),
    ("reserve", "`cuMemAddressReserve`", "address, bytes"),
    ("unreserve", "`cuMemAddressFree`", "address, bytes"),
    ("pool_create", "a pool began, or was imported", "pool, place, device"),
    ("pool_destroy", "`cuMemPoolDestroy`", "pool"),
    ("pool_trim", "`cuMemPoolTrimTo`; `bytes` may stay", "pool, bytes"),
    ("pool_reserved", "the driver told what a pool reserves", "pool, bytes"),
    ("pool_of_device", "a pool is that of a device", "pool, device, flag"),
    ("capture_begin", "calls on the stream become nodes of a graph", "stream, graph"),
    ("capture_end", "`cuStreamEndCapture`", "stream, graph"),
    ("node_allocate", "a graph has a node that allocates", "graph, address, bytes, place, device"),
    ("node_free", "a graph has a node that frees", "graph, address"),
    ("graph_instantiate", "`cuGraphInstantiate`", "exec, graph, flag"),
    ("graph_launch", "`cuGraphLaunch` of a graph with memory nodes", "exec"),
    ("graph_exec_destroy", "`cuGraphExecDestroy`", "exec"),
    ("graph_destroy", "`cuGraphDestroy`", "graph"),
    ("graph_reserved", "the driver told what graphs reserve", "device, bytes"),
    ("graph_trim", "`cuDeviceGraphMemTrim`", "device"),
    (
        "failed",
        "a call failed and changed nothing; `kind` and `bytes` are what it asked for, `address` what it should have freed",
        "function, function_id, code, kind, bytes, address, space, device, context, site",
    ),
    ("context_create", "`cuCtxCreate`", "context, device"),
    ("context_destroy", "`cuCtxDestroy`", "context"),
    ("primary_retain", "`cuDevicePrimaryCtxRetain`", "context, device"),
    ("primary_release", "`cuDevicePrimaryCtxRelease`", "device"),
    ("primary_reset", "`cuDevicePrimaryCtxReset`", "device"),
    ("context_learned", "a context from before the trace is of this device", "context, device"),
    ("gpus", "which GPUs the devices of the process are", "numbers"),
    ("driver_account", "what the driver says that the process holds of a GPU", "gpu, bytes, flag"),
    ("gpu_free", "what is free of a GPU; of no process", "gpu, bytes"),
    (
        "driver_account_lost",
        "`driver_account` and `gpu_free` up to here are not known any more; of no process",
        "",
    ),
    (
        "lost",
        "records that could not be delivered, since the last such row",
        "allocations, bytes, frees, failures, other, launches, copies, stacks, objects, tensors, processes",
    ),
    (
        "launches",
        "launches of a kernel (or graph) since the last such row",
        "kernel or exec, calls, captured, checked, failures, last, numbers, other",
    ),
    ("kernel_name", "a kernel has this name", "kernel, name, by"),
    ("kernel_alias", "a second handle of a kernel", "kernel, alias"),
    ("kernel_nameless", "the name of a kernel is not known", "kernel, reason"),
    (
        "copies",
        "copies of one direction since the last such row",
        "direction, address, source, flag, calls, bytes, nanos, numbers",
    ),
    (
        "object_create",
        "a stream, event, graph, module or the like began",
        "kind, handle, context, site",
    ),
    ("object_destroy", "a call destroyed one", "kind, handle"),
    (
        "tensor_begin",
        "PyTorch's cache gave out a block",
        "address, bytes, device, site, allocated, reserved",
    ),
    (
        "tensor_end",
        "PyTorch's cache took a block back",
        "address, bytes, device, allocated, reserved",
    ),
    (
        "tensor_refused",
        "PyTorch's cache had no memory for a block",
        "bytes, device, site, allocated, reserved",
    ),
    ("torch", "the process runs PyTorch; with a reason: its tensors are not seen", "reason"),
    ("frame", "a place in a program", "frame, function, file, line, module, language, reason"),
    (
        "stack",
        "what a site looks like; it may come after the rows that name the site",
        "site, numbers",
    ),
    ("tick", "a report was made", ""),
    ("end", "the trace ended, and the last report was made", ""),
];

/// The schema of the file.
#[must_use]
pub fn schema() -> Schema {
    let fields: Vec<Field> = COLUMNS
        .iter()
        .enumerate()
        .map(|(i, (name, of, _))| Field::new(*name, of.arrow(), i != Column::Row as usize))
        .collect();
    let metadata = HashMap::from([(VERSION_KEY.to_owned(), VERSION.to_string())]);
    Schema::new_with_metadata(fields, metadata)
}
