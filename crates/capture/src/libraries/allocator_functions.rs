//! The libraries of allocators, and their functions that see each block, by name. Also compiled into
//! `crates/inject`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Allocator;
use crate::wire;

/// The probed functions of PyTorch, by mangled name; in PyTorch 1 the totals are signed.
const TORCH_FUNCTIONS: [(&[u8], u32); 4] = [
    (b"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE", wire::VS_BLOCK_TORCH),
    (b"_ZN3c1027reportMemoryUsageToProfilerEPvlllNS_6DeviceE", wire::VS_BLOCK_TORCH),
    (b"_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE", wire::VS_BLOCK_TORCH_OOM),
    (b"_ZN3c1027reportOutOfMemoryToProfilerElllNS_6DeviceE", wire::VS_BLOCK_TORCH_OOM),
];

/// Functions of CuPy's pool, which Cython names; a C++ compiler adds `_ZL`, a number and the types.
const CUPY_FUNCTIONS: [(&[u8], u32); 2] = [
    (b"__pyx_f_4cupy_4cuda_6memory_12PooledMemory__init", wire::VS_BLOCK_CUPY_ALLOC),
    (b"__pyx_f_4cupy_4cuda_6memory_12PooledMemory_free", wire::VS_BLOCK_CUPY_FREE),
];

/// The function of XLA's allocator that is called with each block, whether it is recorded or not:
/// `tsl::BFCAllocator::AddTraceMe(std::string_view, const void*, int64_t, int64_t)`.
const XLA_FUNCTION: (&[u8], &[u8]) = (b"_ZN3tsl12BFCAllocator10AddTraceMeE", b"EEPKvll");

/// Functions of RMM's pool, which each program that uses the pool calls in `librmm.so` from 26.6 on:
/// `rmm::mr::detail::pool_memory_resource_impl::…`. In some versions the name has another namespace.
const RMM_CLASS: &[u8] = b"2mr6detail25pool_memory_resource_impl";
const RMM_FUNCTIONS: [(&[u8], u32); 2] = [
    (b"19allocate_from_blockER", wire::VS_BLOCK_RMM_ALLOC),
    (b"10free_blockEPvm", wire::VS_BLOCK_RMM_FREE),
];

/// A library that matters for tracing allocators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocatorFile {
    /// The functions of this allocator are in it.
    Probed(Allocator),
    /// `libc10_cuda.so`, with the caching allocator of PyTorch, which calls functions of `libc10.so`.
    TorchCuda,
}

impl AllocatorFile {
    /// Identifies a library by its path. Some distributions add a version.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let name = path.file_name().unwrap_or(OsStr::new("")).as_bytes();
        let is_library = |stem: &[u8]| {
            let rest = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix(b".so"));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"."))
        };
        let in_cupy = || path.parent().is_some_and(|parent| parent.ends_with("cupy/cuda"));
        let allocator = match name {
            _ if is_library(b"libc10_cuda") => return Some(Self::TorchCuda),
            _ if is_library(b"libc10") => Allocator::PyTorch,
            _ if name.starts_with(b"memory.") && name.ends_with(b".so") && in_cupy() => {
                Allocator::CuPy
            }
            b"xla_cuda_plugin.so" => Allocator::Xla,
            b"librmm.so" => Allocator::Rmm,
            b"libonnxruntime_providers_cuda.so" => Allocator::OnnxRuntime,
            _ => return None,
        };
        Some(Self::Probed(allocator))
    }
}

/// Whether the functions of an allocator are exported; other functions are in the symbol table.
pub(crate) const fn is_exported(allocator: Allocator) -> bool {
    matches!(allocator, Allocator::PyTorch | Allocator::Rmm)
}

/// Calls that must be found in the library of an allocator; empty for those that cannot be probed.
pub(crate) const fn required(allocator: Allocator) -> &'static [u32] {
    match allocator {
        Allocator::PyTorch => &[wire::VS_BLOCK_TORCH],
        Allocator::CuPy => &[wire::VS_BLOCK_CUPY_ALLOC, wire::VS_BLOCK_CUPY_FREE],
        Allocator::Xla => &[wire::VS_BLOCK_XLA],
        Allocator::Rmm => &[wire::VS_BLOCK_RMM_ALLOC, wire::VS_BLOCK_RMM_FREE],
        Allocator::OnnxRuntime => &[],
    }
}

/// Returns the call that a function makes known.
pub(crate) fn call_of(allocator: Allocator, name: &[u8]) -> Option<u32> {
    match allocator {
        Allocator::PyTorch => {
            TORCH_FUNCTIONS.iter().find(|(known, _)| *known == name).map(|(_, call)| *call)
        }
        Allocator::CuPy => {
            let digits = name.strip_prefix(b"_ZL").unwrap_or(name);
            let name = &digits[digits.iter().take_while(|byte| byte.is_ascii_digit()).count()..];
            let (rest, call) = CUPY_FUNCTIONS
                .iter()
                .find_map(|(known, call)| Some((name.strip_prefix(*known)?, *call)))?;
            // Copies of a function for constant arguments are complete; cold parts are not.
            let is_function = rest.is_empty() || rest.starts_with(b"P") || rest.starts_with(b".");
            let is_cold = rest.windows(5).any(|part| part == b".cold");
            (is_function && !is_cold).then_some(call)
        }
        Allocator::Xla => {
            let (start, end) = XLA_FUNCTION;
            (name.starts_with(start) && name.ends_with(end)).then_some(wire::VS_BLOCK_XLA)
        }
        Allocator::Rmm => {
            let name = name.strip_prefix(b"_ZN3rmm")?;
            let at = name.windows(RMM_CLASS.len()).position(|part| part == RMM_CLASS)?;
            let method = &name[at + RMM_CLASS.len()..];
            RMM_FUNCTIONS.iter().find(|(start, _)| method.starts_with(start)).map(|(_, call)| *call)
        }
        Allocator::OnnxRuntime => None,
    }
}

/// Returns whether a call allocates blocks. Functions are probed one after the other: if all blocks
/// are seen, so must be all frees and out-of-memory errors.
pub(crate) const fn allocates(call: u32) -> bool {
    matches!(call, wire::VS_BLOCK_TORCH | wire::VS_BLOCK_CUPY_ALLOC | wire::VS_BLOCK_RMM_ALLOC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_identified_by_file_name() {
        for (name, expected) in [
            ("/a/torch/lib/libc10.so", Some(AllocatorFile::Probed(Allocator::PyTorch))),
            ("/a/torch/lib/libc10_cuda.so", Some(AllocatorFile::TorchCuda)),
            ("/usr/lib/libc10.so.2.6", Some(AllocatorFile::Probed(Allocator::PyTorch))),
            (
                "/a/cupy/cuda/memory.cpython-312-x86_64-linux-gnu.so",
                Some(AllocatorFile::Probed(Allocator::CuPy)),
            ),
            ("/a/librmm/lib64/librmm.so", Some(AllocatorFile::Probed(Allocator::Rmm))),
            ("/a/cuda/memory.cpython-312-x86_64-linux-gnu.so", None),
            ("/a/cupy/cuda/memory_hook.cpython-312-x86_64-linux-gnu.so", None),
            (
                "/a/jax_plugins/xla_cuda13/xla_cuda_plugin.so",
                Some(AllocatorFile::Probed(Allocator::Xla)),
            ),
            (
                "/a/capi/libonnxruntime_providers_cuda.so",
                Some(AllocatorFile::Probed(Allocator::OnnxRuntime)),
            ),
            ("/a/libc10_hip.so", None),
            ("/a/libc10.sorry", None),
            ("/a/libc101.so", None),
            ("/a/libtorch_cuda.so", None),
            ("[heap]", None),
        ] {
            assert_eq!(AllocatorFile::of(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn functions_are_those_of_published_builds() {
        // Names of cupy-cuda12x 12.3 and 13.6, cupy-cuda13x 14.2 and the XLA plugins 0.5.3 and 0.11.
        let cupy = |name: &str| call_of(Allocator::CuPy, name.as_bytes());
        let init = "_ZL48__pyx_f_4cupy_4cuda_6memory_12PooledMemory__initP42__pyx_obj_4cupy_4cuda_\
                    6memory_PooledMemoryP36__pyx_obj_4cupy_4cuda_6memory__ChunkP7_object";
        assert_eq!(cupy(init), Some(wire::VS_BLOCK_CUPY_ALLOC));
        let free = "_ZL47__pyx_f_4cupy_4cuda_6memory_12PooledMemory_freeP42__pyx_obj_4cupy_4cuda_\
                    6memory_PooledMemoryi";
        for (suffix, expected) in [
            ("", Some(wire::VS_BLOCK_CUPY_FREE)),
            (".constprop.313", Some(wire::VS_BLOCK_CUPY_FREE)),
            (".constprop.313.cold.5", None),
            (".cold.378", None),
        ] {
            assert_eq!(cupy(&format!("{free}{suffix}")), expected, "{suffix}");
        }
        assert_eq!(cupy("_ZL9__pyx_f_4cupy_4cuda_6memory_12PooledMemory_freed"), None);
        let xla = |name: &str| call_of(Allocator::Xla, name.as_bytes());
        let start = "_ZN3tsl12BFCAllocator10AddTraceMeESt17basic_string_viewIcSt11char_traitsIc";
        assert_eq!(xla(&format!("{start}EEPKvll")), Some(wire::VS_BLOCK_XLA));
        assert_eq!(xla(&format!("{start}EEPKv")), None);
        // Names of librmm 26.6 and 26.10.
        let rmm = |name: &str| call_of(Allocator::Rmm, name.as_bytes());
        for (space, block) in [("", "RKNS1_5blockEm"), ("10_RMM_26_10", "RKNS2_5blockEm")] {
            let class = format!("_ZN3rmm{space}2mr6detail25pool_memory_resource_impl");
            let alloc = rmm(&format!("{class}19allocate_from_blockE{block}"));
            assert_eq!(alloc, Some(wire::VS_BLOCK_RMM_ALLOC));
            assert_eq!(rmm(&format!("{class}10free_blockEPvm")), Some(wire::VS_BLOCK_RMM_FREE));
            assert_eq!(rmm(&format!("{class}11expand_poolEm")), None);
        }
        let fixed = "_ZN3rmm2mr6detail31fixed_size_memory_resource_impl10free_blockEPvm";
        assert_eq!(rmm(fixed), None);
    }
}
