//! Memory over time as bands that lie upon each other: by kind, site, process or device.
//!
//! Bands of a picture must be of the same moments, and which ones are worth drawing is known at the
//! end only. So the file is read twice. The first reading draws the [`Outline`]: the sum over time,
//! and how big each band becomes. It chooses moments: of equal spans of time the lowest, the highest
//! and the last, so that every peak of the sum is exact however few moments there are. The second
//! reading fills in what each band was at those moments.

mod fill;
mod outline;

pub use fill::{Bands, Course};
pub use outline::{Drawn, Moments, Outline, Total};

use super::Place;
use crate::ids::{DeviceId, Pid, SiteId};
use crate::kind::Kind;

/// What tells one band from another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum By {
    /// The sort of memory.
    Kind,
    /// Where in the program it was allocated.
    Site,
    /// Whose it is.
    Process,
    /// Where it lies.
    Device,
}

/// What a band is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Band {
    /// A kind.
    Kind(Kind),
    /// A site; none where the call stack is not known.
    Site(Option<SiteId>),
    /// A process.
    Process(Pid),
    /// A device; none where it is not known.
    Device(Option<DeviceId>),
    /// So many others together.
    Rest(usize),
}

impl By {
    /// Every way, in the order in which they are offered.
    pub const ALL: [Self; 4] = [Self::Kind, Self::Site, Self::Process, Self::Device];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kind => "kind",
            Self::Site => "site",
            Self::Process => "process",
            Self::Device => "device",
        }
    }

    /// Position in [`By::ALL`].
    const fn index(self) -> usize {
        self as usize
    }

    /// The band that a place belongs to, as a number for tables.
    fn key(self, place: &Place) -> u64 {
        match self {
            Self::Kind => place.kind as u64,
            Self::Site => place.site.map_or(0, |site| u64::from(site.0) + 1),
            Self::Process => u64::from(place.pid.0),
            Self::Device => place.device.map_or(0, |device| u64::from(device.0) + 1),
        }
    }

    /// The band of such a number.
    fn band(self, key: u64) -> Band {
        let less = key.checked_sub(1);
        match self {
            Self::Kind => {
                let index = usize::try_from(key).unwrap_or(usize::MAX);
                Band::Kind(Kind::ALL.get(index).copied().unwrap_or(Kind::Unknown))
            }
            Self::Site => Band::Site(less.map(|id| SiteId(u32::try_from(id).unwrap_or(u32::MAX)))),
            Self::Process => Band::Process(Pid(u32::try_from(key).unwrap_or(u32::MAX))),
            Self::Device => {
                Band::Device(less.map(|id| DeviceId(u16::try_from(id).unwrap_or(u16::MAX))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_band_is_found_again_from_its_number() {
        let known = Place {
            pid: Pid(7),
            device: Some(DeviceId(0)),
            kind: Kind::Unknown,
            site: Some(SiteId(u32::MAX)),
        };
        let unknown = Place { device: None, site: None, ..known };
        let bands = |place: &Place| By::ALL.map(|by| by.band(by.key(place)));
        let (device, site) = (Band::Device(known.device), Band::Site(known.site));
        let (kind, process) = (Band::Kind(known.kind), Band::Process(known.pid));
        assert_eq!(bands(&known), [kind, site, process, device]);
        assert_eq!(bands(&unknown), [kind, Band::Site(None), process, Band::Device(None)]);
        assert_eq!(By::ALL.map(By::index), [0, 1, 2, 3]);
    }
}
