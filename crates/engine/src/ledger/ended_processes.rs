//! Processes that ended since the last snapshot. They are kept in full until then, because the
//! snapshot options decide what is shown of them.

use std::collections::VecDeque;

use super::process::Process;

/// Limit of kept processes; beyond it they are only counted, those without live memory first.
const MAX_ENDED_PROCESSES: usize = 10_000;

/// Ended processes, with the order in which they ended.
#[derive(Debug, Default)]
pub(super) struct EndedProcesses {
    clean: VecDeque<(u64, Process)>,
    leaked: VecDeque<(u64, Process)>,
    count: u64,
    /// Number of processes dropped so far.
    pub(super) dropped: u64,
}

impl EndedProcesses {
    pub(super) fn push(&mut self, process: Process) {
        self.count += 1;
        let list = if process.totals.count == 0 { &mut self.clean } else { &mut self.leaked };
        list.push_back((self.count, process));
        if self.clean.len() + self.leaked.len() > MAX_ENDED_PROCESSES {
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
    pub(super) fn drain(&mut self) -> Vec<Process> {
        let mut all: Vec<_> = self.clean.drain(..).chain(self.leaked.drain(..)).collect();
        all.sort_by_key(|(order, _)| *order);
        all.into_iter().map(|(_, process)| process).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::{Allocate, Event, EventKind};
    use crate::model::ids::{AllocationKey, Pid, Tid};
    use crate::model::memory_kind::MemoryKind;
    use crate::model::units::Timestamp;

    fn process(pid: u32, leaks: bool) -> Process {
        let mut process = Process::unannounced(Pid(pid), Timestamp(0));
        if leaks {
            let allocate = Allocate {
                key: AllocationKey::address(1),
                kind: MemoryKind::Device,
                bytes: 1,
                context: None,
                device: None,
                pool: None,
                stream: None,
                site: None,
            };
            let kind = EventKind::Allocate(allocate);
            let at = Timestamp(1);
            let event = Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind };
            process.allocate(&event, &allocate).unwrap();
        }
        process
    }

    #[test]
    fn processes_without_memory_are_dropped_first_and_counted() {
        let mut ended = EndedProcesses::default();
        ended.push(process(1, true));
        ended.push(process(2, false));
        for pid in 3..MAX_ENDED_PROCESSES as u32 + 3 {
            ended.push(process(pid, pid % 2 == 0));
        }
        let processes = ended.drain();
        assert_eq!((processes.len(), ended.dropped), (MAX_ENDED_PROCESSES, 2));
        let pids: Vec<_> = processes.iter().take(3).map(|process| process.key.pid.0).collect();
        assert_eq!(pids, [1, 4, 5]);
        assert!(ended.drain().is_empty());
    }
}
