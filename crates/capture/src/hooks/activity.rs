//! Rows of activity: launches, kernel names, copies and memsets. They are probed only on request.

use engine::model::activity::CopyDirection;

use super::{CallSemantics, CopyExtent, CopyRoute, CopySpec, Hook, LaunchForm};

const fn hook(symbol: &'static str, semantics: CallSemantics) -> Hook {
    Hook { symbol, semantics }
}

/// A copy; argument `size` is the number of bytes.
const fn copy(
    symbol: &'static str,
    direction: CopyDirection,
    size: u8,
    asynchronous: bool,
) -> Hook {
    let extent = CopyExtent::Elements { argument: size, element: 1 };
    hook(
        symbol,
        CallSemantics::Copy(CopySpec { route: CopyRoute::Fixed(direction), extent, asynchronous }),
    )
}

/// A copy whose direction follows from the pointers.
const fn unified(symbol: &'static str, asynchronous: bool) -> Hook {
    let extent = CopyExtent::Elements { argument: 2, element: 1 };
    hook(symbol, CallSemantics::Copy(CopySpec { route: CopyRoute::Pointers, extent, asynchronous }))
}

const fn batch(symbol: &'static str) -> Hook {
    let (route, extent) = (CopyRoute::Pointers, CopyExtent::Batch);
    hook(symbol, CallSemantics::Copy(CopySpec { route, extent, asynchronous: true }))
}

/// Copies of volumes; argument `stream` is the stream.
const fn volumes(symbol: &'static str, stream: u8) -> Hook {
    let (route, extent) = (CopyRoute::Pointers, CopyExtent::Volumes { stream });
    hook(symbol, CallSemantics::Copy(CopySpec { route, extent, asynchronous: true }))
}

const fn described(symbol: &'static str, extent: CopyExtent, asynchronous: bool) -> Hook {
    hook(
        symbol,
        CallSemantics::Copy(CopySpec { route: CopyRoute::Described, extent, asynchronous }),
    )
}

const fn peer_volume(symbol: &'static str, asynchronous: bool) -> Hook {
    let (route, extent) = (CopyRoute::Fixed(CopyDirection::Peer), CopyExtent::Deep);
    hook(symbol, CallSemantics::Copy(CopySpec { route, extent, asynchronous }))
}

/// A memset of elements: destination, value, count.
const fn fill(symbol: &'static str, element: u8, asynchronous: bool) -> Hook {
    let extent = CopyExtent::Elements { argument: 2, element };
    let route = CopyRoute::Fixed(CopyDirection::Memset);
    hook(symbol, CallSemantics::Copy(CopySpec { route, extent, asynchronous }))
}

/// A memset of rows: destination, pitch, value, width, height.
const fn fill_rows(symbol: &'static str, element: u8, asynchronous: bool) -> Hook {
    let (route, extent) = (CopyRoute::Fixed(CopyDirection::Memset), CopyExtent::Area { element });
    hook(symbol, CallSemantics::Copy(CopySpec { route, extent, asynchronous }))
}

use CopyDirection::{Array, DeviceToDevice, DeviceToHost, HostToDevice, Peer};

/// Functions that launch kernels, name them, or copy or set memory.
pub(super) const ACTIVITY: &[Hook] = &[
    // Kernels.
    hook("cuLaunchKernel", CallSemantics::Launch(LaunchForm::Shaped)),
    hook("cuLaunchKernel_ptsz", CallSemantics::Launch(LaunchForm::Shaped)),
    hook("cuLaunchCooperativeKernel", CallSemantics::Launch(LaunchForm::Shaped)),
    hook("cuLaunchCooperativeKernel_ptsz", CallSemantics::Launch(LaunchForm::Shaped)),
    hook("cuLaunchKernelEx", CallSemantics::Launch(LaunchForm::Config)),
    hook("cuLaunchKernelEx_ptsz", CallSemantics::Launch(LaunchForm::Config)),
    hook("cuLaunchCooperativeKernelMultiDevice", CallSemantics::Launch(LaunchForm::List)),
    hook("cuLaunch", CallSemantics::Launch(LaunchForm::Unshaped { stream: None })),
    hook("cuLaunchGrid", CallSemantics::Launch(LaunchForm::Unshaped { stream: None })),
    hook("cuLaunchGridAsync", CallSemantics::Launch(LaunchForm::Unshaped { stream: Some(3) })),
    hook("cuModuleGetFunction", CallSemantics::KernelByName),
    hook("cuLibraryGetKernel", CallSemantics::KernelByName),
    hook("cuKernelGetFunction", CallSemantics::KernelFunction),
    hook("cuFuncGetName", CallSemantics::KernelName),
    hook("cuKernelGetName", CallSemantics::KernelName),
    // Copies.
    copy("cuMemcpyHtoD_v2", HostToDevice, 2, false),
    copy("cuMemcpyHtoD_v2_ptds", HostToDevice, 2, false),
    copy("cuMemcpyHtoDAsync_v2", HostToDevice, 2, true),
    copy("cuMemcpyHtoDAsync_v2_ptsz", HostToDevice, 2, true),
    copy("cuMemcpyDtoH_v2", DeviceToHost, 2, false),
    copy("cuMemcpyDtoH_v2_ptds", DeviceToHost, 2, false),
    copy("cuMemcpyDtoHAsync_v2", DeviceToHost, 2, true),
    copy("cuMemcpyDtoHAsync_v2_ptsz", DeviceToHost, 2, true),
    copy("cuMemcpyDtoD_v2", DeviceToDevice, 2, false),
    copy("cuMemcpyDtoD_v2_ptds", DeviceToDevice, 2, false),
    copy("cuMemcpyDtoDAsync_v2", DeviceToDevice, 2, true),
    copy("cuMemcpyDtoDAsync_v2_ptsz", DeviceToDevice, 2, true),
    unified("cuMemcpy", false),
    unified("cuMemcpy_ptds", false),
    unified("cuMemcpyAsync", true),
    unified("cuMemcpyAsync_ptsz", true),
    unified("cuMemcpyWithAttributesAsync", true),
    unified("cuMemcpyWithAttributesAsync_ptsz", true),
    batch("cuMemcpyBatchAsync"),
    batch("cuMemcpyBatchAsync_ptsz"),
    batch("cuMemcpyBatchAsync_v2"),
    batch("cuMemcpyBatchAsync_v2_ptsz"),
    volumes("cuMemcpy3DBatchAsync", 4),
    volumes("cuMemcpy3DBatchAsync_ptsz", 4),
    volumes("cuMemcpy3DBatchAsync_v2", 3),
    volumes("cuMemcpy3DBatchAsync_v2_ptsz", 3),
    copy("cuMemcpyPeer", Peer, 4, false),
    copy("cuMemcpyPeer_ptds", Peer, 4, false),
    copy("cuMemcpyPeerAsync", Peer, 4, true),
    copy("cuMemcpyPeerAsync_ptsz", Peer, 4, true),
    peer_volume("cuMemcpy3DPeer", false),
    peer_volume("cuMemcpy3DPeer_ptds", false),
    peer_volume("cuMemcpy3DPeerAsync", true),
    peer_volume("cuMemcpy3DPeerAsync_ptsz", true),
    described("cuMemcpy2D_v2", CopyExtent::Flat, false),
    described("cuMemcpy2D_v2_ptds", CopyExtent::Flat, false),
    described("cuMemcpy2DUnaligned_v2", CopyExtent::Flat, false),
    described("cuMemcpy2DUnaligned_v2_ptds", CopyExtent::Flat, false),
    described("cuMemcpy2DAsync_v2", CopyExtent::Flat, true),
    described("cuMemcpy2DAsync_v2_ptsz", CopyExtent::Flat, true),
    described("cuMemcpy3D_v2", CopyExtent::Deep, false),
    described("cuMemcpy3D_v2_ptds", CopyExtent::Deep, false),
    described("cuMemcpy3DAsync_v2", CopyExtent::Deep, true),
    described("cuMemcpy3DAsync_v2_ptsz", CopyExtent::Deep, true),
    copy("cuMemcpyDtoA_v2", Array, 3, false),
    copy("cuMemcpyDtoA_v2_ptds", Array, 3, false),
    copy("cuMemcpyAtoD_v2", Array, 3, false),
    copy("cuMemcpyAtoD_v2_ptds", Array, 3, false),
    copy("cuMemcpyHtoA_v2", Array, 3, false),
    copy("cuMemcpyHtoA_v2_ptds", Array, 3, false),
    copy("cuMemcpyHtoAAsync_v2", Array, 3, true),
    copy("cuMemcpyHtoAAsync_v2_ptsz", Array, 3, true),
    copy("cuMemcpyAtoH_v2", Array, 3, false),
    copy("cuMemcpyAtoH_v2_ptds", Array, 3, false),
    copy("cuMemcpyAtoHAsync_v2", Array, 3, true),
    copy("cuMemcpyAtoHAsync_v2_ptsz", Array, 3, true),
    copy("cuMemcpyAtoA_v2", Array, 4, false),
    copy("cuMemcpyAtoA_v2_ptds", Array, 4, false),
    // Memsets.
    fill("cuMemsetD8_v2", 1, false),
    fill("cuMemsetD8_v2_ptds", 1, false),
    fill("cuMemsetD8Async", 1, true),
    fill("cuMemsetD8Async_ptsz", 1, true),
    fill("cuMemsetD16_v2", 2, false),
    fill("cuMemsetD16_v2_ptds", 2, false),
    fill("cuMemsetD16Async", 2, true),
    fill("cuMemsetD16Async_ptsz", 2, true),
    fill("cuMemsetD32_v2", 4, false),
    fill("cuMemsetD32_v2_ptds", 4, false),
    fill("cuMemsetD32Async", 4, true),
    fill("cuMemsetD32Async_ptsz", 4, true),
    fill_rows("cuMemsetD2D8_v2", 1, false),
    fill_rows("cuMemsetD2D8_v2_ptds", 1, false),
    fill_rows("cuMemsetD2D8Async", 1, true),
    fill_rows("cuMemsetD2D8Async_ptsz", 1, true),
    fill_rows("cuMemsetD2D16_v2", 2, false),
    fill_rows("cuMemsetD2D16_v2_ptds", 2, false),
    fill_rows("cuMemsetD2D16Async", 2, true),
    fill_rows("cuMemsetD2D16Async_ptsz", 2, true),
    fill_rows("cuMemsetD2D32_v2", 4, false),
    fill_rows("cuMemsetD2D32_v2_ptds", 4, false),
    fill_rows("cuMemsetD2D32Async", 4, true),
    fill_rows("cuMemsetD2D32Async_ptsz", 4, true),
];
