//! Allocation changes, the input of offline analysis. They come from the ledger for recordings and
//! from importers for other tools' files.

use crate::model::named::named_enum;
use crate::model::{
    AllocationKey, DeviceId, MemoryKind, Pid, PoolId, SiteId, StreamId, Tid, Timestamp,
};

/// An allocation, its end, or an update. The end repeats all fields, so that totals can be computed
/// without keeping single allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocationChange {
    /// Time.
    pub at: Timestamp,
    /// Kind of change.
    pub action: ChangeKind,
    /// Process.
    pub pid: Pid,
    /// Thread that allocated it, or 0 if unknown.
    pub tid: Tid,
    /// Device, if known.
    pub device: Option<DeviceId>,
    /// Memory kind.
    pub kind: MemoryKind,
    /// Key of the allocation, unique among the live ones of its process.
    pub key: AllocationKey,
    /// Size.
    pub bytes: u64,
    /// Pool it was allocated from, if known.
    pub pool: Option<PoolId>,
    /// Stream, if known.
    pub stream: Option<StreamId>,
    /// Allocation site.
    pub site: Option<SiteId>,
}

/// Kind of change.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ChangeKind {
    /// The allocation was made.
    Allocated,
    /// The allocation ended.
    Ended {
        /// Time of the allocation.
        allocated_at: Timestamp,
        /// Reason of its end.
        reason: EndReason,
    },
    /// A live allocation has new values for fields that were unknown or wrong. Totals must subtract
    /// the previous values and add the new ones.
    Updated {
        /// Time of the allocation.
        allocated_at: Timestamp,
        /// Previous values.
        before: LateFields,
    },
}

/// Fields that may become known late: device and pool when those of the context do, the size when
/// imported memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LateFields {
    /// Device.
    pub device: Option<DeviceId>,
    /// Pool.
    pub pool: Option<PoolId>,
    /// Size.
    pub bytes: u64,
}

impl AllocationChange {
    /// The fields that may become known late.
    pub const fn late_fields(&self) -> LateFields {
        LateFields { device: self.device, pool: self.pool, bytes: self.bytes }
    }
}

named_enum! {
    /// Reason why an allocation ended.
    pub enum EndReason {
        /// The program freed it.
        Freed => "freed",
        /// Implied by another allocation with the same key: it must have been freed.
        Replaced => "replaced",
        /// Its context or module ended.
        Released => "released",
        /// Its process ended while it was live: it was never freed.
        ProcessExited => "process_exited",
    }
}
