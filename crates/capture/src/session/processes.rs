//! The process table: one entry per process owns everything that capture knows of it. Removing the
//! entry is the only cleanup.

use std::collections::HashMap;
use std::time::Instant;

use engine::model::container::Container;
use engine::model::ids::{GpuId, Pid, Tid};
use engine::model::units::{Nanos, Timestamp};

use super::attach::torch::TorchState;
use super::enrich::kernel_names::KernelNames;
use super::liveness::{is_alive, is_same_start, start_of};
use crate::decode::{ExecGeneration, Handles, Record, RecordBody};
use crate::stacks::ProcessStacks;

/// How often processes are checked although nothing was lost.
const SWEEP_INTERVAL: Nanos = Nanos::from_millis(10_000);

/// A program of a process: replaced when the process calls exec, or its pid is used again.
#[derive(Default)]
pub(crate) struct Process {
    /// Set when the process is announced to the ledger: by its first record, or because the driver
    /// reports memory of it.
    announced: Option<Announced>,
    pub(crate) scanned: Scanned,
    /// Streams and contexts.
    pub(crate) handles: Handles,
    pub(crate) kernel_names: KernelNames,
    pub(crate) stacks: Option<Box<ProcessStacks>>,
    /// GPUs of the device ordinals, as last reported.
    pub(crate) gpus: Vec<Option<GpuId>>,
    /// GPUs on which the driver lists the process.
    pub(crate) listed_on: Vec<GpuId>,
    /// The container as last reported, while names of it are missing, and the number of retries.
    pub(crate) unnamed_container: Option<(Container, u32)>,
    /// When the contexts of its threads were last requested.
    pub(crate) contexts_requested: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Announced {
    /// Start time, nanoseconds since boot; 0: unknown.
    start: u64,
    /// `None` if it made no traced call yet.
    exec_gen: Option<ExecGeneration>,
}

/// What was found in `/proc`, and when. Records are read later than `/proc`, so the end of the
/// program that ran before may still be in the ring.
#[derive(Default)]
pub(crate) struct Scanned {
    /// Start time; 0 if nothing was found yet.
    start: u64,
    /// The driver was mapped before it was probed: calls may have been missed.
    pub(crate) had_driver: Option<Timestamp>,
    pub(crate) torch: Option<TorchState>,
    /// The container, for a process that exits before its first record is read.
    pub(crate) container: Option<(Timestamp, Container)>,
}

impl Scanned {
    /// Returns what was found after the end of a program, if anything: it is of the next one.
    fn since(self, end: Timestamp) -> Option<Self> {
        let rest = Self {
            start: self.start,
            had_driver: self.had_driver.filter(|found| *found > end),
            torch: self.torch.filter(|torch| torch.found > end),
            container: self.container.filter(|(found, _)| *found > end),
        };
        let is_empty =
            rest.had_driver.is_none() && rest.torch.is_none() && rest.container.is_none();
        (!is_empty).then_some(rest)
    }
}

impl Process {
    /// Returns whether the process is announced, and its start time, 0 if that is unknown.
    fn instance(&self) -> (bool, u64) {
        let start = self.announced.map_or(self.scanned.start, |announced| announced.start);
        (self.announced.is_some(), start)
    }
}

/// All processes of the trace that have not exited.
#[derive(Default)]
pub(crate) struct ProcessTable {
    processes: HashMap<Pid, Process>,
    /// Processes found to have exited; their last records may still be in the ring.
    exited: Vec<(Pid, (bool, u64))>,
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
        if !is_same_start(process.scanned.start, start) {
            // Another process had the pid, which exited unseen.
            *process = Process::default();
        }
        process.announced = Some(Announced { start, exec_gen });
        process
    }

    /// Returns the process with this pid. The announcement of a new one may have been lost.
    pub(crate) fn entry(&mut self, pid: Pid) -> &mut Process {
        self.processes.entry(pid).or_default()
    }

    /// Returns the process that runs with this pid, to add what is found in `/proc`; `None` if it has
    /// exited.
    pub(crate) fn running(&mut self, pid: Pid) -> Option<&mut Process> {
        let start = start_of(pid)?;
        let process = self.entry(pid);
        if !is_same_start(process.scanned.start, start) {
            match process.announced {
                // The exit of an announced one is read later.
                Some(_) => process.scanned = Scanned::default(),
                None => *process = Process::default(),
            }
        }
        process.scanned.start = start;
        Some(process)
    }

    /// Removes the program of a process with this start time that ended at that time, and everything
    /// known of it.
    pub(crate) fn remove(&mut self, pid: Pid, start: u64, end: Timestamp) {
        let is_it = |process: &Process| is_same_start(process.instance().1, start);
        let Some(process) = self.processes.get_mut(&pid).filter(|process| is_it(process)) else {
            return;
        };
        match std::mem::take(process).scanned.since(end) {
            Some(scanned) => process.scanned = scanned,
            None => drop(self.processes.remove(&pid)),
        }
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

    /// Returns the stacks of a process, if it has any.
    pub(crate) fn stacks_mut(&mut self, pid: Pid) -> Option<&mut ProcessStacks> {
        self.processes.get_mut(&pid)?.stacks.as_deref_mut()
    }

    /// Returns the stacks of all processes.
    pub(crate) fn all_stacks_mut(&mut self) -> impl Iterator<Item = &mut ProcessStacks> {
        self.processes.values_mut().filter_map(|process| process.stacks.as_deref_mut())
    }

    /// Returns what was found in `/proc` of all processes.
    pub(crate) fn scanned_mut(&mut self) -> impl Iterator<Item = (Pid, &mut Scanned)> {
        self.processes.iter_mut().map(|(pid, process)| (*pid, &mut process.scanned))
    }

    /// Returns what was found in `/proc` of a process.
    pub(crate) fn scanned(&mut self, pid: Pid) -> Option<&mut Scanned> {
        Some(&mut self.processes.get_mut(&pid)?.scanned)
    }

    /// Returns whether the process with this start time mapped the driver before it was probed.
    pub(crate) fn predates_trace(&self, pid: Pid, start: u64) -> bool {
        self.processes.get(&pid).is_some_and(|process| {
            let scanned = &process.scanned;
            scanned.had_driver.is_some() && is_same_start(scanned.start, start)
        })
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
        let instances = self.processes.iter().map(|(pid, process)| (*pid, process.instance()));
        self.exited = instances.filter(|(pid, (_, start))| !is_alive(*pid, *start)).collect();
    }

    /// Returns the exits of processes that had exited before the ring was last emptied and whose
    /// exit record has not come since. Each has to be passed to [`ProcessTable::remove`].
    pub(crate) fn drain_dead(&mut self, now: Timestamp) -> Vec<Record> {
        let mut dead = Vec::new();
        for (pid, instance) in std::mem::take(&mut self.exited) {
            match self.processes.get(&pid).map(Process::instance) {
                Some(same @ (is_announced, _)) if same == instance => {
                    if is_announced {
                        dead.push(Record::at(pid, Tid(pid.0), now, RecordBody::Exit));
                    } else {
                        // Its exit is not reported.
                        self.processes.remove(&pid);
                    }
                }
                _ => {}
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
        table.remove(dead[0].pid, 5, Timestamp(2));
        table.sweep(Timestamp(3));
        assert!(table.drain_dead(Timestamp(4)).is_empty());
    }

    #[test]
    fn recorded_exit_is_not_reported_again() {
        let mut table = ProcessTable::default();
        table.announce(Pid(u32::MAX), 5, None);
        table.sweep(Timestamp(1));
        table.remove(Pid(u32::MAX), 5, Timestamp(1));
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

    #[test]
    fn findings_after_an_exec_belong_to_the_next_program() {
        let (pid, start) = (Pid(std::process::id()), start_of(Pid(std::process::id())).unwrap());
        for (end, is_kept) in [(90, true), (110, false)] {
            let mut table = ProcessTable::default();
            let process = table.running(pid).unwrap();
            process.scanned.had_driver = Some(Timestamp(100));
            table.announce(pid, start, None).gpus = vec![None];
            table.remove(pid, start, Timestamp(end));
            assert!(!table.contains(pid) && table.entry(pid).gpus.is_empty());
            assert_eq!(table.predates_trace(pid, start), is_kept, "{end}");
        }
    }

    #[test]
    fn end_of_an_older_process_with_the_pid_keeps_the_running_one() {
        let (pid, start) = (Pid(std::process::id()), start_of(Pid(std::process::id())).unwrap());
        let mut table = ProcessTable::default();
        table.running(pid).unwrap().scanned.had_driver = Some(Timestamp(100));
        table.remove(pid, start + 5_000_000_000, Timestamp(110));
        assert!(table.predates_trace(pid, start));
        assert!(!table.predates_trace(pid, start + 5_000_000_000));
        // The exit of the older process is read after `/proc`.
        let mut table = ProcessTable::default();
        table.announce(pid, 5, None);
        table.running(pid).unwrap().scanned.had_driver = Some(Timestamp(100));
        assert_eq!(table.start(pid), Some(5));
        table.remove(pid, 5, Timestamp(90));
        assert!(table.predates_trace(pid, start) && !table.contains(pid));
        table.announce(pid, start + 5_000_000_000, None);
        assert!(!table.predates_trace(pid, start), "it exited unseen");
    }
}
