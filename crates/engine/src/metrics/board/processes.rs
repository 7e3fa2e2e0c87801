//! Processes: which have series of their own, and what they did since.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};

use crate::container::Container;
use crate::ids::ProcessKey;
use crate::kind::Kind;
use crate::metrics::{Metric, catalogue};
use crate::snapshot::{ProcessView, Snapshot};

use super::held::{self, Held};
use super::sheet::{Gpus, Sheet};
use super::tally::Tally;
use super::{OTHER, label};

/// The processes that run.
#[derive(Debug, Default)]
pub(super) struct Processes {
    followed: HashMap<ProcessKey, Followed>,
    /// What those did that have no series, once there was one.
    other: Option<Tally>,
}

#[derive(Debug, Default)]
struct Followed {
    /// All that it did, as it was told last.
    seen: Tally,
    /// What it did since it has series of its own.
    own: Option<Tally>,
}

impl Processes {
    /// Takes note of a snapshot; what was done since the last one. At most `room` processes have series of their own, until they end.
    pub(super) fn observe(&mut self, snapshot: &Snapshot, room: usize) -> Tally {
        let mut all = self.end(snapshot);
        let running = || snapshot.processes.iter().filter(|process| process.ended.is_none());
        let keys: HashSet<ProcessKey> = running().map(|process| process.key).collect();
        // Ends that no snapshot told, for there were too many of them.
        self.followed.retain(|key, _| keys.contains(key));
        let mut without = Vec::new();
        for process in running() {
            let now = Tally::of(process);
            let followed = self.followed.entry(process.key).or_default();
            if !now.can_follow(&followed.seen) {
                *followed = Followed::default();
            }
            let done = now.since(followed.seen);
            followed.seen = now.most(followed.seen);
            all = all.plus(done);
            match &mut followed.own {
                Some(own) => *own = own.plus(done),
                None => without.push((Reverse(process.live_bytes), process.key, done)),
            }
        }
        without.sort_unstable_by_key(|(live, key, _)| (*live, *key));
        let mut left = room.saturating_sub(keys.len().saturating_sub(without.len()));
        for (_, key, done) in without {
            match self.followed.get_mut(&key).filter(|_| left > 0) {
                Some(followed) => {
                    followed.own = Some(done);
                    left -= 1;
                }
                None => self.add_to_other(done),
            }
        }
        all
    }

    /// Those that ended. After an exec the same key ends and goes on, and both are told.
    fn end(&mut self, snapshot: &Snapshot) -> Tally {
        let ended = snapshot.processes.iter().filter(|process| process.ended.is_some());
        let mut by_key: BTreeMap<ProcessKey, Tally> = BTreeMap::new();
        for process in ended {
            let all = by_key.entry(process.key).or_default();
            *all = all.plus(Tally::of(process));
        }
        let mut sum = Tally::default();
        for (key, all) in by_key {
            let followed = self.followed.remove(&key).unwrap_or_default();
            let done = all.since(followed.seen);
            sum = sum.plus(done);
            // Series of its own are over, and what it did last is in the sums of the host.
            if followed.own.is_none() {
                self.add_to_other(done);
            }
        }
        sum
    }

    fn add_to_other(&mut self, done: Tally) {
        self.other = Some(self.other.unwrap_or_default().plus(done));
    }

    fn own(&self, key: ProcessKey) -> Option<&Tally> {
        self.followed.get(&key).and_then(|followed| followed.own.as_ref())
    }

    /// Puts down what they hold and did.
    pub(super) fn put(&self, snapshot: &Snapshot, gpus: Gpus<'_>, sheet: &mut Sheet) {
        let mut other = Held::new();
        let (mut other_pinned, mut other_managed) = (0_u64, 0_u64);
        for process in snapshot.processes.iter().filter(|process| process.ended.is_none()) {
            let held = held::of(process, gpus);
            let (pinned, managed) = on_host(process);
            if let Some(own) = self.own(process.key) {
                let labels = labels_of(process);
                put_held(&held, &labels, gpus, sheet);
                put_host(pinned, managed, &labels, sheet);
                put_tally(own, process.work.is_some(), &labels, sheet);
                continue;
            }
            for (gpu, on) in &held {
                other.entry(*gpu).or_default().absorb(on);
            }
            other_pinned = other_pinned.saturating_add(pinned);
            other_managed = other_managed.saturating_add(managed);
        }
        if let Some(tally) = &self.other {
            let labels = [OTHER, OTHER, "", "", ""].map(Box::from);
            put_held(&other, &labels, gpus, sheet);
            put_host(other_pinned, other_managed, &labels, sheet);
            put_tally(tally, true, &labels, sheet);
        }
    }
}

fn put_held(held: &Held, labels: &[Box<str>], gpus: Gpus<'_>, sheet: &mut Sheet) {
    for (gpu, on) in held {
        let all: Vec<_> = gpus.labels(*gpu).into_iter().chain(labels.iter().cloned()).collect();
        on.put(sheet, &all);
    }
}

fn put_host(pinned: u64, managed: u64, labels: &[Box<str>], sheet: &mut Sheet) {
    sheet.whole(&catalogue::PINNED, labels.into(), pinned);
    sheet.whole(&catalogue::MANAGED, labels.into(), managed);
}

fn put_tally(tally: &Tally, counts_work: bool, labels: &[Box<str>], sheet: &mut Sheet) {
    let counts: [(&'static Metric, u64); 4] = [
        (&catalogue::PROCESS_ALLOCATIONS, tally.allocations),
        (&catalogue::PROCESS_FREES, tally.frees),
        (&catalogue::PROCESS_FAILURES, tally.failures),
        (&catalogue::PROCESS_OUT_OF_MEMORY, tally.out_of_memory),
    ];
    for (metric, count) in counts {
        sheet.whole(metric, labels.into(), count);
    }
    if counts_work {
        sheet.whole(&catalogue::PROCESS_LAUNCHES, labels.into(), tally.launches);
    }
}

/// Pinned and registered memory of the host; managed memory.
fn on_host(process: &ProcessView) -> (u64, u64) {
    let sum = |kinds: [Kind; 2]| {
        let these = process.kinds.iter().filter(|view| kinds.contains(&view.kind));
        these.fold(0_u64, |sum, view| sum.saturating_add(view.live_bytes.0))
    };
    (sum([Kind::Pinned, Kind::Registered]), sum([Kind::Managed, Kind::ManagedStatic]))
}

/// The labels `pid`, `process`, `container`, `pod` and `namespace`.
pub(super) fn labels_of(process: &ProcessView) -> [Box<str>; 5] {
    let [container, pod, namespace] = container_labels(process.container.as_deref());
    let pid = process.key.pid.to_string().into();
    [pid, label(&process.name), container, pod, namespace]
}

/// Digits of a container's id that tell it apart for people, as tools of containers show it.
const ID: usize = 12;

/// The labels `container`, `pod` and `namespace`: names where they are known, else ids.
pub(super) fn container_labels(container: Option<&Container>) -> [Box<str>; 3] {
    let Some(container) = container else { return Default::default() };
    let pod = container.pod.as_ref();
    let id = || container.id.chars().take(ID).collect::<String>();
    let name = pod.and_then(|pod| pod.container.as_deref());
    [
        name.map_or_else(|| label(&id()), label),
        pod.map(|pod| label(pod.name.as_deref().unwrap_or(&pod.uid))).unwrap_or_default(),
        pod.and_then(|pod| pod.namespace.as_deref()).map(label).unwrap_or_default(),
    ]
}
