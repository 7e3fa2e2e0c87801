//! Processes that ended during a trace, kept for its last report.

use std::collections::VecDeque;

use engine::snapshot::{ProcessView, Snapshot};

/// The most that are kept. Beyond it those that freed everything go first, then the oldest.
const MOST: usize = 4096;

/// Ended processes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    processes: VecDeque<ProcessView>,
    dropped: u64,
}

impl Ended {
    /// Keeps what the snapshot says of processes that ended.
    pub(crate) fn remember(&mut self, snapshot: Snapshot) {
        for process in snapshot.processes.into_iter().filter(|process| process.ended.is_some()) {
            if self.processes.len() >= MOST {
                let clean = self.processes.iter().position(|p| p.live_allocations == 0);
                self.processes.remove(clean.unwrap_or(0));
                self.dropped += 1;
            }
            self.processes.push_back(process);
        }
    }

    /// Adds those of earlier snapshots to the last one.
    pub(crate) fn recall_into(&mut self, last: &mut Snapshot) {
        last.processes.extend(self.processes.drain(..));
    }

    /// How many could not be kept.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}
