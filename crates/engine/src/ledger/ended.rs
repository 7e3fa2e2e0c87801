//! Processes that ended since the last snapshot. They are kept in full until then, because the
//! snapshot options decide what is shown of them.

use std::collections::VecDeque;

use super::process::Process;

/// Limit of kept processes; beyond it they are only counted, those without live memory first.
const KEPT: usize = 10_000;

/// Ended processes, with the order in which they ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    clean: VecDeque<(u64, Process)>,
    leaked: VecDeque<(u64, Process)>,
    count: u64,
    /// Number of processes dropped so far.
    pub(super) dropped: u64,
}

impl Ended {
    pub(super) fn push(&mut self, process: Process) {
        self.count += 1;
        let list = if process.totals.count == 0 { &mut self.clean } else { &mut self.leaked };
        list.push_back((self.count, process));
        if self.clean.len() + self.leaked.len() > KEPT {
            if self.clean.pop_front().is_none() {
                self.leaked.pop_front();
            }
            self.dropped += 1;
        }
    }

    /// The most recently ended process that matches `wanted`.
    pub(super) fn latest(&mut self, wanted: impl Fn(&Process) -> bool) -> Option<&mut Process> {
        let all = self.clean.iter_mut().chain(&mut self.leaked);
        all.filter(|(_, process)| wanted(process)).max_by_key(|(order, _)| *order).map(|(_, p)| p)
    }

    /// Removes and returns all, in the order in which they ended.
    pub(super) fn take(&mut self) -> Vec<Process> {
        let mut all: Vec<_> = self.clean.drain(..).chain(self.leaked.drain(..)).collect();
        all.sort_by_key(|(order, _)| *order);
        all.into_iter().map(|(_, process)| process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Allocate, Event, What};
    use crate::ids::{Key, Pid, Tid};
    use crate::kind::Kind;
    use crate::units::Moment;

    fn process(pid: u32, leaks: bool) -> Process {
        let mut process = Process::anonymous(Pid(pid), Moment(0));
        if leaks {
            let allocate = Allocate {
                key: Key::address(1),
                kind: Kind::Device,
                bytes: 1,
                context: None,
                device: None,
                pool: None,
                stream: None,
                site: None,
            };
            let what = What::Allocate(allocate);
            let at = Moment(1);
            let event = Event { pid: Pid(pid), tid: Tid(pid), entered: at, at, what };
            process.allocate(&event, &allocate).unwrap();
        }
        process
    }

    #[test]
    fn processes_without_memory_are_dropped_first_and_counted() {
        let mut ended = Ended::default();
        ended.push(process(1, true));
        ended.push(process(2, false));
        for pid in 3..KEPT as u32 + 3 {
            ended.push(process(pid, pid % 2 == 0));
        }
        let kept = ended.take();
        assert_eq!((kept.len(), ended.dropped), (KEPT, 2));
        let pids: Vec<_> = kept.iter().take(3).map(|process| process.key.pid.0).collect();
        assert_eq!(pids, [1, 4, 5]);
        assert!(ended.take().is_empty());
    }
}
