//! Records that the probes lost, by program. The process table keeps what is not an event yet.

use engine::model::event::LostDelta;
use libbpf_rs::{MapCore, MapFlags};

use super::super::load::bpf_object::{LoadedObject, map_error};
use super::activity::Ended;
use super::table::{CounterKey, CounterTable, Reported, Table};
use crate::error::Error;
use crate::session::processes::{Owner, ProcessTable, Program};
use crate::wire;

/// Losses of one program.
#[derive(Default)]
pub(crate) struct ProgramLosses {
    reported: Option<Reported<wire::LostKey, LostDelta>>,
    pending: LostDelta,
    /// End of the ring when the pending losses were read: the announcement of the program is before
    /// it, unless it was lost too.
    position: u64,
    /// It ended by an exec before it was announced.
    pub(crate) is_replaced: bool,
}

impl ProgramLosses {
    /// Adds losses that were read at this position of the ring.
    pub(crate) fn add(&mut self, lost: LostDelta, position: u64) {
        if !self.has_pending() {
            self.position = position;
        }
        self.pending = self.pending.combined(&lost, u64::saturating_add);
    }

    /// Removes and returns the pending losses.
    pub(crate) fn take(&mut self) -> LostDelta {
        std::mem::take(&mut self.pending)
    }

    /// Returns whether the program ended without having been announced. Two threads that exit at once
    /// can mark an announced one, too.
    pub(crate) const fn is_ended(&self) -> bool {
        self.pending.processes > 0
    }

    fn has_pending(&self) -> bool {
        self.pending != LostDelta::default()
    }
}

/// Turns the cumulative counts of lost records into pending losses of their programs.
pub(crate) struct LossReader {
    counters: CounterTable<wire::LostKey, LostDelta>,
    total: u64,
    /// The last read found something new; a probe may have been between its two updates.
    read_again: bool,
    /// Some program has pending losses.
    has_pending: bool,
    /// Losses of unknown processes: reported, and pending.
    unknown: (LostDelta, LostDelta),
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
        Self {
            counters: CounterTable::new(table),
            total: 0,
            read_again: false,
            has_pending: false,
            unknown: (LostDelta::default(), LostDelta::default()),
        }
    }

    /// Reads the losses since the last call; cheap if there are none. `total` is the counter of lost
    /// records, `position` the end of the ring. `last`: this is the final read.
    pub(crate) fn poll(
        &mut self,
        total: u64,
        last: bool,
        position: impl FnOnce() -> u64,
        processes: &mut ProcessTable,
    ) -> Result<(), Error> {
        let is_new = total != self.total;
        if !is_new && !self.read_again && !last {
            return Ok(());
        }
        (self.total, self.read_again) = (total, is_new);
        let counters = self.counters.read()?;
        let position = position();
        for (key, value) in counters {
            let Some(lost) = wire::parse::<wire::Lost>(&value) else { continue };
            self.count(key, lost, position, processes);
        }
        Ok(())
    }

    fn count(
        &mut self,
        key: wire::LostKey,
        lost: wire::Lost,
        position: u64,
        processes: &mut ProcessTable,
    ) {
        let (program, now) = (key.program(), LostDelta::from(lost));
        if program == Program::UNKNOWN {
            let before = std::mem::replace(&mut self.unknown.0, now);
            let new = now.combined(&before, u64::saturating_sub);
            self.unknown.1 = self.unknown.1.combined(&new, u64::saturating_add);
            return;
        }
        let losses = &mut processes.program(program).losses;
        let reported = self.counters.reported(&mut losses.reported, key);
        let before = std::mem::replace(reported, now);
        losses.is_replaced = lost.replaced > 0;
        let new = now.combined(&before, u64::saturating_sub);
        if new != LostDelta::default() {
            losses.add(new, position);
            self.has_pending = true;
        }
    }

    /// Removes and returns the losses of unknown processes.
    pub(crate) fn take_unknown(&mut self) -> LostDelta {
        std::mem::take(&mut self.unknown.1)
    }

    /// Returns the programs that ended without having been announced.
    pub(crate) fn ended(&self, processes: &ProcessTable) -> Vec<Ended> {
        let ended = self.pending(processes).filter(|(_, losses)| losses.is_ended());
        let ended = ended.map(|(program, _)| Ended {
            pid: program.pid,
            start: Some(program.start),
            next: Some(program.next()),
        });
        ended.collect()
    }

    /// Returns whether the record of an exit can be among the pending losses.
    pub(crate) fn may_hide_exits(&self, processes: &ProcessTable) -> bool {
        self.unknown.1.other > 0
            || self.pending(processes).any(|(_, losses)| losses.pending.other > 0)
    }

    /// Returns the programs with pending losses, in order of their exec generations; but not those
    /// whose announcement may still be in the ring: their losses would be counted for the program
    /// that ran before them in the process or with their pid.
    pub(crate) fn ready(
        &mut self,
        processes: &ProcessTable,
        has_read: impl Fn(u64) -> bool,
    ) -> Vec<Program> {
        let (mut ready, mut is_complete) = (Vec::new(), true);
        for (program, losses) in self.pending(processes) {
            if processes.owner(&program) == Owner::Announced || has_read(losses.position) {
                ready.push(program);
            } else {
                is_complete = false;
            }
        }
        self.has_pending &= !is_complete;
        ready.sort_unstable_by_key(|program| (program.pid, program.start, program.exec_gen.0));
        ready
    }

    fn pending<'a>(
        &self,
        processes: &'a ProcessTable,
    ) -> impl Iterator<Item = (Program, &'a ProgramLosses)> {
        let counted = self.has_pending.then(|| processes.counted()).into_iter().flatten();
        let losses = counted.map(|(program, process)| (program, &process.losses));
        losses.filter(|(_, losses)| losses.has_pending())
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
    use engine::model::ids::Pid;
    use engine::model::units::Timestamp;

    use super::*;
    use crate::decode::ExecGeneration;
    use crate::session::processes::Remaining;

    const PID: Pid = Pid(7);
    const SECOND: u64 = 1_000_000_000;
    const POSITION: u64 = 100;

    fn program(start: u64, exec_gen: u16) -> Program {
        Program { pid: PID, start, exec_gen: ExecGeneration(exec_gen) }
    }

    fn no_table() -> Table {
        crate::in_process::Tables::default().losses()
    }

    fn announced(start: u64, exec_gen: u16) -> ProcessTable {
        let mut announced = ProcessTable::default();
        announced.announce(PID, start, Some(ExecGeneration(exec_gen)));
        announced
    }

    /// Returns a reader after it read these losses.
    fn reader(processes: &mut ProcessTable, losses: &[(u64, u16, wire::Lost)]) -> LossReader {
        let mut reader = LossReader::with_table(no_table());
        count(&mut reader, processes, losses, POSITION);
        reader
    }

    fn count(
        reader: &mut LossReader,
        processes: &mut ProcessTable,
        losses: &[(u64, u16, wire::Lost)],
        position: u64,
    ) {
        for (start, exec_gen, lost) in losses {
            let (start, exec_gen) = (*start, *exec_gen);
            let key = wire::LostKey { pid: PID.0, exec_gen, reserved: 0, start };
            reader.count(key, *lost, position, processes);
        }
    }

    fn frees(frees: u64) -> wire::Lost {
        let none = [0; size_of::<wire::Lost>()];
        wire::Lost { frees, ..wire::parse(&none).unwrap() }
    }

    #[test]
    fn counts_are_cumulative() {
        let mut processes = announced(SECOND, 1);
        let mut reader = reader(&mut processes, &[(SECOND, 1, frees(2))]);
        let take = |processes: &mut ProcessTable| {
            processes.existing(&program(SECOND, 1)).unwrap().losses.take().frees
        };
        assert_eq!(take(&mut processes), 2);
        count(&mut reader, &mut processes, &[(SECOND, 1, frees(5))], POSITION);
        assert_eq!(take(&mut processes), 3);
    }

    #[test]
    fn losses_are_split_by_program() {
        let mut processes = ProcessTable::default();
        let losses = [
            (SECOND, 1, frees(1)),
            (SECOND, 2, frees(2)),
            (SECOND, 3, frees(4)),
            (9 * SECOND, 1, frees(8)),
        ];
        reader(&mut processes, &losses);
        let mut end = |start, next| {
            let ended = processes.end(PID, start, next, Timestamp(0));
            Remaining::of(ended).lost.frees
        };
        assert_eq!(end(SECOND, Some(ExecGeneration(3))), 3);
        assert_eq!(end(SECOND, None), 4);
        assert_eq!(end(9 * SECOND, None), 8);
    }

    #[test]
    fn losses_wait_for_the_announcement_of_their_program() {
        let mut processes = announced(SECOND, 1);
        let losses = [(SECOND, 1, frees(1)), (SECOND, 2, frees(2))];
        let mut reader = reader(&mut processes, &losses);
        let ready = reader.ready(&processes, |position| position < POSITION);
        assert_eq!(ready, [program(SECOND, 1)]);
        count(&mut reader, &mut processes, &[(SECOND, 2, frees(6))], POSITION + 1);
        processes.end(PID, SECOND, Some(ExecGeneration(2)), Timestamp(0));
        let process = processes.announce(PID, SECOND, Some(ExecGeneration(2)));
        assert_eq!(process.losses.pending.frees, 6);
        assert_eq!(reader.ready(&processes, |_| false), [program(SECOND, 2)]);
        assert!(!reader.has_pending);
    }

    #[test]
    fn program_that_ended_unannounced_is_known_by_its_losses() {
        let mut processes = ProcessTable::default();
        let ended = wire::Lost { processes: 1, replaced: 1, ..frees(2) };
        let reader = reader(&mut processes, &[(SECOND, 1, frees(1)), (SECOND, 2, ended)]);
        let next = Some(ExecGeneration(3));
        assert_eq!(reader.ended(&processes), [Ended { pid: PID, start: Some(SECOND), next }]);
        assert!(processes.existing(&program(SECOND, 2)).unwrap().losses.is_replaced);
    }

    #[test]
    fn losses_of_unknown_processes_have_no_program() {
        let mut processes = ProcessTable::default();
        let mut reader = LossReader::with_table(no_table());
        for (count, new) in [(2, 2), (5, 3), (5, 0)] {
            let key = wire::LostKey { pid: 0, exec_gen: 0, reserved: 0, start: 0 };
            reader.count(key, frees(count), POSITION, &mut processes);
            assert_eq!(reader.take_unknown().frees, new);
        }
        assert_eq!(processes.counted().count(), 0);
    }
}
