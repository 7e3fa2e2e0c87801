//! Processes that ended during a trace, kept for its last report.

use std::collections::VecDeque;

use engine::snapshot::{ProcessView, Snapshot};

/// The most that are kept. Beyond it those that freed everything go first, then the oldest.
const MOST: usize = 4096;

/// The most allocations that all of them list together. Beyond it the oldest have their figures
/// only; a report has told of each before.
const MOST_LISTED: usize = 50_000;

/// Ended processes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    processes: VecDeque<ProcessView>,
    listed: usize,
    dropped: u64,
}

impl Ended {
    /// Keeps what the snapshot says of processes that ended.
    pub(crate) fn remember(&mut self, snapshot: Snapshot) {
        for process in snapshot.processes.into_iter().filter(|process| process.ended.is_some()) {
            if self.processes.len() >= MOST {
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

    /// Takes lists away from the oldest, never from the newest.
    fn shorten(&mut self) {
        let older = self.processes.len().saturating_sub(1);
        for process in self.processes.iter_mut().take(older) {
            if self.listed <= MOST_LISTED {
                return;
            }
            self.listed -= listed(process);
            for thread in &mut process.threads {
                thread.allocations = Vec::new();
            }
        }
    }

    /// Adds those of earlier snapshots to the last one.
    pub(crate) fn recall_into(&mut self, last: &mut Snapshot) {
        self.listed = 0;
        last.processes.extend(self.processes.drain(..));
    }

    /// How many could not be kept.
    pub(crate) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

fn listed(process: &ProcessView) -> usize {
    process.threads.iter().map(|thread| thread.allocations.len()).sum()
}

#[cfg(test)]
mod tests {
    use engine::event::{Allocate, Event, ProcessFacts, What};
    use engine::ids::{Key, Pid, Tid};
    use engine::kind::Kind;
    use engine::ledger::Ledger;
    use engine::snapshot::View;
    use engine::units::Moment;

    use super::*;

    /// What a report says of a process that ended with so many allocations.
    fn report(pid: u32, allocations: u64) -> Snapshot {
        let mut ledger = Ledger::new();
        let at = Moment(1);
        let event = |what| Event { pid: Pid(pid), tid: Tid(pid), entered: at, at, what };
        let name = "program".into();
        let facts = ProcessFacts { start: 1, uid: 0, name, before_trace: false };
        ledger.apply(&event(What::Process(facts)));
        for value in 1..=allocations {
            ledger.apply(&event(What::Allocate(Allocate {
                key: Key::address(value),
                kind: Kind::Device,
                bytes: 1,
                context: None,
                device: None,
                pool: None,
                stream: None,
                site: None,
            })));
        }
        ledger.apply(&event(What::Exit));
        ledger.snapshot(at, &View { top: usize::MAX, ..View::default() })
    }

    #[test]
    fn lists_of_the_oldest_go_when_there_are_too_many_and_their_figures_stay() {
        let (mut ended, mut last) = (Ended::default(), Snapshot::default());
        for pid in 1..=6 {
            ended.remember(report(pid, 10_000));
        }
        ended.recall_into(&mut last);
        let lists: Vec<usize> = last.processes.iter().map(listed).collect();
        assert_eq!(lists, [0, 10_000, 10_000, 10_000, 10_000, 10_000]);
        assert!(last.processes.iter().all(|process| process.live_allocations == 10_000));
    }

    #[test]
    fn the_newest_process_keeps_its_list_however_long_it_is() {
        let (mut ended, mut last) = (Ended::default(), Snapshot::default());
        ended.remember(report(1, 10));
        ended.remember(report(2, 60_000));
        ended.recall_into(&mut last);
        assert_eq!(last.processes.iter().map(listed).collect::<Vec<_>>(), [0, 60_000]);
    }

    #[test]
    fn beyond_the_most_a_process_that_freed_everything_goes_first() {
        let (mut ended, mut last) = (Ended::default(), Snapshot::default());
        ended.remember(report(1, 3));
        ended.remember(report(2, 0));
        for pid in 3..=4097 {
            ended.remember(report(pid, 1));
        }
        assert_eq!((ended.dropped(), ended.listed), (1, 3 + 4095));
        ended.recall_into(&mut last);
        assert!(last.processes.iter().all(|process| process.key.pid != Pid(2)));
    }
}
