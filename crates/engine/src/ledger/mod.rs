//! The ledger: the only writer of allocation state.
//!
//! ```text
//! Ledger ─ Process ┬ Allocations       slab of entries, index by key
//!                  ├ Threads           live allocations by age and size
//!                  ├ Contexts          device, lifetime, users of primary contexts
//!                  ├ ContextEnds       memory in doubt after a context ended
//!                  ├ PhysicalMemory    references, mappings, reserved addresses
//!                  ├ Pools             pools of stream-ordered memory
//!                  ├ Graphs            captures, memory nodes, effects of launches
//!                  ├ ObjectTable       streams, events, modules …: not memory
//!                  ├ Totals            sums and peaks
//!                  ├ SiteTable         the same by allocation site
//!                  ├ Devices           their GPUs, driver-reported usage
//!                  ├ BlockCache        blocks of PyTorch's cache, never added to the rest
//!                  ├ PendingFrees      frees whose calls have not returned
//!                  ├ PeakBounds        uncertainty of the peak due to overlapping calls
//!                  ├ RecentFrees       recently freed keys
//!                  ├ AnomalyLog        anomalous sizes and growth
//!                  ├ Losses            uncertainty after lost records
//!                  └ ProcessChangeLog  allocation changes, if requested
//!          EndedProcesses  until the next snapshot
//!          OutOfMemory     failed calls until the next snapshot
//!          EndedSites      sites of ended processes
//!          NotFreedProcesses  memory that ended processes had not freed
//!          Measurements    between two points in time that programs select
//!          MarkLog         the newest marks
//!          Sharing         which process imported what another one exported
//! ```
//!
//! An event costs a few hash lookups, plus a descent in a tree of the thread's *distinct* sizes if
//! an allocation is the first or the oldest of its size. Only rare events visit all allocations of
//! their process: the end of a context, and the late discovery of the device of a context or pool.
//! A snapshot costs what it shows: processes, threads, devices, pools, sites and the top of each
//! list; after a loss, also a scan of all graph nodes.

mod activity;
mod allocators;
mod change_log;
mod driver;
mod ended_processes;
mod file;
mod identity;
mod losses;
mod mark_log;
mod measurements;
mod memory;
mod not_freed;
mod process;
mod process_view;
mod sharing;
mod sites;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::model::{
    Bytes, Container, Event, EventKind, GpuId, LostDelta, MigInstance, OUT_OF_MEMORY, Pid,
    ProcessInfo, SiteRegistry, Timestamp,
};
use crate::snapshot::{
    ListScope, LostTotals, OutOfMemory, ProcessEnd, ProcessView, Snapshot, SnapshotOptions,
};
use crate::verdict::{Anomaly, SiteVerdict};

use change_log::ChangeLog;
use driver::gpu_memory::GpuMemory;
use driver::out_of_memory::OomRetry;
use ended_processes::EndedProcesses;
use mark_log::MarkLog;
use measurements::Measurements;
use memory::totals::ByteSum;
use not_freed::NotFreedProcesses;
use process::Process;
use sharing::Sharing;
use sites::ended_sites::EndedSites;
use sites::table::SiteTable;
use sites::verdicts::SiteVerdicts;
use sites::views::SiteListKind;

pub use file::FileLedger;
pub use measurements::{EndedMeasurement, LiveSites, MeasurementId};

/// Limit of suspects in a snapshot: more than a host has, so that all outputs count the same.
const MAX_SUSPECTS: usize = 4096;

/// Limits of verdicts on other sites that are kept for each ended process, and in total.
const MAX_VERDICTS_PER_ENDED: usize = 512;
const MAX_ENDED_VERDICTS: usize = 4096;

/// GPU memory of all processes, according to the events so far.
///
/// Time enters only with events and with [`Ledger::snapshot`], so the same events always result in
/// the same snapshots.
#[derive(Debug, Default)]
pub struct Ledger {
    running: HashMap<Pid, Process>,
    ended: EndedProcesses,
    out_of_memory: Vec<OutOfMemory>,
    /// Rejected requests that PyTorch may repeat after it freed cached memory.
    oom_retries: Vec<OomRetry>,
    /// Out-of-memory errors since the last snapshot, by GPU.
    ooms_by_gpu: BTreeMap<Option<GpuId>, u64>,
    /// All losses so far.
    lost: LostTotals,
    /// Losses of unknown processes.
    unattributed: LostTotals,
    /// Calls of memory functions that this version does not know, by function.
    unknown_calls: BTreeMap<Box<str>, u64>,
    /// Losses of processes that are not announced yet.
    before_announcement: HashMap<Pid, LostDelta>,
    /// Allocation changes, if they are logged.
    change_log: Option<ChangeLog>,
    /// Whether launches and copies are counted.
    tracks_activity: bool,
    /// Frames of sites.
    sites: SiteRegistry,
    ended_sites: EndedSites,
    /// Verdicts on ended processes, for the last report.
    ended_verdicts: SiteVerdicts,
    /// Anomalies of ended processes.
    ended_anomalies: Vec<Anomaly>,
    /// Free memory of GPUs, as reported.
    gpu_memory: GpuMemory,
    /// Memory that ended processes had not freed.
    not_freed: NotFreedProcesses,
    /// Measurements that have not ended.
    measurements: Measurements,
    /// Marks of users and programs.
    marks: MarkLog,
    /// Memory that processes share.
    sharing: Sharing,
    /// Time of the first event.
    start: Option<Timestamp>,
    /// Whether sites are merged.
    merge_sites: bool,
    /// Whether ended processes are dropped after one snapshot.
    drops_ended: bool,
}

impl Ledger {
    /// Creates an empty ledger.
    pub fn new() -> Self {
        Self::default()
    }

    /// Configures the ledger for a trace without an end: ended processes appear in one snapshot and
    /// are then dropped. [`SnapshotOptions::ended_sites`] must not be set.
    #[must_use]
    pub fn without_ended_history(mut self) -> Self {
        self.drops_ended = true;
        self
    }

    /// Declares functions to be wrappers, which are never headlines: see [`crate::headline`].
    pub fn add_wrappers<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        self.sites.add_wrappers(names);
    }

    /// Merges all sites permanently: each process keeps one per kind. All other values are
    /// unaffected.
    pub fn merge_sites(&mut self) {
        self.merge_sites = true;
        self.running.values_mut().for_each(|process| process.sites.merge_all());
    }

    /// Creates a ledger that also logs allocation changes until they are drained: see
    /// [`Ledger::drain_changes`].
    pub fn with_change_log() -> Self {
        Self { change_log: Some(ChangeLog::default()), ..Self::default() }
    }

    /// Enables counting of launches and copies.
    #[must_use]
    pub fn with_activity(mut self) -> Self {
        self.tracks_activity = true;
        self
    }

    /// Applies one event.
    ///
    /// Events must be in the order in which they were seen. An [`EventKind::Lost`] covers losses up
    /// to its own time, and should come after the events before that time and before the next
    /// snapshot; see [`crate::model::event::LostDelta`].
    pub fn apply(&mut self, event: &Event) {
        if !matches!(event.kind, EventKind::Site(_) | EventKind::Mark { .. }) {
            self.start.get_or_insert(event.time);
        }
        self.dispatch(event);
        if !self.oom_retries.is_empty() {
            self.check_retries(event);
        }
        if self.tracks_activity
            && let Some(process) = self.running.get_mut(&event.pid)
        {
            process.activity.get_or_insert_default().record_address(event);
        }
        self.observe_measurements(event);
        if let Some(log) = &mut self.change_log
            && let Some(process) = self.running.get_mut(&event.pid)
        {
            log.collect(process);
        }
    }

    fn dispatch(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Process(info) => self.announce(event, info),
            EventKind::Container(container) => self.update(event.pid, |process| {
                process.container = Some(Arc::new(Container::clone(container)));
            }),
            EventKind::Identity(identity) => {
                self.update(event.pid, |process| process.set_identity(identity));
            }
            EventKind::Exec => self.replace(event),
            EventKind::Exit => self.exit(event),
            EventKind::ThreadExit => {
                self.update(event.pid, |process| process.end_thread(event.tid));
            }
            EventKind::ThreadName(name) => self.process(event).name_thread(event.tid, name),
            EventKind::Allocate(allocate) => {
                let result = self.process(event).allocate(event, allocate);
                self.record_node_loss(event, result);
            }
            EventKind::Free(free) => {
                let result = self.process(event).free(event, free);
                self.record_node_loss(event, result);
            }
            EventKind::Vmm(call) => self.process(event).vmm(event, *call),
            EventKind::Pool(call) => self.process(event).pool(event, *call),
            EventKind::Graph(call) => {
                let result = self.process(event).graph(event, *call);
                self.record_node_loss(event, result);
            }
            EventKind::Share(call) => self.sharing.apply(event, *call, &mut self.running),
            EventKind::Failed(failed) => {
                self.process(event).record_failure(failed, event.entry_time);
                if failed.code == OUT_OF_MEMORY {
                    self.record_oom(event, failed);
                }
            }
            EventKind::Context(call) => {
                let objects = self.process(event).apply_context(event, *call);
                if objects > 0 {
                    self.record_loss(event, &LostDelta { objects, ..LostDelta::default() });
                }
            }
            EventKind::MigInstance(mig) => self.update(event.pid, |process| {
                process.mig = Some(Arc::new(MigInstance::clone(mig)));
            }),
            EventKind::Limit { limit, value } => {
                self.process(event).overhead.set_limit(*limit, *value);
            }
            EventKind::Gpus(gpus) => self.update(event.pid, |process| process.set_gpus(gpus)),
            EventKind::DriverUsage { gpu, bytes, only } => self.update(event.pid, |process| {
                process.set_driver_usage(event, *gpu, Bytes(*bytes), *only);
            }),
            EventKind::GpuFree { gpu, bytes } => {
                self.gpu_memory.set_free(*gpu, Bytes(*bytes), event.time);
            }
            EventKind::DeviceHolders(holders) => self.gpu_memory.holders.clone_from(holders),
            EventKind::DriverUsageLost => {
                self.gpu_memory.clear();
                self.running.values_mut().for_each(Process::clear_driver_usage);
            }
            EventKind::Lost(lost) => self.record_loss(event, lost),
            EventKind::UnknownCalls { function, calls } => {
                self.record_unknown_calls(event, function, *calls);
            }
            EventKind::Activity(activity) => self.process(event).apply_activity(activity),
            EventKind::Object(call) => self.process(event).object(event, *call),
            EventKind::Block(call) => {
                self.process(event).apply_block(event, call);
                self.record_framework_oom(event, call);
            }
            EventKind::Allocator(allocator, tracking) => self.update(event.pid, |process| {
                process.set_block_tracking(event, *allocator, *tracking);
            }),
            EventKind::Mark { .. } => self.marks.push(event),
            EventKind::Site(site) => self.sites.resolve(site.site, &site.frames),
            EventKind::KeptBy(address, text) => {
                if let Some(process) = self.running.get_mut(&event.pid) {
                    process.set_kept_by(*address, text, &self.sites);
                }
            }
        }
    }

    fn exit(&mut self, event: &Event) {
        self.before_announcement.remove(&event.pid);
        if let Some(process) = self.running.remove(&event.pid) {
            self.end(process, ProcessEnd::Exited, event.time);
        }
    }

    /// Changes a running process, if it is known.
    fn update(&mut self, pid: Pid, change: impl FnOnce(&mut Process)) {
        if let Some(process) = self.running.get_mut(&pid) {
            change(process);
        }
    }

    /// Returns the state at that time. Ended processes and out-of-memory errors appear in one
    /// snapshot only: the next one after they happened.
    pub fn snapshot(&mut self, at: Timestamp, options: &SnapshotOptions) -> Snapshot {
        let mut ended = self.ended.drain();
        self.sharing.update(&mut self.running);
        let running = self.running.values_mut().filter(|process| !process.no_calls_since_exec);
        for process in running.chain(&mut ended) {
            process.build_activity_view(at, options.top);
            process.find_program(&self.sites);
        }
        let shown_sites = self.show_sites(at, options, &ended);
        let verdicts = self.classify_sites(at, options, &ended);
        let mut shown: Vec<_> = self.shown().chain(&ended).collect();
        shown.sort_by_cached_key(|process| {
            let oldest = process_view::oldest(process);
            let totals = &process.totals;
            let rank = process_view::rank(options.sort, totals.live.bytes(), totals.count, oldest);
            (process.ended.is_some(), rank, process.key.pid, Reverse(process.key.start))
        });
        let unattributed = &self.unattributed;
        let one = |p: &Process| {
            let view = process_view::process(p, at, options, unattributed, &self.sites);
            let undecided = verdicts.undecided.get(&p.key).filter(|_| p.ended.is_none());
            ProcessView { undecided: undecided.copied(), ..view }
        };
        let processes = shown.into_iter().map(one).collect();
        let mut snapshot = Snapshot {
            at,
            observed: at - self.start.unwrap_or(at),
            is_live: true,
            live_bytes: self.live().bytes(),
            live_allocations: self.shown().map(|process| process.totals.count).sum(),
            uncertainty: self.uncertainty(),
            unknown_calls: self.unknown_calls.clone(),
            processes,
            out_of_memory: self.drain_ooms(),
            ooms_by_gpu: std::mem::take(&mut self.ooms_by_gpu).into_iter().collect(),
            anomalies: self.show_anomalies(options, &ended),
            suspects: verdicts.suspects,
            suspects_total: verdicts.suspects_total,
            other_verdicts: verdicts.others,
            gpus: self.gpu_memory.views(at),
            device_holders: self.gpu_memory.holders.to_vec(),
            marks: self.marks.report(options.ended_sites),
            ..shown_sites
        };
        self.finish_snapshot(ended);
        if options.ended_sites {
            snapshot.not_freed = self.not_freed.views(&self.sites);
        }
        snapshot
    }

    /// Builds the part of a snapshot that covers the sites of all processes.
    fn show_sites(
        &mut self,
        at: Timestamp,
        options: &SnapshotOptions,
        ended: &[Process],
    ) -> Snapshot {
        let Self { running, ended_sites, sites, .. } = self;
        let running = running.values().filter(|process| !process.no_calls_since_exec);
        let ended = ended.iter().filter(|_| options.ended_sites);
        let mut tables: Vec<_> =
            running.chain(ended).map(|process| (Some(process.key.pid), &process.sites)).collect();
        if options.ended_sites {
            tables.extend(ended_sites.tables());
        }
        let (allocations_total, without_stack) = sites::views::coverage(&tables);
        tables.retain(|(pid, _)| pid.is_none_or(|pid| options.lists.includes(pid)));
        let list = |list_kind| sites::views::list(&tables, list_kind, at, options, sites);
        let (tensor_sites, tensor_sites_total) = list(SiteListKind::Tensors);
        let (sites, sites_total) = match options.lists {
            ListScope::All => list(SiteListKind::Memory),
            ListScope::Process(_) | ListScope::None => Default::default(),
        };
        Snapshot {
            sites,
            sites_total,
            allocations_total,
            without_stack,
            tensor_sites,
            tensor_sites_total,
            ..Snapshot::default()
        }
    }

    /// Classifies sites; the last report also includes processes that have ended, as they were
    /// then.
    fn classify_sites(
        &mut self,
        at: Timestamp,
        options: &SnapshotOptions,
        ended: &[Process],
    ) -> SiteVerdicts {
        for process in ended.iter().filter(|_| !self.drops_ended) {
            self.ended_verdicts.append(sites::verdicts::of(
                process,
                at,
                MAX_VERDICTS_PER_ENDED,
                &self.sites,
            ));
        }
        self.ended_verdicts =
            std::mem::take(&mut self.ended_verdicts).ranked(MAX_ENDED_VERDICTS, MAX_ENDED_VERDICTS);
        self.collect_verdicts(at, options).ranked(MAX_SUSPECTS, options.top_sites)
    }

    /// Verdicts on running processes, with as many of each besides its suspects as sites are listed;
    /// for the last report, also those on processes that ended before.
    fn collect_verdicts(&mut self, at: Timestamp, options: &SnapshotOptions) -> SiteVerdicts {
        let mut verdicts = SiteVerdicts::default();
        for process in self.running.values().filter(|process| !process.no_calls_since_exec) {
            let others = options.sites_of(process.key.pid);
            let mut own = sites::verdicts::of(process, at, others, &self.sites);
            own.forecast(process, &self.gpu_memory);
            verdicts.append(own);
        }
        if options.ended_sites {
            self.ended_verdicts.refresh_names(&self.sites);
            verdicts.append(self.ended_verdicts.clone());
        }
        verdicts
    }

    /// Returns all verdicts other than suspects that the last report of a trace selects from. Must be
    /// called after the last snapshot, with the same time.
    pub fn other_verdicts(&mut self, at: Timestamp) -> Vec<SiteVerdict> {
        let (top_sites, ended_sites) = (MAX_VERDICTS_PER_ENDED, true);
        let options = SnapshotOptions { top_sites, ended_sites, ..SnapshotOptions::DEFAULT };
        self.collect_verdicts(at, &options).ranked(usize::MAX, usize::MAX).others
    }

    /// Anomalies since the last snapshot; in the last report, all that are kept.
    fn show_anomalies(&mut self, options: &SnapshotOptions, ended: &[Process]) -> Vec<Anomaly> {
        let all = options.ended_sites;
        let shown = self.shown().chain(ended);
        let mut anomalies: Vec<_> = shown
            .flat_map(|process| sites::anomaly_log::views(process, all, &self.sites))
            .collect();
        if all {
            sites::anomaly_log::refresh_names(&mut self.ended_anomalies, &self.sites);
            anomalies.extend(self.ended_anomalies.iter().cloned());
        }
        for process in ended.iter().filter(|_| !self.drops_ended) {
            self.ended_anomalies.extend(sites::anomaly_log::views(process, true, &self.sites));
        }
        self.ended_anomalies.truncate(MAX_ENDED_VERDICTS);
        anomalies.sort_by_key(|one| (one.at, one.pid));
        anomalies
    }

    /// Called after a snapshot: resets the deltas, and keeps the sites of ended processes.
    fn finish_snapshot(&mut self, ended: Vec<Process>) {
        for process in self.running.values_mut() {
            process.sites.reset_delta();
            process.anomaly_log.mark_reported();
        }
        for process in ended.into_iter().filter(|_| !self.drops_ended) {
            self.not_freed.push(&process);
            self.ended_sites.push(process.key.pid, process.sites);
        }
    }

    /// Device memory of all running processes. O(processes).
    pub fn live_bytes(&self) -> Bytes {
        self.live().bytes()
    }

    /// Number of ended processes that were never in a snapshot, because more than 10,000 ended
    /// between two snapshots. Processes without live memory are dropped first.
    pub fn dropped_ended(&self) -> u64 {
        self.ended.dropped
    }

    fn shown(&self) -> impl Iterator<Item = &Process> {
        self.running.values().filter(|process| !process.no_calls_since_exec)
    }

    fn live(&self) -> ByteSum {
        self.shown().fold(ByteSum::default(), |sum, process| sum.plus(process.totals.live))
    }

    /// Site table for a new process.
    fn table(&self, at: Timestamp) -> SiteTable {
        SiteTable::new(self.start.unwrap_or(at), self.merge_sites)
    }

    /// Process that made a call; adds it if it is new.
    fn process(&mut self, event: &Event) -> &mut Process {
        let Event { pid, time: at, .. } = *event;
        let observer = self.change_log.is_some();
        let (start, merge_sites) = (self.start.unwrap_or(at), self.merge_sites);
        let losses = &mut self.before_announcement;
        let process = self.running.entry(pid).or_insert_with(|| {
            let new = Process::unannounced(pid, at).with_sites(SiteTable::new(start, merge_sites));
            let mut new = if observer { new.with_change_log() } else { new };
            if let Some(lost) = losses.remove(&pid) {
                new.record_loss(&lost, false, at);
            }
            new
        });
        process.no_calls_since_exec = false;
        process.call = (event.entry_time, event.time);
        process.overhead.record_call(event);
        process.live_trend.observe(event.time, process.totals.live.bytes().0);
        memory::loss::receive(&mut process.counts.received, &event.kind);
        process
    }

    fn announce(&mut self, event: &Event, info: &ProcessInfo) {
        let Event { pid, time: at, .. } = *event;
        if let Some(process) = self.running.get_mut(&pid)
            && process.matches(info)
        {
            process.no_calls_since_exec = false;
            process.update_info(info);
            return;
        }
        let new = Process::new(pid, info, at).with_sites(self.table(at));
        let mut new = if self.change_log.is_some() { new.with_change_log() } else { new };
        if let Some(lost) = self.before_announcement.remove(&pid) {
            new.record_loss(&lost, false, at);
        }
        if let Some(old) = self.running.insert(pid, new) {
            self.end(old, ProcessEnd::Exited, at);
        }
    }

    fn replace(&mut self, event: &Event) {
        let table = self.table(event.time);
        if let Some(process) = self.running.get_mut(&event.pid) {
            let next = process.after_exec(event.time).with_sites(table);
            let next = if self.change_log.is_some() { next.with_change_log() } else { next };
            let old = std::mem::replace(process, next);
            self.end(old, ProcessEnd::Exec, event.time);
        }
    }

    fn end(&mut self, mut process: Process, end: ProcessEnd, at: Timestamp) {
        if !process.no_calls_since_exec {
            process.shared_memory = self.sharing.views(&process, &self.running);
            process.finish(end, at);
            if let Some(log) = &mut self.change_log {
                log.collect(&mut process);
            }
            self.ended.push(process);
        }
    }
}
