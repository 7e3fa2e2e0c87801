//! Counters of the probes, and the records that they lost.

use std::collections::HashSet;

use engine::model::event::LostDelta;
use engine::model::ids::Pid;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::super::load::bpf_object::{LoadedObject, map_error};
use super::activity::Ended;
use super::table::{CounterKey, CounterTable, Program, Table};
use crate::decode::ExecGeneration;
use crate::error::Error;
use crate::session::liveness::is_same_start;
use crate::session::processes::ProcessTable;
use crate::wire;

/// Counters of the probes, summed over all CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProbeCounters {
    /// Records that could not be delivered.
    pub lost: u64,
    /// Records delivered.
    pub records: u64,
    /// Hooked calls seen at return.
    pub calls: u64,
    /// Returns without an entry: the probes were attached during the call.
    pub unmatched: u64,
    /// Calls for which no state could be kept.
    pub no_state: u64,
    /// Hits of the self-test.
    pub self_test: u64,
    /// Graph states that ended; captures of theirs may be left in the map.
    pub graphs: u64,
}

impl ProbeCounters {
    pub(crate) fn read(loaded: &LoadedObject) -> Result<Self, Error> {
        Self::from_map(&loaded.map("counters")?)
    }

    pub(crate) fn from_map(map: &MapHandle) -> Result<Self, Error> {
        let values = map
            .lookup_percpu(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(map_error("counters"))?
            .unwrap_or_default();
        let mut sum = Self::default();
        for value in values.iter().filter_map(|value| wire::parse::<wire::Counters>(value)) {
            sum.lost += value.lost;
            sum.records += value.records;
            sum.calls += value.calls;
            sum.unmatched += value.unmatched;
            sum.no_state += value.no_state;
            sum.self_test += value.self_test;
            sum.graphs += value.graphs;
        }
        Ok(sum)
    }
}

impl Program {
    /// The key of losses of unknown processes.
    const UNKNOWN: Self = Self { pid: Pid(0), start: 0, exec_gen: ExecGeneration(0) };

    fn is_of(&self, pid: Pid, start: u64) -> bool {
        self.pid == pid && is_same_start(self.start, start)
    }

    fn owner(&self, announced: &ProcessTable) -> Owner {
        if *self == Self::UNKNOWN {
            return Owner::Announced;
        }
        let Some(start) = announced.start(self.pid) else { return Owner::Unannounced };
        if !is_same_start(start, self.start) {
            return Owner::Other;
        }
        match announced.exec_gen(self.pid) {
            Some(exec_gen) if exec_gen == self.exec_gen => Owner::Announced,
            Some(exec_gen) if self.exec_gen.is_before(exec_gen) => Owner::Other,
            _ => Owner::Unannounced,
        }
    }
}

/// An exec generation that ended without having been announced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unannounced {
    pub(crate) pid: Pid,
    pub(crate) start: u64,
    /// It ended by an exec.
    pub(crate) replaced: bool,
    /// The exec generation after it.
    pub(crate) next: ExecGeneration,
    /// Its losses and those of earlier exec generations.
    pub(crate) lost: LostDelta,
}

/// Records lost since the last read, by exec generation.
#[derive(Debug, Default)]
pub(crate) struct PendingLosses {
    lost: Vec<PendingLoss>,
    /// Exec generations that ended by an exec before they were announced.
    replaced: HashSet<Program>,
}

/// Records that an exec generation lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PendingLoss {
    key: Program,
    lost: LostDelta,
    /// End of the ring when the first of these losses was read: the announcement of the process is
    /// before it, unless it was lost too.
    position: u64,
}

/// The program that losses belong to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    /// The one that is announced with this pid; or it will never be known.
    Announced,
    /// One that was not announced, or a later one of the announced process.
    Unannounced,
    /// One that ended: the announced one is newer, or another process.
    Other,
}

impl PendingLosses {
    /// Removes and returns the losses of a process.
    pub(crate) fn drain_process(&mut self, pid: Pid, start: u64) -> LostDelta {
        self.remove(|key| key.is_of(pid, start))
    }

    /// Removes and returns the losses of the exec generations before this one.
    pub(crate) fn drain_before(
        &mut self,
        pid: Pid,
        start: u64,
        exec_gen: ExecGeneration,
    ) -> LostDelta {
        self.remove(|key| key.is_of(pid, start) && key.exec_gen.is_before(exec_gen))
    }

    /// Returns the exec generations that ended without having been announced.
    pub(crate) fn ended(&self) -> impl Iterator<Item = Ended> {
        self.ended_keys().map(|Program { pid, start, exec_gen }| {
            let next = ExecGeneration(exec_gen.0.wrapping_add(1));
            Ended { pid, start: Some(start), current_gen: Some(next) }
        })
    }

    fn ended_keys(&self) -> impl Iterator<Item = Program> {
        self.lost.iter().filter(|one| one.lost.processes > 0).map(|one| one.key)
    }

    /// Removes and returns the losses of exec generations that ended without having been announced.
    /// Two threads that exit at once can mark an announced one, too.
    pub(crate) fn drain_unannounced(&mut self, announced: &ProcessTable) -> Vec<Unannounced> {
        let is_unannounced = |key: &Program| key.owner(announced) != Owner::Announced;
        let mut ended: Vec<_> = self.ended_keys().filter(is_unannounced).collect();
        ended.sort_unstable_by_key(|key| (key.pid, key.start, key.exec_gen.0));
        let drain = |key: Program| {
            let (replaced, Program { pid, start, exec_gen }) = (self.replaced.contains(&key), key);
            let next = ExecGeneration(exec_gen.0.wrapping_add(1));
            Unannounced { pid, start, replaced, next, lost: self.drain_before(pid, start, next) }
        };
        ended.into_iter().map(drain).filter(|ended| ended.lost != LostDelta::default()).collect()
    }

    /// Adds losses that were read before.
    fn extend(&mut self, held: Self) {
        for one in held.lost {
            match self.lost.iter_mut().find(|other| other.key == one.key) {
                Some(same) => {
                    same.lost = same.lost.combined(&one.lost, u64::saturating_add);
                    same.position = one.position;
                }
                None => self.lost.push(one),
            }
        }
        self.replaced.extend(held.replaced);
    }

    /// Removes and returns the losses of programs whose announcement may still be in the ring: they
    /// would be counted for the program that ran before them in the process or with their pid.
    pub(crate) fn split_off_unread(
        &mut self,
        announced: &ProcessTable,
        has_read: impl Fn(u64) -> bool,
    ) -> Self {
        let is_unread = |one: &PendingLoss| {
            one.key.owner(announced) != Owner::Announced && !has_read(one.position)
        };
        let lost: Vec<_> = self.lost.extract_if(.., |one| is_unread(one)).collect();
        let is_held = |key: &Program| lost.iter().any(|one| one.key == *key);
        let replaced = self.replaced.extract_if(is_held).collect();
        Self { lost, replaced }
    }

    /// Returns the processes with losses of a later program than the announced one: the record of
    /// the exec was lost.
    pub(crate) fn unseen_execs(&self, announced: &ProcessTable) -> Vec<(Pid, ExecGeneration)> {
        let is_later = |key: &Program| {
            key.owner(announced) == Owner::Unannounced && announced.exec_gen(key.pid).is_some()
        };
        let mut later: Vec<_> = self.lost.iter().map(|one| one.key).filter(is_later).collect();
        later.sort_unstable_by_key(|key| (key.pid, key.exec_gen.0));
        later.into_iter().map(|key| (key.pid, key.exec_gen)).collect()
    }

    /// Returns the remaining losses, by process. Those of another program than the announced one
    /// are of an unknown process, with pid 0.
    pub(crate) fn into_remaining(
        self,
        announced: &ProcessTable,
    ) -> impl Iterator<Item = (Pid, LostDelta)> {
        self.lost.into_iter().map(|PendingLoss { key, lost, .. }| match key.owner(announced) {
            Owner::Announced => (key.pid, LostDelta { processes: 0, ..lost }),
            Owner::Unannounced => (key.pid, lost),
            Owner::Other => (Pid(0), lost),
        })
    }

    /// Returns whether the record of an exit can be among the losses.
    pub(crate) fn may_hide_exits(&self) -> bool {
        self.lost.iter().any(|one| one.lost.other > 0)
    }

    fn remove(&mut self, is_wanted: impl Fn(&Program) -> bool) -> LostDelta {
        let wanted = self.lost.extract_if(.., |one| is_wanted(&one.key));
        wanted.fold(LostDelta::default(), |sum, one| sum.combined(&one.lost, u64::saturating_add))
    }
}

/// Turns the cumulative counts of lost records into deltas.
pub(crate) struct LossReader {
    counters: CounterTable<wire::LostKey, LostDelta>,
    total: u64,
    /// The last read found something new; a probe may have been between its two updates.
    read_again: bool,
    /// Losses of programs that are not announced yet.
    held: Option<PendingLosses>,
}

impl LossReader {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, Error> {
        let map = loaded.map("lost_records")?;
        // The entry for losses that do not fit must exist before the map can be full.
        let none = [0; size_of::<wire::Lost>()];
        let unknown = [0; size_of::<wire::LostKey>()];
        map.update(&unknown, &none, MapFlags::ANY).map_err(map_error("lost_records"))?;
        Ok(Self::with_table(Table::Map(map)))
    }

    /// Reads the losses in a table.
    pub(crate) fn with_table(table: Table) -> Self {
        Self { counters: CounterTable::new(table), total: 0, read_again: false, held: None }
    }

    /// Returns the losses since the last call; cheap if there are none. `total` is the counter of
    /// lost records, `position` the end of the ring. `last`: this is the final read.
    pub(crate) fn poll(
        &mut self,
        total: u64,
        last: bool,
        position: impl FnOnce() -> u64,
    ) -> Result<PendingLosses, Error> {
        let is_new = total != self.total;
        if !is_new && !self.read_again && !last {
            return Ok(self.held.take().unwrap_or_default());
        }
        (self.total, self.read_again) = (total, is_new);
        let mut losses = PendingLosses::default();
        for (counter, value) in self.counters.read()? {
            let key = counter.program();
            let Some(now) = wire::parse::<wire::Lost>(&value) else { continue };
            if now.replaced > 0 {
                losses.replaced.insert(key);
            }
            let now = LostDelta::from(now);
            let before = self.counters.reported.insert(counter, now).unwrap_or_default();
            let new = now.combined(&before, u64::saturating_sub);
            if new != LostDelta::default() {
                losses.lost.push(PendingLoss { key, lost: new, position: u64::MAX });
            }
        }
        let position = position();
        losses.lost.iter_mut().for_each(|one| one.position = position);
        losses.extend(self.held.take().unwrap_or_default());
        Ok(losses)
    }

    /// Keeps losses for the next call of [`LossReader::poll`].
    pub(crate) fn hold(&mut self, losses: PendingLosses) {
        self.held = Some(losses).filter(|losses| !losses.lost.is_empty());
    }

    /// Deletes the entries of a process that exited, or of exec generations before `current_gen`.
    pub(crate) fn process_exited(
        &mut self,
        pid: Pid,
        start: u64,
        current_gen: Option<ExecGeneration>,
    ) {
        self.counters.remove(|program| {
            let is_before = || current_gen.is_none_or(|next| program.exec_gen.is_before(next));
            start != 0 && program.is_of(pid, start) && is_before()
        });
    }
}

impl From<wire::Lost> for LostDelta {
    fn from(lost: wire::Lost) -> Self {
        Self {
            allocations: lost.allocations,
            allocated_bytes: lost.allocated_bytes,
            frees: lost.frees,
            failures: lost.failures,
            other: lost.other,
            launches: lost.launches,
            copies: lost.copies,
            stacks: lost.stacks,
            objects: lost.objects,
            tensors: lost.tensors,
            processes: lost.processes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: Pid = Pid(7);
    const SECOND: u64 = 1_000_000_000;
    const POSITION: u64 = 100;

    fn remaining(losses: PendingLosses, announced: &ProcessTable) -> Vec<(Pid, LostDelta)> {
        losses.into_remaining(announced).collect()
    }

    fn announced(start: u64, exec_gen: u16) -> ProcessTable {
        let mut announced = ProcessTable::default();
        announced.announce(PID, start, Some(ExecGeneration(exec_gen)));
        announced
    }

    fn losses(entries: &[(u64, u16, LostDelta)]) -> PendingLosses {
        let key = |start, exec_gen| Program { pid: PID, start, exec_gen: ExecGeneration(exec_gen) };
        let entries = entries.iter();
        let entries = entries.map(|(start, exec_gen, lost)| PendingLoss {
            key: key(*start, *exec_gen),
            lost: *lost,
            position: POSITION,
        });
        PendingLosses { lost: entries.collect(), replaced: HashSet::new() }
    }

    fn frees(frees: u64) -> LostDelta {
        LostDelta { frees, ..LostDelta::default() }
    }

    #[test]
    fn losses_are_split_by_exec_generation() {
        let mut losses =
            losses(&[(SECOND, 1, frees(1)), (SECOND, 2, frees(2)), (SECOND, 3, frees(4))]);
        assert_eq!(losses.drain_before(PID, SECOND, ExecGeneration(3)), frees(3));
        assert_eq!(losses.drain_process(Pid(8), SECOND), LostDelta::default());
        assert_eq!(losses.drain_process(PID, SECOND), frees(4));
        assert!(remaining(losses, &ProcessTable::default()).is_empty());
    }

    #[test]
    fn losses_of_a_reused_pid_are_split_by_start_time() {
        let mut losses = losses(&[(SECOND, 1, frees(1)), (9 * SECOND, 1, frees(2))]);
        assert_eq!(losses.drain_process(PID, 9 * SECOND), frees(2));
        assert_eq!(remaining(losses, &announced(SECOND, 1)), [(PID, frees(1))]);
    }

    #[test]
    fn unannounced_losses_include_earlier_exec_generations() {
        let last = LostDelta { processes: 1, ..frees(2) };
        let mut losses = losses(&[
            (SECOND, 1, frees(1)),
            (SECOND, 2, last),
            (SECOND, 3, frees(8)),
            (9 * SECOND, 1, frees(4)),
        ]);
        let lost = LostDelta { processes: 1, ..frees(3) };
        let next = ExecGeneration(3);
        let ended = Unannounced { pid: PID, start: SECOND, replaced: false, next, lost };
        let none = ProcessTable::default();
        assert!(losses.drain_unannounced(&announced(SECOND, 2)).is_empty());
        assert_eq!(losses.drain_unannounced(&none), [ended]);
        assert!(losses.drain_unannounced(&none).is_empty());
        let rest = [(PID, frees(8)), (PID, frees(4))];
        assert_eq!(remaining(losses, &ProcessTable::default()), rest);
    }

    #[test]
    fn losses_wait_for_the_announcement_of_their_program() {
        let before = announced(SECOND, 1);
        let mut reader_losses = losses(&[(SECOND, 1, frees(1)), (SECOND, 2, frees(2))]);
        let held = reader_losses.split_off_unread(&before, |position| position < POSITION);
        assert_eq!(remaining(reader_losses, &before), [(PID, frees(1))]);
        let mut next = losses(&[(SECOND, 2, frees(4))]);
        next.extend(held);
        let after = announced(SECOND, 2);
        assert!(next.split_off_unread(&after, |_| false).lost.is_empty());
        assert_eq!(remaining(next, &after), [(PID, frees(6))]);
    }

    #[test]
    fn losses_of_a_later_program_imply_an_exec() {
        let before = announced(SECOND, 1);
        let mut losses = losses(&[(SECOND, 1, frees(1)), (SECOND, 2, frees(2))]);
        assert!(losses.split_off_unread(&before, |_| true).lost.is_empty());
        assert_eq!(losses.unseen_execs(&before), [(PID, ExecGeneration(2))]);
        assert!(losses.unseen_execs(&announced(SECOND, 2)).is_empty());
        assert!(losses.unseen_execs(&ProcessTable::default()).is_empty());
    }

    #[test]
    fn losses_of_an_ended_program_are_of_an_unknown_process() {
        let now = announced(9 * SECOND, 3);
        let losses = losses(&[(9 * SECOND, 2, frees(2)), (SECOND, 3, frees(4))]);
        assert_eq!(remaining(losses, &now), [(Pid(0), frees(2)), (Pid(0), frees(4))]);
    }
}
