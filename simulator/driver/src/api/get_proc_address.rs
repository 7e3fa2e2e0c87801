//! `cuGetProcAddress`: looks functions up by name and version, for the CUDA runtime.

use std::ffi::{c_int, c_void};

use crate::abi::{Code, InString, OutParam, Outcome};
use crate::api::copy::{batch, memset, shaped};
use crate::api::{
    array, context, copy, device, graph, host_memory, ipc, launch, memory, module, objects, pool,
    shareable_handle, stream, vmm,
};
use crate::entry::{ExportedFunction, exports};

exports! {
    call cuGetProcAddress(symbol: InString, function: OutParam<*const c_void>, version: c_int,
        flags: u64) = resolve;
    call cuGetProcAddress_v2(symbol: InString, function: OutParam<*const c_void>, version: c_int,
        flags: u64, status: OutParam<u32>) = resolve_v2;
    call cuGetExportTable(table: OutParam<*const c_void>, id: *const c_void) = export_table;
}

/// Requests the variants with a per-thread default stream.
const PER_THREAD_STREAM: u64 = 2;

/// CUDA versions that introduced a variant. `_v2` variants that are not listed: 3.2.
const SINCE: &[(&str, c_int)] = &[
    ("cuArrayCreate_v2", 3020),
    ("cuCtxCreate_v3", 11_040),
    ("cuCtxCreate_v4", 12_050),
    ("cuCtxDestroy_v2", 4000),
    ("cuCtxFromGreenCtx", 12_040),
    ("cuCtxGetDevice_v2", 13_000),
    ("cuCtxPopCurrent_v2", 4000),
    ("cuCtxPushCurrent_v2", 4000),
    ("cuCtxSynchronize_v2", 13_000),
    ("cuDeviceGetDefaultMemPool", 11_020),
    ("cuDeviceGetUuid_v2", 11_040),
    ("cuDeviceGraphMemTrim", 11_040),
    ("cuDevicePrimaryCtxRelease_v2", 11_000),
    ("cuDevicePrimaryCtxReset_v2", 11_000),
    ("cuDevicePrimaryCtxSetFlags_v2", 11_000),
    ("cuEventDestroy_v2", 4000),
    ("cuFuncGetModule", 11_000),
    ("cuFuncGetName", 12_030),
    ("cuGetProcAddress", 11_030),
    ("cuGetProcAddress_v2", 12_000),
    ("cuGraphAddMemAllocNode", 11_040),
    ("cuGraphAddMemFreeNode", 11_040),
    ("cuGraphClone", 10_000),
    ("cuGraphInstantiate_v2", 11_000),
    ("cuGreenCtxCreate", 12_040),
    ("cuGreenCtxStreamCreate", 12_050),
    ("cuIpcOpenMemHandle_v2", 11_000),
    ("cuKernelGetFunction", 12_000),
    ("cuKernelGetName", 12_030),
    ("cuLaunchKernelEx", 11_060),
    ("cuLibraryLoadData", 12_000),
    ("cuLibraryLoadFromFile", 12_000),
    ("cuLinkCreate_v2", 6050),
    ("cuMemAddressReserve", 10_020),
    ("cuMemAllocAsync", 11_020),
    ("cuMemAllocFromPoolAsync", 11_020),
    ("cuMemCreate", 10_020),
    ("cuMemFreeAsync", 11_020),
    ("cuMemHostRegister_v2", 6050),
    ("cuMemMap", 10_020),
    ("cuMemPoolCreate", 11_020),
    ("cuMemcpy3DBatchAsync", 12_080),
    ("cuMemcpy3DBatchAsync_v2", 13_000),
    ("cuMemcpyBatchAsync", 12_080),
    ("cuMemcpyBatchAsync_v2", 13_000),
    ("cuMemcpyWithAttributesAsync", 13_000),
    ("cuModuleEnumerateFunctions", 12_040),
    ("cuModuleGetFunctionCount", 12_040),
    ("cuMulticastCreate", 12_010),
    ("cuStreamBeginCapture_v2", 10_010),
    ("cuStreamDestroy_v2", 4000),
];

fn all() -> impl Iterator<Item = &'static ExportedFunction> {
    let modules = [
        EXPORTS,
        array::EXPORTS,
        context::EXPORTS,
        copy::EXPORTS,
        batch::EXPORTS,
        shaped::EXPORTS,
        device::EXPORTS,
        memset::EXPORTS,
        graph::EXPORTS,
        host_memory::EXPORTS,
        ipc::EXPORTS,
        launch::EXPORTS,
        memory::EXPORTS,
        module::EXPORTS,
        objects::EXPORTS,
        pool::EXPORTS,
        shareable_handle::EXPORTS,
        stream::EXPORTS,
        vmm::EXPORTS,
    ];
    modules.into_iter().flatten()
}

fn find(name: &str) -> Option<*const c_void> {
    all().find(|export| export.name == name).map(|export| export.address as *const c_void)
}

/// Why a function is not returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LookupError {
    Symbol = 1,
    Version = 2,
}

/// Returns the newest variant of a function for a program built for this CUDA version.
fn lookup(symbol: &str, version: c_int, flags: u64) -> Result<*const c_void, LookupError> {
    // Programs pass names without a version suffix.
    if ["_v2", "_v3", "_v4", "_ptsz", "_ptds"].iter().any(|suffix| symbol.ends_with(suffix)) {
        return Err(LookupError::Symbol);
    }
    let mut missing = LookupError::Symbol;
    for variant in ["_v4", "_v3", "_v2", ""] {
        let name = format!("{symbol}{variant}");
        let per_thread = [format!("{name}_ptsz"), format!("{name}_ptds")];
        let found = per_thread
            .iter()
            .filter(|_| flags & PER_THREAD_STREAM != 0)
            .find_map(|name| find(name))
            .or_else(|| find(&name));
        let Some(address) = found else { continue };
        let since = SINCE.iter().find(|(known, _)| *known == name).map(|(_, since)| *since);
        let default = if variant.is_empty() { 0 } else { 3020 };
        if version >= since.unwrap_or(default) {
            return Ok(address);
        }
        missing = LookupError::Version;
    }
    Err(missing)
}

fn resolve(
    symbol: InString,
    function: OutParam<*const c_void>,
    version: c_int,
    flags: u64,
) -> Outcome {
    let found = lookup(symbol.get()?, version, flags);
    function.set(found.unwrap_or(std::ptr::null()))?;
    found.map(|_| ()).map_err(|_| Code::NotFound)
}

/// Unlike the first version, this one does not fail for unknown functions: it sets the status.
fn resolve_v2(
    symbol: InString,
    function: OutParam<*const c_void>,
    version: c_int,
    flags: u64,
    status: OutParam<u32>,
) -> Outcome {
    let found = lookup(symbol.get()?, version, flags);
    status.set_if_not_null(found.err().map_or(0, |missing| missing as u32));
    function.set(found.unwrap_or(std::ptr::null()))
}

/// The private tables of a real driver do not exist here.
fn export_table(_table: OutParam<*const c_void>, _id: *const c_void) -> Outcome {
    Err(Code::InvalidValue)
}
