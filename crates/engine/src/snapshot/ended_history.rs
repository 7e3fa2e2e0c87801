//! Processes that exited during a trace, kept for its final report.

use std::collections::VecDeque;

use super::{ProcessView, Snapshot};

/// Maximum number of kept processes. Beyond it, processes that freed everything are dropped first,
/// then the oldest.
const MAX_ENDED_PROCESSES: usize = 4096;

/// Maximum number of allocations listed for all of them together. Beyond it, the oldest keep only
/// their totals; an earlier report has listed their allocations.
const MAX_LISTED_ALLOCATIONS: usize = 50_000;

/// Exited processes, oldest first.
#[derive(Debug, Default)]
pub struct EndedHistory {
    processes: VecDeque<ProcessView>,
    listed: usize,
    dropped: u64,
}

impl EndedHistory {
    /// Keeps the exited processes of the snapshot.
    pub fn push_snapshot(&mut self, snapshot: Snapshot) {
        for process in snapshot.processes.into_iter().filter(|process| process.ended.is_some()) {
            if self.processes.len() >= MAX_ENDED_PROCESSES {
                let clean = self.processes.iter().position(|p| p.live_allocations == 0);
                let removed = self.processes.remove(clean.unwrap_or(0));
                self.listed -= removed.as_ref().map_or(0, listed);
                self.dropped += 1;
            }
            self.listed += listed(&process);
            self.processes.push_back(process);
            self.shorten();
        }
    }

    /// Drops the lists of the oldest processes, never of the newest.
    fn shorten(&mut self) {
        let older = self.processes.len().saturating_sub(1);
        for process in self.processes.iter_mut().take(older) {
            if self.listed <= MAX_LISTED_ALLOCATIONS {
                return;
            }
            self.listed -= listed(process);
            for thread in &mut process.threads {
                thread.allocations = Vec::new();
            }
        }
    }

    /// Adds the exited processes of earlier snapshots to the last one, the newest first.
    pub fn merge_into(&mut self, last: &mut Snapshot) {
        self.listed = 0;
        last.processes.extend(self.processes.drain(..).rev());
    }

    /// Number of processes that could not be kept.
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn listed(process: &ProcessView) -> usize {
    process.threads.iter().map(|thread| thread.allocations.len()).sum()
}

#[cfg(test)]
mod tests {
    use crate::ledger::Ledger;
    use crate::model::event::{Allocate, Event, EventKind, ProcessInfo};
    use crate::model::ids::{AllocationKey, Pid, Tid};
    use crate::model::memory_kind::MemoryKind;
    use crate::model::units::Timestamp;
    use crate::snapshot::SnapshotOptions;

    use super::*;

    /// Returns the report of a process that exited with this number of allocations.
    fn report(pid: u32, allocations: u64) -> Snapshot {
        let mut ledger = Ledger::new();
        let at = Timestamp(1);
        let event = |kind| Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind };
        let name = "program".into();
        let info = ProcessInfo { start: 1, uid: 0, name, before_trace: false };
        ledger.apply(&event(EventKind::Process(info)));
        for value in 1..=allocations {
            ledger.apply(&event(EventKind::Allocate(Allocate {
                key: AllocationKey::address(value),
                kind: MemoryKind::Device,
                bytes: 1,
                context: None,
                device: None,
                pool: None,
                stream: None,
                site: None,
            })));
        }
        ledger.apply(&event(EventKind::Exit));
        ledger.snapshot(at, &SnapshotOptions { top: usize::MAX, ..SnapshotOptions::default() })
    }

    #[test]
    fn oldest_lists_are_dropped_but_totals_stay() {
        let (mut ended, mut last) = (EndedHistory::default(), Snapshot::default());
        for pid in 1..=6 {
            ended.push_snapshot(report(pid, 10_000));
        }
        ended.merge_into(&mut last);
        let lists: Vec<usize> = last.processes.iter().map(listed).collect();
        assert_eq!(lists, [10_000, 10_000, 10_000, 10_000, 10_000, 0]);
        assert!(last.processes.iter().all(|process| process.live_allocations == 10_000));
    }

    #[test]
    fn newest_process_keeps_its_list() {
        let (mut ended, mut last) = (EndedHistory::default(), Snapshot::default());
        ended.push_snapshot(report(1, 10));
        ended.push_snapshot(report(2, 60_000));
        ended.merge_into(&mut last);
        assert_eq!(last.processes.iter().map(listed).collect::<Vec<_>>(), [60_000, 0]);
    }

    #[test]
    fn processes_without_leaks_are_dropped_first() {
        let (mut ended, mut last) = (EndedHistory::default(), Snapshot::default());
        ended.push_snapshot(report(1, 3));
        ended.push_snapshot(report(2, 0));
        for pid in 3..=4097 {
            ended.push_snapshot(report(pid, 1));
        }
        assert_eq!((ended.dropped(), ended.listed), (1, 3 + 4095));
        ended.merge_into(&mut last);
        assert!(last.processes.iter().all(|process| process.key.pid != Pid(2)));
    }
}
