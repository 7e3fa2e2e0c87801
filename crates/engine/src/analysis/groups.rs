//! Totals by process, device, kind and site. One table lookup per change; single allocations are
//! not kept.

use hashbrown::HashMap;

use super::{Amount, Measure, Place, Running};
use crate::change::{Change, How, Turn};
use crate::units::Moment;

/// All allocations with the same process, device, kind and site.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group {
    /// What they have in common.
    pub place: Place,
    /// All allocations.
    pub began: Amount,
    /// Number freed by the program, including frees implied by the reuse of an address.
    pub freed: u64,
    /// Number that ended with their context or module.
    pub released: u64,
    /// Live at the end of the file.
    pub live: Amount,
    /// Live when their process ended.
    pub exited: Amount,
    /// Peak of the live bytes.
    pub peak_bytes: u64,
}

impl Group {
    /// Memory never freed: live at the end of the file or of its process.
    #[must_use]
    pub const fn never_freed(&self) -> Amount {
        self.live.plus(self.exited)
    }
}

/// Running totals of a group.
#[derive(Clone, Copy, Debug)]
struct Sums {
    place: Place,
    began: Amount,
    freed: u64,
    released: u64,
    exited: Amount,
    live: Running,
    count: i64,
    peak: Running,
}

/// Totals of all groups.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    measure: Measure,
    index: HashMap<(u64, u64), u32>,
    sums: Vec<Sums>,
    /// Most recently used group: programs allocate and free in runs.
    last: Option<((u64, u64), u32)>,
    now: Running,
    peak: Running,
    peak_at: Moment,
}

impl Groups {
    /// Creates an empty table; `measure` selects the memory that the peak includes.
    #[must_use]
    pub fn new(measure: Measure) -> Self {
        Self { measure, ..Self::default() }
    }

    /// Adds a change.
    pub fn change(&mut self, change: &Change) {
        let place = Place::of(change);
        let bytes = change.bytes;
        let counts = self.measure.counts(change.kind);
        match change.what {
            Turn::Began => {
                let sums = self.sums(place);
                sums.began = sums.began.plus(Amount { bytes, allocations: 1 });
                sums.begin(bytes);
                if counts {
                    self.now.add(bytes);
                }
            }
            Turn::Ended { how, .. } => {
                let sums = self.sums(place);
                sums.end(bytes);
                match how {
                    How::Freed | How::Replaced => sums.freed += 1,
                    How::Released => sums.released += 1,
                    How::Exited => {
                        sums.exited = sums.exited.plus(Amount { bytes, allocations: 1 });
                    }
                }
                if counts {
                    self.now.take(bytes);
                }
            }
            Turn::Learned { before, .. } => {
                let old = self.sums(place.on(before.device));
                let amount = Amount { bytes: before.bytes, allocations: 1 };
                old.end(before.bytes);
                old.began.bytes = old.began.bytes.saturating_sub(amount.bytes);
                old.began.allocations = old.began.allocations.saturating_sub(1);
                let new = self.sums(place);
                new.began = new.began.plus(Amount { bytes, allocations: 1 });
                new.begin(bytes);
                if counts {
                    self.now.take(before.bytes);
                    self.now.add(bytes);
                }
            }
        }
        if self.now > self.peak {
            self.peak = self.now;
            self.peak_at = change.at;
        }
    }

    fn sums(&mut self, place: Place) -> &mut Sums {
        let packed = place.packed();
        let index = match self.last {
            Some((last, index)) if last == packed => index,
            _ => self.find(packed, place),
        };
        &mut self.sums[index as usize]
    }

    fn find(&mut self, packed: (u64, u64), place: Place) -> u32 {
        let Self { index, sums, .. } = self;
        let found = *index.entry(packed).or_insert_with(|| {
            sums.push(Sums::new(place));
            (sums.len() - 1) as u32
        });
        self.last = Some((packed, found));
        found
    }

    /// Memory that counts in this file.
    #[must_use]
    pub const fn measure(&self) -> Measure {
        self.measure
    }

    /// All groups with an allocation, in order of first appearance.
    pub fn iter(&self) -> impl Iterator<Item = Group> {
        self.sums.iter().map(Sums::group).filter(|group| group.began.allocations > 0)
    }

    /// Peak of the counted memory over all processes and devices, and when it was first reached.
    #[must_use]
    pub fn peak(&self) -> (u64, Moment) {
        (self.peak.shown(), self.peak_at)
    }
}

impl Sums {
    const fn new(place: Place) -> Self {
        let none = Amount { bytes: 0, allocations: 0 };
        let zero = Running(0);
        Self {
            place,
            began: none,
            freed: 0,
            released: 0,
            exited: none,
            live: zero,
            count: 0,
            peak: zero,
        }
    }

    fn begin(&mut self, bytes: u64) {
        self.live.add(bytes);
        self.count += 1;
        self.peak = self.peak.max(self.live);
    }

    fn end(&mut self, bytes: u64) {
        self.live.take(bytes);
        self.count -= 1;
    }

    fn group(&self) -> Group {
        let allocations = u64::try_from(self.count).unwrap_or(0);
        Group {
            place: self.place,
            began: self.began,
            freed: self.freed,
            released: self.released,
            live: Amount { bytes: self.live.shown(), allocations },
            exited: self.exited,
            peak_bytes: self.peak.shown(),
        }
    }
}
