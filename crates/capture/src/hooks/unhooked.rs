//! Driver functions that look like memory functions but are not hooked, each with a reason. A test
//! compares this list and the hook table with the exports of every driver generation, and traces
//! report functions of a newer driver that are in neither.

use super::HOOKS;

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
    ("cuMemExportToShareableHandle", "the memory still counts for the exporter"),
    ("cuMemMapArrayAsync", "maps tiles of a sparse array to memory that is already counted"),
    ("cuMemPoolExport", "the memory still counts for the exporter"),
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
    ("cuIpcGetMemHandle", "the memory still counts for the exporter"),
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

/// Returns whether an exported name looks like a memory function that is neither hooked nor listed
/// here: one of a driver that is newer than this list.
#[must_use]
pub fn is_unknown_memory_function(symbol: &str) -> bool {
    looks_like_memory_function(symbol)
        && unhooked(symbol).is_none()
        && !HOOKS.iter().any(|hook| hook.symbol == symbol)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Exports of real drivers, from CUDA 6.5 on.
    const DRIVERS: &str = include_str!("../../tests/fixtures/driver_exports.txt");

    /// Returns the exports of each driver, oldest first, by its version.
    fn drivers() -> Vec<(&'static str, BTreeSet<&'static str>)> {
        let mut drivers: Vec<(&str, BTreeSet<&str>)> = Vec::new();
        let mut exports = BTreeSet::new();
        for line in DRIVERS.lines() {
            match line.split_once(' ').unwrap() {
                ("=", version) => drivers.push((version, exports.clone())),
                ("+", name) => assert!(exports.insert(name), "{name} twice"),
                ("-", name) => assert!(exports.remove(name), "{name} removed twice"),
                (mark, _) => assert_eq!(mark, "#"),
            }
            if let Some((_, last)) = drivers.last_mut() {
                last.clone_from(&exports);
            }
        }
        drivers
    }

    fn assert_known<'a>(names: impl Iterator<Item = &'a str>, driver: &str) {
        let unknown: Vec<&str> = names.filter(|name| is_unknown_memory_function(name)).collect();
        assert!(unknown.is_empty(), "{driver} exports unknown memory functions: {unknown:?}");
    }

    #[test]
    fn no_driver_generation_has_unknown_memory_functions() {
        let drivers = drivers();
        assert!(drivers.len() >= 18 && drivers[0].0 == "340.108", "{}", drivers.len());
        for (version, exports) in drivers {
            let count = exports.iter().filter(|name| looks_like_memory_function(name)).count();
            assert!(count > 100, "{version}: {count}");
            assert_known(exports.into_iter(), version);
        }
    }

    #[test]
    fn every_hook_exists_in_a_driver() {
        let drivers = drivers();
        let absent: Vec<_> = HOOKS
            .iter()
            .filter(|hook| !drivers.iter().any(|(_, exports)| exports.contains(hook.symbol)))
            .map(|hook| hook.symbol)
            .collect();
        assert!(absent.is_empty(), "{absent:?}");
    }

    #[test]
    fn installed_drivers_have_no_unknown_memory_functions() {
        use object::{Object, ObjectSymbol};
        for path in crate::libraries::installed() {
            let data = std::fs::read(&path).unwrap();
            let file = object::File::parse(&*data).unwrap();
            let names = file.dynamic_symbols().filter(|s| s.is_definition());
            let names = names.filter_map(|symbol| symbol.name().ok());
            assert_known(names, &path.display().to_string());
        }
    }

    #[test]
    fn no_driver_generation_has_unknown_object_functions() {
        let hooked = |name: &str| {
            HOOKS.iter().any(|hook| hook.symbol == name && hook.semantics.object().is_some())
        };
        for (version, exports) in drivers() {
            let objects: Vec<_> =
                exports.into_iter().filter(|name| looks_like_object_function(name)).collect();
            assert!(objects.len() > 20, "{version}: {}", objects.len());
            let unknown: Vec<_> = objects
                .into_iter()
                .filter(|name| !hooked(name) && unhooked_object(name).is_none())
                .collect();
            assert!(unknown.is_empty(), "{version}: {unknown:?}");
        }
    }

    #[test]
    fn new_memory_function_is_noticed() {
        for name in ["cuMemAllocFromTheMoon", "cuArrayCreate_v9", "cuDeviceGetBestMemPool"] {
            assert!(looks_like_memory_function(name) && unhooked(name).is_none(), "{name}");
        }
    }
}
