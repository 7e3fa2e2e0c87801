//! The biggest allocations of a file, each with its whole life: what a picture shows one by one.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::Measure;
use crate::change::{Change, How, Turn};
use crate::ids::{DeviceId, Key, Pid, SiteId, Tid};
use crate::kind::Kind;
use crate::units::Moment;

/// An allocation from its beginning to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// Its name.
    pub key: Key,
    /// How much.
    pub bytes: u64,
    /// When it began.
    pub began: Moment,
    /// When and how it ended; none if it is live at the end of the file.
    pub ended: Option<(Moment, How)>,
    /// Whose it is.
    pub pid: Pid,
    /// The thread that allocated it, or 0.
    pub tid: Tid,
    /// The device, where known.
    pub device: Option<DeviceId>,
    /// The sort of memory.
    pub kind: Kind,
    /// Where in the program it was allocated.
    pub site: Option<SiteId>,
}

/// See the module. Memory is that of what is live, and of what is asked for.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    measure: Measure,
    most: usize,
    count: u64,
    live: HashMap<(Pid, Key), Life>,
    ended: BinaryHeap<Reverse<Ranked>>,
}

/// The biggest allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Biggest {
    /// Each of them, in the order of their beginnings.
    pub lives: Vec<Life>,
    /// All that there were.
    pub count: u64,
}

/// Bigger ones first; of equal size the longer lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ranked(Life);

impl Ranked {
    fn rank(&self) -> (u64, u64, Reverse<Moment>, Reverse<Key>) {
        let Life { bytes, began, ended, key, .. } = self.0;
        let age = ended.map_or(u64::MAX, |(end, _)| (end - began).0);
        (bytes, age, Reverse(began), Reverse(key))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Lives {
    /// The biggest `most` of what counts.
    #[must_use]
    pub fn new(measure: Measure, most: usize) -> Self {
        Self { measure, most, ..Self::default() }
    }

    /// Takes note of a change.
    pub fn change(&mut self, change: &Change) {
        if !self.measure.counts(change.kind) {
            return;
        }
        let Change { at, pid, tid, device, kind, key, bytes, site, .. } = *change;
        let life = |began| Life { key, bytes, began, ended: None, pid, tid, device, kind, site };
        match change.what {
            Turn::Began => {
                self.count += 1;
                if let Some(older) = self.live.insert((pid, key), life(at)) {
                    // A file that tells two beginnings without an end between.
                    self.keep(Life { ended: Some((at, How::Replaced)), ..older });
                }
            }
            Turn::Ended { began, how } => {
                let life = self.live.remove(&(pid, key)).unwrap_or(life(began));
                self.keep(Life { ended: Some((at, how)), ..life });
            }
            Turn::Learned { began, .. } => {
                self.live.insert((pid, key), life(began));
            }
        }
    }

    fn keep(&mut self, life: Life) {
        self.ended.push(Reverse(Ranked(life)));
        if self.ended.len() > self.most {
            self.ended.pop();
        }
    }

    /// The biggest ones.
    #[must_use]
    pub fn finish(mut self) -> Biggest {
        for (_, life) in std::mem::take(&mut self.live) {
            self.keep(life);
        }
        let mut lives: Vec<_> = self.ended.into_iter().map(|Reverse(Ranked(life))| life).collect();
        lives.sort_by_key(|life| (life.began, life.pid, life.key));
        Biggest { lives, count: self.count }
    }
}
