//! The peak of each device, and of each process on it: how much, when, and every allocation that was
//! live then. One pass.
//!
//! Each scope has a list of what was live at its highest moment so far and has ended since. A new
//! peak empties the list; the end of an allocation that is older than the peak adds to it. What was
//! live at the peak is that list and what is still live and old enough, so nothing is ever copied:
//! the cost is constant for each change, and the memory is that of what is live now or was then.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::{Amount, Measure, Place, Running};
use crate::change::{Change, Turn};
use crate::ids::{DeviceId, Key, Pid, SiteId, Space, Tid};
use crate::kind::Kind;
use crate::units::Moment;

/// An allocation that was live at a peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its name.
    pub key: Key,
    /// How much.
    pub bytes: u64,
    /// When it began.
    pub began: Moment,
    /// The thread that allocated it, or 0.
    pub tid: Tid,
}

/// What was live at a peak in one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldAt {
    /// The place.
    pub place: Place,
    /// How much, and how many.
    pub amount: Amount,
    /// Each of them, the biggest first.
    pub allocations: Vec<Held>,
}

/// The peak of a device, or of one process on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peak {
    /// The device; none for memory whose device is not known.
    pub device: Option<DeviceId>,
    /// The process; none for the whole device.
    pub pid: Option<Pid>,
    /// How much.
    pub bytes: u64,
    /// When it was reached first.
    pub at: Moment,
    /// What was live then, the biggest place first.
    pub live: Vec<HeldAt>,
}

/// One live allocation.
#[derive(Clone, Copy, Debug)]
struct Live {
    held: Held,
    /// The number of the change that put it where it is.
    since: u64,
    site: Option<SiteId>,
    pid: Pid,
    kind: Kind,
    /// Indices of the device's and the process's scope.
    scopes: [u32; 2],
}

#[derive(Clone, Debug)]
struct Scope {
    device: Option<DeviceId>,
    pid: Option<Pid>,
    now: Running,
    peak: Running,
    at: Moment,
    /// The number of the change that made the peak.
    number: u64,
    /// Live at the peak, and ended since.
    ended: Vec<Live>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Watermark {
    measure: Measure,
    number: u64,
    live: HashMap<(u64, u64), Live>,
    scopes: Vec<Scope>,
    wholes: HashMap<Option<DeviceId>, u32>,
    index: HashMap<u64, [u32; 2]>,
    last: Option<(u64, [u32; 2])>,
}

/// A name in two words, for a table that is asked with every change.
fn name(pid: Pid, key: Key) -> (u64, u64) {
    let space = match key.space {
        Space::Address => 0,
        Space::Handle => 1,
        Space::Array => 2,
        Space::Pool => 3,
        Space::External => 4,
    };
    (key.value, u64::from(pid.0) << 8 | space)
}

impl Watermark {
    /// Nothing yet; the measure decides what is counted.
    #[must_use]
    pub fn new(measure: Measure) -> Self {
        Self { measure, ..Self::default() }
    }

    /// Takes note of a change.
    pub fn change(&mut self, change: &Change) {
        if !self.measure.counts(change.kind) {
            return;
        }
        self.number += 1;
        match change.what {
            Turn::Began => self.begin(change, change.at),
            Turn::Ended { .. } => self.end(change),
            Turn::Learned { began, before } => {
                if (before.device, before.bytes) != (change.device, change.bytes) {
                    self.end(change);
                    self.begin(change, began);
                }
            }
        }
    }

    fn begin(&mut self, change: &Change, began: Moment) {
        let Change { pid, tid, key, kind, site, bytes, .. } = *change;
        let scopes = self.scopes_of(change.device, pid);
        let held = Held { key, bytes, began, tid };
        let live = Live { held, since: self.number, site, pid, kind, scopes };
        if let Some(older) = self.live.insert(name(pid, key), live) {
            // A file that tells two beginnings without an end between.
            self.leave(&older);
        }
        for index in scopes {
            if let Some(scope) = self.scopes.get_mut(index as usize) {
                scope.now.add(bytes);
                if scope.now > scope.peak {
                    scope.peak = scope.now;
                    scope.at = change.at;
                    scope.number = self.number;
                    scope.ended.clear();
                }
            }
        }
    }

    fn end(&mut self, change: &Change) {
        if let Some(live) = self.live.remove(&name(change.pid, change.key)) {
            self.leave(&live);
        }
    }

    fn leave(&mut self, live: &Live) {
        for index in live.scopes {
            if let Some(scope) = self.scopes.get_mut(index as usize) {
                scope.now.take(live.held.bytes);
                if live.since <= scope.number {
                    scope.ended.push(*live);
                }
            }
        }
    }

    fn scopes_of(&mut self, device: Option<DeviceId>, pid: Pid) -> [u32; 2] {
        let packed = u64::from(pid.0) | device.map_or(0, |device| u64::from(device.0) + 1) << 32;
        if let Some((last, scopes)) = self.last
            && last == packed
        {
            return scopes;
        }
        let scopes = self.index.get(&packed).copied().unwrap_or_else(|| {
            let whole = self.wholes.get(&device).copied();
            let whole = whole.unwrap_or_else(|| self.open(device, None));
            self.wholes.insert(device, whole);
            let scopes = [whole, self.open(device, Some(pid))];
            self.index.insert(packed, scopes);
            scopes
        });
        self.last = Some((packed, scopes));
        scopes
    }

    fn open(&mut self, device: Option<DeviceId>, pid: Option<Pid>) -> u32 {
        let (now, peak) = (Running::default(), Running::default());
        let at = Moment(0);
        self.scopes.push(Scope { device, pid, now, peak, at, number: 0, ended: Vec::new() });
        (self.scopes.len() - 1) as u32
    }

    /// The peaks: by device, the unknown one last; of each first the whole device, then its
    /// processes, the biggest first.
    #[must_use]
    pub fn finish(self) -> Vec<Peak> {
        let Self { live, mut scopes, .. } = self;
        for live in live.values() {
            for index in live.scopes {
                if let Some(scope) = scopes.get_mut(index as usize)
                    && live.since <= scope.number
                {
                    scope.ended.push(*live);
                }
            }
        }
        let peak = |scope: Scope| Peak {
            device: scope.device,
            pid: scope.pid,
            bytes: scope.peak.shown(),
            at: scope.at,
            live: group(scope.device, &scope.ended),
        };
        let mut peaks: Vec<_> = scopes.into_iter().map(peak).collect();
        peaks.sort_by_key(|peak| {
            let of_process = peak.pid.is_some();
            (peak.device.is_none(), peak.device, of_process, Reverse(peak.bytes), peak.pid)
        });
        peaks
    }
}

fn group(device: Option<DeviceId>, members: &[Live]) -> Vec<HeldAt> {
    let mut places: HashMap<Place, HeldAt> = HashMap::new();
    for live in members {
        let place = Place { pid: live.pid, device, kind: live.kind, site: live.site };
        let none = || HeldAt { place, amount: Amount::default(), allocations: Vec::new() };
        let at = places.entry(place).or_insert_with(none);
        at.amount = at.amount.plus(Amount { bytes: live.held.bytes, allocations: 1 });
        at.allocations.push(live.held);
    }
    let mut all: Vec<_> = places.into_values().collect();
    for at in &mut all {
        at.allocations.sort_by_key(|held| (Reverse(held.bytes), held.began, held.key));
    }
    all.sort_by_key(|at| (Reverse(at.amount.bytes), at.place));
    all
}
