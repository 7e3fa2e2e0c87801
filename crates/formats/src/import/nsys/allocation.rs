//! Live allocations, and the keys they are matched by.

use engine::ids::{DeviceId, Key, PoolId, SiteId, Space, StreamId, Tid};
use engine::kind::Kind;

/// Key that memory is matched by. Contexts and devices are not part of it: they differ in frees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Name {
    pub(super) address: i64,
    pub(super) process: u32,
    pub(super) space: Space,
}

/// Kinds that can be used for each other: a free has the class of its allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(super) enum Class {
    Device,
    Array,
    Managed,
    Static,
    Pinned,
    Pageable,
    Unknown,
}

impl Class {
    /// Returns the address space. All pointers share one, so memory of another class at a live
    /// address shows that the older one was freed. Only pageable host memory may also be
    /// registered.
    pub(super) const fn space(self) -> Space {
        match self {
            Self::Array => Space::Array,
            Self::Pageable => Space::External,
            _ => Space::Address,
        }
    }
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) began: i64,
    pub(super) bytes: i64,
    pub(super) pool: Option<PoolId>,
    pub(super) stream: Option<StreamId>,
    pub(super) site: Option<SiteId>,
    pub(super) tid: Tid,
    pub(super) device: Option<DeviceId>,
    pub(super) kind: Kind,
    pub(super) class: Class,
    /// Whether the row has no context: the same memory may appear again with one.
    pub(super) outside: bool,
}

/// Returns whether a second row describes the same managed memory: once when a library loads it and
/// again in its context, or as a variable.
pub(super) fn is_same_memory(older: &Live, newer: &Live) -> bool {
    let variable = Kind::ManagedStatic;
    older.class == newer.class
        && older.bytes == newer.bytes
        && (older.kind == variable || newer.kind == variable || older.outside && !newer.outside)
}

/// Returns the key of memory that a graph launch allocates. It has no address, so it gets a serial
/// number.
pub(super) const fn graph_key(serial: u64) -> Key {
    Key { space: Space::Handle, value: serial }
}

/// Returns the class of a kind of the file.
pub(super) const fn class(kind: Kind) -> Class {
    match kind {
        Kind::Device => Class::Device,
        Kind::Array => Class::Array,
        Kind::Managed | Kind::ManagedStatic => Class::Managed,
        Kind::Static => Class::Static,
        Kind::Pinned => Class::Pinned,
        Kind::Pageable => Class::Pageable,
        _ => Class::Unknown,
    }
}
