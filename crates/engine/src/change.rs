//! Allocation changes, the input of offline analysis. They come from the ledger for recordings and
//! from importers for other tools' files.

use crate::ids::{DeviceId, Key, Pid, PoolId, SiteId, StreamId, Tid};
use crate::kind::Kind;
use crate::units::Moment;

/// An allocation, its end, or an update. The end repeats all fields, so that totals can be computed
/// without keeping single allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Time.
    pub at: Moment,
    /// Kind of change.
    pub what: Turn,
    /// Process.
    pub pid: Pid,
    /// Thread that allocated it, or 0 if unknown.
    pub tid: Tid,
    /// Device, if known.
    pub device: Option<DeviceId>,
    /// Memory kind.
    pub kind: Kind,
    /// Key of the allocation, unique among the live ones of its process.
    pub key: Key,
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
pub enum Turn {
    /// The allocation was made.
    Began,
    /// The allocation ended.
    Ended {
        /// Time of the allocation.
        began: Moment,
        /// Reason of its end.
        how: How,
    },
    /// A live allocation has new values for fields that were unknown or wrong. Totals must subtract
    /// the previous values and add the new ones.
    Learned {
        /// Time of the allocation.
        began: Moment,
        /// Previous values.
        before: Known,
    },
}

/// Fields that may become known late: device and pool when those of the context do, the size when
/// imported memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Known {
    /// Device.
    pub device: Option<DeviceId>,
    /// Pool.
    pub pool: Option<PoolId>,
    /// Size.
    pub bytes: u64,
}

impl Change {
    /// The fields that may become known late.
    #[must_use]
    pub const fn known(&self) -> Known {
        Known { device: self.device, pool: self.pool, bytes: self.bytes }
    }
}

/// Reason why an allocation ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    /// The program freed it.
    Freed,
    /// Implied by another allocation with the same key: it must have been freed.
    Replaced,
    /// Its context or module ended.
    Released,
    /// Its process ended while it was live: it was never freed.
    Exited,
}
