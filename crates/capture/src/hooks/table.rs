//! The hook table. The index of a row is its attach cookie and its [`engine::ids::FunctionId`].

use engine::event::FreeBy;
use engine::ids::Space;
use engine::kind::Kind;

use super::objects::OBJECTS;
use super::work::WORK;
use super::{Descriptor, DevicePool, Hook, InstantiateFlags, Meaning, Pointer, Size};
use crate::wire;

const fn hook(symbol: &'static str, meaning: Meaning) -> Hook {
    Hook { symbol, meaning }
}

const fn allocate(symbol: &'static str, kind: Kind, pointer: Pointer, size: Size) -> Hook {
    hook(symbol, Meaning::Allocate { kind, space: Space::Address, pointer, size })
}

const fn asynchronous(symbol: &'static str, pool: Option<u8>, stream: u8) -> Hook {
    hook(symbol, Meaning::AllocateAsync { pool, stream })
}

const fn array(symbol: &'static str, descriptor: Descriptor) -> Hook {
    let (space, pointer) = (Space::Array, Pointer::Out);
    let size = Size::Descriptor(descriptor);
    hook(symbol, Meaning::Allocate { kind: Kind::Array, space, pointer, size })
}

const fn free(symbol: &'static str, by: FreeBy) -> Hook {
    hook(symbol, Meaning::Free { space: Space::Address, by })
}

const fn instantiate(symbol: &'static str, flags: InstantiateFlags) -> Hook {
    hook(symbol, Meaning::GraphInstantiate(flags))
}

/// All hooked functions. If a driver exports one address under two names, the first row is used.
pub const HOOKS: &[Hook] = &joined();

const COUNT: usize = MEMORY.len() + WORK.len() + OBJECTS.len();

const fn joined() -> [Hook; COUNT] {
    let parts = [MEMORY, WORK, OBJECTS];
    let mut all = [MEMORY[0]; COUNT];
    let (mut row, mut part) = (0, 0);
    while part < parts.len() {
        let mut index = 0;
        while index < parts[part].len() {
            all[row] = parts[part][index];
            (row, index) = (row + 1, index + 1);
        }
        part += 1;
    }
    all
}

/// Memory and context functions.
const MEMORY: &[Hook] = &[
    // Plain memory.
    allocate("cuMemAlloc_v2", Kind::Device, Pointer::Out, Size::Argument(1)),
    allocate("cuMemAlloc", Kind::Device, Pointer::NarrowOut, Size::Narrow(1)),
    allocate("cuMemAllocPitch_v2", Kind::Device, Pointer::Out, Size::Pitch { width: 2, height: 3 }),
    allocate("cuMemAllocManaged", Kind::Managed, Pointer::Out, Size::Argument(1)),
    allocate("cuMemAllocHost_v2", Kind::Pinned, Pointer::Out, Size::Argument(1)),
    allocate("cuMemAllocHost", Kind::Pinned, Pointer::Out, Size::Narrow(1)),
    allocate("cuMemHostAlloc", Kind::Pinned, Pointer::Out, Size::Argument(1)),
    allocate("cuMemHostRegister_v2", Kind::Registered, Pointer::Argument, Size::Argument(1)),
    allocate("cuMemHostRegister", Kind::Registered, Pointer::Argument, Size::Argument(1)),
    free("cuMemFree_v2", FreeBy::Free),
    free("cuMemFree", FreeBy::Free),
    free("cuMemFreeHost", FreeBy::FreeHost),
    free("cuMemHostUnregister", FreeBy::Unregister),
    // Stream-ordered memory and pools.
    asynchronous("cuMemAllocAsync", None, 2),
    asynchronous("cuMemAllocAsync_ptsz", None, 2),
    asynchronous("cuMemAllocFromPoolAsync", Some(2), 3),
    asynchronous("cuMemAllocFromPoolAsync_ptsz", Some(2), 3),
    hook("cuMemFreeAsync", Meaning::FreeAsync),
    hook("cuMemFreeAsync_ptsz", Meaning::FreeAsync),
    hook("cuMemPoolCreate", Meaning::PoolCreate),
    hook("cuMemPoolDestroy", Meaning::PoolDestroy),
    hook("cuMemPoolTrimTo", Meaning::PoolTrim),
    hook("cuMemPoolGetAttribute", Meaning::PoolGet),
    hook("cuMemPoolImportFromShareableHandle", Meaning::PoolImport),
    hook("cuDeviceGetDefaultMemPool", Meaning::PoolOfDevice(DevicePool::GetDefault)),
    hook("cuDeviceGetMemPool", Meaning::PoolOfDevice(DevicePool::GetCurrent)),
    hook("cuDeviceSetMemPool", Meaning::PoolOfDevice(DevicePool::SetCurrent)),
    allocate("cuMemPoolImportPointer", Kind::Imported, Pointer::Out, Size::Unknown),
    // Virtual memory management.
    hook("cuMemCreate", Meaning::VmmCreate),
    hook("cuMemImportFromShareableHandle", Meaning::VmmImport),
    hook("cuMulticastCreate", Meaning::VmmMulticast),
    hook("cuMemRetainAllocationHandle", Meaning::VmmRetain),
    hook("cuMemRelease", Meaning::VmmRelease),
    hook("cuMemMap", Meaning::VmmMap),
    hook("cuMemUnmap", Meaning::VmmUnmap),
    hook("cuMemAddressReserve", Meaning::VmmReserve),
    hook("cuMemAddressFree", Meaning::VmmUnreserve),
    // Arrays.
    array("cuArrayCreate_v2", Descriptor::Array),
    array("cuArray3DCreate_v2", Descriptor::Array3d),
    array("cuMipmappedArrayCreate", Descriptor::Mipmapped),
    hook("cuArrayDestroy", Meaning::Free { space: Space::Array, by: FreeBy::DestroyArray }),
    hook(
        "cuMipmappedArrayDestroy",
        Meaning::Free { space: Space::Array, by: FreeBy::DestroyArray },
    ),
    // Memory of other processes and libraries.
    allocate("cuIpcOpenMemHandle_v2", Kind::Imported, Pointer::Out, Size::Unknown),
    allocate("cuIpcOpenMemHandle", Kind::Imported, Pointer::Out, Size::Unknown),
    free("cuIpcCloseMemHandle", FreeBy::CloseImport),
    allocate(
        "cuExternalMemoryGetMappedBuffer",
        Kind::Imported,
        Pointer::Out,
        Size::Descriptor(Descriptor::ExternalBuffer),
    ),
    // Graphs and stream capture.
    hook("cuStreamBeginCapture", Meaning::CaptureBegin { graph: None }),
    hook("cuStreamBeginCapture_ptsz", Meaning::CaptureBegin { graph: None }),
    hook("cuStreamBeginCapture_v2", Meaning::CaptureBegin { graph: None }),
    hook("cuStreamBeginCapture_v2_ptsz", Meaning::CaptureBegin { graph: None }),
    hook("cuStreamBeginCaptureToGraph", Meaning::CaptureBegin { graph: Some(1) }),
    hook("cuStreamBeginCaptureToGraph_ptsz", Meaning::CaptureBegin { graph: Some(1) }),
    hook("cuStreamEndCapture", Meaning::CaptureEnd),
    hook("cuStreamEndCapture_ptsz", Meaning::CaptureEnd),
    hook("cuGraphCreate", Meaning::GraphCreate),
    hook("cuGraphAddMemAllocNode", Meaning::GraphAllocNode),
    hook("cuGraphAddMemFreeNode", Meaning::GraphFreeNode),
    hook("cuGraphAddNode", Meaning::GraphNode { parameters: 4 }),
    hook("cuGraphAddNode_v2", Meaning::GraphNode { parameters: 5 }),
    instantiate("cuGraphInstantiate", InstantiateFlags::None),
    instantiate("cuGraphInstantiate_v2", InstantiateFlags::None),
    instantiate("cuGraphInstantiateWithFlags", InstantiateFlags::Argument(2)),
    instantiate("cuGraphInstantiateWithParams", InstantiateFlags::Parameters),
    instantiate("cuGraphInstantiateWithParams_ptsz", InstantiateFlags::Parameters),
    hook("cuGraphLaunch", Meaning::GraphLaunch),
    hook("cuGraphLaunch_ptsz", Meaning::GraphLaunch),
    hook("cuGraphExecDestroy", Meaning::GraphExecDestroy),
    hook("cuGraphDestroy", Meaning::GraphDestroy),
    hook("cuDeviceGraphMemTrim", Meaning::GraphTrim),
    hook("cuDeviceGetGraphMemAttribute", Meaning::GraphGet),
    // Contexts.
    hook("cuCtxCreate_v2", Meaning::ContextCreate { device: 2 }),
    hook("cuCtxCreate", Meaning::ContextCreate { device: 2 }),
    hook("cuCtxCreate_v3", Meaning::ContextCreate { device: 4 }),
    hook("cuCtxCreate_v4", Meaning::ContextCreate { device: 3 }),
    hook("cuCtxDestroy_v2", Meaning::ContextDestroy),
    hook("cuCtxDestroy", Meaning::ContextDestroy),
    hook("cuCtxSetCurrent", Meaning::ContextSet),
    hook("cuCtxPushCurrent_v2", Meaning::ContextPush),
    hook("cuCtxPushCurrent", Meaning::ContextPush),
    hook("cuCtxPopCurrent_v2", Meaning::ContextPop),
    hook("cuCtxPopCurrent", Meaning::ContextPop),
    hook("cuCtxGetCurrent", Meaning::ContextGet),
    hook("cuCtxGetDevice", Meaning::ContextDevice { context: None }),
    hook("cuCtxGetDevice_v2", Meaning::ContextDevice { context: Some(1) }),
    hook("cuDevicePrimaryCtxRetain", Meaning::PrimaryRetain),
    hook("cuDevicePrimaryCtxRelease_v2", Meaning::PrimaryRelease),
    hook("cuDevicePrimaryCtxRelease", Meaning::PrimaryRelease),
    hook("cuDevicePrimaryCtxReset_v2", Meaning::PrimaryReset),
    hook("cuDevicePrimaryCtxReset", Meaning::PrimaryReset),
    // Streams and green contexts.
    hook("cuStreamCreate", Meaning::StreamCreate),
    hook("cuStreamCreateWithPriority", Meaning::StreamCreate),
    hook("cuGreenCtxStreamCreate", Meaning::GreenStreamCreate),
    hook("cuStreamDestroy_v2", Meaning::StreamDestroy),
    hook("cuStreamDestroy", Meaning::StreamDestroy),
    hook("cuGreenCtxCreate", Meaning::GreenCreate),
    hook("cuGreenCtxDestroy", Meaning::GreenDestroy),
    hook("cuCtxFromGreenCtx", Meaning::ContextFromGreen),
    // Announces a process long before its first allocation.
    hook("cuInit", Meaning::Initialize),
    // The GPU of a device ordinal.
    hook("cuDeviceGetUuid", Meaning::DeviceUuid),
    hook("cuDeviceGetUuid_v2", Meaning::DeviceUuid),
];

const _: () = assert!(HOOKS.len() <= wire::VS_MAX_HOOKS);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::HOOKS;

    #[test]
    fn hook_symbols_are_unique() {
        let names: HashSet<_> = HOOKS.iter().map(|hook| hook.symbol).collect();
        assert_eq!(names.len(), HOOKS.len());
    }
}
