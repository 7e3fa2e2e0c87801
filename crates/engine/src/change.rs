//! Allocations that begin and end: what every offline question is answered from. The ledger tells
//! the changes of a recording; importers tell those of other tools' files.

use crate::ids::{DeviceId, Key, Pid, PoolId, SiteId, StreamId, Tid};
use crate::kind::Kind;
use crate::units::Moment;

/// An allocation began or ended. The end repeats what was said before, so that sums need no memory
/// of single allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// When.
    pub at: Moment,
    /// Beginning, end, or better knowledge.
    pub what: Turn,
    /// Whose memory it is.
    pub pid: Pid,
    /// The thread that allocated it, where known; else 0.
    pub tid: Tid,
    /// The device, where known.
    pub device: Option<DeviceId>,
    /// The sort of memory.
    pub kind: Kind,
    /// The name of the allocation, unique among the live ones of its process.
    pub key: Key,
    /// How much.
    pub bytes: u64,
    /// The pool that it is from, where known.
    pub pool: Option<PoolId>,
    /// The stream, where known.
    pub stream: Option<StreamId>,
    /// Where in the program it was allocated.
    pub site: Option<SiteId>,
}

/// What a change is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Turn {
    /// The allocation began.
    Began,
    /// It ended.
    Ended {
        /// When it began.
        began: Moment,
        /// How it ended.
        how: How,
    },
    /// It is live, and what was said of it before was not the whole truth; the change says it now.
    /// Whoever adds up takes what was said before away.
    Learned {
        /// When it began.
        began: Moment,
        /// What was said before.
        before: Known,
    },
}

/// The part of an allocation that may be learned late: its device and pool when those of its context
/// are, its size when imported memory is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Known {
    /// The device.
    pub device: Option<DeviceId>,
    /// The pool.
    pub pool: Option<PoolId>,
    /// The size.
    pub bytes: u64,
}

impl Change {
    /// What it says of those parts that may be learned late.
    #[must_use]
    pub const fn known(&self) -> Known {
        Known { device: self.device, pool: self.pool, bytes: self.bytes }
    }
}

/// How an allocation ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    /// The program freed it.
    Freed,
    /// Another allocation with the same name shows that it was freed.
    Replaced,
    /// Its context or module ended.
    Released,
    /// Its process ended while it was live: it was never freed.
    Exited,
}
