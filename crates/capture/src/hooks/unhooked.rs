//! Driver functions that look like memory functions but are not hooked, each with a reason. A test
//! compares this list and the hook table with the exports of every driver generation, and traces
//! report functions of a newer driver that are in neither.

/// Prefixes of unhooked functions, longest first if they overlap, and why they need no hook.
const UNHOOKED_PREFIXES: &[(&str, &str)] = &[
    ("cuMemcpy3DWithAttributesAsync", "volumes with attributes: not counted as copies"),
    ("cuMemcpy", "copies with 32-bit sizes, from before CUDA 3.2"),
    ("cuMemset", "memsets with 32-bit sizes, from before CUDA 3.2"),
    ("cuMemPrefetch", "moves managed memory that is already counted"),
    ("cuMemDiscard", "a hint about contents"),
    ("cuMemAdvise", "a hint"),
    ("cuMemBatchDecompressAsync", "writes into existing memory"),
    ("cuMemGet", "a query"),
    ("cuMemRangeGet", "a query"),
    ("cuMemHostGet", "a query"),
    ("cuMemSetAccess", "access permissions of mapped memory"),
    ("cuMemSetMemPool", "selects a pool; allocations carry the device of their pool"),
    ("cuMemMapArrayAsync", "maps tiles of a sparse array to memory that is already counted"),
    ("cuMemPoolExportToShareableHandle", "the memory still counts for the exporter"),
    ("cuMemPoolGetAccess", "a query"),
    ("cuMemPoolSetAccess", "access permissions"),
    ("cuMemPoolSetAttribute", "when a pool releases memory; the driver reports its reserve"),
    ("cuMulticastAddDevice", "multicast objects have no memory of their own"),
    ("cuMulticastBind", "refers to memory that is already counted"),
    ("cuMulticastGetGranularity", "a query"),
    ("cuMulticastUnbind", "multicast objects have no memory of their own"),
    ("cuArrayGet", "a query"),
    ("cuArray3DGet", "a query"),
    ("cuMipmappedArrayGet", "a query, or a level of an array that is already counted"),
    (
        "cuExternalMemoryGetMappedMipmappedArray",
        "a view of external memory that is already counted",
    ),
    ("cuImportExternalMemory", "external memory counts when it is mapped"),
    ("cuDestroyExternalMemory", "external memory counts when it is mapped"),
    ("cuGraphAddMemcpyNode", "copies"),
    ("cuGraphAddMemsetNode", "sets memory"),
    ("cuGraphAddBatchMemOpNode", "writes values"),
    ("cuGraphMem", "parameters of nodes"),
    ("cuGraphExecMem", "parameters of nodes"),
    ("cuGraphBatchMemOp", "parameters of nodes"),
    ("cuGraphExecBatchMemOp", "parameters of nodes"),
    ("cuStreamBatchMemOp", "writes values"),
    ("cuStreamAttachMemAsync", "where managed memory may be accessed"),
    ("cuDeviceGetGraphMemAttribute", "hooked"),
    ("cuDeviceSetGraphMemAttribute", "resets a high-water mark"),
    ("cuDeviceTotalMem", "a query"),
    ("cuDevicePrimaryCtxGetState", "a query"),
    ("cuDevicePrimaryCtxSetFlags", "flags"),
    ("cuGreenCtxGet", "a query"),
    ("cuGreenCtxRecordEvent", "an event"),
    ("cuGreenCtxWaitEvent", "an event"),
    ("cuCtxAttach", "reference counts from before CUDA 4; destruction is hooked"),
    ("cuCtxDetach", "reference counts from before CUDA 4; destruction is hooked"),
    ("cuCtxGet", "a query"),
    ("cuCtxSet", "settings that take no memory"),
    ("cuCtxSynchronize", "waits"),
    ("cuCtxEnablePeerAccess", "access permissions"),
    ("cuCtxDisablePeerAccess", "access permissions"),
    ("cuCtxRecordEvent", "an event"),
    ("cuCtxWaitEvent", "an event"),
    ("cuCtxResetPersistingL2Cache", "a cache"),
    ("cuGLCtxCreate", "OpenGL contexts from before CUDA 5"),
    ("cuVDPAUCtxCreate", "video contexts"),
];

/// Single functions that are not hooked although newer versions of them are.
const UNHOOKED_FUNCTIONS: &[(&str, &str)] = &[
    ("cuMemAllocPitch", "from before CUDA 3.2: its pitch is 32 bits wide"),
    ("cuArrayCreate", "32-bit descriptor from before CUDA 3.2"),
    ("cuArray3DCreate", "32-bit descriptor from before CUDA 3.2"),
];

/// Returns why a memory function is not hooked; `None` if it is not listed.
#[must_use]
pub fn unhooked(symbol: &str) -> Option<&'static str> {
    let single = UNHOOKED_FUNCTIONS.iter().find(|(name, _)| *name == symbol);
    let family = UNHOOKED_PREFIXES.iter().find(|(prefix, _)| symbol.starts_with(prefix));
    single.or(family).map(|(_, reason)| *reason)
}

/// Functions that create or destroy something that is not tracked as an object, and why.
const UNHOOKED_OBJECT_PREFIXES: &[(&str, &str)] = &[
    ("cuGraphConditionalHandleCreate", "a number inside a graph"),
    ("cuGraphDestroyNode", "a node of a graph"),
    ("cuGraphNodeFindInClone", "a query"),
    ("cuTexRefCreate", "texture references from before CUDA 5"),
    ("cuTexRefDestroy", "texture references from before CUDA 5"),
    ("cuUserObjectCreate", "a reference count of the program"),
    ("cuEventCreateFrom", "EGL events"),
    ("cuStreamEndCaptureToCig", "captures into a command list of a graphics API, not into a graph"),
];

/// Returns why a function that looks like an object function is not hooked; `None` if it is not
/// listed.
#[must_use]
pub fn unhooked_object(symbol: &str) -> Option<&'static str> {
    let known = UNHOOKED_OBJECT_PREFIXES.iter().find(|(prefix, _)| symbol.starts_with(prefix));
    known.map(|(_, reason)| *reason)
}

/// Returns whether an exported name looks like a function that creates or destroys an object.
#[must_use]
pub fn looks_like_object_function(symbol: &str) -> bool {
    let Some(name) = symbol.strip_prefix("cu") else { return false };
    let objects = ["Stream", "Event", "Graph", "Module", "Library", "Tex", "Surf", "Link", "Green"];
    let more = ["Ctx", "MemPool", "UserObject"];
    let verbs = ["Create", "Destroy", "Unload", "Clone", "Instantiate", "EndCapture"];
    let is_object = |name: &str| objects.iter().chain(&more).any(|kind| name.starts_with(kind));
    let loads = name.starts_with("ModuleLoad") || name.starts_with("LibraryLoad");
    (is_object(name) && verbs.iter().any(|verb| name.contains(verb)))
        || loads
        || (name.starts_with("IpcOpen") && name.contains("Event"))
}

/// Returns whether an exported name looks like a memory or context function.
#[must_use]
pub fn looks_like_memory_function(symbol: &str) -> bool {
    let Some(name) = symbol.strip_prefix("cu") else { return false };
    let starts = ["Mem", "Array", "Mipmapped", "Multicast", "Ctx", "GreenCtx"];
    let contains = ["MemAlloc", "MemFree", "MemHandle", "ExternalMemory", "GraphMem", "PrimaryCtx"];
    let more = ["MemPool", "CtxCreate", "BatchMemOp", "AttachMem", "TotalMem"];
    starts.iter().any(|part| name.starts_with(part))
        || contains.iter().chain(&more).any(|part| name.contains(part))
        || (name.starts_with("Graph") && name.contains("Mem"))
}

/// Returns whether an exported name looks like a memory function that is not listed here. If it is
/// not hooked either, the driver is newer than both lists.
#[must_use]
pub fn is_unlisted_memory_function(symbol: &str) -> bool {
    looks_like_memory_function(symbol) && unhooked(symbol).is_none()
}
