//! Memory by phase: between the marks of a file.

use hashbrown::HashMap;

use super::{Delta, MemoryScope, RunningSum};
use crate::model::{AllocationChange, Phase, Pid, Timestamp};

/// Memory of a phase: of its process, or of all processes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PhaseUsage {
    /// The phase.
    pub phase: Phase,
    /// Live memory at its start.
    pub begin_bytes: u64,
    /// Highest live memory in it.
    pub peak_bytes: u64,
    /// Live memory at its end, or at the end of the file.
    pub end_bytes: u64,
}

/// Computes the memory of phases that are known in advance.
#[derive(Clone, Debug)]
pub struct PhaseAnalysis {
    scope: MemoryScope,
    rows: Vec<PhaseUsage>,
    /// Starts and ends, in order: time, and index of the row; of a start or of an end.
    bounds: Vec<(Timestamp, usize, bool)>,
    /// Number of bounds that are in the past.
    passed: usize,
    /// Indices of the phases that are open.
    open: Vec<usize>,
    /// Live memory by process, and of all.
    live: HashMap<Option<Pid>, RunningSum>,
}

impl PhaseAnalysis {
    /// Creates an analysis.
    pub fn new(scope: MemoryScope, phases: Vec<Phase>) -> Self {
        let begins = phases.iter().enumerate().map(|(row, phase)| (phase.begin, row, true));
        let ends = phases.iter().enumerate();
        let ends = ends.filter_map(|(row, phase)| Some((phase.end?, row, false)));
        let mut bounds: Vec<_> = begins.chain(ends).collect();
        // A phase of no length begins before it ends.
        bounds.sort_by_key(|(at, row, is_begin)| (*at, *row, !is_begin));
        let row = |phase| PhaseUsage { phase, begin_bytes: 0, peak_bytes: 0, end_bytes: 0 };
        let rows = phases.into_iter().map(row).collect();
        Self { scope, rows, bounds, passed: 0, open: Vec::new(), live: HashMap::new() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        self.pass(|at| at < change.at);
        for delta in Delta::of(change).filter(|delta| self.scope.counts(delta.key.kind)) {
            for pid in [None, Some(change.pid)] {
                delta.apply(self.live.entry(pid).or_default());
            }
        }
        for row in &self.open {
            let Some(usage) = self.rows.get_mut(*row) else { continue };
            let live = self.live.get(&usage.phase.pid).map_or(0, |live| live.value());
            usage.peak_bytes = usage.peak_bytes.max(live);
        }
    }

    /// Opens and closes the phases up to a time.
    fn pass(&mut self, is_past: impl Fn(Timestamp) -> bool) {
        while let Some((_, row, is_begin)) =
            self.bounds.get(self.passed).copied().filter(|(at, ..)| is_past(*at))
        {
            self.passed += 1;
            let Some(usage) = self.rows.get_mut(row) else { continue };
            let live = self.live.get(&usage.phase.pid).map_or(0, |live| live.value());
            if is_begin {
                (usage.begin_bytes, usage.peak_bytes) = (live, live);
                self.open.push(row);
            } else {
                usage.end_bytes = live;
                self.open.retain(|open| *open != row);
            }
        }
    }

    /// Returns the phases, ordered by their start.
    pub fn finish(mut self) -> Vec<PhaseUsage> {
        self.pass(|_| true);
        for row in self.open {
            let Some(usage) = self.rows.get_mut(row) else { continue };
            usage.end_bytes = self.live.get(&usage.phase.pid).map_or(0, |live| live.value());
        }
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AllocationKey, ChangeKind, EndReason, Mark, MarkKind, MemoryKind, Tid};

    fn change(at: u64, pid: u32, key: u64, bytes: u64, is_end: bool) -> AllocationChange {
        let ended = ChangeKind::Ended { allocated_at: Timestamp(0), reason: EndReason::Freed };
        AllocationChange {
            at: Timestamp(at),
            action: if is_end { ended } else { ChangeKind::Allocated },
            pid: Pid(pid),
            tid: Tid(pid),
            device: None,
            kind: MemoryKind::Device,
            key: AllocationKey::address(key),
            bytes,
            pool: None,
            stream: None,
            site: None,
        }
    }

    #[test]
    fn memory_of_phases_counts_their_process_or_all() {
        let mark = |at, pid: u32, kind, label: &str| Mark {
            at: Timestamp(at),
            pid: (pid != 0).then_some(Pid(pid)),
            kind,
            label: label.into(),
        };
        let marks = [
            mark(10, 1, MarkKind::Point, "epoch 1"),
            mark(10, 0, MarkKind::Begin, "host"),
            mark(20, 1, MarkKind::Point, "epoch 2"),
            mark(35, 0, MarkKind::End, "host"),
        ];
        let mut analysis = PhaseAnalysis::new(MemoryScope::Device, Phase::of(&marks));
        for one in [
            change(10, 1, 1, 100, false),
            change(12, 2, 1, 7, false),
            change(15, 1, 2, 50, false),
            change(16, 1, 2, 50, true),
            change(30, 1, 3, 200, false),
            change(40, 1, 4, 1000, false),
        ] {
            analysis.observe(&one);
        }
        let rows: Vec<_> = analysis
            .finish()
            .iter()
            .map(|one| {
                let label = one.phase.label.to_string();
                (label, one.begin_bytes, one.peak_bytes, one.end_bytes)
            })
            .collect();
        let expected =
            [("epoch 1", 100, 150, 100), ("host", 100, 307, 307), ("epoch 2", 100, 1300, 1300)];
        assert_eq!(rows, expected.map(|(label, a, b, c)| (label.to_owned(), a, b, c)));
    }
}
