//! The largest allocations of a file with their lifetimes, for charts that draw single allocations.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::Measure;
use crate::change::{Change, How, Turn};
use crate::ids::{DeviceId, Key, Pid, SiteId, Tid};
use crate::kind::Kind;
use crate::units::Moment;

/// An allocation with its lifetime.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Life {
    /// Key of the allocation.
    pub key: Key,
    /// Size.
    pub bytes: u64,
    /// Time of the allocation.
    pub began: Moment,
    /// Time and reason of its end; `None` if it is live at the end of the file.
    pub ended: Option<(Moment, How)>,
    /// Process.
    pub pid: Pid,
    /// Thread that allocated it, or 0.
    pub tid: Tid,
    /// Device, if known.
    pub device: Option<DeviceId>,
    /// Memory kind.
    pub kind: Kind,
    /// Allocation site.
    pub site: Option<SiteId>,
}

/// Finds the largest allocations. Keeps the live allocations and the requested number of ended
/// ones.
#[derive(Clone, Debug, Default)]
pub struct Lives {
    measure: Measure,
    limit: usize,
    count: u64,
    live: HashMap<(Pid, Key), Life>,
    ended: BinaryHeap<Reverse<Ranked>>,
}

/// The largest allocations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Biggest {
    /// The allocations, oldest first.
    pub lives: Vec<Life>,
    /// Number of all allocations.
    pub count: u64,
}

/// Orders by size, then by lifetime.
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
    /// Creates an analysis that keeps the `limit` largest allocations.
    #[must_use]
    pub fn new(measure: Measure, limit: usize) -> Self {
        Self { measure, limit, ..Self::default() }
    }

    /// Adds a change.
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
                    // The file has two allocations with the same key and no free between them.
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
        if self.ended.len() > self.limit {
            self.ended.pop();
        }
    }

    /// Returns the largest allocations.
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
