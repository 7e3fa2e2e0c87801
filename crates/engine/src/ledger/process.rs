//! State of one process, updated with every call.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::leak::UsageTrend;
use crate::model::activity;
use crate::model::{
    AddressType, Allocate, AllocationKey, Container, DeviceId, EndReason, Event, FailedCall, Free,
    FreeFunction, FunctionId, INVALID_HANDLE, INVALID_VALUE, LostDelta, MemoryKind, MigInstance,
    PhysicalHandleId, Pid, ProcessIdentity, ProcessInfo, ProcessKey, SiteName, Tid, Timestamp,
};
use crate::snapshot::{ActivityView, ApiMisuse, ProcessEnd, ReceivedCalls, SharedMemoryView};

use super::activity::ProcessActivity;
use super::allocators::Allocators;
use super::change_log::ProcessChangeLog;
use super::driver::context::Contexts;
use super::driver::context::ends::ContextEnds;
use super::driver::device::Devices;
use super::driver::graph::{Graphs, NodeLimitReached, is_of_graph};
use super::driver::objects::ObjectTable;
use super::driver::overhead::Overhead;
use super::driver::physical::PhysicalMemory;
use super::driver::pool::Pools;
use super::driver::reuse::{Counts, existed};
use super::memory::allocation::{AllocationEntry, Allocations, NIL, NewAllocation, Slot};
use super::memory::loss::Losses;
use super::memory::pending_frees::{PendingFree, PendingFrees};
use super::memory::recent_frees::RecentFrees;
use super::memory::thread::Threads;
use super::memory::totals::{ByteSum, Totals};
use super::sites::anomaly_log::AnomalyLog;
use super::sites::table::SiteTable;

/// From this number of allocations on, they are removed in bulk.
const BULK_END_THRESHOLD: usize = 1000;

/// Counts of calls so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallCounts {
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) released: u64,
    pub(super) failed_allocations: u64,
    pub(super) unknown_frees: u64,
    pub(super) received: ReceivedCalls,
    pub(super) first_failed_allocation: Option<Timestamp>,
    pub(super) first_allocation: Option<Timestamp>,
}

/// Limit of name changes per process: each name creates separate metric series.
const MAX_RENAMES: u8 = 8;

/// One process; after an exec, one exec generation of it.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) key: ProcessKey,
    pub(super) uid: Option<u32>,
    pub(super) name: Box<str>,
    /// Number of name changes.
    rename_count: u8,
    pub(super) identity: ProcessIdentity,
    pub(super) container: Option<Arc<Container>>,
    pub(super) mig: Option<Arc<MigInstance>>,
    pub(super) before_trace: bool,
    /// Whether it has not called the driver since its exec, so that it is not shown.
    pub(super) no_calls_since_exec: bool,
    pub(super) ended: Option<(ProcessEnd, Timestamp)>,
    pub(super) allocations: Allocations,
    pub(super) threads: Threads,
    pub(super) totals: Totals,
    pub(super) counts: CallCounts,
    /// Calls of memory functions that this version does not know.
    pub(super) unknown_calls: u64,
    pub(super) failures: HashMap<(FunctionId, i32), u64>,
    pub(super) pending_frees: PendingFrees,
    /// Entry and return time of the current call.
    pub(super) call: (Timestamp, Timestamp),
    pub(super) losses: Losses,
    pub(super) contexts: Contexts,
    pub(super) context_ends: ContextEnds,
    pub(super) physical: PhysicalMemory,
    pub(super) pools: Pools,
    pub(super) graphs: Graphs,
    pub(super) devices: Devices,
    pub(super) api_misuse: ApiMisuse,
    /// Recently freed keys.
    pub(super) freed: RecentFrees,
    /// Whether memory was allocated with neither context nor device known.
    pub(super) unowned: bool,
    /// Imported memory that is opened more than once: number of additional openings.
    pub(super) reopened: Counts<AllocationKey>,
    /// Memory that it shares with other processes, as of the snapshot in progress or its end.
    pub(super) shared_memory: Vec<SharedMemoryView>,
    /// Logs allocation changes, if requested.
    pub(super) observer: Option<Box<ProcessChangeLog>>,
    /// Whether it was never announced, so that its start was not seen.
    unannounced: bool,
    /// Launches and copies.
    pub(super) activity: Option<Box<ProcessActivity>>,
    /// Activity view for the snapshot in progress.
    pub(super) activity_view: Option<ActivityView>,
    /// When it was first seen.
    start: Timestamp,
    /// CUDA objects.
    pub(super) objects: ObjectTable,
    /// Driver-reported memory beyond traced allocations.
    pub(super) overhead: Overhead,
    /// Sites of its memory and objects.
    pub(super) sites: SiteTable,
    /// Allocators inside the process, and their blocks.
    pub(super) allocators: Allocators,
    /// Python references that keep the memory of sites alive.
    pub(super) kept_by: HashMap<SiteName, Arc<str>>,
    /// Anomalies.
    pub(super) anomaly_log: Box<AnomalyLog>,
    /// Live device memory over the last minutes.
    pub(super) live_trend: UsageTrend,
    /// Driver-reported usage over the last minutes.
    driver_trend: UsageTrend,
}

impl Process {
    /// Creates a process that makes calls without having been announced.
    pub(super) fn unannounced(pid: Pid, at: Timestamp) -> Self {
        let info = ProcessInfo { start: 0, uid: 0, name: Box::default(), before_trace: true };
        Self { uid: None, unannounced: true, ..Self::new(pid, &info, at) }
    }

    pub(super) fn new(pid: Pid, info: &ProcessInfo, at: Timestamp) -> Self {
        Self {
            key: ProcessKey { pid, start: info.start },
            uid: Some(info.uid),
            name: info.name.clone(),
            before_trace: info.before_trace,
            totals: Totals::new(at),
            call: (at, at),
            contexts: Contexts::new(!info.before_trace),
            start: at,
            sites: SiteTable::starting_at(at),
            ..Self::default()
        }
    }

    /// Sets the site table.
    pub(super) fn with_sites(mut self, table: SiteTable) -> Self {
        self.sites = table;
        self
    }

    /// Creates the state after an exec: no memory, and all calls from now on are seen. The
    /// container stays the same, and the user until it is announced again.
    pub(super) fn after_exec(&self, at: Timestamp) -> Self {
        let info = ProcessInfo {
            start: self.key.start,
            uid: 0,
            name: self.name.clone(),
            before_trace: false,
        };
        let (container, mig) = (self.container.clone(), self.mig.clone());
        let identity = ProcessIdentity { program: None, ..self.identity.clone() };
        Self {
            uid: self.uid,
            identity,
            container,
            mig,
            no_calls_since_exec: true,
            ..Self::new(self.key.pid, &info, at)
        }
    }

    /// Whether an announcement is about this process. If a start time is unknown, it is assumed to
    /// be.
    pub(super) fn matches(&self, info: &ProcessInfo) -> bool {
        self.key.start == info.start || self.key.start == 0 || info.start == 0
    }

    /// Updates the process when it is announced again, or for the first time after a call.
    pub(super) fn update_info(&mut self, info: &ProcessInfo) {
        self.uid = Some(info.uid);
        self.name.clone_from(&info.name);
        if self.key.start == 0 {
            self.key.start = info.start;
        }
        if self.unannounced {
            self.unannounced = false;
            self.before_trace = info.before_trace;
        }
    }

    /// Records the driver-reported usage on all GPUs.
    pub(super) fn record_driver_usage(&mut self, at: Timestamp) {
        if let Some(bytes) = self.devices.driver_bytes() {
            self.driver_trend.observe(at, bytes);
        }
    }

    /// Forgets the driver-reported usage.
    pub(super) fn clear_driver_usage(&mut self) {
        self.devices.clear_driver_usage();
        self.overhead.clear();
        self.driver_trend = UsageTrend::default();
    }

    /// Growth per hour, as the driver reports it or else of the traced memory; `None` for a process
    /// that ended.
    pub(super) fn growth_per_hour(&self, at: Timestamp) -> Option<i64> {
        if self.ended.is_some() {
            return None;
        }
        match self.devices.driver_bytes() {
            Some(bytes) => self.driver_trend.growth_per_hour(at, bytes),
            None => self.live_trend.growth_per_hour(at, self.totals.live.bytes().0),
        }
    }

    /// Applies launches, copies and kernel names.
    pub(super) fn apply_activity(&mut self, activity: &activity::GpuActivity) {
        let complete = self.has_all_allocations();
        self.activity.get_or_insert_default().apply(activity, complete);
    }

    /// Number of calls whose effect is ambiguous. A free that is implied by the reuse of its address
    /// is one if the process ended before the call returned: memory may also have ended with a
    /// context.
    pub(super) const fn ambiguous_calls(&self) -> u64 {
        let PendingFrees { racing, count, .. } = self.pending_frees;
        let unreturned = if self.ended.is_some() { count } else { 0 };
        self.graphs.ambiguous_calls().saturating_add(racing).saturating_add(unreturned)
    }

    /// Whether all its allocations were seen.
    fn has_all_allocations(&self) -> bool {
        !self.before_trace && self.losses.own.allocations == 0
    }

    /// Prepares the activity view for a snapshot.
    pub(super) fn build_activity_view(&mut self, at: Timestamp, top: usize) {
        let at = self.ended.map_or(at, |(_, ended_at)| ended_at);
        self.activity_view =
            self.activity.as_mut().map(|activity| activity.view(at, self.start, top));
    }

    /// Handles the end of a thread.
    pub(super) fn end_thread(&mut self, tid: Tid) {
        self.threads.end(tid);
        self.graphs.end_thread(tid);
    }

    /// Handles the end of the process: drops state that only further calls would need.
    pub(super) fn finish(&mut self, end: ProcessEnd, at: Timestamp) {
        if self.observer.is_some() {
            self.log_exit(at);
        }
        self.ended = Some((end, at));
        self.freed = RecentFrees::default();
        if let Some(activity) = &mut self.activity {
            activity.finish();
        }
    }

    /// Names a thread. A process has the name of its main thread: framework workers rename
    /// themselves once they know their task.
    pub(super) fn name_thread(&mut self, tid: Tid, name: &str) {
        self.threads.rename(tid, self.allocations.seed(), name);
        if tid.0 == self.key.pid.0 && *self.name != *name && self.rename_count < MAX_RENAMES {
            self.name = name.into();
            self.rename_count += 1;
        }
    }

    /// Applies an allocation. Returns an error if it belongs to a capture and its node was dropped.
    pub(super) fn allocate(
        &mut self,
        event: &Event,
        allocate: &Allocate,
    ) -> Result<(), NodeLimitReached> {
        let context = allocate.context.filter(|context| context.0 != 0);
        let context = context.map_or(NIL, |context| self.contexts.of(context));
        let Allocate { key, kind, bytes, device, site, stream, .. } = *allocate;
        let mut new = NewAllocation { key, kind, bytes, site, owner: context, device, stream };
        if kind.is_pooled() {
            let result = self.capture_allocation(event, allocate, context);
            if let Some(result) = result {
                return result;
            }
            (new.kind, new.owner, new.device) = self.pooled(allocate, context);
        } else {
            new.device = allocate.device.or_else(|| self.device_of(context));
        }
        self.unowned |= new.device.is_none() && context == NIL;
        if kind != MemoryKind::Imported || !self.open_again(event, allocate) {
            self.insert_allocation(event, &new);
            if self.pending_frees.match_early(key, event.entry_time) {
                self.losses.doubt_free(event.time, self.totals.live);
            }
        }
        Ok(())
    }

    /// Adds an allocation to all lists and totals.
    pub(super) fn insert_allocation(&mut self, event: &Event, new: &NewAllocation) {
        self.counts.allocations += 1;
        self.counts.first_allocation.get_or_insert(event.time);
        let thread = self.threads.of(event.tid, self.allocations.seed());
        self.evict_stale(new.key);
        new.device.into_iter().for_each(|device| self.devices.uses(device));
        let entry = AllocationEntry::new(new, event.time, thread);
        let slot = self.allocations.insert(entry);
        self.threads.link(&mut self.allocations.slab, slot);
        self.contexts.add(&entry);
        self.pools.add(&entry);
        let live = self.totals.live.bytes();
        self.totals.add(&entry, self.call);
        let site = self.sites.add(&entry, Some(event.tid), self.graphs.capturing());
        self.anomaly_log.observe(&entry, Some(event.tid), site, live);
        self.losses.begin(&entry);
        self.context_ends.begin(&entry);
        if self.observer.is_some() {
            self.log_begin(slot, new.stream);
        }
    }

    /// Raises the size of imported memory, known from its exporter or its mappings.
    pub(super) fn grow_import(&mut self, key: AllocationKey, bytes: u64, at: Timestamp) {
        let Some(slot) = self.allocations.find(key) else { return };
        let entry = self.allocations.slab[slot];
        if entry.kind == MemoryKind::Imported && entry.bytes < bytes {
            self.totals.resize(&entry, bytes);
            self.sites.resize(&entry, bytes, at);
            let before = self.late_fields(slot);
            self.threads.resize(&mut self.allocations.slab, slot, bytes);
            self.log_update(slot, before);
        }
    }

    /// Ends a live allocation with this key before the key is added again. The driver only reuses a
    /// key after its free has taken effect, so the call that freed it has not returned yet.
    pub(super) fn evict_stale(&mut self, key: AllocationKey) {
        if let Some(older) = self.allocations.find(key) {
            let entry = self.allocations.slab[older];
            let openings = self.remove_allocation(older, EndReason::Replaced);
            let (entered, at) = self.call;
            let bytes = if entry.kind.takes_device_memory() { entry.bytes } else { 0 };
            let context = self.contexts.id(entry.context());
            let (allocated_at, device) = (entry.returned_at, entry.device());
            let pending = PendingFree { context, device, allocated_at, at, entered, bytes };
            self.pending_frees.add(key, openings, pending);
        }
    }

    /// Matches a free with an allocation that was ended by reuse; returns whether there was one.
    pub(super) fn match_pending_free(&mut self, key: AllocationKey) -> bool {
        let Some(pending) = self.pending_frees.match_free(key, self.call.0) else { return false };
        self.counts.frees += 1;
        self.totals.ended_earlier(pending.device, self.call.0, pending.entered, pending.bytes);
        true
    }

    /// Counts another opening of imported memory at the same address. This cannot be distinguished
    /// from other imported memory that got the address while the last close call is in progress.
    fn open_again(&mut self, event: &Event, allocate: &Allocate) -> bool {
        let Allocate { key, kind, site, .. } = *allocate;
        let live = self.allocations.find(key);
        let open =
            live.is_some_and(|slot| self.allocations.slab[slot].kind == MemoryKind::Imported);
        if open {
            self.counts.allocations += 1;
            self.counts.first_allocation.get_or_insert(event.time);
            self.reopened.add(key, 1);
            self.sites.reopen(site, kind, event.time);
        }
        open
    }

    /// Applies a free. Returns an error if it belongs to a capture and its node was dropped.
    pub(super) fn free(&mut self, event: &Event, free: &Free) -> Result<(), NodeLimitReached> {
        if free.by == FreeFunction::FreeAsync
            && self.graphs.capturing()
            && let Some(result) = self.capture_free(event, free)
        {
            return result;
        }
        self.free_key(event, free.key, Some(free.by));
        Ok(())
    }

    /// Frees the allocation with this key; `by` is the function family, if it matters.
    pub(super) fn free_key(&mut self, event: &Event, key: AllocationKey, by: Option<FreeFunction>) {
        self.freed.push(key);
        let live = self.allocations.find(key);
        let since = |slot: Slot| self.allocations.slab[slot].returned_at;
        let own = live.filter(|&slot| existed(since(slot), event.entry_time));
        if let Some(slot) = own {
            self.free_slot(slot, by);
        } else if !self.match_ended(key) {
            self.counts.unknown_frees += 1;
            // Memory that was released since the call began could be what it freed.
            let was_released = self.pending_frees.released_at >= event.entry_time;
            let is_unlisted = self.pending_frees.unlisted_until >= Some(event.entry_time);
            if self.has_all_allocations() && (!was_released || is_unlisted) {
                self.doubt_racing_free(event, key, live);
            }
        }
    }

    /// Matches a free with memory that ended before the free returned.
    fn match_ended(&mut self, key: AllocationKey) -> bool {
        if self.pending_frees.prefers_released(key, self.call.0) {
            self.match_released(key)
        } else {
            self.match_pending_free(key)
        }
    }

    /// Matches a free with memory that seemed to end with its context, while the free call was in
    /// progress; returns whether there was one.
    fn match_released(&mut self, key: AllocationKey) -> bool {
        let (entered, returned) = self.call;
        let Some(memory) = self.pending_frees.match_released(key, entered) else { return false };
        self.counts.frees += 1;
        self.counts.released = self.counts.released.saturating_sub(1);
        if entered < memory.call.0 {
            self.totals.ended_earlier(memory.device, entered, memory.call.0, memory.bytes);
        }
        if let Some(entry) = memory.entry {
            self.sites.close_handle(&entry, returned);
        }
        true
    }

    /// Handles a free of unknown memory although all allocations were seen: it may be of memory whose
    /// allocating call overlaps with it, if a thread frees a dangling pointer.
    fn doubt_racing_free(&mut self, event: &Event, key: AllocationKey, live: Option<Slot>) {
        match live.map(|slot| &self.allocations.slab[slot]) {
            None => self.pending_frees.add_early(key, event.time),
            // The older memory ended with a launch.
            Some(entry) if is_of_graph(entry) => {}
            Some(_) => {
                self.pending_frees.racing += 1;
                self.losses.doubt_free(event.time, self.totals.live);
            }
        }
    }

    fn free_slot(&mut self, slot: Slot, by: Option<FreeFunction>) {
        self.counts.frees += 1;
        let kind = self.allocations.slab[slot].kind;
        let fits = by.is_none_or(|by| by.fits(kind));
        self.api_misuse.mismatched_frees += u64::from(!fits);
        if kind != MemoryKind::Imported || !self.close_one(slot) {
            self.remove_allocation(slot, EndReason::Freed);
        }
    }

    /// Closes one of several openings of imported memory; returns whether it stays open.
    fn close_one(&mut self, slot: Slot) -> bool {
        let entry = self.allocations.slab[slot];
        let stays_open = self.reopened.take(entry.key());
        if stays_open {
            self.sites.close_handle(&entry, self.call.1);
        }
        stays_open
    }

    /// Counts a failed call.
    pub(super) fn record_failure(&mut self, failed: &FailedCall, at: Timestamp) {
        *self.failures.entry((failed.function, failed.code)).or_insert(0) += 1;
        if failed.requested.is_some() {
            self.counts.failed_allocations += 1;
            self.counts.first_failed_allocation.get_or_insert(at);
        }
        let rejected = matches!(failed.code, INVALID_VALUE | INVALID_HANDLE);
        if let Some(key) = failed.freed.filter(|_| rejected)
            && self.allocations.find(key).is_none()
        {
            if self.freed.contains(key) {
                self.api_misuse.double_frees += 1;
            } else {
                self.api_misuse.invalid_frees += 1;
            }
        }
    }

    /// Device of a failed call.
    pub(super) fn requested_device(&self, failed: &FailedCall) -> Option<DeviceId> {
        let context = failed.context.and_then(|context| self.contexts.find(context));
        failed.device.or_else(|| self.device_of(context.unwrap_or(NIL)))
    }

    /// Records losses of this process, or `shared` losses of an unknown process.
    pub(super) fn record_loss(&mut self, lost: &LostDelta, shared: bool, at: Timestamp) {
        let ends = self.possible_lost_frees(lost.allocations, lost.frees);
        self.losses.record_loss(lost, shared, at, self.totals.live, ends);
        if lost.other > 0 {
            self.contexts.mark_count_unknown();
        }
    }

    /// Device of a context, or the only one that the process can see.
    pub(super) fn device_of(&self, context: u32) -> Option<DeviceId> {
        self.contexts.device(context).or_else(|| self.devices.only())
    }

    /// Ends a live allocation; the only place where this happens. Returns how often it had been
    /// opened.
    pub(super) fn remove_allocation(&mut self, slot: Slot, reason: EndReason) -> u64 {
        if self.observer.is_some() {
            self.log_end(slot, reason);
        }
        self.threads.unlink(&mut self.allocations.slab, slot);
        let entry = self.allocations.remove(slot);
        self.remove_entry(&entry, reason)
    }

    /// Ends many allocations whose context ended; returns how often they had been opened in total.
    pub(super) fn remove_allocations(&mut self, slots: &[Slot]) -> u64 {
        if slots.len() < BULK_END_THRESHOLD {
            return slots
                .iter()
                .map(|slot| self.remove_allocation(*slot, EndReason::Released))
                .sum();
        }
        let mut openings = 0;
        for slot in slots {
            if self.observer.is_some() {
                self.log_end(*slot, EndReason::Released);
            }
            let entry = self.allocations.slab[*slot];
            openings += self.remove_entry(&entry, EndReason::Released);
        }
        self.threads.unlink_all(&mut self.allocations.slab, slots);
        self.allocations.remove_all(slots);
        openings
    }

    /// Updates everything except the lists of live allocations when one ends.
    fn remove_entry(&mut self, entry: &AllocationEntry, reason: EndReason) -> u64 {
        self.contexts.remove(entry);
        self.pools.subtract(entry);
        self.totals.subtract(entry, self.call);
        self.losses.end(entry);
        self.context_ends.end(entry, reason);
        self.anomaly_log.end(entry);
        let key = entry.key();
        if key.space == AddressType::Handle {
            self.physical.clear(PhysicalHandleId(key.value));
        }
        let is_imported = entry.kind == MemoryKind::Imported;
        let openings = 1 + if is_imported { self.reopened.take_all(key) } else { 0 };
        self.sites.remove(entry, reason, self.call.1, openings);
        openings
    }

    /// Number of lost records that can hide the end of an allocation; see [`super::memory::loss`].
    pub(super) fn possible_lost_frees(&self, allocations: u64, frees: u64) -> u64 {
        let allocations = if self.physical.is_used() { allocations } else { 0 };
        frees.saturating_add(allocations)
    }

    /// Device memory that may be live but is not listed; see [`super::memory::loss`].
    pub(super) fn unlisted_bytes(&self) -> ByteSum {
        let listed = |address| {
            let slot = self.allocations.find(AllocationKey::address(address));
            slot.map_or(0, |slot| self.allocations.slab[slot].device_bytes())
        };
        let known = self.losses.unlisted_bytes(self.before_trace);
        let known = known.plus(self.graphs.ambiguous_bytes(listed));
        if !self.losses.has_other_lost() {
            return known;
        }
        let records = self.losses.other_lost();
        let is_live = |address| self.allocations.find(AllocationKey::address(address)).is_some();
        known
            .plus(self.physical.ended.at_most(records))
            .plus(self.graphs.dropped.at_most(records))
            .plus(self.graphs.potential(is_live))
            .plus(self.totals.of(MemoryKind::HostAsync))
    }
}
