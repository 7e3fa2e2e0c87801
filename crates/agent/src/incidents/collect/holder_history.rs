//! Memory of each process over the last minutes, and its last launch: a few samples per process
//! from published snapshots, for a bounded number of processes.

use std::collections::{HashMap, VecDeque};

use engine::model::{GpuId, Nanos, ProcessKey, Timestamp};
use engine::snapshot::{ProcessView, Snapshot};
use formats::report::incident::HolderGrowth;

/// Maximum number of processes.
const MAX_PROCESSES: usize = 1024;

/// Time between two samples, and maximum number of samples.
const SAMPLE_INTERVAL: Nanos = Nanos::from_millis(5000);
const MAX_SAMPLES: usize = 60;

/// Usage history of processes.
#[derive(Default)]
pub(crate) struct HolderHistory {
    processes: HashMap<ProcessKey, HolderSamples>,
    next: Timestamp,
}

/// Memory at one time, by GPU; `None` is the total of all devices.
type UsageSample = (Timestamp, Vec<(Option<GpuId>, u64)>);

struct HolderSamples {
    name: Box<str>,
    samples: VecDeque<UsageSample>,
    /// Time since which it has launched nothing; None if launches are not counted.
    idle_since: Option<Timestamp>,
    seen: Timestamp,
}

impl HolderHistory {
    /// Observes a published snapshot.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot) {
        let at = snapshot.at;
        let sample = at >= self.next;
        if sample {
            self.next = Timestamp(at.0.saturating_add(SAMPLE_INTERVAL.0));
        }
        for process in snapshot.processes.iter().filter(|process| process.ended.is_none()) {
            if !self.processes.contains_key(&process.key) && self.processes.len() >= MAX_PROCESSES {
                continue;
            }
            let holder = self.processes.entry(process.key).or_insert_with(|| HolderSamples {
                name: process.program().into(),
                samples: initial_samples(process, at),
                idle_since: None,
                seen: at,
            });
            holder.seen = at;
            if let Some(work) = &process.activity {
                let is_busy = work.recent_launches > 0;
                holder.idle_since = Some(holder.idle_since.filter(|_| !is_busy).unwrap_or(at));
            }
            if sample || holder.samples.len() < 2 {
                holder.samples.push_back((at, held(process)));
                if holder.samples.len() > MAX_SAMPLES {
                    holder.samples.pop_front();
                }
            }
        }
        if sample {
            let old = Nanos(SAMPLE_INTERVAL.0.saturating_mul(MAX_SAMPLES as u64));
            self.processes.retain(|_, holder| at - holder.seen < old);
        }
    }

    /// Returns by how much processes grew over the last minutes, largest first.
    pub(crate) fn growth(&self, snapshot: &Snapshot, gpu: Option<GpuId>) -> Vec<HolderGrowth> {
        let mut all: Vec<HolderGrowth> = snapshot
            .processes
            .iter()
            .filter_map(|process| self.growth_of(process, snapshot.at, gpu))
            .collect();
        all.retain(|growth| growth.bytes != 0);
        all.sort_by_key(|growth| (std::cmp::Reverse(growth.bytes), growth.pid));
        all
    }

    fn growth_of(
        &self,
        process: &ProcessView,
        now: Timestamp,
        gpu: Option<GpuId>,
    ) -> Option<HolderGrowth> {
        let bytes_on = |held: &[(Option<GpuId>, u64)]| {
            held.iter().find(|(on, _)| *on == gpu).map_or(0, |(_, bytes)| *bytes)
        };
        let holder = self.processes.get(&process.key);
        if holder.is_none() && (process.before_trace || self.processes.len() >= MAX_PROCESSES) {
            return None;
        }
        let oldest = holder.and_then(|holder| holder.samples.front());
        // A process without samples started within the last second.
        let last = Timestamp(now.0.saturating_sub(1_000_000_000));
        let (since, before) = oldest.map_or((last, 0), |(at, held)| (*at, bytes_on(held)));
        let bytes = bytes_on(&held(process));
        Some(HolderGrowth {
            pid: process.key.pid,
            name: holder.map_or_else(|| process.program().into(), |holder| holder.name.clone()),
            bytes: i64::try_from(i128::from(bytes) - i128::from(before)).unwrap_or(i64::MAX),
            within: now - since,
        })
    }

    /// Returns for how long each process has launched nothing.
    pub(crate) fn all_idle(&self, now: Timestamp) -> HashMap<ProcessKey, Nanos> {
        let idle =
            self.processes.iter().filter_map(|(key, holder)| Some((*key, holder.idle_since?)));
        idle.map(|(key, since)| (key, now - since)).collect()
    }

    /// Returns for how long a process has launched nothing, if launches are counted.
    pub(crate) fn idle(&self, process: &ProcessView, now: Timestamp) -> Option<Nanos> {
        let holder = self.processes.get(&process.key)?;
        holder.idle_since.map(|since| now - since)
    }
}

/// A process that started under observation held nothing a second ago.
fn initial_samples(process: &ProcessView, at: Timestamp) -> VecDeque<UsageSample> {
    let before = Timestamp(at.0.saturating_sub(1_000_000_000));
    let nothing = (!process.before_trace).then(|| (before, Vec::new()));
    nothing.into_iter().collect()
}

/// Returns the memory of a process by GPU, and its total.
fn held(process: &ProcessView) -> Vec<(Option<GpuId>, u64)> {
    let mut all = vec![(None, process.live_bytes.0)];
    for view in process.devices.iter().filter(|view| view.gpu.is_some()) {
        match all.iter_mut().find(|(gpu, _)| *gpu == view.gpu) {
            Some((_, bytes)) => *bytes = bytes.saturating_add(view.live_bytes.0),
            None => all.push((view.gpu, view.live_bytes.0)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use engine::ledger::Ledger;
    use engine::model::{
        Allocate, AllocationKey, DeviceId, Event, EventKind, MemoryKind, Pid, ProcessInfo, Tid,
    };
    use engine::snapshot::SnapshotOptions;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn apply(ledger: &mut Ledger, at: u64, pid: u32, kind: EventKind) {
        let at = Timestamp(at * SECOND);
        ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind });
    }

    fn allocate(ledger: &mut Ledger, at: u64, pid: u32, bytes: u64) {
        let kind = EventKind::Allocate(Allocate {
            key: AllocationKey::address(at << 8),
            kind: MemoryKind::Device,
            bytes,
            context: None,
            device: Some(DeviceId(0)),
            pool: None,
            stream: None,
            site: None,
        });
        apply(ledger, at, pid, kind);
    }

    #[test]
    fn growth_covers_the_last_minutes_and_new_processes() {
        let (mut ledger, mut history) = (Ledger::new(), HolderHistory::default());
        for (at, pid, before_trace) in [(1, 1, true), (900, 2, false)] {
            let info = ProcessInfo { start: 1, uid: 0, name: "p".into(), before_trace };
            apply(&mut ledger, at, pid, EventKind::Process(info));
            apply(&mut ledger, at, pid, EventKind::Gpus([Some(GpuId(4))].into()));
        }
        allocate(&mut ledger, 2, 1, 1000);
        let mut last = Snapshot::default();
        for at in 3..1000 {
            match at {
                500 => allocate(&mut ledger, at, 1, 5000),
                800 => allocate(&mut ledger, at, 1, 70),
                900 => allocate(&mut ledger, at, 2, 300),
                _ => {}
            }
            last = ledger.snapshot(Timestamp(at * SECOND), &SnapshotOptions::default());
            history.observe(&last);
        }
        for gpu in [None, Some(GpuId(4))] {
            let grown = history.growth(&last, gpu);
            let short: Vec<_> = grown.iter().map(|one| (one.pid.0, one.bytes)).collect();
            assert_eq!(short, [(2, 300), (1, 70)], "{gpu:?}");
            assert!(
                grown[1].within <= Nanos(300 * SECOND) && grown[1].within > Nanos(250 * SECOND)
            );
        }
        assert!(history.growth(&last, Some(GpuId(5))).is_empty());
    }
}
