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
use super::table::{CounterKey, CounterTable, Program, Table};
use crate::decode::{ExecGeneration, KernelNameRecord, LaunchCounts, Record, RecordBody};
use crate::error::Error;
use crate::hooks::bpf_row::direction;
use crate::session::liveness::is_same_start;
use crate::session::processes::{Process, ProcessTable};
use crate::wire::{self, parse};

/// How often the counters are read.
const READ_INTERVAL: Duration = Duration::from_millis(200);

/// The interval is at least this many times the duration of a read, for very large maps.
const MAX_READ_DUTY_CYCLE: u32 = 50;

/// The counters of the probes, and the values that were already reported.
pub(crate) struct ActivityCounters {
    launches: CounterTable<wire::LaunchKey, LaunchCounts>,
    copies: CounterTable<wire::CopyKey, ReportedCopies>,
    /// Deltas of processes whose first record was not read yet.
    deferred: ActivityDelta,
    /// Launches under a handle before it got the name in a record, by the time of the record.
    prior_launches: HashMap<(Pid, KernelId, Timestamp), KernelLaunches>,
    /// Counters that wait until the records before them were read.
    early: Option<Totals>,
    next: Instant,
}

/// The counters of all processes at one time.
struct Totals {
    /// Position of the ring at that time. Later records do not affect the counters.
    position: u64,
    launches: Vec<(wire::LaunchKey, Vec<u8>)>,
    copies: Vec<(wire::CopyKey, Vec<u8>)>,
}

/// Exec generations that ended: all of a process, or those before the current one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) pid: Pid,
    /// `None`: every process that had the pid.
    pub(crate) start: Option<u64>,
    pub(crate) current_gen: Option<ExecGeneration>,
}

impl Ended {
    fn covers(&self, program: Program) -> bool {
        self.pid == program.pid
            && self.start.is_none_or(|own| is_same_start(own, program.start))
            && self.current_gen.is_none_or(|next| program.exec_gen.is_before(next))
    }
}

/// A process: its pid and start time.
type Instance = (Pid, u64);

/// Activity since the last read, by process and exec generation.
#[derive(Default)]
pub(crate) struct ActivityDelta(HashMap<Instance, Vec<(ExecGeneration, Event)>>);

impl ActivityDelta {
    /// Removes and returns the activity of a process; without a start time, of every process with
    /// that pid.
    pub(crate) fn drain_process(&mut self, pid: Pid, start: Option<u64>) -> Vec<Event> {
        let matches = |instance: &Instance| {
            instance.0 == pid && start.is_none_or(|start| instance.1 == start)
        };
        let all = self.0.extract_if(|instance, _| matches(instance));
        all.flat_map(|(_, events)| events).map(|(_, event)| event).collect()
    }

    /// Removes and returns the activity of the exec generations before this one.
    pub(crate) fn drain_before(
        &mut self,
        pid: Pid,
        start: u64,
        exec_gen: ExecGeneration,
    ) -> Vec<Event> {
        let Some(events) = self.0.get_mut(&(pid, start)) else { return Vec::new() };
        let old = events.extract_if(.., |(generation, _)| generation.is_before(exec_gen));
        old.map(|(_, event)| event).collect()
    }

    /// Removes and returns the activity of all processes, except of one that reuses a pid and whose
    /// first record was not read yet. `started` returns the start time of the known process of a
    /// pid.
    pub(crate) fn drain_all(&mut self, started: impl Fn(Pid) -> Option<u64>) -> Vec<Event> {
        let is_known = |pid, start| started(pid).is_none_or(|known| start <= known);
        let ready = self.0.extract_if(|(pid, start), _| is_known(*pid, *start));
        ready.flat_map(|(_, events)| events).map(|(_, event)| event).collect()
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
            deferred: ActivityDelta::default(),
            prior_launches: HashMap::new(),
            early: None,
            next: Instant::now() + READ_INTERVAL,
        }
    }

    /// Keeps activity for the next read.
    pub(crate) fn defer(&mut self, delta: ActivityDelta) {
        self.deferred = delta;
    }

    /// Returns the activity that was kept.
    pub(crate) fn take_deferred(&mut self) -> ActivityDelta {
        std::mem::take(&mut self.deferred)
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
            let reported = self.launches.reported.entry(key).or_default();
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
    pub(crate) fn read(&mut self, last: bool, position: u64) -> Result<(), Error> {
        if last || self.early.is_none() && Instant::now() >= self.next {
            let start = Instant::now();
            self.early = Some(self.totals(position)?);
            self.next = Instant::now() + READ_INTERVAL.max(start.elapsed() * MAX_READ_DUTY_CYCLE);
        }
        Ok(())
    }

    /// Adds the activity since the last read to `delta`, if the records before it were read.
    pub(crate) fn poll(
        &mut self,
        now: Timestamp,
        delta: &mut ActivityDelta,
        processes: &mut ProcessTable,
        is_read: impl Fn(u64) -> bool,
    ) {
        if let Some(totals) = self.early.take_if(|totals| is_read(totals.position)) {
            self.add(totals, now, delta, processes);
        }
    }

    /// Does the same for exec generations that ended. Their last records were read; records of
    /// others may not have been.
    pub(crate) fn poll_ended(
        &mut self,
        ended: &[Ended],
        now: Timestamp,
        delta: &mut ActivityDelta,
        processes: &mut ProcessTable,
    ) -> Result<(), Error> {
        if !ended.is_empty() {
            let mut totals = self.totals(0)?;
            totals.retain(|program| ended.iter().any(|ended| ended.covers(program)));
            self.add(totals, now, delta, processes);
        }
        Ok(())
    }

    fn totals(&self, position: u64) -> Result<Totals, Error> {
        Ok(Totals { position, launches: self.launches.read()?, copies: self.copies.read()? })
    }

    fn add(
        &mut self,
        totals: Totals,
        now: Timestamp,
        delta: &mut ActivityDelta,
        processes: &mut ProcessTable,
    ) {
        let mut push = |Program { pid, start, exec_gen }, activity| {
            let kind = EventKind::Activity(activity);
            let event = Event { pid, tid: Tid(pid.0), entry_time: now, time: now, kind };
            delta.0.entry((pid, start)).or_default().push((exec_gen, event));
        };
        for (key, values) in totals.launches {
            let Some(launches) = self.launched(key, &values) else { continue };
            if let LaunchTarget::Kernel(kernel) = launches.target {
                let pid = Pid(key.pid);
                let name = processes.entry(pid).kernel_names.name_of(pid, kernel);
                name.into_iter().for_each(|name| push(key.program(), name));
            }
            push(key.program(), GpuActivity::Launches(launches));
        }
        for (key, value) in totals.copies {
            let Some(copies) = self.copied(key, &value) else { continue };
            push(key.program(), GpuActivity::Copies(Box::new(copies)));
        }
    }

    /// Drops the counters of a process that exited, or of exec generations before `current_gen`.
    pub(crate) fn process_exited(
        &mut self,
        pid: Pid,
        start: u64,
        current_gen: Option<ExecGeneration>,
    ) {
        let has_ended = |program: Program| {
            let is_older = || current_gen.is_none_or(|current| program.exec_gen.is_before(current));
            let is_ended = program.start < start || program.start == start && is_older();
            program.pid == pid && is_ended
        };
        if let Some(totals) = &mut self.early {
            totals.retain(|program| !has_ended(program));
        }
        self.launches.remove(has_ended);
        self.copies.remove(has_ended);
    }

    /// Returns the launches of one kernel, summed over all CPUs, since the last read.
    fn launched(&mut self, key: wire::LaunchKey, values: &[u8]) -> Option<KernelLaunches> {
        let value_bytes = size_of::<wire::Launches>().next_multiple_of(8);
        let per_cpu: Vec<wire::Launches> = values.chunks(value_bytes).filter_map(parse).collect();
        let sum = |count: fn(&wire::Launches) -> u64| per_cpu.iter().map(count).sum::<u64>();
        let now = LaunchCounts {
            calls: sum(|cpu| cpu.calls),
            captured: sum(|cpu| cpu.captured),
            checked: sum(|cpu| cpu.checked),
            failed: sum(|cpu| cpu.failed),
        };
        let reported = self.launches.reported.entry(key).or_default();
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

    fn copied(&mut self, key: wire::CopyKey, value: &[u8]) -> Option<CopyActivity> {
        let now: wire::Copies = parse(value)?;
        let reported = self.copies.reported.entry(key).or_default();
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

impl Totals {
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

    #[test]
    fn activity_is_split_by_exec_generation() {
        let event = |at| {
            let (pid, at) = (Pid(1), Timestamp(at));
            Event { pid, tid: Tid(1), entry_time: at, time: at, kind: EventKind::Exit }
        };
        let mut delta = ActivityDelta::default();
        // The number wraps around.
        let all = [(65_534, 1), (65_535, 2), (0, 3)];
        let all = all.map(|(exec_gen, at)| (ExecGeneration(exec_gen), event(at)));
        delta.0.insert((Pid(1), 7), all.to_vec());
        assert_eq!(delta.drain_before(Pid(2), 7, ExecGeneration(0)), []);
        assert_eq!(delta.drain_before(Pid(1), 8, ExecGeneration(65_535)), []);
        assert_eq!(delta.drain_before(Pid(1), 7, ExecGeneration(65_535)), [event(1)]);
        assert_eq!(delta.drain_before(Pid(1), 7, ExecGeneration(0)), [event(2)]);
        assert_eq!(delta.drain_process(Pid(1), Some(8)), []);
        assert_eq!(delta.drain_process(Pid(1), None), [event(3)]);
        assert_eq!(delta.drain_all(|_| None), []);
    }

    #[test]
    fn activity_of_a_reused_pid_waits_for_its_process() {
        let (pid, at) = (Pid(1), Timestamp(1));
        let event = Event { pid, tid: Tid(1), entry_time: at, time: at, kind: EventKind::Exit };
        let mut delta = ActivityDelta::default();
        delta.0.insert((pid, 8), vec![(ExecGeneration(0), event.clone())]);
        assert_eq!(delta.drain_all(|_| Some(7)), []);
        assert_eq!(delta.drain_all(|_| Some(8)), [event]);
    }
}
