//! Turns the launch and copy counters of the probes into events.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use engine::model::activity::{
    CopyActivity, CopyDirection, GpuActivity, KernelLaunches, LaunchShape, LaunchTarget,
};
use engine::model::event::{Event, EventKind};
use engine::model::ids::{GraphExecId, KernelId, Pid, Tid};
use engine::model::units::Timestamp;

use super::super::load::bpf_object::LoadedObject;
use super::table::{CounterKey, CounterTable, Reported, Table};
use crate::decode::{ExecGeneration, KernelNameRecord, LaunchCounts, Record, RecordBody};
use crate::error::Error;
use crate::hooks::bpf_row::direction;
use crate::session::liveness::is_same_start;
use crate::session::processes::{Process, ProcessTable, Program};
use crate::wire::{self, parse};

/// How often the counters are read.
const READ_INTERVAL: Duration = Duration::from_millis(200);

/// The interval is at least this many times the duration of a read, for very large maps.
const MAX_READ_DUTY_CYCLE: u32 = 50;

/// The counters of the probes.
pub(crate) struct ActivityCounters {
    launches: CounterTable<wire::LaunchKey, LaunchCounts>,
    copies: CounterTable<wire::CopyKey, ReportedCopies>,
    /// Launches under a handle before it got the name in a record, by the time of the record.
    prior_launches: HashMap<(Pid, KernelId, Timestamp), KernelLaunches>,
    /// Counters that wait until the records before them were read.
    early: Option<Totals>,
    next: Instant,
}

/// Activity of one program.
#[derive(Default)]
pub(crate) struct ProgramActivity {
    launches: Option<Reported<wire::LaunchKey, LaunchCounts>>,
    copies: Option<Reported<wire::CopyKey, ReportedCopies>>,
    pub(super) unknown: Option<Reported<wire::UnknownKey, u64>>,
    /// Activity that is not an event yet, because the first record of its process was not read.
    pub(crate) pending: Vec<Event>,
}

/// The counters of all processes at one time.
struct Totals {
    /// Position of the ring at that time. Later records do not affect the counters.
    position: u64,
    launches: Vec<(wire::LaunchKey, Vec<u8>)>,
    copies: Vec<(wire::CopyKey, Vec<u8>)>,
}

/// Programs that ended: all of a process, or those before the exec generation `next`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) pid: Pid,
    /// `None`: every process that had the pid.
    pub(crate) start: Option<u64>,
    pub(crate) next: Option<ExecGeneration>,
}

impl Ended {
    fn covers(&self, program: Program) -> bool {
        self.pid == program.pid
            && self.start.is_none_or(|own| is_same_start(own, program.start))
            && self.next.is_none_or(|next| program.exec_gen.is_before(next))
    }
}

#[derive(Clone, Default)]
struct ReportedCopies {
    calls: u64,
    bytes: u64,
    nanos: u64,
    bandwidths: Vec<u64>,
}

impl ActivityCounters {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, Error> {
        let [launches, copies] = [loaded.map("launches")?, loaded.map("copies")?];
        Ok(Self::with_tables(Table::Map(launches), Table::Map(copies)))
    }

    /// Reads the counters in two tables.
    pub(crate) fn with_tables(launches: Table, copies: Table) -> Self {
        Self {
            launches: CounterTable::new(launches),
            copies: CounterTable::new(copies),
            prior_launches: HashMap::new(),
            early: None,
            next: Instant::now() + READ_INTERVAL,
        }
    }

    /// Observes kernel names before the counters are read: launches under a name that is still in
    /// the ring must not count as unnamed, nor for the kernel that had the handle before.
    pub(crate) fn observe_names(&mut self, records: &[Record], processes: &mut ProcessTable) {
        self.prior_launches.clear();
        for Record { pid, time, body, .. } in records {
            let has_name = match body {
                RecordBody::KernelName(_) => true,
                RecordBody::Call(call) => call.alias().is_some(),
                _ => false,
            };
            if has_name {
                processes.entry(*pid).kernel_names.observe(body);
            }
            let RecordBody::KernelName(named @ KernelNameRecord { from_memory: false, .. }) = body
            else {
                continue;
            };
            let KernelNameRecord { start, exec_gen, kernel, before, .. } = named;
            let (target, pid_of_key, start, exec_gen) = (kernel.0, pid.0, *start, exec_gen.0);
            let key = wire::LaunchKey { target, pid: pid_of_key, graph: 0, exec_gen, start };
            let own = &mut processes.program(key.program()).activity;
            let reported = self.launches.reported(&mut own.launches, key);
            if before.calls > reported.calls {
                let launches = since(LaunchTarget::Kernel(*kernel), before, reported);
                *reported = *before;
                self.prior_launches.insert((*pid, *kernel, *time), launches);
            }
        }
    }

    /// Adds the kernel name in a record and the launches before it.
    pub(crate) fn apply_name(
        &mut self,
        record: &Record,
        named: &KernelNameRecord,
        process: &mut Process,
        events: &mut Vec<Event>,
    ) {
        let prior = self.prior_launches.remove(&(record.pid, named.kernel, record.time));
        let name = process.kernel_names.resolve(record.pid, named);
        let activity = prior.map(GpuActivity::Launches).into_iter().chain(name);
        events.extend(activity.map(|activity| record.event(EventKind::Activity(activity))));
    }

    /// Reads the counters periodically, before the records up to a position of the ring are read:
    /// afterwards the names and the memory that the counters refer to are known.
    pub(crate) fn read(
        &mut self,
        last: bool,
        position: u64,
        processes: &mut ProcessTable,
    ) -> Result<(), Error> {
        if last || self.early.is_none() && Instant::now() >= self.next {
            let start = Instant::now();
            let totals = self.totals(position)?;
            // Counters of programs that end until then are not added.
            for program in totals.programs() {
                processes.program(program);
            }
            self.early = Some(totals);
            self.next = Instant::now() + READ_INTERVAL.max(start.elapsed() * MAX_READ_DUTY_CYCLE);
        }
        Ok(())
    }

    /// Adds the activity since the last read, if the records before it were read.
    pub(crate) fn poll(
        &mut self,
        now: Timestamp,
        processes: &mut ProcessTable,
        is_read: impl Fn(u64) -> bool,
    ) {
        if let Some(totals) = self.early.take_if(|totals| is_read(totals.position)) {
            self.add(totals, now, processes);
        }
    }

    /// Does the same for programs that ended. Their last records were read; records of others may not
    /// have been.
    pub(crate) fn poll_ended(
        &mut self,
        ended: &[Ended],
        now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Result<(), Error> {
        if !ended.is_empty() {
            let mut totals = self.totals(0)?;
            totals.retain(|program| ended.iter().any(|ended| ended.covers(program)));
            for program in totals.programs() {
                processes.program(program);
            }
            self.add(totals, now, processes);
        }
        Ok(())
    }

    fn totals(&self, position: u64) -> Result<Totals, Error> {
        Ok(Totals { position, launches: self.launches.read()?, copies: self.copies.read()? })
    }

    fn add(&mut self, totals: Totals, now: Timestamp, processes: &mut ProcessTable) {
        let event = |pid: Pid, activity| {
            let kind = EventKind::Activity(activity);
            Event { pid, tid: Tid(pid.0), entry_time: now, time: now, kind }
        };
        for (key, values) in totals.launches {
            let (pid, program) = (Pid(key.pid), key.program());
            let Some(process) = processes.existing(&program) else { continue };
            let Some(launches) = self.launched(key, &values, &mut process.activity) else {
                continue;
            };
            let name = match launches.target {
                LaunchTarget::Kernel(kernel) => {
                    processes.entry(pid).kernel_names.name_of(pid, kernel)
                }
                LaunchTarget::Graph(_) => None,
            };
            let activity = name.into_iter().chain([GpuActivity::Launches(launches)]);
            let pending = &mut processes.program(program).activity.pending;
            pending.extend(activity.map(|activity| event(pid, activity)));
        }
        for (key, value) in totals.copies {
            let Some(process) = processes.existing(&key.program()) else { continue };
            let own = &mut process.activity;
            if let Some(copies) = self.copied(key, &value, own) {
                own.pending.push(event(Pid(key.pid), GpuActivity::Copies(Box::new(copies))));
            }
        }
    }

    /// Returns the launches of one kernel, summed over all CPUs, since the last read.
    fn launched(
        &self,
        key: wire::LaunchKey,
        values: &[u8],
        own: &mut ProgramActivity,
    ) -> Option<KernelLaunches> {
        let value_bytes = size_of::<wire::Launches>().next_multiple_of(8);
        let per_cpu: Vec<wire::Launches> = values.chunks(value_bytes).filter_map(parse).collect();
        let sum = |count: fn(&wire::Launches) -> u64| per_cpu.iter().map(count).sum::<u64>();
        let now = LaunchCounts {
            calls: sum(|cpu| cpu.calls),
            captured: sum(|cpu| cpu.captured),
            checked: sum(|cpu| cpu.checked),
            failed: sum(|cpu| cpu.failed),
        };
        let reported = self.launches.reported(&mut own.launches, key);
        // A kernel name may have been recorded after the counters were read.
        let now = now.max(reported);
        let before = std::mem::replace(reported, now);
        // Not only the calls: the result of a launch may be counted after its entry was read.
        if now == before {
            return None;
        }
        let (target, (shapes, last, other_shapes)) = match key.graph {
            0 => (LaunchTarget::Kernel(KernelId(key.target)), shapes(&per_cpu)),
            _ => (LaunchTarget::Graph(GraphExecId(key.target)), (Vec::new(), None, 0)),
        };
        let launches = since(target, &now, &before);
        Some(KernelLaunches { last, shapes, other_shapes, ..launches })
    }

    fn copied(
        &self,
        key: wire::CopyKey,
        value: &[u8],
        own: &mut ProgramActivity,
    ) -> Option<CopyActivity> {
        let now: wire::Copies = parse(value)?;
        let reported = self.copies.reported(&mut own.copies, key);
        if now.calls <= reported.calls {
            return None;
        }
        reported.bandwidths.resize(now.bandwidths.len(), 0);
        let buckets = now.bandwidths.iter().zip(&reported.bandwidths).zip(0..);
        let bandwidths = buckets
            .filter(|((now, before), _)| now > before)
            .map(|((now, before), bucket)| (bucket, now - before))
            .collect();
        let direction = direction(key.direction);
        let copies = CopyActivity {
            direction,
            pointers: (direction == CopyDirection::Unknown).then_some((now.to, now.from)),
            asynchronous: key.asynchronous != 0,
            calls: now.calls.saturating_sub(reported.calls),
            bytes: now.bytes.saturating_sub(reported.bytes),
            nanos: now.nanos.saturating_sub(reported.nanos),
            bandwidths,
        };
        *reported = ReportedCopies {
            calls: now.calls,
            bytes: now.bytes,
            nanos: now.nanos,
            bandwidths: now.bandwidths.to_vec(),
        };
        Some(copies)
    }
}

/// Removes and returns the activity of all programs, except of a process that reuses a pid and whose
/// first record was not read yet; `last`: also of those.
pub(crate) fn drain(processes: &mut ProcessTable, last: bool) -> Vec<Event> {
    let pending = processes.counted().filter(|(_, one)| !one.activity.pending.is_empty());
    let pending = pending.map(|(program, _)| program);
    let is_known = |program: &Program| {
        last || processes.start(program.pid).is_none_or(|known| program.start <= known)
    };
    let ready: Vec<_> = pending.filter(is_known).collect();
    let mut events = Vec::new();
    for program in ready {
        let process = processes.existing(&program).into_iter();
        process.for_each(|process| events.append(&mut process.activity.pending));
    }
    events
}

impl Totals {
    /// Returns the programs with counters; some of them several times.
    fn programs(&self) -> impl Iterator<Item = Program> {
        let launches = self.launches.iter().map(|(key, _)| key.program());
        launches.chain(self.copies.iter().map(|(key, _)| key.program()))
    }

    fn retain(&mut self, is_wanted: impl Fn(Program) -> bool) {
        self.launches.retain(|(key, _)| is_wanted(key.program()));
        self.copies.retain(|(key, _)| is_wanted(key.program()));
    }
}

/// Returns the launches between two counts, without shapes.
fn since(target: LaunchTarget, now: &LaunchCounts, before: &LaunchCounts) -> KernelLaunches {
    KernelLaunches {
        target,
        calls: now.calls.saturating_sub(before.calls),
        captured: now.captured.saturating_sub(before.captured),
        checked: now.checked.saturating_sub(before.checked),
        failed: now.failed.saturating_sub(before.failed),
        ..KernelLaunches::default()
    }
}

/// Returns calls by shape, most frequent first; the last shape; calls whose shape was not kept.
fn shapes(per_cpu: &[wire::Launches]) -> (Vec<(LaunchShape, u64)>, Option<LaunchShape>, u64) {
    let mut counts: HashMap<LaunchShape, u64> = HashMap::new();
    for shape in per_cpu.iter().flat_map(|cpu| cpu.shapes).filter(|shape| shape.count > 0) {
        *counts.entry(LaunchShape::from(shape)).or_default() += u64::from(shape.count);
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(shape, count)| (std::cmp::Reverse(*count), *shape));
    let latest = per_cpu.iter().max_by_key(|cpu| cpu.last_at);
    let last = latest.and_then(|cpu| cpu.shapes.get(cpu.last as usize)).copied();
    let last = last.filter(|shape| shape.count > 0).map(LaunchShape::from);
    (counts, last, per_cpu.iter().map(|cpu| u64::from(cpu.other)).sum())
}

impl From<wire::Shape> for LaunchShape {
    fn from(shape: wire::Shape) -> Self {
        let wire::Shape { grid, block, shared_bytes, .. } = shape;
        Self { grid, block, shared_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::processes::Remaining;

    fn table(starts: &[(u64, u16)]) -> (ProcessTable, Event) {
        let (pid, at) = (Pid(1), Timestamp(1));
        let event = Event { pid, tid: Tid(1), entry_time: at, time: at, kind: EventKind::Exit };
        let mut table = ProcessTable::default();
        for (start, exec_gen) in starts {
            let program = Program { pid, start: *start, exec_gen: ExecGeneration(*exec_gen) };
            table.program(program).activity.pending.push(event.clone());
        }
        (table, event)
    }

    #[test]
    fn activity_is_split_by_exec_generation() {
        // The number wraps around.
        let (mut table, event) = table(&[(7, 65_534), (7, 65_535), (7, 0)]);
        let mut end = |pid, start, next: Option<u16>| {
            let ended = table.end(pid, start, next.map(ExecGeneration), Timestamp(0));
            Remaining::of(ended).activity
        };
        assert_eq!(end(Pid(2), 7, Some(0)), []);
        let event = [event];
        assert_eq!(end(Pid(1), 7, Some(65_535)), event);
        assert_eq!(end(Pid(1), 7, Some(0)), event);
        assert_eq!(end(Pid(1), 7, None), event);
        assert_eq!(drain(&mut table, true), []);
    }

    #[test]
    fn activity_of_a_reused_pid_waits_for_its_process() {
        let (mut table, event) = table(&[(50_000_000_008, 0)]);
        table.announce(Pid(1), 7, Some(ExecGeneration(0)));
        assert_eq!(drain(&mut table, false), []);
        table.end(Pid(1), 7, None, Timestamp(0));
        table.announce(Pid(1), 50_000_000_008, Some(ExecGeneration(0)));
        assert_eq!(drain(&mut table, false), [event]);
        assert_eq!(drain(&mut table, false), []);
    }
}
