//! The process table: an entry per program owns everything that capture knows of it. A program is a
//! process between two execs; its key is the pid, the start time of the process and the exec
//! generation. Removing the entry is the only cleanup.

use std::collections::HashMap;
use std::time::Instant;

use engine::model::container::Container;
use engine::model::event::{Event, LostDelta};
use engine::model::ids::{GpuId, Pid, Tid};
use engine::model::mig::MigInstance;
use engine::model::units::{Nanos, Timestamp};

use super::attach::allocators::AllocatorState;
use super::enrich::kernel_names::KernelNames;
use super::liveness::{is_alive, is_same_start, start_of};
use super::read::activity::ProgramActivity;
use super::read::losses::ProgramLosses;
use crate::decode::{ExecGeneration, Handles, Record, RecordBody};
use crate::stacks::ProcessStacks;

/// How often processes are checked although nothing was lost.
const SWEEP_INTERVAL: Nanos = Nanos::from_millis(10_000);

/// The key of a program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Program {
    pub(crate) pid: Pid,
    pub(crate) start: u64,
    pub(crate) exec_gen: ExecGeneration,
}

impl Program {
    /// The key of counters of unknown processes.
    pub(crate) const UNKNOWN: Self = Self { pid: Pid(0), start: 0, exec_gen: ExecGeneration(0) };

    /// Returns the exec generation after it.
    pub(crate) const fn next(&self) -> ExecGeneration {
        ExecGeneration(self.exec_gen.0.wrapping_add(1))
    }
}

/// A program of a process.
#[derive(Default)]
pub(crate) struct Process {
    /// Start time, nanoseconds since boot; that of `/proc` is rounded; 0: unknown.
    start: u64,
    /// `None` until a probe reports it.
    exec_gen: Option<ExecGeneration>,
    /// It is announced to the ledger: by its first record, or because the driver reports memory of
    /// it.
    is_announced: bool,
    pub(crate) scanned: Scanned,
    /// Streams and contexts.
    pub(crate) handles: Handles,
    pub(crate) kernel_names: KernelNames,
    pub(crate) stacks: Option<Box<ProcessStacks>>,
    /// GPUs of the device ordinals, as last reported.
    pub(crate) gpus: Vec<Option<GpuId>>,
    /// MIG instance, as last reported.
    pub(crate) mig: Option<MigInstance>,
    /// GPUs on which the driver lists the process.
    pub(crate) listed_on: Vec<GpuId>,
    /// The container as last reported, while names of it are missing, and the number of retries.
    pub(crate) unnamed_container: Option<(Container, u32)>,
    /// When the contexts of its threads were last requested.
    pub(crate) contexts_requested: Option<Instant>,
    pub(crate) activity: ProgramActivity,
    pub(crate) losses: ProgramLosses,
}

/// What was found in `/proc`, and when. Records are read later than `/proc`, so the end of the
/// program that ran before may still be in the ring.
#[derive(Default)]
pub(crate) struct Scanned {
    /// The driver was mapped before it was probed: calls may have been missed.
    pub(crate) had_driver: Option<Timestamp>,
    pub(crate) allocators: Option<AllocatorState>,
    /// The container, for a process that exits before its first record is read.
    pub(crate) container: Option<(Timestamp, Container)>,
}

impl Scanned {
    /// Returns what was found after the end of a program, if anything: it is of the next one.
    fn since(self, end: Timestamp) -> Option<Self> {
        let rest = Self {
            had_driver: self.had_driver.filter(|found| *found > end),
            allocators: self.allocators.filter(|state| state.found > end),
            container: self.container.filter(|(found, _)| *found > end),
        };
        let is_empty =
            rest.had_driver.is_none() && rest.allocators.is_none() && rest.container.is_none();
        (!is_empty).then_some(rest)
    }
}

impl Process {
    fn of(start: u64, exec_gen: Option<ExecGeneration>) -> Self {
        Self { start, exec_gen, ..Self::default() }
    }

    fn is_same(&self, start: u64) -> bool {
        is_same_start(self.start, start)
    }

    fn is_program(&self, program: &Program) -> bool {
        self.start == program.start && self.exec_gen == Some(program.exec_gen)
    }

    /// Returns whether it has ended if a process with this start time has exited, or runs the exec
    /// generation `next` since.
    fn has_ended(&self, start: u64, next: Option<ExecGeneration>) -> bool {
        let is_older = self.start != 0 && self.start < start;
        let is_before =
            || self.exec_gen.zip(next).is_none_or(|(exec_gen, next)| exec_gen.is_before(next));
        if self.is_same(start) { is_before() } else { is_older }
    }
}

/// The program that the counters of a program are counted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// The one that is announced with its pid; or it will never be known.
    Announced,
    /// One that was not announced, or a later one of the announced process.
    Unannounced,
    /// One that ended: the announced one is newer, or another process.
    Other,
}

/// A process that exited without a record of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DeadProcess {
    pub(crate) pid: Pid,
    pub(crate) start: u64,
    pub(crate) is_announced: bool,
}

impl DeadProcess {
    /// Returns the record of its exit.
    pub(crate) const fn exit(&self, now: Timestamp) -> Record {
        Record::at(self.pid, Tid(self.pid.0), now, RecordBody::Exit)
    }
}

/// Activity and losses that are not events yet.
#[derive(Default)]
pub(crate) struct Remaining {
    pub(crate) activity: Vec<Event>,
    pub(crate) lost: LostDelta,
}

impl Remaining {
    /// Takes those of programs that are removed.
    pub(crate) fn of(programs: Vec<Process>) -> Self {
        programs.into_iter().fold(Self::default(), |mut sum, mut program| {
            sum.activity.append(&mut program.activity.pending);
            sum.lost = sum.lost.combined(&program.losses.take(), u64::saturating_add);
            sum
        })
    }
}

/// All programs of the trace that have not ended, by pid; the oldest one of a pid comes first. At
/// most one of a pid is announced. Records are those of the announced one; `/proc` shows the newest.
#[derive(Default)]
pub(crate) struct ProcessTable {
    programs: HashMap<Pid, Vec<Process>>,
    /// Processes found to have exited; their last records may still be in the ring.
    exited: Vec<DeadProcess>,
    last_sweep: Timestamp,
}

impl ProcessTable {
    /// Announces a program. Keeps what is known of it.
    pub(crate) fn announce(
        &mut self,
        pid: Pid,
        start: u64,
        exec_gen: Option<ExecGeneration>,
    ) -> &mut Process {
        let all = self.programs.entry(pid).or_default();
        let mut take = |wanted: &dyn Fn(&Process) -> bool| {
            let index = all.iter().position(wanted)?;
            Some(all.remove(index))
        };
        let known = take(&|one| one.is_announced || one.exec_gen.is_none() && one.is_same(start));
        let mut process = known.unwrap_or_default();
        let counted = take(&|one| one.exec_gen == exec_gen && one.start == start);
        if let Some(counted) = counted {
            (process.activity, process.losses) = (counted.activity, counted.losses);
        }
        (process.start, process.exec_gen, process.is_announced) = (start, exec_gen, true);
        all.insert(0, process);
        &mut all[0]
    }

    /// Returns the program that records of a pid are of. The announcement of a new one may have been
    /// lost.
    pub(crate) fn entry(&mut self, pid: Pid) -> &mut Process {
        let is_current = |one: &Process| one.is_announced || one.exec_gen.is_none();
        self.find_or_insert(pid, is_current, Process::default)
    }

    /// Returns a program, to add counters.
    pub(crate) fn program(&mut self, program: Program) -> &mut Process {
        let new = || Process::of(program.start, Some(program.exec_gen));
        self.find_or_insert(program.pid, |one| one.is_program(&program), new)
    }

    /// Returns a program that has not ended.
    pub(crate) fn existing(&mut self, program: &Program) -> Option<&mut Process> {
        let all = self.programs.get_mut(&program.pid)?;
        all.iter_mut().find(|one| one.is_program(program))
    }

    /// Returns the process that runs with this pid, to add what is found in `/proc`; `None` if it has
    /// exited.
    pub(crate) fn running(&mut self, pid: Pid) -> Option<&mut Process> {
        let start = start_of(pid)?;
        let is_it =
            |one: &Process| one.is_same(start) && (one.is_announced || one.exec_gen.is_none());
        let process = self.find_or_insert(pid, is_it, || Process::of(start, None));
        if process.start == 0 {
            process.start = start;
        }
        Some(process)
    }

    fn find_or_insert(
        &mut self,
        pid: Pid,
        is_wanted: impl Fn(&Process) -> bool,
        new: impl FnOnce() -> Process,
    ) -> &mut Process {
        let all = self.programs.entry(pid).or_default();
        let index = all.iter().position(is_wanted).unwrap_or_else(|| {
            all.push(new());
            all.len() - 1
        });
        &mut all[index]
    }

    /// Removes the programs of a process with this start time that exited at that time, or runs the
    /// exec generation `next` since, and those of earlier processes with the pid. They own everything
    /// that is known of them.
    pub(crate) fn end(
        &mut self,
        pid: Pid,
        start: u64,
        next: Option<ExecGeneration>,
        at: Timestamp,
    ) -> Vec<Process> {
        let Some(all) = self.programs.get_mut(&pid) else { return Vec::new() };
        let mut ended: Vec<_> = all.extract_if(.., |one| one.has_ended(start, next)).collect();
        for one in &mut ended {
            if one.is_same(start)
                && let Some(scanned) = std::mem::take(&mut one.scanned).since(at)
            {
                all.push(Process { scanned, ..Process::of(one.start, None) });
            }
        }
        if all.is_empty() {
            self.programs.remove(&pid);
        }
        ended
    }

    /// Returns an announced process.
    pub(crate) fn get_mut(&mut self, pid: Pid) -> Option<&mut Process> {
        self.programs.get_mut(&pid)?.iter_mut().find(|one| one.is_announced)
    }

    /// Returns the announced processes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Pid, &mut Process)> {
        self.all_mut().filter(|(_, one)| one.is_announced)
    }

    /// Returns all programs.
    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = (Pid, &mut Process)> {
        let all = self.programs.iter_mut();
        all.flat_map(|(pid, programs)| programs.iter_mut().map(|one| (*pid, one)))
    }

    /// Returns the programs of a pid.
    pub(crate) fn all_of(&mut self, pid: Pid) -> &mut [Process] {
        self.programs.get_mut(&pid).map_or(&mut [], Vec::as_mut_slice)
    }

    /// Returns the programs for which counters were read.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (Program, &Process)> {
        let all = self.programs.iter();
        all.flat_map(|(pid, programs)| {
            programs.iter().filter_map(|one| {
                let (start, exec_gen) = (one.start, one.exec_gen?);
                Some((Program { pid: *pid, start, exec_gen }, one))
            })
        })
    }

    /// Returns whether the process with this start time mapped the driver before it was probed.
    pub(crate) fn predates_trace(&self, pid: Pid, start: u64) -> bool {
        let has_driver = |one: &Process| one.scanned.had_driver.is_some() && one.is_same(start);
        self.programs.get(&pid).is_some_and(|all| all.iter().any(has_driver))
    }

    fn announced(&self, pid: Pid) -> Option<&Process> {
        self.programs.get(&pid)?.iter().find(|one| one.is_announced)
    }

    /// Returns whether a process is announced.
    pub(crate) fn contains(&self, pid: Pid) -> bool {
        self.announced(pid).is_some()
    }

    /// Returns the start time of an announced process.
    pub(crate) fn start(&self, pid: Pid) -> Option<u64> {
        self.announced(pid).map(|process| process.start)
    }

    /// Returns the start time of the process that records of a pid are of; 0 if it is unknown.
    pub(crate) fn start_of_records(&self, pid: Pid) -> u64 {
        let oldest = || self.programs.get(&pid)?.first();
        self.announced(pid).or_else(oldest).map_or(0, |one| one.start)
    }

    /// Returns the exec generation of an announced process that made traced calls.
    pub(crate) fn exec_gen(&self, pid: Pid) -> Option<ExecGeneration> {
        self.announced(pid)?.exec_gen
    }

    /// Returns whether the known process with this pid is another one, whose exit was not reported.
    pub(crate) fn is_reused(&self, pid: Pid, start: u64) -> bool {
        self.announced(pid).is_some_and(|known| !known.is_same(start))
    }

    /// Returns which program the counters of a program are of.
    pub(crate) fn owner(&self, program: &Program) -> Owner {
        let Some(known) = self.announced(program.pid) else { return Owner::Unannounced };
        match known.exec_gen {
            _ if !known.is_same(program.start) => Owner::Other,
            Some(exec_gen) if exec_gen == program.exec_gen => Owner::Announced,
            Some(exec_gen) if program.exec_gen.is_before(exec_gen) => Owner::Other,
            _ => Owner::Unannounced,
        }
    }

    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        now - self.last_sweep >= SWEEP_INTERVAL
    }

    /// Checks which processes have exited.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        self.last_sweep = now;
        let all = self.programs.iter().flat_map(|(pid, all)| all.iter().map(|one| (*pid, one)));
        let dead = all.filter(|(pid, one)| !is_alive(*pid, one.start));
        let dead = dead.map(|(pid, one)| DeadProcess {
            pid,
            start: one.start,
            is_announced: one.is_announced,
        });
        self.exited = dead.collect();
    }

    /// Returns the processes that had exited before the ring was last emptied and whose exit record
    /// has not come since. Each has to be passed to [`ProcessTable::end`].
    pub(crate) fn drain_dead(&mut self) -> Vec<DeadProcess> {
        let mut dead = std::mem::take(&mut self.exited);
        dead.retain(|dead| {
            let is_it =
                |one: &Process| (one.start, one.is_announced) == (dead.start, dead.is_announced);
            self.programs.get(&dead.pid).is_some_and(|all| all.iter().any(is_it))
        });
        dead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXITED: Pid = Pid(u32::MAX);

    fn own() -> (Pid, u64) {
        let pid = Pid(std::process::id());
        (pid, start_of(pid).unwrap())
    }

    #[test]
    fn missed_exit_is_reported_once() {
        let mut table = ProcessTable::default();
        table.announce(EXITED, 5, None);
        assert!(table.drain_dead().is_empty());
        table.sweep(Timestamp(1));
        let dead = table.drain_dead();
        assert_eq!(dead, [DeadProcess { pid: EXITED, start: 5, is_announced: true }]);
        // As the session does with every exit.
        assert_eq!(table.end(EXITED, 5, None, Timestamp(2)).len(), 1);
        table.sweep(Timestamp(3));
        assert!(table.drain_dead().is_empty() && table.programs.is_empty());
    }

    #[test]
    fn recorded_exit_is_not_reported_again() {
        let mut table = ProcessTable::default();
        table.announce(EXITED, 5, None);
        table.sweep(Timestamp(1));
        table.end(EXITED, 5, None, Timestamp(1));
        assert!(table.drain_dead().is_empty());
    }

    #[test]
    fn missed_exit_does_not_end_the_process_that_reuses_the_pid() {
        let mut table = ProcessTable::default();
        table.announce(EXITED, 5, None);
        table.sweep(Timestamp(1));
        table.end(EXITED, 5, None, Timestamp(1));
        table.announce(EXITED, 50_000_000_000, None);
        assert!(table.drain_dead().is_empty());
        assert_eq!(table.start(EXITED), Some(50_000_000_000));
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
        table.entry(EXITED).gpus = vec![None];
        assert!(!table.contains(EXITED));
        table.sweep(Timestamp(1));
        assert_eq!(
            table.drain_dead(),
            [DeadProcess { pid: EXITED, start: 0, is_announced: false }]
        );
        assert_eq!(table.end(EXITED, 0, None, Timestamp(2)).len(), 1);
        assert!(table.programs.is_empty());
    }

    #[test]
    fn findings_after_an_exec_belong_to_the_next_program() {
        let (pid, start) = own();
        for (end, is_kept) in [(90, true), (110, false)] {
            let mut table = ProcessTable::default();
            let process = table.running(pid).unwrap();
            process.scanned.had_driver = Some(Timestamp(100));
            table.announce(pid, start, None).gpus = vec![None];
            table.end(pid, start, None, Timestamp(end));
            assert!(!table.contains(pid) && table.entry(pid).gpus.is_empty());
            assert_eq!(table.predates_trace(pid, start), is_kept, "{end}");
        }
    }

    #[test]
    fn end_of_an_older_process_with_the_pid_keeps_the_running_one() {
        let (pid, start) = own();
        let mut table = ProcessTable::default();
        table.announce(pid, 5, None);
        table.running(pid).unwrap().scanned.had_driver = Some(Timestamp(100));
        assert_eq!(table.start(pid), Some(5));
        table.end(pid, 5, None, Timestamp(90));
        assert!(table.predates_trace(pid, start) && !table.contains(pid));
        table.announce(pid, start + 5_000_000_000, None);
        assert!(!table.predates_trace(pid, start + 5_000_000_000), "another process");
    }

    #[test]
    fn findings_of_a_process_stay_while_its_pid_is_used_again() {
        let (pid, start) = own();
        let mut table = ProcessTable::default();
        table.running(pid).unwrap().scanned.had_driver = Some(Timestamp(100));
        table.program(Program { pid, start: start + 5_000_000_000, exec_gen: ExecGeneration(1) });
        table.announce(pid, start, Some(ExecGeneration(3)));
        assert!(table.predates_trace(pid, start));
        assert!(!table.predates_trace(pid, start + 5_000_000_000));
    }

    #[test]
    fn counters_that_were_read_before_the_announcement_are_of_the_program() {
        let (pid, lost) = (Pid(7), LostDelta { frees: 2, ..LostDelta::default() });
        let program = |exec_gen| Program { pid, start: 5, exec_gen: ExecGeneration(exec_gen) };
        let mut table = ProcessTable::default();
        table.program(program(1)).losses.add(lost, 100);
        table.program(program(2)).losses.add(lost, 100);
        table.entry(pid).gpus = vec![None];
        let process = table.announce(pid, 5, Some(ExecGeneration(1)));
        assert_eq!((process.gpus.len(), process.losses.take()), (1, lost));
        // The exec ends the first one alone.
        assert_eq!(table.end(pid, 5, Some(ExecGeneration(2)), Timestamp(9)).len(), 1);
        let rest = Remaining::of(table.end(pid, 5, None, Timestamp(9)));
        assert_eq!((rest.lost, table.programs.len()), (lost, 0));
    }

    #[test]
    fn owner_of_counters_is_the_announced_program_or_none() {
        let mut table = ProcessTable::default();
        let program =
            |start, exec_gen| Program { pid: Pid(7), start, exec_gen: ExecGeneration(exec_gen) };
        assert_eq!(table.owner(&program(5, 2)), Owner::Unannounced);
        table.announce(Pid(7), 5, Some(ExecGeneration(2)));
        for (start, exec_gen, owner) in [
            (5, 2, Owner::Announced),
            (5, 3, Owner::Unannounced),
            (5, 1, Owner::Other),
            (50_000_000_000, 2, Owner::Other),
        ] {
            assert_eq!(table.owner(&program(start, exec_gen)), owner, "{start} {exec_gen}");
        }
    }
}
