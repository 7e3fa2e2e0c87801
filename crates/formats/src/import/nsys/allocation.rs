//! Live allocations, and what they are matched by.

use engine::ids::{DeviceId, Key, PoolId, SiteId, Space, StreamId, Tid};
use engine::kind::Kind;

/// What memory is matched by. Contexts and devices are left out: frees have others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Name {
    pub(super) address: i64,
    pub(super) process: u32,
    pub(super) space: Space,
}

/// Kinds that can stand for each other: a free has the class of its allocation.
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
    /// All pointers share one set of numbers, so memory of another class at a live address shows
    /// that the older one is gone. Only ordinary host memory may be registered besides.
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
    /// It was told outside of any context: the same memory may be told once more inside one.
    pub(super) outside: bool,
}

/// Whether a second row tells of the same managed memory: as a library loads it and again in the
/// context that gets it, or as the variable it is.
pub(super) fn is_told_again(older: &Live, newer: &Live) -> bool {
    let variable = Kind::ManagedStatic;
    older.class == newer.class
        && older.bytes == newer.bytes
        && (older.kind == variable || newer.kind == variable || older.outside && !newer.outside)
}

/// Launches give their memory no address, so it is called by a number of its own.
pub(super) const fn graph_key(serial: u64) -> Key {
    Key { space: Space::Handle, value: serial }
}

/// The class of a kind that the file tells.
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
