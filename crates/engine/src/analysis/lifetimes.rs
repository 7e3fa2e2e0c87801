//! Allocations one by one: from when to when each was live, and how it ended. Those that ended are
//! told at once, the others at the end of the file, so that only what is live is kept.

use hashbrown::HashMap;

use crate::change::{Change, How, Turn};
use crate::ids::{DeviceId, Key, Pid};
use crate::kind::Kind;
use crate::units::{Moment, Nanos};

/// One allocation, as far as the file knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// What it is; `at` is when it was last heard of.
    pub what: Change,
    /// When it began.
    pub began: Moment,
    /// When and how it ended; none where it is live at the end of the file.
    pub ended: Option<(Moment, How)>,
}

impl Lifetime {
    /// How it ended, in a word: `live` where it did not.
    #[must_use]
    pub const fn how(&self) -> &'static str {
        match self.ended {
            None => "live",
            Some((_, How::Freed)) => "freed",
            Some((_, How::Replaced)) => "replaced",
            Some((_, How::Released)) => "released",
            Some((_, How::Exited)) => "process_exited",
        }
    }

    /// How long it was live, up to `end` where it did not end.
    #[must_use]
    pub fn age(&self, end: Moment) -> Nanos {
        self.ended.map_or(end, |(at, _)| at) - self.began
    }
}

/// What tells live allocations apart. Hostile files give one name to two of them.
type Name = (Pid, Key, Kind, Option<DeviceId>);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Lifetimes {
    live: HashMap<Name, Lifetime>,
}

impl Lifetimes {
    /// Takes note of a change; gives the allocation whose end it tells. An allocation whose name is
    /// given out again without an end is told as live, as sums count it.
    pub fn change(&mut self, change: &Change) -> Option<Lifetime> {
        let name = |device| (change.pid, change.key, change.kind, device);
        match change.what {
            Turn::Began => {
                let new = Lifetime { what: *change, began: change.at, ended: None };
                self.live.insert(name(change.device), new)
            }
            Turn::Ended { began, how } => {
                let known = self.live.remove(&name(change.device));
                let began = known.map_or(began, |known| known.began);
                Some(Lifetime { what: *change, began, ended: Some((change.at, how)) })
            }
            Turn::Learned { began, before } => {
                let known = self.live.remove(&name(before.device));
                let began = known.map_or(began, |known| known.began);
                let new = Lifetime { what: *change, began, ended: None };
                self.live.insert(name(change.device), new)
            }
        }
    }

    /// How many are live.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// What is live at the end, in the order in which it began.
    #[must_use]
    pub fn finish(self) -> Vec<Lifetime> {
        let mut live: Vec<Lifetime> = self.live.into_values().collect();
        live.sort_unstable_by_key(|one| (one.began, one.what.pid, one.what.key, one.what.kind));
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Known;
    use crate::ids::Tid;

    fn change(at: u64, what: Turn, address: u64, bytes: u64, device: Option<u16>) -> Change {
        Change {
            at: Moment(at),
            what,
            pid: Pid(1),
            tid: Tid(1),
            device: device.map(DeviceId),
            kind: Kind::Device,
            key: Key::address(address),
            bytes,
            pool: None,
            stream: None,
            site: None,
        }
    }

    #[test]
    fn each_allocation_is_told_once_with_its_end_or_as_live() {
        let mut lifetimes = Lifetimes::default();
        assert_eq!(lifetimes.change(&change(1, Turn::Began, 10, 8, Some(0))), None);
        assert_eq!(lifetimes.change(&change(2, Turn::Began, 20, 4, None)), None);
        let freed = Turn::Ended { began: Moment(1), how: How::Freed };
        let ended = lifetimes.change(&change(5, freed, 10, 8, Some(0))).unwrap();
        assert_eq!(
            (ended.began, ended.how(), ended.age(Moment(9))),
            (Moment(1), "freed", Nanos(4))
        );
        // Better knowledge is no second allocation.
        let before = Known { device: None, pool: None, bytes: 4 };
        let learned = Turn::Learned { began: Moment(2), before };
        assert_eq!(lifetimes.change(&change(6, learned, 20, 6, Some(1))), None);
        // A name that is given out again leaves an older one that never ended.
        let older = lifetimes.change(&change(7, Turn::Began, 20, 2, Some(1))).unwrap();
        assert_eq!((older.what.bytes, older.how(), older.began), (6, "live", Moment(2)));
        assert_eq!(lifetimes.live(), 1);
        let live = lifetimes.finish();
        assert_eq!((live.len(), live[0].what.bytes, live[0].age(Moment(9))), (1, 2, Nanos(2)));
    }
}
