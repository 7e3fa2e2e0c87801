//! Series of processes: which processes have their own, and their counters.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::{HashMap, HashSet};

use crate::metrics::{Metric, catalog};
use crate::model::{Container, MemoryKind, ProcessKey};
use crate::snapshot::{ProcessView, Snapshot};

use super::counters::ProcessCounters;
use super::process_memory;
use super::process_memory::UsageByGpu;
use super::sample_builder::{GpuLabels, SampleBuilder};
use super::{OTHER, label};

/// Running processes.
#[derive(Debug, Default)]
pub(super) struct ProcessSeries {
    tracked: HashMap<ProcessKey, TrackedProcess>,
    /// Counters of processes without their own series, once there is one.
    other: Option<ProcessCounters>,
}

#[derive(Debug, Default)]
struct TrackedProcess {
    /// Counters at the last snapshot.
    seen: ProcessCounters,
    /// Counters since it has its own series.
    own: Option<ProcessCounters>,
}

impl ProcessSeries {
    /// Updates the state from a snapshot; returns the increments since the last one. At most `room`
    /// processes have their own series, until they end.
    pub(super) fn observe(&mut self, snapshot: &Snapshot, room: usize) -> ProcessCounters {
        let mut all = self.end(snapshot);
        let running = || snapshot.running();
        let keys: HashSet<ProcessKey> = running().map(|process| process.key).collect();
        // Processes whose end was in no snapshot, because too many ended at once.
        self.tracked.retain(|key, _| keys.contains(key));
        let mut without = Vec::new();
        for process in running() {
            let now = ProcessCounters::of(process);
            let tracked = self.tracked.entry(process.key).or_default();
            if !now.can_follow(&tracked.seen) {
                *tracked = TrackedProcess::default();
            }
            let delta = now.since(tracked.seen);
            tracked.seen = now.max_with(tracked.seen);
            all = all.plus(delta);
            match &mut tracked.own {
                Some(own) => *own = own.plus(delta),
                None => without.push((Reverse(process.live_bytes), process.key, delta)),
            }
        }
        without.sort_unstable_by_key(|(live, key, _)| (*live, *key));
        let mut free_slots = room.saturating_sub(keys.len().saturating_sub(without.len()));
        for (_, key, delta) in without {
            match self.tracked.get_mut(&key).filter(|_| free_slots > 0) {
                Some(tracked) => {
                    tracked.own = Some(delta);
                    free_slots -= 1;
                }
                None => self.add_to_other(delta),
            }
        }
        all
    }

    /// Handles ended processes. After an exec, the same key is in the snapshot as ended and as
    /// running.
    fn end(&mut self, snapshot: &Snapshot) -> ProcessCounters {
        let ended = snapshot.processes.iter().filter(|process| process.ended.is_some());
        let mut by_key: BTreeMap<ProcessKey, ProcessCounters> = BTreeMap::new();
        for process in ended {
            let all = by_key.entry(process.key).or_default();
            *all = all.plus(ProcessCounters::of(process));
        }
        let mut sum = ProcessCounters::default();
        for (key, all) in by_key {
            let tracked = self.tracked.remove(&key).unwrap_or_default();
            let delta = all.since(tracked.seen);
            sum = sum.plus(delta);
            // Its own series end; its last increments are still included in the totals of the host.
            if tracked.own.is_none() {
                self.add_to_other(delta);
            }
        }
        sum
    }

    fn add_to_other(&mut self, delta: ProcessCounters) {
        self.other = Some(self.other.unwrap_or_default().plus(delta));
    }

    fn own(&self, key: ProcessKey) -> Option<&ProcessCounters> {
        self.tracked.get(&key).and_then(|tracked| tracked.own.as_ref())
    }

    /// Adds samples of memory and counters.
    pub(super) fn add_samples(
        &self,
        snapshot: &Snapshot,
        gpus: GpuLabels<'_>,
        out: &mut SampleBuilder,
    ) {
        let mut other = UsageByGpu::new();
        let (mut other_pinned, mut other_managed) = (0_u64, 0_u64);
        for process in snapshot.running() {
            let usage = process_memory::of(process, gpus);
            let (pinned, managed) = on_host(process);
            if let Some(own) = self.own(process.key) {
                let labels = labels_of(process);
                add_usage_samples(&usage, &labels, gpus, out);
                add_host_samples(pinned, managed, &labels, out);
                add_counter_samples(own, process.activity.is_some(), &labels, out);
                if let Some(mig) = process.mig.as_deref() {
                    let instance = [label(&mig.uuid), label(&mig.profile)];
                    out.push_integer(&catalog::PROCESS_MIG, [&labels[..], &instance].concat(), 1);
                }
                continue;
            }
            for (gpu, on) in &usage {
                other.entry(*gpu).or_default().merge(on);
            }
            other_pinned = other_pinned.saturating_add(pinned);
            other_managed = other_managed.saturating_add(managed);
        }
        if let Some(counters) = &self.other {
            let labels = [OTHER, OTHER, OTHER, "", "", "", ""].map(Box::from);
            add_usage_samples(&other, &labels, gpus, out);
            add_host_samples(other_pinned, other_managed, &labels, out);
            add_counter_samples(counters, true, &labels, out);
        }
    }
}

fn add_usage_samples(
    usage: &UsageByGpu,
    labels: &[Box<str>],
    gpus: GpuLabels<'_>,
    out: &mut SampleBuilder,
) {
    for (gpu, on) in usage {
        let all: Vec<_> = gpus.labels(*gpu).into_iter().chain(labels.iter().cloned()).collect();
        on.add_samples(out, &all);
    }
}

fn add_host_samples(pinned: u64, managed: u64, labels: &[Box<str>], out: &mut SampleBuilder) {
    out.push_integer(&catalog::PINNED, labels.into(), pinned);
    out.push_integer(&catalog::MANAGED, labels.into(), managed);
}

fn add_counter_samples(
    counters: &ProcessCounters,
    counts_activity: bool,
    labels: &[Box<str>],
    out: &mut SampleBuilder,
) {
    let counts: [(&'static Metric, u64); 4] = [
        (&catalog::PROCESS_ALLOCATIONS, counters.allocations),
        (&catalog::PROCESS_FREES, counters.frees),
        (&catalog::PROCESS_FAILURES, counters.failures),
        (&catalog::PROCESS_OUT_OF_MEMORY, counters.out_of_memory),
    ];
    for (metric, count) in counts {
        out.push_integer(metric, labels.into(), count);
    }
    if counts_activity {
        out.push_integer(&catalog::PROCESS_LAUNCHES, labels.into(), counters.launches);
    }
}

/// Pinned and registered host memory; managed memory.
fn on_host(process: &ProcessView) -> (u64, u64) {
    let sum = |kinds: [MemoryKind; 2]| {
        let these = process.kinds.iter().filter(|view| kinds.contains(&view.kind));
        these.fold(0_u64, |sum, view| sum.saturating_add(view.live_bytes.0))
    };
    (
        sum([MemoryKind::Pinned, MemoryKind::Registered]),
        sum([MemoryKind::Managed, MemoryKind::ManagedStatic]),
    )
}

/// Labels `pid`, `process`, `program`, `user`, `container`, `pod` and `namespace`.
pub(super) fn labels_of(process: &ProcessView) -> [Box<str>; 7] {
    let [container, pod, namespace] = container_labels(process.container.as_deref());
    let pid = process.key.pid.to_string().into();
    let program = process.program();
    let by_id = || process.uid.map(|uid| uid.to_string().into()).unwrap_or_default();
    let user = process.identity.user.as_deref().map_or_else(by_id, label);
    [pid, label(&process.name), label(program), user, container, pod, namespace]
}

/// Number of characters of a container id in labels, as container tools print it.
const SHORT_CONTAINER_ID_LEN: usize = 12;

/// Labels `container`, `pod` and `namespace`: names if known, else ids.
pub(super) fn container_labels(container: Option<&Container>) -> [Box<str>; 3] {
    let Some(container) = container else { return Default::default() };
    let pod = container.pod.as_ref();
    let id = || container.id.chars().take(SHORT_CONTAINER_ID_LEN).collect::<String>();
    let name = pod.and_then(|pod| pod.container.as_deref());
    [
        name.map_or_else(|| label(&id()), label),
        pod.map(|pod| label(pod.name.as_deref().unwrap_or(&pod.uid))).unwrap_or_default(),
        pod.and_then(|pod| pod.namespace.as_deref()).map(label).unwrap_or_default(),
    ]
}
