//! What sort of memory an allocation is, and which layer it counts in.

use std::fmt;

/// The sort of memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Plain device memory (`cuMemAlloc`, pitched memory too).
    Device = 0,
    /// A CUDA or mip-mapped array.
    Array = 1,
    /// Physical device memory of the virtual memory management API (`cuMemCreate`).
    Physical = 2,
    /// Device memory a graph took for its memory nodes.
    Graph = 3,
    /// What a memory pool holds of the device.
    Pool = 4,
    /// A stream-ordered allocation: used bytes of a pool.
    Async = 5,
    /// Managed memory: resident where it was touched last.
    Managed = 6,
    /// Page-locked host memory made by the driver.
    Pinned = 7,
    /// Host memory of the program that was page-locked.
    Registered = 8,
    /// Physical *host* memory of the virtual memory management API.
    HostPhysical = 9,
    /// Memory of another process or API that was opened here; it belongs to the exporter.
    Imported = 10,
    /// A stream-ordered allocation from a pool of *host* memory.
    HostAsync = 11,
    /// A variable of a module (`__device__`, `__constant__`): there as long as the module is.
    Static = 12,
    /// A `__managed__` variable of a module.
    ManagedStatic = 13,
    /// Ordinary host memory that another tool wrote down.
    Pageable = 14,
    /// A block that PyTorch's allocator gave out of its cache. The cache's own memory is counted
    /// where it was taken from the driver.
    Torch = 15,
    /// A kind that another tool's file names and this version does not know.
    Unknown = 16,
}

/// Layers are never added together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Layer {
    /// Takes device memory by itself.
    Physical,
    /// Held by a pool: device memory, used or not.
    Reserved,
    /// A part of what a pool holds.
    Used,
    /// Migrates between host and device.
    Managed,
    /// Host memory.
    Host,
    /// Somebody else's memory.
    Imported,
    /// A part of what a framework's cache holds.
    Cached,
    /// Not known.
    Unknown,
}

impl Kind {
    /// Every kind, in display order.
    pub const ALL: [Self; 17] = [
        Self::Device,
        Self::Array,
        Self::Physical,
        Self::Graph,
        Self::Pool,
        Self::Async,
        Self::Managed,
        Self::Pinned,
        Self::Registered,
        Self::HostPhysical,
        Self::Imported,
        Self::HostAsync,
        Self::Static,
        Self::ManagedStatic,
        Self::Pageable,
        Self::Torch,
        Self::Unknown,
    ];

    /// The number of kinds.
    pub const COUNT: usize = Self::ALL.len();

    /// The layer this kind counts in.
    #[must_use]
    pub const fn layer(self) -> Layer {
        match self {
            Self::Device | Self::Array | Self::Physical | Self::Graph | Self::Static => {
                Layer::Physical
            }
            Self::Pool => Layer::Reserved,
            Self::Async => Layer::Used,
            Self::Managed | Self::ManagedStatic => Layer::Managed,
            Self::Pinned
            | Self::Registered
            | Self::HostPhysical
            | Self::HostAsync
            | Self::Pageable => Layer::Host,
            Self::Imported => Layer::Imported,
            Self::Torch => Layer::Cached,
            Self::Unknown => Layer::Unknown,
        }
    }

    /// Whether these bytes are device memory that the program holds: what `live_bytes` sums. A
    /// pool's reserve is not: its used part is there as stream-ordered memory already, and how much
    /// the pool keeps beyond that only the driver knows.
    #[must_use]
    pub const fn takes_device_memory(self) -> bool {
        matches!(self.layer(), Layer::Physical | Layer::Used)
    }

    /// Whether it is a part of what a memory pool holds.
    #[must_use]
    pub const fn is_pooled(self) -> bool {
        matches!(self, Self::Async | Self::HostAsync)
    }

    /// Whether the driver frees it when the context it was allocated in ends.
    #[must_use]
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
    #[must_use]
    pub const fn is_static(self) -> bool {
        matches!(self, Self::Static | Self::ManagedStatic)
    }

    /// The word for it in reports, JSON, metrics and files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Array => "array",
            Self::Physical => "physical",
            Self::Graph => "graph",
            Self::Pool => "pool",
            Self::Async => "async",
            Self::Managed => "managed",
            Self::Pinned => "pinned",
            Self::Registered => "registered",
            Self::HostPhysical => "host_physical",
            Self::Imported => "imported",
            Self::HostAsync => "host_async",
            Self::Static => "static",
            Self::ManagedStatic => "managed_static",
            Self::Pageable => "pageable",
            Self::Torch => "torch",
            Self::Unknown => "unknown",
        }
    }

    /// Position in [`Kind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_index_order() {
        for (i, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(kind.index(), i);
        }
    }
}
