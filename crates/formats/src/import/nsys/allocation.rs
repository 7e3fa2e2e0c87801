//! Live allocations, and the keys they are matched by.

use engine::model::{
    AddressType, AllocationKey, DeviceId, MemoryKind, PoolId, SiteId, StreamId, Tid,
};

/// Key that memory is matched by. Contexts and devices are not part of it: they differ in frees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct MatchKey {
    pub(super) address: i64,
    pub(super) process: u32,
    pub(super) space: AddressType,
}

/// Kinds that can be used for each other: a free has the class of its allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum KindClass {
    Device,
    Array,
    Managed,
    Static,
    Pinned,
    Pageable,
    Unknown,
}

impl KindClass {
    /// Returns the address space. All pointers share one, so memory of another class at a live
    /// address shows that the older one was freed. Only pageable host memory may also be
    /// registered.
    pub(super) const fn space(self) -> AddressType {
        match self {
            Self::Array => AddressType::Array,
            Self::Pageable => AddressType::External,
            _ => AddressType::Pointer,
        }
    }
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveAllocation {
    pub(super) start: i64,
    pub(super) bytes: i64,
    pub(super) pool: Option<PoolId>,
    pub(super) stream: Option<StreamId>,
    pub(super) site: Option<SiteId>,
    pub(super) tid: Tid,
    pub(super) device: Option<DeviceId>,
    pub(super) kind: MemoryKind,
    pub(super) class: KindClass,
    /// Whether the row has no context: the same memory may appear again with one.
    pub(super) outside: bool,
}

/// Returns whether a second row describes the same managed memory: once when a library loads it and
/// again in its context, or as a variable.
pub(super) fn is_same_memory(older: &LiveAllocation, newer: &LiveAllocation) -> bool {
    let variable = MemoryKind::ManagedStatic;
    older.class == newer.class
        && older.bytes == newer.bytes
        && (older.kind == variable || newer.kind == variable || older.outside && !newer.outside)
}

/// Returns the key of memory that a graph launch allocates. It has no address, so it gets a serial
/// number.
pub(super) const fn graph_key(serial: u64) -> AllocationKey {
    AllocationKey { space: AddressType::Handle, value: serial }
}

/// Returns the class of a kind of the file.
pub(super) const fn class(kind: MemoryKind) -> KindClass {
    match kind {
        MemoryKind::Device => KindClass::Device,
        MemoryKind::Array => KindClass::Array,
        MemoryKind::Managed | MemoryKind::ManagedStatic => KindClass::Managed,
        MemoryKind::Static => KindClass::Static,
        MemoryKind::Pinned => KindClass::Pinned,
        MemoryKind::Pageable => KindClass::Pageable,
        _ => KindClass::Unknown,
    }
}
