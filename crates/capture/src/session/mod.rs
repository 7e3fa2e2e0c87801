//! A running trace: attaches the probes, or reads the areas of in-process tracing, and turns
//! records into events. Owned by one thread; dropping it, or the exit of the process, detaches
//! everything.

mod attach;
mod captures;
mod driver_reports;
pub(crate) mod enrich;
pub(crate) mod liveness;
mod load;
mod marks;
mod options;
pub(crate) mod processes;
mod read;
mod source;
pub(crate) mod trace_mode;

pub use crate::session::trace_mode::{AllocatorMode, StackMode};
pub use attach::drivers::Notice;
pub use driver_reports::DriverReports;
use liveness::descends_from;
pub use liveness::{HostStatus, host_status};
pub use load::attach_mode::probe_host;
pub use load::bpf_log::recent;
pub(crate) use load::bpf_log::verifier_error;
pub use load::bpf_object::ActivityOptions;
pub use marks::RecordMark;
pub use options::{SessionOptions, Target};
pub use read::counters::ProbeCounters;
pub(crate) use read::map_reader::MapEntry;
pub(crate) use read::table::Table;
pub(crate) use source::Source;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use engine::model::event::{Event, EventKind, LostDelta, ProcessInfo};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::clock;
use crate::decode::{ExecGeneration, ProcessRecord, Record, RecordBody};
use crate::error::Error;
use crate::gpus::GpuInfo;
use crate::in_process::{CollectorDir, InProcess};
use crate::marks::MarkSocket;
use crate::plan::AttachPlan;
use crate::session::liveness::require;
use crate::stacks::{SiteResolver, StackTables};
use attach::allocators::AllocatorAttachments;
use attach::drivers::DriverAttachments;
use captures::LeftCaptures;
use enrich::driver_usage::merge_usage;
use enrich::host_facts::HostFacts;
use load::attach_mode::{LoadedProbes, load};
use load::bpf_object::{LoadConfig, LoadedObject, ProcessFilter, map_error};
use processes::{DeadProcess, Owner, Process, ProcessTable, Program, Remaining};
use read::activity::{self, ActivityCounters, Ended};
use read::losses::LossReader;
use read::record_ring::{RecordRing, ring_error};
use read::ring::Ring;
pub(crate) use read::unknown_calls::{UnknownCalls, UnknownFunctions};
pub use read::waiter::EventWaker;
use read::waiter::Waiter;
use source::{LATE_RECORD_WAIT, Probes};

/// How often processes are scanned for new copies of the driver, in addition to mmap events.
const RESCAN_INTERVAL: Duration = Duration::from_secs(5);

/// Time between two reads while something is expected that does not wake the reader: counters of
/// launches and copies, or symbols.
const PENDING_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum wait at the end for records that are still being written.
const UNFINISHED_RECORD_WAIT: Duration = Duration::from_millis(500);

/// Returns the configuration of the probes.
fn load_config(options: &SessionOptions, plan: &AttachPlan) -> LoadConfig {
    let filter = match &options.target {
        Target::All => ProcessFilter::All,
        Target::Processes { follow: false, .. } => ProcessFilter::Targets,
        Target::Processes { follow: true, .. } => ProcessFilter::TargetsAndChildren,
    };
    LoadConfig {
        attach_mode: plan.attach_mode,
        task_storage: plan.task_storage && options.thread_entries.is_none(),
        stack_windows: plan.stack_windows,
        filter,
        ring_bytes: options.ring_bytes,
        table_entries: options.table_entries,
        thread_entries: options.thread_entries,
        activity: options.activity,
        objects: options.objects,
        stacks: options.stacks,
        allocators: options.allocators,
        loops: plan.loops,
        stack_ring_bytes: options.stack_ring_bytes,
        empty_probes: options.empty_probes,
    }
}

/// A running trace.
pub struct Session {
    /// How the probes are attached; `None` for in-process tracing.
    plan: Option<AttachPlan>,
    source: Box<dyn Source>,
    losses: LossReader,
    processes: ProcessTable,
    host: HostFacts,
    /// CUDA objects are tracked.
    objects: bool,
    activity: Option<ActivityCounters>,
    sites: Option<SiteResolver>,
    target: Target,
    /// Marks from outside; `None` if this process has another session.
    marks: Option<MarkSocket>,
}

impl Session {
    /// Loads the probes and attaches them to every driver that is found.
    pub fn start(options: &SessionOptions) -> Result<Self, Error> {
        let LoadedProbes { plan, object: loaded, lifecycle_links } =
            load(options.attach_mode, |plan| load_config(options, plan))?;
        let targets = loaded.map("targets")?;
        if let Target::Processes { pids, .. } = &options.target {
            for pid in pids {
                require(*pid)?;
                add_target(&targets, *pid)?;
            }
        }
        let ring = RecordRing::new(&loaded)?;
        let mut processes = ProcessTable::default();
        let mut drivers = DriverAttachments::new(options, &plan);
        drivers.attach_all(&loaded, &mut processes)?;
        let mut allocators =
            options.allocators.is_enabled().then(|| AllocatorAttachments::new(options, &plan));
        if let Some(allocators) = &mut allocators {
            allocators.scan(&loaded, &[], true, &mut processes);
        }
        loaded.runtime_config.set_attached_at(clock::boot());
        let rings = std::iter::once(&ring.records).chain(&ring.stacks).map(Ring::fd);
        let waiter =
            Waiter::new(rings, drivers.mmap_fds()).map_err(|cause| ring_error("records", cause))?;
        let mut sites = options.stacks.is_enabled().then(|| site_resolver(&loaded)).transpose()?;
        if let Some(sites) = &mut sites {
            // Their stacks are readable from the first call on.
            let scanned = processes.all_mut();
            let had_driver = scanned.filter(|(_, one)| one.scanned.had_driver.is_some());
            for pid in had_driver.map(|(pid, _)| pid).collect::<Vec<_>>() {
                sites.process_started(&mut processes, pid, None);
            }
        }
        Ok(Self {
            losses: LossReader::new(&loaded)?,
            processes,
            host: HostFacts::open(&options.logs),
            objects: options.objects,
            activity: options.activity.map(|_| ActivityCounters::new(&loaded)).transpose()?,
            sites,
            target: options.target.clone(),
            marks: MarkSocket::open().ok(),
            plan: Some(plan),
            source: Box::new(Probes {
                left_captures: LeftCaptures::new(&loaded)?,
                counters: loaded.map("counters")?,
                unknown_calls: UnknownCalls::new(&loaded)?,
                drivers,
                ring,
                allocators,
                last_scan: Instant::now(),
                skipped: 0,
                waiter,
                _lifecycle_links: lifecycle_links,
                loaded,
            }),
        })
    }

    /// Reads the records of processes that load the in-process library: needs no probes and no
    /// capabilities.
    pub fn start_in_process(options: &SessionOptions, dir: CollectorDir) -> Result<Self, Error> {
        let source = InProcess::start(options, dir)?;
        let tables = source.tables();
        let sites = options.stacks.is_enabled().then(|| {
            let (known, sent) = (tables.known_stacks(), tables.sent_frames());
            let tables = StackTables::new(known, sent, tables.pythons(), true);
            SiteResolver::new(tables).map_err(Error::Names)
        });
        let activity = options.activity;
        Ok(Self {
            losses: LossReader::with_table(tables.losses()),
            processes: ProcessTable::default(),
            host: HostFacts::open(&options.logs),
            objects: options.objects,
            activity: activity
                .map(|_| ActivityCounters::with_tables(tables.launches(), tables.copies())),
            sites: sites.transpose()?,
            target: options.target.clone(),
            marks: MarkSocket::open().ok(),
            plan: None,
            source: Box::new(source),
        })
    }

    /// Returns how the probes are attached; `None` for in-process tracing.
    #[must_use]
    pub const fn plan(&self) -> Option<&AttachPlan> {
        self.plan.as_ref()
    }

    /// Returns the GPUs of this host; empty if neither NVML nor nvidia-smi is available.
    #[must_use]
    pub fn gpus(&self) -> &[GpuInfo] {
        self.host.usage.gpus()
    }

    /// Waits for records, at most this long, and returns the events in order.
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<Event>, Error> {
        let is_pending =
            self.activity.is_some() || self.sites.as_ref().is_some_and(SiteResolver::is_resolving);
        self.source.wait(if is_pending { timeout.min(PENDING_INTERVAL) } else { timeout });
        self.collect(false)
    }

    /// Returns the events up to now, with the final values of all counters.
    pub fn finish(&mut self) -> Result<Vec<Event>, Error> {
        let (mut events, written) = (Vec::new(), self.source.written());
        // A bounded number of batches: processes may keep writing into the ring.
        for _ in 0..self.source.batches() {
            events.extend(self.collect(false)?);
            if self.source.is_drained() {
                break;
            }
        }
        // A probe that was interrupted while it writes a record delays those after it.
        let end = Instant::now() + UNFINISHED_RECORD_WAIT;
        while !self.source.has_read(written) && Instant::now() < end {
            std::thread::sleep(LATE_RECORD_WAIT);
            events.extend(self.collect(false)?);
        }
        if !self.source.has_read(written) {
            let unread = LostDelta { other: 1, ..LostDelta::default() };
            events.extend(lost_event(Pid(0), unread, clock::monotonic()));
        }
        events.extend(self.collect(true)?);
        Ok(events)
    }

    fn collect(&mut self, last: bool) -> Result<Vec<Event>, Error> {
        self.source.scan(&mut self.processes)?;
        let mapped = self.source.drain_mmaps();
        let new = self.source.drain_new_processes();
        self.host.containers.prefetch(new, &mut self.processes, clock::monotonic());
        let written = self.source.written();
        if let Some(activity) = &mut self.activity {
            activity.read(last, written, &mut self.processes)?;
        }
        let read_from = clock::monotonic();
        let records = self.source.drain_records()?;
        let stacks = self.source.drain_stacks();
        let now = clock::monotonic();
        let lost = self.source.poll_counters(now, &mut self.processes)?;
        self.losses.poll(lost, last, || self.source.written(), &mut self.processes)?;
        let may_have_missed_exits = self.losses.may_hide_exits(&self.processes);
        self.poll_activity(&records, last, now)?;
        let mut events = Vec::with_capacity(records.len());
        if let Some(sites) = &mut self.sites {
            sites.update(mapped, stacks, &mut self.processes);
        }
        for record in &records {
            self.apply_record(record, now, &mut events);
        }
        // A process that mapped the driver after it was probed is announced with its first call.
        let target = &self.target;
        let wanted = |processes: &ProcessTable, pid, start| match target {
            _ if !processes.predates_trace(pid, start) => false,
            Target::All => true,
            Target::Processes { pids, .. } => pids.contains(&pid),
        };
        self.host.usage.request_after(&events);
        let reported = self.host.poll((read_from, now), &mut self.processes, wanted);
        let mut events = merge_usage(events, reported);
        // A record that cannot be decoded or was not written is lost, and its process is unknown.
        let skipped = self.source.drain_skipped();
        let other = self.source.drain_decode_errors() + skipped;
        events.extend(lost_event(Pid(0), LostDelta { other, ..LostDelta::default() }, now));
        self.drain_losses(last, now, &mut events);
        // Records that are still in the ring may belong to processes that have exited.
        let is_drained = self.source.is_drained();
        let dead = if is_drained { self.processes.drain_dead() } else { Vec::new() };
        self.end_dead(&dead, now, &mut events)?;
        events.extend(activity::drain(&mut self.processes, last));
        events.extend(self.source.drain_allocator_events(now, &mut self.processes));
        if let Some(sites) = &mut self.sites {
            let event = |frames| {
                let kind = EventKind::Site(frames);
                Event { pid: Pid(0), tid: Tid(0), entry_time: now, time: now, kind }
            };
            events.extend(sites.drain_resolved(last).into_iter().map(event));
        }
        if is_drained && (may_have_missed_exits || skipped > 0 || self.processes.is_due(now)) {
            self.processes.sweep(now);
        }
        events.extend(self.drain_marks());
        Ok(events)
    }

    /// Returns the new marks of the host and of traced processes, also before their first call.
    fn drain_marks(&mut self) -> Vec<Event> {
        let Some(marks) = &mut self.marks else { return Vec::new() };
        let (processes, target) = (&self.processes, &self.target);
        // In-process tracing of all processes is that of the parent and its children.
        let own = Pid(std::process::id());
        let parent = self.plan.is_none().then(|| host_status(own)?.parent).flatten();
        marks.drain(|pid| match (target, parent) {
            _ if processes.contains(pid) => true,
            (Target::All, None) => true,
            (Target::All, Some(parent)) => descends_from(pid, &[parent]),
            (Target::Processes { pids, follow: true }, _) => descends_from(pid, pids),
            (Target::Processes { pids, follow: false }, _) => pids.contains(&pid),
        })
    }

    /// Returns the notices since the last call.
    pub fn notices(&mut self) -> Vec<Notice> {
        let mut notices = self.source.drain_notices();
        let unsupported =
            self.sites.as_mut().map(SiteResolver::drain_unsupported).unwrap_or_default();
        let unsupported = unsupported.into_iter();
        notices.extend(unsupported.map(|(pid, reason)| Notice::PythonUnsupported { pid, reason }));
        let failure = self.sites.as_mut().and_then(SiteResolver::take_symbolizer_failure);
        notices.extend(failure.map(|reason| Notice::NoNames { reason }));
        notices.extend(
            self.host.usage.take_failure().map(|reason| Notice::UsageUnavailable { reason }),
        );
        notices
    }

    /// Limits the stack mode: captures cheaper stacks than configured, or none, from now on. Calls
    /// are still recorded.
    pub fn limit_stacks(&mut self, max: StackMode) {
        self.source.limit_stacks(max);
    }

    /// Reads the activity counters: periodically, and when a process exits or calls exec.
    fn poll_activity(
        &mut self,
        records: &[Record],
        last: bool,
        now: Timestamp,
    ) -> Result<(), Error> {
        let mut ended = self.losses.ended(&self.processes);
        ended.extend(self.ended(records));
        let Some(activity) = &mut self.activity else { return Ok(()) };
        activity.observe_names(records, &mut self.processes);
        activity.poll_ended(&ended, now, &mut self.processes)?;
        let is_read = |position| last || self.source.has_read(position);
        activity.poll(now, &mut self.processes, is_read);
        Ok(())
    }

    /// Returns the exec generations whose end is among the records.
    fn ended(&self, records: &[Record]) -> Vec<Ended> {
        let mut starts = HashMap::new();
        let mut ended = Vec::new();
        for record in records {
            let pid = record.pid;
            let next = match &record.body {
                RecordBody::Process(process) => {
                    starts.insert(pid, process.start);
                    continue;
                }
                RecordBody::Exit => None,
                RecordBody::Exec(exec_gen) => Some(*exec_gen),
                _ => continue,
            };
            let start = starts.get(&pid).copied().or_else(|| self.processes.start(pid));
            ended.push(Ended { pid, start, next });
        }
        ended
    }

    /// Adds the events of a record, and updates the process table.
    fn apply_record(&mut self, record: &Record, now: Timestamp, events: &mut Vec<Event>) {
        let pid = record.pid;
        match &record.body {
            RecordBody::Process(process) => {
                self.announce(record, process, now, events);
            }
            RecordBody::Exec(exec_gen) => {
                self.end_program(record, Some(*exec_gen), now, events);
            }
            RecordBody::Exit => self.end_program(record, None, now, events),
            RecordBody::KernelName(named) => {
                if let Some(activity) = &mut self.activity {
                    activity.apply_name(record, named, self.processes.entry(pid), events);
                }
            }
            body => {
                let first = events.len();
                if let RecordBody::Call(call) = body
                    && let Some(uuid) = call.device_uuid()
                    && let Some(process) = self.processes.get_mut(pid)
                {
                    let gpus = self.host.usage.device_uuid_reported(&uuid, process);
                    events.extend(gpus.into_iter().map(|kind| record.event(kind)));
                }
                let process = self.processes.entry(pid);
                let (sites, stacks) = (&mut self.sites, &mut process.stacks);
                let mut site = |stack| sites.as_mut()?.site(stacks.as_mut()?, stack);
                record.events(&mut process.handles, self.objects, &mut site, events);
                for event in events.iter().skip(first) {
                    self.source.observe(event, process);
                }
            }
        }
    }

    /// Adds a new process, with what the host knows of it.
    fn announce(
        &mut self,
        record: &Record,
        announced: &ProcessRecord,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let (pid, ProcessRecord { start, uid, name, exec_gen }) = (record.pid, announced);
        self.end_older(record, announced, now, events);
        self.processes.announce(pid, *start, Some(*exec_gen));
        if let Some(sites) = &mut self.sites {
            sites.process_started(&mut self.processes, pid, Some(*exec_gen));
        }
        self.source.process_examined(pid, *exec_gen);
        let before_trace = self.processes.predates_trace(pid, *start);
        let info = ProcessInfo { start: *start, uid: *uid, name: name.clone(), before_trace };
        events.push(record.event(EventKind::Process(info)));
        let process = self.processes.entry(pid);
        events.extend(self.host.of_process(pid, *uid, process, now));
    }

    /// Ends the program of a process that exited, or that runs the exec generation `next` since.
    fn end_program(
        &mut self,
        record: &Record,
        next: Option<ExecGeneration>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let start = self.processes.start_of_records(record.pid);
        let ended = self.processes.end(record.pid, start, next, record.time);
        add_remaining(record.pid, ended, now, events);
        let kind = if next.is_some() { EventKind::Exec } else { EventKind::Exit };
        events.push(record.event(kind));
    }

    /// Ends the previous process with this pid, or the program that ran in this process before, if
    /// that was not seen. The new program starts without any state of the old one.
    fn end_older(
        &mut self,
        record: &Record,
        announced: &ProcessRecord,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let (pid, exec_gen) = (record.pid, announced.exec_gen);
        if self.processes.is_reused(pid, announced.start) {
            self.end_program(record, None, now, events);
        } else if self.processes.exec_gen(pid).is_some_and(|older| older.is_before(exec_gen)) {
            self.end_program(record, Some(exec_gen), now, events);
        }
    }

    /// Ends processes whose exit was not reported, after their counters were read a last time.
    fn end_dead(
        &mut self,
        dead: &[DeadProcess],
        now: Timestamp,
        events: &mut Vec<Event>,
    ) -> Result<(), Error> {
        if let Some(activity) = &mut self.activity {
            let ended =
                |one: &DeadProcess| Ended { pid: one.pid, start: Some(one.start), next: None };
            let ended: Vec<_> = dead.iter().map(ended).collect();
            activity.poll_ended(&ended, now, &mut self.processes)?;
        }
        for one in dead {
            if one.is_announced {
                self.apply_record(&one.exit(now), now, events);
            } else {
                let ended = self.processes.end(one.pid, one.start, None, now);
                add_remaining(one.pid, ended, now, events);
            }
        }
        Ok(())
    }

    /// Adds the losses of running processes and of those that ended without being announced.
    fn drain_losses(&mut self, last: bool, now: Timestamp, events: &mut Vec<Event>) {
        events.extend(lost_event(Pid(0), self.losses.take_unknown(), now));
        let has_read = |position| last || self.source.has_read(position);
        let ready = self.losses.ready(&self.processes, has_read);
        for program in &ready {
            self.end_unannounced(program, now, events);
        }
        let unseen: Vec<_> = ready.iter().filter(|one| self.is_unseen_exec(one)).copied().collect();
        for Program { pid, exec_gen, .. } in unseen {
            let exec = Record::at(pid, Tid(pid.0), now, RecordBody::Exec(exec_gen));
            self.apply_record(&exec, now, events);
        }
        for program in ready {
            let owner = self.processes.owner(&program);
            let Some(process) = self.processes.existing(&program) else { continue };
            let is_ended = process.losses.is_ended();
            let lost = process.losses.take();
            events.extend(match owner {
                Owner::Announced => {
                    lost_event(program.pid, LostDelta { processes: 0, ..lost }, now)
                }
                Owner::Unannounced if !is_ended => lost_event(program.pid, lost, now),
                // The announced process with this pid is another one.
                Owner::Unannounced | Owner::Other => lost_event(Pid(0), lost, now),
            });
        }
    }

    /// Ends a program that lost records and ended without having been announced. The time of its end
    /// is not known.
    fn end_unannounced(&mut self, program: &Program, now: Timestamp, events: &mut Vec<Event>) {
        let Some(process) = self.processes.existing(program) else { return };
        let (is_ended, is_replaced) = (process.losses.is_ended(), process.losses.is_replaced);
        if !is_ended || self.processes.contains(program.pid) {
            return;
        }
        let Program { pid, start, .. } = *program;
        let ended = self.processes.end(pid, start, Some(program.next()), Timestamp(0));
        add_remaining(pid, ended, now, events);
        let kind = if is_replaced { EventKind::Exec } else { EventKind::Exit };
        events.push(Event { pid, tid: Tid(pid.0), entry_time: now, time: now, kind });
    }

    /// Returns whether the record of the exec that started this program was lost: it is later than the
    /// announced program of its process.
    fn is_unseen_exec(&mut self, program: &Program) -> bool {
        self.processes.owner(program) == Owner::Unannounced
            && self.processes.exec_gen(program.pid).is_some()
            && self.processes.existing(program).is_some_and(|one| !one.losses.is_ended())
    }
}

/// Adds what is left of programs that ended.
fn add_remaining(pid: Pid, ended: Vec<Process>, now: Timestamp, events: &mut Vec<Event>) {
    let Remaining { activity, lost } = Remaining::of(ended);
    events.extend(activity);
    events.extend(lost_event(pid, lost, now));
}

/// Returns an event for lost records, if there are any.
fn lost_event(pid: Pid, lost: LostDelta, now: Timestamp) -> Option<Event> {
    let event =
        Event { pid, tid: Tid(pid.0), entry_time: now, time: now, kind: EventKind::Lost(lost) };
    (lost != LostDelta::default()).then_some(event)
}

fn site_resolver(loaded: &LoadedObject) -> Result<SiteResolver, Error> {
    let table = |name| Ok::<_, Error>(Table::Map(loaded.map(name)?));
    let (known, sent) = (table("known_stacks")?, table("sent_frames")?);
    let tables = StackTables::new(known, sent, table("pythons")?, loaded.config.loops);
    SiteResolver::new(tables).map_err(Error::Names)
}

fn add_target(targets: &MapHandle, pid: Pid) -> Result<(), Error> {
    targets.update(&pid.0.to_ne_bytes(), &[1], MapFlags::ANY).map_err(map_error("targets"))
}

/// Removes duplicate pids.
fn unique(pids: impl IntoIterator<Item = Pid>) -> HashSet<Pid> {
    pids.into_iter().collect()
}
