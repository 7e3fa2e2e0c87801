//! Memory over time as stacked bands: by kind, site, process or device.
//!
//! All bands of a chart need the same sample points, and which bands are worth drawing is known
//! only at the end. So the file is read twice. The first pass ([`BandScan`]) computes the total
//! over time and the peak of each band. It then selects sample points: the lowest, highest and last
//! point of equal time buckets, so that every peak of the total is exact even with few points. The
//! second pass ([`BandSampler`]) records the size of each band at those points.

mod first_pass;
mod second_pass;

pub use first_pass::{BandScan, BandScanResult, BandTotal, SamplePoints};
pub use second_pass::{BandSampler, BandSeries};

use super::GroupKey;
use crate::model::ids::{DeviceId, Pid, SiteId};
use crate::model::memory_kind::MemoryKind;
use crate::model::named::named_enum;

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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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

    /// Table key of the band that a group belongs to.
    fn key(self, group: &GroupKey) -> u64 {
        match self {
            Self::Kind => group.kind as u64,
            Self::Site | Self::Library => group.site.map_or(0, |site| u64::from(site.0) + 1),
            Self::Process => u64::from(group.pid.0),
            Self::Device => group.device.map_or(0, |device| u64::from(device.0) + 1),
        }
    }

    /// Band of a table key.
    fn band(self, key: u64) -> Band {
        let less = key.checked_sub(1);
        match self {
            Self::Kind => {
                let index = usize::try_from(key).unwrap_or(usize::MAX);
                Band::Kind(MemoryKind::ALL.get(index).copied().unwrap_or(MemoryKind::Unknown))
            }
            Self::Site => Band::Site(less.map(site_id)),
            Self::Library => Band::Library(less.map(site_id)),
            Self::Process => Band::Process(Pid(u32::try_from(key).unwrap_or(u32::MAX))),
            Self::Device => {
                Band::Device(less.map(|id| DeviceId(u16::try_from(id).unwrap_or(u16::MAX))))
            }
        }
    }
}

fn site_id(id: u64) -> SiteId {
    SiteId(u32::try_from(id).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn band_keys_round_trip() {
        let known = GroupKey {
            pid: Pid(7),
            device: Some(DeviceId(0)),
            kind: MemoryKind::Unknown,
            site: Some(SiteId(u32::MAX)),
        };
        let unknown = GroupKey { device: None, site: None, ..known };
        let bands = |group: &GroupKey| GroupBy::ALL.map(|by| by.band(by.key(group)));
        let (device, site) = (Band::Device(known.device), Band::Site(known.site));
        let (kind, process) = (Band::Kind(known.kind), Band::Process(known.pid));
        let library = Band::Library(known.site);
        assert_eq!(bands(&known), [kind, site, process, device, library]);
        let (site, device, library) = (Band::Site(None), Band::Device(None), Band::Library(None));
        assert_eq!(bands(&unknown), [kind, site, process, device, library]);
        assert_eq!(GroupBy::ALL.map(GroupBy::index), [0, 1, 2, 3, 4]);
    }
}
