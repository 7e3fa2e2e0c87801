//! The columns and row types of a recording: the schema of the file and the tables of
//! `docs/reference/recording-format.md` are generated from them.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};

use super::{VERSION, VERSION_KEY};

/// Type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnType {
    /// 16 bits.
    U16,
    /// 32 bits.
    U32,
    /// 64 bits.
    U64,
    /// 32 bits, signed.
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

impl ColumnType {
    /// Returns the Arrow type.
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

    /// Returns the name in documentation.
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

/// Declares the columns once: the enum for code, and the table.
macro_rules! columns {
    ($($column:ident $name:literal $type:ident $about:literal,)*) => {
        /// A column, by its index.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum Column { $($column,)* }

        /// Every column in order: name, type, meaning.
        pub const COLUMNS: &[(&str, ColumnType, &str)] = &[$(($name, ColumnType::$type, $about),)*];
    };
}

columns! {
    RowType "type" Text "row type, see the next table; the only column that is never null",
    TimeNs "time_ns" U64 "end of the call or event, in nanoseconds of the machine's monotonic clock",
    EntryNs "entry_ns" U64 "entry of the call; null if it took no time",
    Pid "pid" U32 "process; 0 for events that belong to no process",
    Tid "tid" U32 "thread",
    Address "address" U64 "pointer, or the handle that `address_type` names; the destination of copies",
    AddressType "address_type" Text "what `address` is: `pointer`, `handle`, `array`, `pool` or `external`",
    Handle "handle" U64 "handle of physical memory, or of an object",
    Bytes "bytes" U64 "size; in `lost` rows the bytes that lost allocation calls requested",
    Kind "kind" Text "memory kind, or object kind",
    Device "device" U16 "device ordinal of the process",
    Location "location" Text "location of physical memory: `device` or `host`",
    Context "context" U64 "context",
    Pool "pool" U64 "memory pool",
    Stream "stream" U64 "stream",
    Graph "graph" U64 "graph",
    GraphExec "graph_exec" U64 "executable graph (`CUgraphExec`)",
    ShareId "share_id" U64 "shared memory: the same in the rows of its export and its imports",
    SiteId "site_id" U32 "call stack: the `site_id` of a `stack` row",
    FrameId "frame_id" U32 "number of a `frame` row",
    FreeFunction "free_function" Text "`free`: family of the function that freed the memory",
    NameSource "name_source" Text "`kernel_name`: source of the name, `call` or `memory`",
    Function "function" Text "driver function that failed or is unknown; in a `frame` row the function of the program",
    FunctionId "function_id" U16 "row of the hook table that the function had when it was recorded",
    Result "result" I32 "`CUresult`",
    UtcOffsetSeconds "utc_offset_seconds" I32 "`clock`: seconds east of UTC",
    Gpu "gpu" U16 "GPU index on the host",
    Uid "uid" U32 "owner of the process",
    ProcessStartNs "process_start_ns" U64 "start of the process, in nanoseconds since boot; 0 if unknown",
    Name "name" Text "name of the process, program, thread, kernel, GPU, metadata key, container or site; label of a mark; profile of a MIG instance",
    Value "value" Text "value of a metadata key; Python references",
    Uuid "uuid" Text "`gpu`, `mig_instance`: UUID",
    TimeZone "time_zone" Text "`clock`: time zone",
    BeforeTrace "before_trace" Bool "`process`: it started before the trace",
    IsOnlyGpu "is_only_gpu" Bool "`driver_usage`: the driver lists the process on no other GPU",
    IsCurrent "is_current" Bool "`device_pool`: it is the current pool",
    AutoFree "auto_free" Bool "`graph_instantiate`: a launch frees what the previous one left",
    IsAsync "is_async" Bool "`copies`: the calls return before the copy is done",
    Calls "calls" U64 "number of calls",
    Captured "captured" U64 "calls that were captured into a graph",
    Checked "checked" U64 "calls whose result was checked",
    DurationNs "duration_ns" U64 "total duration of the synchronous calls",
    CopyDirection "direction" Text "direction: `H2D`, `D2H`, `D2D`, `H2H`, `peer`, `array`, `memset` or `unknown`",
    SourceAddress "source_address" U64 "source, for copies that leave the direction to the pointers",
    KernelHandle "kernel_handle" U64 "handle of the kernel",
    AliasHandle "alias_handle" U64 "second handle of the kernel",
    DeviceGpus "device_gpus" Numbers "`device_map`: GPU index of each device",
    FrameIds "frame_ids" Numbers "`stack`: frames, innermost first",
    ShapeCounts "shapes" Numbers "`launches`: groups of eight: grid (3), block (3), shared bytes, calls",
    BandwidthHistogram "bandwidth_histogram" Numbers "`copies`: pairs of bandwidth bucket and calls",
    LastShape "last_shape" Numbers "`launches`: last grid (3), block (3) and shared bytes",
    OtherShapes "other_shapes" U64 "`launches`: calls with shapes that are not in `shapes`",
    Failed "failed" U64 "`launches`: failed calls, of those checked",
    LostAllocations "lost_allocations" U64 "lost allocation calls",
    LostFrees "lost_frees" U64 "lost free calls",
    LostFailures "lost_failures" U64 "lost failed calls",
    LostOther "lost_other" U64 "other lost records",
    LostLaunches "lost_launches" U64 "lost launches",
    LostCopies "lost_copies" U64 "lost copies and memsets",
    LostStacks "lost_stacks" U64 "lost stacks of recorded allocations",
    LostObjects "lost_objects" U64 "lost create and destroy records of objects; those that affect memory are also in `lost_other`",
    LostTensors "lost_tensors" U64 "lost records of blocks of allocators in the process",
    LostProcesses "lost_processes" U64 "programs that exited without a `process` row",
    Allocator "allocator" Text "allocator of a block: `pytorch`, `cupy`, `xla`, `rmm` or `onnxruntime`; without it `pytorch`",
    AllocatedBytes "allocated_bytes" U64 "total that the allocator has allocated on the device, if it counts",
    ReservedBytes "reserved_bytes" U64 "total that it holds on the device",
    SamplingInterval "sampling_interval" U64 "mean bytes between two blocks whose call stack was captured; without it those of all were",
    Skipped "skipped" Bool "the block was not sampled: it has no site, others stand for it",
    File "file" Text "source file of a frame",
    Line "line" U32 "line; 0 if unknown",
    Module "module" Text "library or program of a frame",
    Language "language" Text "language of a frame: `native`, `python` or `synthetic`",
    Reason "reason" Text "why the function of a frame, the name of a kernel, or the blocks of an allocator are unknown",
    Container "container" Text "container id",
    ContainerRuntime "runtime" Text "container runtime: `docker`, `containerd`, `cri-o`, `podman` or `unknown`",
    ContainerPid "container_pid" U32 "process id inside the container",
    PodUid "pod_uid" Text "uid of its pod",
    Pod "pod" Text "name of the pod",
    Namespace "namespace" Text "namespace of the pod",
    WallTime "wall_time" Time "`clock`: wall-clock time at `time_ns`",
    User "user" Text "`program`: name of the owner of the process",
    Job "job" Text "`program`: job of a scheduler, such as `slurm 4711.0`",
    Rank "rank" U32 "`program`: rank among the processes of a distributed program",
    TreePid "tree_pid" U32 "`program`: root of its process tree",
    TreeProgram "tree_program" Text "`program`: program of that root",
    Release "release" Text "`program`: release of the program, if its environment names one",
    MarkKind "mark" Text "`mark`: kind of the mark: `point`, `begin` or `end`",
    ContextLimit "limit" Text "`context_limit`: the limit: `stack`, `printf_fifo`, `malloc_heap`, `launch_depth` or `pending_launches`",
}

impl Column {
    /// Returns the name in the file.
    pub(super) fn name(self) -> &'static str {
        COLUMNS.get(self as usize).map_or("", |column| column.0)
    }

    /// Returns whether a missing number is 0: older versions did not write it.
    pub(super) const fn is_zero_if_absent(self) -> bool {
        matches!(
            self,
            Self::ProcessStartNs
                | Self::Captured
                | Self::Checked
                | Self::Failed
                | Self::OtherShapes
                | Self::DurationNs
        )
    }

    /// Returns the column of a class of lost records.
    pub(super) fn of_loss(class: &str) -> Self {
        match class {
            "allocations" => Self::LostAllocations,
            "allocated_bytes" => Self::Bytes,
            "frees" => Self::LostFrees,
            "failures" => Self::LostFailures,
            "launches" => Self::LostLaunches,
            "copies" => Self::LostCopies,
            "stacks" => Self::LostStacks,
            "objects" => Self::LostObjects,
            "tensors" => Self::LostTensors,
            "processes" => Self::LostProcesses,
            _ => Self::LostOther,
        }
    }
}

/// Keys of `metadata` rows: key, meaning.
pub const ABOUT: &[(&str, &str)] = &[
    ("vramscope", "version of the program that wrote the file"),
    ("hostname", "machine"),
    ("kernel", "its Linux kernel"),
    ("target", "target of the trace: all processes, pids, or the command with its arguments"),
    ("kernels", "`yes` if launches and copies were also counted"),
    ("source", "`in_process` for recordings of `run`; absent for those of probes"),
];

/// Every row type: name, meaning, and its columns besides `type`, `time_ns`, `entry_ns`, `pid` and
/// `tid`.
pub const ROWS: &[(&str, &str, &str)] = &[
    ("metadata", "a fact about the recording", "name, value"),
    ("clock", "wall clock of the machine", "wall_time, time_zone, utc_offset_seconds"),
    ("gpu", "a GPU of the machine", "gpu, name, uuid, bytes"),
    (
        "process",
        "a process was seen for the first time",
        "name, uid, process_start_ns, before_trace",
    ),
    (
        "container",
        "container of the process; again if more becomes known. `name` is its name in the pod",
        "container, runtime, container_pid, pod_uid, pod, namespace, name",
    ),
    (
        "program",
        "program of the process: a script, module or executable without directories; its user and what it belongs to",
        "name, user, job, rank, tree_pid, tree_program, release",
    ),
    ("thread_name", "name of a thread", "name"),
    ("exec", "the process replaced its program", ""),
    ("exit", "the process exited", ""),
    ("thread_exit", "the thread exited", ""),
    (
        "allocate",
        "a call allocated memory",
        "address, address_type, kind, bytes, context, device, pool, stream, site_id",
    ),
    ("free", "a call freed memory", "address, address_type, free_function, stream"),
    ("physical_create", "`cuMemCreate`", "handle, bytes, location, device, site_id"),
    ("physical_import", "`cuMemImportFromShareableHandle`", "handle"),
    ("physical_multicast", "`cuMulticastCreate`", "handle"),
    ("physical_retain", "`cuMemRetainAllocationHandle`", "handle"),
    ("physical_release", "`cuMemRelease`", "handle"),
    ("map", "`cuMemMap`", "address, bytes, handle"),
    ("unmap", "`cuMemUnmap`", "address, bytes"),
    ("reserve", "`cuMemAddressReserve`", "address, bytes"),
    ("unreserve", "`cuMemAddressFree`", "address, bytes"),
    ("pool_create", "a pool was created or imported", "pool, location, device"),
    ("pool_destroy", "`cuMemPoolDestroy`", "pool"),
    ("pool_trim", "`cuMemPoolTrimTo`; `bytes` may stay", "pool, bytes"),
    ("pool_reserved", "the driver returned the reserved size of a pool", "pool, bytes"),
    ("device_pool", "a pool belongs to a device", "pool, device, is_current"),
    ("capture_begin", "calls on the stream become nodes of a graph", "stream, graph"),
    ("capture_end", "`cuStreamEndCapture`", "stream, graph"),
    (
        "node_allocate",
        "a graph has a node that allocates",
        "graph, address, bytes, location, device",
    ),
    ("node_free", "a graph has a node that frees", "graph, address"),
    ("graph_instantiate", "`cuGraphInstantiate`", "graph_exec, graph, auto_free"),
    ("graph_launch", "`cuGraphLaunch` of a graph with memory nodes", "graph_exec"),
    ("graph_exec_destroy", "`cuGraphExecDestroy`", "graph_exec"),
    ("graph_destroy", "`cuGraphDestroy`", "graph"),
    ("graph_reserved", "the driver returned the reserved size of graphs", "device, bytes"),
    ("graph_trim", "`cuDeviceGraphMemTrim`", "device"),
    (
        "export",
        "a process got a handle with which others can import the memory",
        "address, address_type, share_id",
    ),
    (
        "import",
        "the memory that the process imported with the row before has this handle",
        "address, address_type, share_id",
    ),
    (
        "call_failed",
        "a call failed and changed nothing; `kind` and `bytes` are what it requested, `address` what it should have freed",
        "function, function_id, result, kind, bytes, address, address_type, device, context, site_id",
    ),
    ("context_create", "`cuCtxCreate`", "context, device"),
    ("context_destroy", "`cuCtxDestroy`", "context"),
    ("primary_retain", "`cuDevicePrimaryCtxRetain`", "context, device"),
    ("primary_release", "`cuDevicePrimaryCtxRelease`", "device"),
    ("primary_reset", "`cuDevicePrimaryCtxReset`", "device"),
    ("context_discovered", "device of a context from before the trace", "context, device"),
    (
        "context_limit",
        "`cuCtxSetLimit`; `bytes` is its value, for launches their number",
        "limit, bytes",
    ),
    ("device_map", "GPUs of the devices of the process", "device_gpus"),
    ("mig_instance", "MIG instance on which the process runs", "uuid, name"),
    (
        "driver_usage",
        "GPU memory used by the process, as reported by the driver",
        "gpu, bytes, is_only_gpu",
    ),
    ("gpu_free", "free memory of a GPU; belongs to no process", "gpu, bytes"),
    (
        "driver_usage_lost",
        "earlier `driver_usage` and `gpu_free` rows no longer hold; belongs to no process",
        "",
    ),
    ("mark", "a user or program set a mark; `pid` is 0 for the whole host", "mark, name"),
    (
        "unknown_calls",
        "calls since the last such row of a memory function that vramscope did not know: what they allocated is in no other row",
        "function, calls",
    ),
    (
        "lost",
        "events lost since the last such row",
        "lost_allocations, bytes, lost_frees, lost_failures, lost_other, lost_launches, lost_copies, lost_stacks, lost_objects, lost_tensors, lost_processes",
    ),
    (
        "launches",
        "launches of a kernel or graph since the last such row",
        "kernel_handle or graph_exec, calls, captured, checked, failed, last_shape, shapes, other_shapes",
    ),
    ("kernel_name", "name of a kernel", "kernel_handle, name, name_source"),
    ("kernel_alias", "second handle of a kernel", "kernel_handle, alias_handle"),
    ("kernel_unnamed", "the name of a kernel is unknown", "kernel_handle, reason"),
    (
        "copies",
        "copies of one direction since the last such row",
        "direction, address, source_address, is_async, calls, bytes, duration_ns, bandwidth_histogram",
    ),
    (
        "object_create",
        "a stream, event, graph, module or the like was created",
        "kind, handle, context, site_id",
    ),
    (
        "object_image",
        "size of the image that a module or library was loaded from",
        "kind, handle, bytes",
    ),
    ("object_destroy", "a call destroyed one", "kind, handle"),
    (
        "tensor_alloc",
        "an allocator in the process handed out a block",
        "allocator, pool, address, bytes, device, site_id, sampling_interval, skipped, allocated_bytes, reserved_bytes",
    ),
    (
        "tensor_free",
        "a block was freed",
        "allocator, pool, address, bytes, device, allocated_bytes, reserved_bytes",
    ),
    (
        "tensor_oom",
        "an allocator had no memory for a block",
        "allocator, pool, bytes, device, site_id, allocated_bytes, reserved_bytes",
    ),
    (
        "allocator_detected",
        "the process has an allocator; with a reason: its blocks cannot be tracked",
        "allocator, reason",
    ),
    (
        "frame",
        "a frame of a call stack",
        "frame_id, function, file, line, module, language, reason",
    ),
    (
        "stack",
        "frames of a site; may come after the rows that refer to the site",
        "site_id, frame_ids",
    ),
    (
        "kept_by",
        "Python references that keep the memory at an address alive, and that of its site (`why`)",
        "address, value",
    ),
    ("report", "a report was made", ""),
    ("end", "the trace ended, and the final report was made", ""),
];

/// Returns the schema of the file.
pub fn schema() -> Schema {
    let fields: Vec<Field> = COLUMNS
        .iter()
        .enumerate()
        .map(|(i, (name, of, _))| Field::new(*name, of.arrow(), i != Column::RowType as usize))
        .collect();
    let metadata = HashMap::from([(VERSION_KEY.to_owned(), VERSION.to_string())]);
    Schema::new_with_metadata(fields, metadata)
}
