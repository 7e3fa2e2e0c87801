//! Memory over time as stacked bands: by kind, site, process or device.
//!
//! All bands of a chart need the same sample points, and which bands are worth drawing is known
//! only at the end. So the file is read twice. The first pass ([`BandScan`]) computes the total
//! over time and the peak of each band. It then selects sample points: the lowest, highest and last
//! point of equal time buckets, so that every peak of the total is exact even with few points. The
//! second pass ([`BandSampler`]) records the size of each band at those points.

mod first_pass;
mod second_pass;

pub use first_pass::{BandScan, BandScanResult, SamplePoints};
pub use second_pass::{BandSampler, BandSeries};

use super::GroupKey;
use crate::model::named::named_enum;
use crate::model::{DeviceId, MemoryKind, Pid, SiteId};

named_enum! {
    /// What memory is grouped by.
    pub enum GroupBy {
        /// Memory kind.
        Kind => "kind",
        /// Allocation site.
        Site => "site",
        /// Process.
        Process => "process",
        /// Device.
        Device => "device",
        /// Library that allocated it. Bands are known once [`BandScanResult::add_libraries`] was called.
        Library => "library",
    }
}

/// What a band contains.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Band {
    /// Memory of one kind.
    Kind(MemoryKind),
    /// Memory of one allocation site; `None` if the call stack is unknown.
    Site(Option<SiteId>),
    /// Memory of one process.
    Process(Pid),
    /// Memory on one device; `None` if it is unknown.
    Device(Option<DeviceId>),
    /// Memory of one library, which is that of this site; `None` if the call stack is unknown.
    Library(Option<SiteId>),
    /// All other bands, with their number.
    Rest(usize),
}

impl GroupBy {
    /// Groupings that the first pass adds up; libraries are sums of sites.
    const SCANNED: [Self; 4] = [Self::Kind, Self::Site, Self::Process, Self::Device];

    /// Band that a group belongs to; for libraries, the band of its site.
    const fn band(self, group: &GroupKey) -> Band {
        match self {
            Self::Kind => Band::Kind(group.kind),
            Self::Site | Self::Library => Band::Site(group.site),
            Self::Process => Band::Process(group.pid),
            Self::Device => Band::Device(group.device),
        }
    }
}
