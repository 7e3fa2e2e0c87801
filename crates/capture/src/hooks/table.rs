//! The hook table. The index of a row is its attach cookie and its
//! [`engine::model::ids::FunctionId`].

use engine::model::event::FreeFunction;
use engine::model::ids::AddressType;
use engine::model::memory_kind::MemoryKind;

use super::activity::ACTIVITY;
use super::objects::OBJECTS;
use super::{
    CallSemantics, DescriptorType, FlagsSource, Hook, PointerSource, PoolSource, ShareHandle,
    SizeSource,
};
use crate::wire;

const fn hook(symbol: &'static str, semantics: CallSemantics) -> Hook {
    Hook { symbol, semantics }
}

const fn allocate(
    symbol: &'static str,
    kind: MemoryKind,
    pointer: PointerSource,
    size: SizeSource,
) -> Hook {
    hook(symbol, CallSemantics::Allocate { kind, space: AddressType::Pointer, pointer, size })
}

const fn asynchronous(symbol: &'static str, pool: Option<u8>, stream: u8) -> Hook {
    hook(symbol, CallSemantics::AllocateAsync { pool, stream })
}

const fn array(symbol: &'static str, descriptor: DescriptorType) -> Hook {
    let (space, pointer) = (AddressType::Array, PointerSource::Out);
    let size = SizeSource::Descriptor(descriptor);
    hook(symbol, CallSemantics::Allocate { kind: MemoryKind::Array, space, pointer, size })
}

const fn export(symbol: &'static str, space: AddressType, handle: ShareHandle) -> Hook {
    hook(symbol, CallSemantics::Export { space, handle })
}

const fn import(symbol: &'static str, handle: ShareHandle) -> Hook {
    allocate(symbol, MemoryKind::Imported, PointerSource::Out, SizeSource::Exporter(handle))
}

const fn free(symbol: &'static str, by: FreeFunction) -> Hook {
    hook(symbol, CallSemantics::Free { space: AddressType::Pointer, by })
}

const fn instantiate(symbol: &'static str, flags: FlagsSource) -> Hook {
    hook(symbol, CallSemantics::GraphInstantiate(flags))
}

/// All hooked functions. If a driver exports one address under two names, the first row is used.
pub const HOOKS: &[Hook] = &joined();

const COUNT: usize = MEMORY.len() + ACTIVITY.len() + OBJECTS.len();

const fn joined() -> [Hook; COUNT] {
    let parts = [MEMORY, ACTIVITY, OBJECTS];
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
    allocate("cuMemAlloc_v2", MemoryKind::Device, PointerSource::Out, SizeSource::Argument(1)),
    allocate("cuMemAlloc", MemoryKind::Device, PointerSource::NarrowOut, SizeSource::Narrow(1)),
    allocate(
        "cuMemAllocPitch_v2",
        MemoryKind::Device,
        PointerSource::Out,
        SizeSource::Pitch { width: 2, height: 3 },
    ),
    allocate("cuMemAllocManaged", MemoryKind::Managed, PointerSource::Out, SizeSource::Argument(1)),
    allocate("cuMemAllocHost_v2", MemoryKind::Pinned, PointerSource::Out, SizeSource::Argument(1)),
    allocate("cuMemAllocHost", MemoryKind::Pinned, PointerSource::Out, SizeSource::Narrow(1)),
    allocate("cuMemHostAlloc", MemoryKind::Pinned, PointerSource::Out, SizeSource::Argument(1)),
    allocate(
        "cuMemHostRegister_v2",
        MemoryKind::Registered,
        PointerSource::Argument,
        SizeSource::Argument(1),
    ),
    allocate(
        "cuMemHostRegister",
        MemoryKind::Registered,
        PointerSource::Argument,
        SizeSource::Argument(1),
    ),
    free("cuMemFree_v2", FreeFunction::Free),
    free("cuMemFree", FreeFunction::Free),
    free("cuMemFreeHost", FreeFunction::FreeHost),
    free("cuMemHostUnregister", FreeFunction::Unregister),
    // Stream-ordered memory and pools.
    asynchronous("cuMemAllocAsync", None, 2),
    asynchronous("cuMemAllocAsync_ptsz", None, 2),
    asynchronous("cuMemAllocFromPoolAsync", Some(2), 3),
    asynchronous("cuMemAllocFromPoolAsync_ptsz", Some(2), 3),
    hook("cuMemFreeAsync", CallSemantics::FreeAsync),
    hook("cuMemFreeAsync_ptsz", CallSemantics::FreeAsync),
    hook("cuMemPoolCreate", CallSemantics::PoolCreate),
    hook("cuMemPoolDestroy", CallSemantics::PoolDestroy),
    hook("cuMemPoolTrimTo", CallSemantics::PoolTrim),
    hook("cuMemPoolGetAttribute", CallSemantics::PoolGet),
    hook("cuMemPoolImportFromShareableHandle", CallSemantics::PoolImport),
    hook("cuDeviceGetDefaultMemPool", CallSemantics::PoolOfDevice(PoolSource::GetDefault)),
    hook("cuDeviceGetMemPool", CallSemantics::PoolOfDevice(PoolSource::GetCurrent)),
    hook("cuDeviceSetMemPool", CallSemantics::PoolOfDevice(PoolSource::SetCurrent)),
    export("cuMemPoolExportPointer", AddressType::Pointer, ShareHandle::PoolPointer),
    import("cuMemPoolImportPointer", ShareHandle::PoolPointer),
    // Virtual memory management.
    hook("cuMemCreate", CallSemantics::VmmCreate),
    export("cuMemExportToShareableHandle", AddressType::Handle, ShareHandle::Shareable),
    hook("cuMemImportFromShareableHandle", CallSemantics::VmmImport),
    hook("cuMulticastCreate", CallSemantics::VmmMulticast),
    hook("cuMemRetainAllocationHandle", CallSemantics::VmmRetain),
    hook("cuMemRelease", CallSemantics::VmmRelease),
    hook("cuMemMap", CallSemantics::VmmMap),
    hook("cuMemUnmap", CallSemantics::VmmUnmap),
    hook("cuMemAddressReserve", CallSemantics::VmmReserve),
    hook("cuMemAddressFree", CallSemantics::VmmUnreserve),
    // Arrays.
    array("cuArrayCreate_v2", DescriptorType::Array),
    array("cuArray3DCreate_v2", DescriptorType::Array3d),
    array("cuMipmappedArrayCreate", DescriptorType::Mipmapped),
    hook(
        "cuArrayDestroy",
        CallSemantics::Free { space: AddressType::Array, by: FreeFunction::DestroyArray },
    ),
    hook(
        "cuMipmappedArrayDestroy",
        CallSemantics::Free { space: AddressType::Array, by: FreeFunction::DestroyArray },
    ),
    // Memory of other processes and libraries.
    export("cuIpcGetMemHandle", AddressType::Pointer, ShareHandle::Ipc),
    import("cuIpcOpenMemHandle_v2", ShareHandle::Ipc),
    import("cuIpcOpenMemHandle", ShareHandle::Ipc),
    free("cuIpcCloseMemHandle", FreeFunction::CloseImport),
    allocate(
        "cuExternalMemoryGetMappedBuffer",
        MemoryKind::Imported,
        PointerSource::Out,
        SizeSource::Descriptor(DescriptorType::ExternalBuffer),
    ),
    // Graphs and stream capture.
    hook("cuStreamBeginCapture", CallSemantics::CaptureBegin { graph: None }),
    hook("cuStreamBeginCapture_ptsz", CallSemantics::CaptureBegin { graph: None }),
    hook("cuStreamBeginCapture_v2", CallSemantics::CaptureBegin { graph: None }),
    hook("cuStreamBeginCapture_v2_ptsz", CallSemantics::CaptureBegin { graph: None }),
    hook("cuStreamBeginCaptureToGraph", CallSemantics::CaptureBegin { graph: Some(1) }),
    hook("cuStreamBeginCaptureToGraph_ptsz", CallSemantics::CaptureBegin { graph: Some(1) }),
    hook("cuStreamEndCapture", CallSemantics::CaptureEnd),
    hook("cuStreamEndCapture_ptsz", CallSemantics::CaptureEnd),
    hook("cuGraphCreate", CallSemantics::GraphCreate),
    hook("cuGraphAddMemAllocNode", CallSemantics::GraphAllocNode),
    hook("cuGraphAddMemFreeNode", CallSemantics::GraphFreeNode),
    hook("cuGraphAddNode", CallSemantics::GraphNode { parameters: 4 }),
    hook("cuGraphAddNode_v2", CallSemantics::GraphNode { parameters: 5 }),
    instantiate("cuGraphInstantiate", FlagsSource::None),
    instantiate("cuGraphInstantiate_v2", FlagsSource::None),
    instantiate("cuGraphInstantiateWithFlags", FlagsSource::Argument(2)),
    instantiate("cuGraphInstantiateWithParams", FlagsSource::Parameters),
    instantiate("cuGraphInstantiateWithParams_ptsz", FlagsSource::Parameters),
    hook("cuGraphLaunch", CallSemantics::GraphLaunch),
    hook("cuGraphLaunch_ptsz", CallSemantics::GraphLaunch),
    hook("cuGraphExecDestroy", CallSemantics::GraphExecDestroy),
    hook("cuGraphDestroy", CallSemantics::GraphDestroy),
    hook("cuDeviceGraphMemTrim", CallSemantics::GraphTrim),
    hook("cuDeviceGetGraphMemAttribute", CallSemantics::GraphGet),
    // Contexts.
    hook("cuCtxCreate_v2", CallSemantics::ContextCreate { device: 2 }),
    hook("cuCtxCreate", CallSemantics::ContextCreate { device: 2 }),
    hook("cuCtxCreate_v3", CallSemantics::ContextCreate { device: 4 }),
    hook("cuCtxCreate_v4", CallSemantics::ContextCreate { device: 3 }),
    hook("cuCtxDestroy_v2", CallSemantics::ContextDestroy),
    hook("cuCtxDestroy", CallSemantics::ContextDestroy),
    hook("cuCtxSetCurrent", CallSemantics::ContextSet),
    hook("cuCtxPushCurrent_v2", CallSemantics::ContextPush),
    hook("cuCtxPushCurrent", CallSemantics::ContextPush),
    hook("cuCtxPopCurrent_v2", CallSemantics::ContextPop),
    hook("cuCtxPopCurrent", CallSemantics::ContextPop),
    hook("cuCtxGetCurrent", CallSemantics::ContextGet),
    hook("cuCtxGetDevice", CallSemantics::ContextDevice { context: None }),
    hook("cuCtxGetDevice_v2", CallSemantics::ContextDevice { context: Some(1) }),
    hook("cuDevicePrimaryCtxRetain", CallSemantics::PrimaryRetain),
    hook("cuDevicePrimaryCtxRelease_v2", CallSemantics::PrimaryRelease),
    hook("cuDevicePrimaryCtxRelease", CallSemantics::PrimaryRelease),
    hook("cuDevicePrimaryCtxReset_v2", CallSemantics::PrimaryReset),
    hook("cuDevicePrimaryCtxReset", CallSemantics::PrimaryReset),
    // Streams and green contexts.
    hook("cuStreamCreate", CallSemantics::StreamCreate),
    hook("cuStreamCreateWithPriority", CallSemantics::StreamCreate),
    hook("cuGreenCtxStreamCreate", CallSemantics::GreenStreamCreate),
    hook("cuStreamDestroy_v2", CallSemantics::StreamDestroy),
    hook("cuStreamDestroy", CallSemantics::StreamDestroy),
    hook("cuGreenCtxCreate", CallSemantics::GreenCreate),
    hook("cuGreenCtxDestroy", CallSemantics::GreenDestroy),
    hook("cuCtxFromGreenCtx", CallSemantics::ContextFromGreen),
    hook("cuCtxSetLimit", CallSemantics::ContextLimit),
    // Announces a process long before its first allocation.
    hook("cuInit", CallSemantics::Initialize),
    // The GPU of a device ordinal.
    hook("cuDeviceGetUuid", CallSemantics::DeviceUuid),
    hook("cuDeviceGetUuid_v2", CallSemantics::DeviceUuid),
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
