//! Functions of the driver that have to do with memory and are not hooked, each with its reason.
//! A test holds this list and the table against every driver on the machine, and against the
//! exports of real drivers, so that a new function cannot go unnoticed.

/// Families by prefix, longest first where they overlap, and why they need no hook.
const FAMILIES: &[(&str, &str)] = &[
    ("cuMemcpy3DBatchAsync", "batches of volumes: not counted as copies"),
    ("cuMemcpy3DWithAttributesAsync", "volumes with attributes: not counted as copies"),
    ("cuMemcpy", "copies of before CUDA 3.2, with 32-bit sizes"),
    ("cuMemset", "fills of before CUDA 3.2, with 32-bit sizes"),
    ("cuMemPrefetch", "moves managed memory that is counted already"),
    ("cuMemDiscard", "a hint about contents"),
    ("cuMemAdvise", "a hint"),
    ("cuMemBatchDecompressAsync", "writes into memory of the program"),
    ("cuMemGet", "a query"),
    ("cuMemRangeGet", "a query"),
    ("cuMemHostGet", "a query"),
    ("cuMemSetAccess", "access rights of mapped memory"),
    ("cuMemSetMemPool", "chooses a pool; allocations name their pool's device themselves"),
    ("cuMemExportToShareableHandle", "the exporter keeps the memory and its count"),
    ("cuMemMapArrayAsync", "maps tiles of a sparse array to memory that is counted already"),
    ("cuMemPoolExport", "the exporter keeps the memory and its count"),
    ("cuMemPoolGetAccess", "a query"),
    ("cuMemPoolSetAccess", "access rights"),
    ("cuMemPoolSetAttribute", "when a pool gives memory back; what it holds only the driver knows"),
    ("cuMulticastAddDevice", "multicast objects hold no memory of their own"),
    ("cuMulticastBind", "refers to memory that is counted already"),
    ("cuMulticastGetGranularity", "a query"),
    ("cuMulticastUnbind", "multicast objects hold no memory of their own"),
    ("cuArrayGet", "a query"),
    ("cuArray3DGet", "a query"),
    ("cuMipmappedArrayGet", "a query, or a level of an array that is counted already"),
    ("cuIpcGetMemHandle", "the exporter keeps the memory and its count"),
    (
        "cuExternalMemoryGetMappedMipmappedArray",
        "a view of external memory that is counted already",
    ),
    ("cuImportExternalMemory", "external memory counts where it is mapped"),
    ("cuDestroyExternalMemory", "external memory counts where it is mapped"),
    ("cuGraphAddMemcpyNode", "copies"),
    ("cuGraphAddMemsetNode", "fills memory"),
    ("cuGraphAddBatchMemOpNode", "writes values"),
    ("cuGraphMem", "parameters of nodes"),
    ("cuGraphExecMem", "parameters of nodes"),
    ("cuGraphBatchMemOp", "parameters of nodes"),
    ("cuGraphExecBatchMemOp", "parameters of nodes"),
    ("cuStreamBatchMemOp", "writes values"),
    ("cuStreamAttachMemAsync", "where managed memory may be touched"),
    ("cuDeviceGetGraphMemAttribute", "hooked"),
    ("cuDeviceSetGraphMemAttribute", "resets a high-water mark"),
    ("cuDeviceTotalMem", "a query"),
    ("cuDevicePrimaryCtxGetState", "a query"),
    ("cuDevicePrimaryCtxSetFlags", "flags"),
    ("cuGreenCtxGet", "a query"),
    ("cuGreenCtxRecordEvent", "an event"),
    ("cuGreenCtxWaitEvent", "an event"),
    ("cuCtxAttach", "counted references of before CUDA 4; destruction is hooked"),
    ("cuCtxDetach", "counted references of before CUDA 4; destruction is hooked"),
    ("cuCtxGet", "a query"),
    ("cuCtxSet", "settings; `cuCtxSetLimit` sizes heaps that count as the driver's own"),
    ("cuCtxSynchronize", "waits"),
    ("cuCtxEnablePeerAccess", "access rights"),
    ("cuCtxDisablePeerAccess", "access rights"),
    ("cuCtxRecordEvent", "an event"),
    ("cuCtxWaitEvent", "an event"),
    ("cuCtxResetPersistingL2Cache", "a cache"),
    ("cuGLCtxCreate", "OpenGL contexts of before CUDA 5"),
    ("cuVDPAUCtxCreate", "video contexts"),
];

/// Single functions that only look like one of a hooked family.
const SINGLES: &[(&str, &str)] = &[
    ("cuMemAllocPitch", "32-bit memory of before CUDA 3.2: its pitch is 32 bits wide"),
    ("cuArrayCreate", "32-bit descriptor of before CUDA 3.2"),
    ("cuArray3DCreate", "32-bit descriptor of before CUDA 3.2"),
];

/// Why a function that has to do with memory is not hooked; `None` when nobody thought of it.
#[must_use]
pub fn unhooked(symbol: &str) -> Option<&'static str> {
    let single = SINGLES.iter().find(|(name, _)| *name == symbol);
    let family = FAMILIES.iter().find(|(prefix, _)| symbol.starts_with(prefix));
    single.or(family).map(|(_, reason)| *reason)
}

/// Functions that make or end something that is not followed as an object, and why.
const NO_OBJECTS: &[(&str, &str)] = &[
    ("cuGraphConditionalHandleCreate", "a number inside of a graph"),
    ("cuGraphDestroyNode", "a node of a graph"),
    ("cuGraphNodeFindInClone", "a query"),
    ("cuTexRefCreate", "texture references of before CUDA 5"),
    ("cuTexRefDestroy", "texture references of before CUDA 5"),
    ("cuUserObjectCreate", "a counter of references of the program's own"),
    ("cuEventCreateFrom", "events of EGL"),
];

/// Why a function that looks as if it made or ended an object is not hooked; `None` when nobody
/// thought of it.
#[must_use]
pub fn no_object(symbol: &str) -> Option<&'static str> {
    let known = NO_OBJECTS.iter().find(|(prefix, _)| symbol.starts_with(prefix));
    known.map(|(_, reason)| *reason)
}

/// Whether an exported name looks as if it made or ended an object that is no memory.
#[must_use]
pub fn is_about_objects(symbol: &str) -> bool {
    let Some(name) = symbol.strip_prefix("cu") else { return false };
    let things = ["Stream", "Event", "Graph", "Module", "Library", "Tex", "Surf", "Link", "Green"];
    let more = ["Ctx", "MemPool", "UserObject"];
    let verbs = ["Create", "Destroy", "Unload", "Clone", "Instantiate", "EndCapture"];
    let of = |name: &str| things.iter().chain(&more).any(|thing| name.starts_with(thing));
    let loads = name.starts_with("ModuleLoad") || name.starts_with("LibraryLoad");
    (of(name) && verbs.iter().any(|verb| name.contains(verb)))
        || loads
        || (name.starts_with("IpcOpen") && name.contains("Event"))
}

/// Whether an exported name looks as if it had to do with memory or contexts.
#[must_use]
pub fn is_about_memory(symbol: &str) -> bool {
    let Some(name) = symbol.strip_prefix("cu") else { return false };
    let starts = ["Mem", "Array", "Mipmapped", "Multicast", "Ctx", "GreenCtx"];
    let contains = ["MemAlloc", "MemFree", "MemHandle", "ExternalMemory", "GraphMem", "PrimaryCtx"];
    let more = ["MemPool", "CtxCreate", "BatchMemOp", "AttachMem", "TotalMem"];
    starts.iter().any(|part| name.starts_with(part))
        || contains.iter().chain(&more).any(|part| name.contains(part))
        || (name.starts_with("Graph") && name.contains("Mem"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::HOOKS;

    /// What driver 580.159.04 exports, one name a line.
    const DRIVER_580: &str = include_str!("../../tests/fixtures/exports-580.159.04.txt");

    fn assert_known(names: impl Iterator<Item = impl AsRef<str>>, driver: &str) {
        let unknown: Vec<String> = names
            .map(|name| name.as_ref().to_owned())
            .filter(|name| is_about_memory(name))
            .filter(|name| unhooked(name).is_none())
            .filter(|name| !HOOKS.iter().any(|hook| hook.symbol == name))
            .collect();
        assert!(unknown.is_empty(), "{driver} exports memory functions nobody knows: {unknown:?}");
    }

    #[test]
    fn a_real_driver_exports_nothing_unknown() {
        assert!(DRIVER_580.lines().filter(|name| is_about_memory(name)).count() > 200);
        assert_known(DRIVER_580.lines(), "580.159.04");
    }

    #[test]
    fn drivers_on_this_machine_export_nothing_unknown() {
        use object::{Object, ObjectSymbol};
        for path in crate::libraries::installed() {
            let data = std::fs::read(&path).unwrap();
            let file = object::File::parse(&*data).unwrap();
            let names = file.dynamic_symbols().filter(|s| s.is_definition());
            let names = names.filter_map(|symbol| symbol.name().ok().map(str::to_owned));
            assert_known(names, &path.display().to_string());
        }
    }

    #[test]
    fn a_real_driver_makes_no_object_that_nobody_knows() {
        let objects: Vec<_> = DRIVER_580.lines().filter(|name| is_about_objects(name)).collect();
        assert!(objects.len() > 40);
        let hooked = |name: &str| {
            HOOKS.iter().any(|hook| hook.symbol == name && hook.meaning.object().is_some())
        };
        let unknown: Vec<_> =
            objects.into_iter().filter(|name| !hooked(name) && no_object(name).is_none()).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn an_invented_function_would_be_noticed() {
        for name in ["cuMemAllocFromTheMoon", "cuArrayCreate_v9", "cuDeviceGetBestMemPool"] {
            assert!(is_about_memory(name) && unhooked(name).is_none(), "{name}");
        }
    }
}
