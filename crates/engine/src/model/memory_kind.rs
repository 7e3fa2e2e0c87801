//! Memory kinds, and the layer in which each is counted.

use std::fmt;

use crate::model::Allocator;
use crate::model::named::named_enum;

named_enum! {
    /// Memory kind.
    pub enum MemoryKind {
        /// Device memory (`cuMemAlloc`, also pitched).
        Device => "device",
        /// A CUDA or mip-mapped array.
        Array => "array",
        /// Physical device memory of the virtual memory management API (`cuMemCreate`).
        Physical => "physical",
        /// Device memory of a graph's memory nodes.
        Graph => "graph",
        /// Device memory reserved by a memory pool.
        Pool => "pool",
        /// Stream-ordered allocation: used bytes of a pool.
        Async => "async",
        /// Managed memory: resides where it was last accessed.
        Managed => "managed",
        /// Page-locked host memory allocated by the driver.
        Pinned => "pinned",
        /// Host memory of the program that was page-locked by the driver.
        Registered => "registered",
        /// Physical *host* memory of the virtual memory management API.
        HostPhysical => "host_physical",
        /// Memory of another process or API that was opened here; it belongs to the exporter.
        Imported => "imported",
        /// A stream-ordered allocation from a pool of *host* memory.
        HostAsync => "host_async",
        /// Variable of a module (`__device__`, `__constant__`): lives as long as the module.
        Static => "static",
        /// A `__managed__` variable of a module.
        ManagedStatic => "managed_static",
        /// Pageable host memory, reported by other tools.
        Pageable => "pageable",
        /// Block that PyTorch's caching allocator handed out. The memory of the cache itself is counted
        /// where it was allocated from the driver.
        Torch => "torch",
        /// Block of CuPy's memory pool.
        CuPy => "cupy",
        /// Block of XLA's allocator.
        Xla => "xla",
        /// Block of a memory resource of RMM.
        Rmm => "rmm",
        /// Block of the arena of ONNX Runtime.
        OnnxRuntime => "onnxruntime",
        /// Kind in another tool's file that this version does not know.
        Unknown => "unknown",
    }
}

/// Layer in which memory is counted. Layers are never added together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum MemoryLayer {
    /// Device memory.
    Physical,
    /// Device memory reserved by a pool, used or not.
    Reserved,
    /// Part of the memory that a pool reserves.
    Used,
    /// Migrates between host and device.
    Managed,
    /// Host memory.
    Host,
    /// Memory of another process.
    Imported,
    /// Part of the memory of an allocator inside the process.
    Cached,
    /// Unknown.
    Unknown,
}

impl MemoryKind {
    /// Number of kinds.
    pub const COUNT: usize = Self::ALL.len();

    /// Layer of this kind.
    pub const fn layer(self) -> MemoryLayer {
        match self {
            Self::Device | Self::Array | Self::Physical | Self::Graph | Self::Static => {
                MemoryLayer::Physical
            }
            Self::Pool => MemoryLayer::Reserved,
            Self::Async => MemoryLayer::Used,
            Self::Managed | Self::ManagedStatic => MemoryLayer::Managed,
            Self::Pinned
            | Self::Registered
            | Self::HostPhysical
            | Self::HostAsync
            | Self::Pageable => MemoryLayer::Host,
            Self::Imported => MemoryLayer::Imported,
            Self::Torch | Self::CuPy | Self::Xla | Self::Rmm | Self::OnnxRuntime => {
                MemoryLayer::Cached
            }
            Self::Unknown => MemoryLayer::Unknown,
        }
    }

    /// Whether this is device memory that the program holds, the sum of which is `live_bytes`.
    /// Excludes pool reserves: their used part is already counted as stream-ordered memory, and
    /// only the driver knows the rest.
    pub const fn takes_device_memory(self) -> bool {
        matches!(self.layer(), MemoryLayer::Physical | MemoryLayer::Used)
    }

    /// The allocator inside the process that hands out blocks of this kind.
    pub const fn allocator(self) -> Option<Allocator> {
        match self {
            Self::Torch => Some(Allocator::PyTorch),
            Self::CuPy => Some(Allocator::CuPy),
            Self::Xla => Some(Allocator::Xla),
            Self::Rmm => Some(Allocator::Rmm),
            Self::OnnxRuntime => Some(Allocator::OnnxRuntime),
            _ => None,
        }
    }

    /// Whether this is part of the memory of a pool.
    pub const fn is_pooled(self) -> bool {
        matches!(self, Self::Async | Self::HostAsync)
    }

    /// Whether the driver frees it when its context ends.
    pub const fn ends_with_context(self) -> bool {
        matches!(
            self,
            Self::Device
                | Self::Array
                | Self::Managed
                | Self::Pinned
                | Self::Registered
                | Self::Imported
        )
    }

    /// Whether it is a variable of a module, which the program cannot free.
    pub const fn is_static(self) -> bool {
        matches!(self, Self::Static | Self::ManagedStatic)
    }
}

/// Memory kinds that totals, peaks and leaks of a file include. Layers are never added, so each
/// file format has one scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryScope {
    /// Device memory, as allocated from the driver.
    #[default]
    Device,
    /// Blocks allocated from a framework's cache, for files that the framework wrote.
    Torch,
}

impl MemoryScope {
    /// Whether memory of this kind counts.
    pub const fn counts(self, kind: MemoryKind) -> bool {
        match self {
            Self::Device => kind.takes_device_memory(),
            Self::Torch => matches!(kind, MemoryKind::Torch),
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_in_index_order() {
        for (i, kind) in MemoryKind::ALL.iter().enumerate() {
            assert_eq!(kind.index(), i);
            let is_block = kind.layer() == MemoryLayer::Cached;
            assert_eq!(kind.allocator().map(Allocator::kind), is_block.then_some(*kind));
        }
    }
}
