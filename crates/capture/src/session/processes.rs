//! The process table: one entry per process owns everything that capture knows of it. Removing the
//! entry is the only cleanup.

use std::collections::HashMap;

use engine::model::container::Container;
use engine::model::ids::{GpuId, Pid, Tid};
use engine::model::units::{Nanos, Timestamp};

use super::enrich::kernel_names::KernelNames;
use super::liveness::{is_alive, is_same_start};
use crate::decode::{ExecGeneration, Handles, Record, RecordBody};

/// How often processes are checked although nothing was lost.
const SWEEP_INTERVAL: Nanos = Nanos::from_millis(10_000);

/// A program of a process: replaced when the process calls exec, or its pid is used again.
#[derive(Default)]
pub(crate) struct Process {
    /// Set when the process is announced to the ledger: by its first record, or because the driver
    /// reports memory of it.
    announced: Option<Announced>,
    /// Streams and contexts.
    pub(crate) handles: Handles,
    pub(crate) kernel_names: KernelNames,
    /// GPUs of the device ordinals, as last reported.
    pub(crate) gpus: Vec<Option<GpuId>>,
    /// GPUs on which the driver lists the process.
    pub(crate) listed_on: Vec<GpuId>,
    /// The container as last reported, while names of it are missing, and the number of retries.
    pub(crate) unnamed_container: Option<(Container, u32)>,
}

#[derive(Clone, Copy)]
struct Announced {
    /// Start time, nanoseconds since boot; 0: unknown.
    start: u64,
    /// `None` if it made no traced call yet.
    exec_gen: Option<ExecGeneration>,
}

/// All processes of the trace that have not exited.
#[derive(Default)]
pub(crate) struct ProcessTable {
    processes: HashMap<Pid, Process>,
    /// Processes found to have exited, with their start times; their last records may still be in
    /// the ring.
    exited: Vec<(Pid, Option<u64>)>,
    last_sweep: Timestamp,
}

impl ProcessTable {
    /// Announces a process. Keeps what is known of it.
    pub(crate) fn announce(
        &mut self,
        pid: Pid,
        start: u64,
        exec_gen: Option<ExecGeneration>,
    ) -> &mut Process {
        let process = self.entry(pid);
        process.announced = Some(Announced { start, exec_gen });
        process
    }

    /// Returns the process with this pid. The announcement of a new one may have been lost.
    pub(crate) fn entry(&mut self, pid: Pid) -> &mut Process {
        self.processes.entry(pid).or_default()
    }

    /// Removes a process that exited or called exec, and everything known of it.
    pub(crate) fn remove(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Returns an announced process.
    pub(crate) fn get_mut(&mut self, pid: Pid) -> Option<&mut Process> {
        self.processes.get_mut(&pid).filter(|process| process.announced.is_some())
    }

    /// Returns the announced processes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Pid, &mut Process)> {
        let announced =
            self.processes.iter_mut().filter(|(_, process)| process.announced.is_some());
        announced.map(|(pid, process)| (*pid, process))
    }

    fn announced(&self, pid: Pid) -> Option<Announced> {
        self.processes.get(&pid)?.announced
    }

    /// Returns whether a process is announced.
    pub(crate) fn contains(&self, pid: Pid) -> bool {
        self.announced(pid).is_some()
    }

    /// Returns the start time of an announced process.
    pub(crate) fn start(&self, pid: Pid) -> Option<u64> {
        self.announced(pid).map(|process| process.start)
    }

    /// Returns the exec generation of an announced process that made traced calls.
    pub(crate) fn exec_gen(&self, pid: Pid) -> Option<ExecGeneration> {
        self.announced(pid)?.exec_gen
    }

    /// Returns whether the known process with this pid is another one, whose exit was not reported.
    pub(crate) fn is_reused(&self, pid: Pid, start: u64) -> bool {
        self.start(pid).is_some_and(|known| !is_same_start(known, start))
    }

    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        now - self.last_sweep >= SWEEP_INTERVAL
    }

    /// Checks which processes have exited.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        self.last_sweep = now;
        let start = |process: &Process| process.announced.map(|announced| announced.start);
        let starts = self.processes.iter().map(|(pid, process)| (*pid, start(process)));
        self.exited = starts.filter(|(pid, start)| !is_alive(*pid, start.unwrap_or(0))).collect();
    }

    /// Returns the exits of processes that had exited before the ring was last emptied and whose
    /// exit record has not come since. Each has to be passed to [`ProcessTable::remove`].
    pub(crate) fn drain_dead(&mut self, now: Timestamp) -> Vec<Record> {
        let mut dead = Vec::new();
        for (pid, start) in std::mem::take(&mut self.exited) {
            match start {
                _ if self.start(pid) != start => {}
                Some(_) => dead.push(Record::at(pid, Tid(pid.0), now, RecordBody::Exit)),
                // It was not announced, so its exit is not reported.
                None => self.remove(pid),
            }
        }
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missed_exit_is_reported_once() {
        let mut table = ProcessTable::default();
        table.announce(Pid(u32::MAX), 5, None);
        assert!(table.drain_dead(Timestamp(1)).is_empty());
        table.sweep(Timestamp(1));
        let dead = table.drain_dead(Timestamp(2));
        assert_eq!(dead.len(), 1);
        // As the session does with every exit.
        table.remove(dead[0].pid);
        table.sweep(Timestamp(3));
        assert!(table.drain_dead(Timestamp(4)).is_empty());
    }

    #[test]
    fn recorded_exit_is_not_reported_again() {
        let mut table = ProcessTable::default();
        table.announce(Pid(u32::MAX), 5, None);
        table.sweep(Timestamp(1));
        table.remove(Pid(u32::MAX));
        assert!(table.drain_dead(Timestamp(2)).is_empty());
    }

    #[test]
    fn missed_exit_does_not_end_the_process_that_reuses_the_pid() {
        let pid = Pid(u32::MAX);
        let mut table = ProcessTable::default();
        table.announce(pid, 5, None);
        table.sweep(Timestamp(1));
        table.announce(pid, 50_000_000_000, None);
        assert!(table.drain_dead(Timestamp(2)).is_empty());
        assert_eq!(table.start(pid), Some(50_000_000_000));
    }

    #[test]
    fn pid_reuse_is_detected_by_start_time() {
        let mut table = ProcessTable::default();
        table.announce(Pid(7), 50_000_007, None);
        assert!(!table.is_reused(Pid(7), 0) && !table.is_reused(Pid(8), 5));
        assert!(table.is_reused(Pid(7), 50_000_009));
    }

    #[test]
    fn unannounced_process_is_dropped_when_it_is_gone() {
        let mut table = ProcessTable::default();
        table.entry(Pid(u32::MAX)).gpus = vec![None];
        assert!(!table.contains(Pid(u32::MAX)));
        table.sweep(Timestamp(1));
        assert!(table.drain_dead(Timestamp(2)).is_empty() && table.processes.is_empty());
    }
}
