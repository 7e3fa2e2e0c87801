//! One process: allocations, frees and failures.

use std::collections::{BTreeMap, BTreeSet};

use engine::model::container::Container;
use engine::model::cuda_object::ObjectKind;
use engine::model::event::{Allocate, Event, FailedCall, Free, FreeFunction, ProcessInfo};
use engine::model::ids::{
    AddressType, AllocationKey, ContextId, DeviceId, FunctionId, GpuId, GraphExecId, GraphId,
    PhysicalHandleId, Pid, PoolId, ProcessKey, SiteId, Tid,
};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::{ApiMisuse, DriverReported, LostTotals, ProcessEnd, ReceivedCalls};

use super::Live;
use super::graphs::{Capture, Exec, TimedNode};
use super::objects::{Object, ObjectLine};
use super::physical::{Handle, Mapping};
use super::pools::Pool;
use super::sites::{Line, SiteOp};

#[derive(Clone, Copy, Default)]
pub(super) struct Context {
    pub(super) device: Option<DeviceId>,
    pub(super) created_at: Option<Timestamp>,
}

/// An allocation that was replaced by a new one at its address.
#[derive(Clone, Copy)]
pub(super) struct PendingFree {
    pub(super) key: AllocationKey,
    pub(super) context: Option<ContextId>,
    pub(super) allocated_at: Timestamp,
    pub(super) at: Timestamp,
}

#[derive(Clone)]
pub(super) struct Process {
    pub(super) key: ProcessKey,
    pub(super) uid: Option<u32>,
    pub(super) name: Box<str>,
    pub(super) rename_count: u8,
    pub(super) container: Option<Container>,
    pub(super) before_trace: bool,
    pub(super) unannounced: bool,
    pub(super) no_calls_since_exec: bool,
    /// Whether every retain is known.
    pub(super) counted: bool,
    pub(super) ended: Option<(ProcessEnd, Timestamp)>,
    pub(super) live: Vec<Live>,
    pub(super) pending_frees: Vec<PendingFree>,
    pub(super) freed: Vec<AllocationKey>,
    pub(super) names: BTreeMap<Tid, Box<str>>,
    pub(super) ended_threads: BTreeSet<Tid>,
    pub(super) contexts: BTreeMap<ContextId, Context>,
    pub(super) primaries: BTreeMap<DeviceId, (ContextId, u64)>,
    pub(super) handles: BTreeMap<PhysicalHandleId, Handle>,
    pub(super) handle_count: u64,
    pub(super) pending_releases: Vec<PhysicalHandleId>,
    pub(super) mappings: Vec<Mapping>,
    pub(super) reservations: BTreeMap<u64, (u64, Timestamp)>,
    pub(super) pools: Vec<Pool>,
    pub(super) named: BTreeMap<PoolId, usize>,
    pub(super) defaults: BTreeMap<DeviceId, usize>,
    pub(super) current: BTreeMap<DeviceId, usize>,
    pub(super) captures: Vec<Capture>,
    /// Calls that are nodes or not.
    pub(super) ambiguous: u64,
    /// Return times of frees of unknown memory.
    pub(super) early_frees: BTreeMap<AllocationKey, Timestamp>,
    /// Return time of the last call that ended a context.
    pub(super) released_at: Timestamp,
    /// What ended with contexts.
    pub(super) released: Vec<(AllocationKey, Released)>,
    pub(super) graphs: BTreeMap<GraphId, Vec<TimedNode>>,
    pub(super) execs: BTreeMap<GraphExecId, Exec>,
    pub(super) graph_reserved: BTreeMap<DeviceId, DriverReported>,
    pub(super) gpus: Vec<Option<GpuId>>,
    /// It uses another device than the only visible one.
    pub(super) sees_more: bool,
    /// GPU of all memory whose device is unknown.
    pub(super) unplaced_on: Option<GpuId>,
    /// Memory was allocated without a context and a device.
    pub(super) unowned: bool,
    /// A context may have ended.
    pub(super) any_ended: bool,
    pub(super) driver_usage: BTreeMap<GpuId, Bytes>,
    pub(super) failures: BTreeMap<(FunctionId, i32), u64>,
    pub(super) api_misuse: ApiMisuse,
    pub(super) peak: (u64, Timestamp),
    pub(super) device_peaks: BTreeMap<Option<DeviceId>, u64>,
    pub(super) allocations_total: u64,
    pub(super) frees_total: u64,
    pub(super) released_total: u64,
    pub(super) failed_allocations: u64,
    pub(super) unknown_frees: u64,
    pub(super) received: ReceivedCalls,
    pub(super) lost: LostTotals,
    pub(super) shared_other: u64,
    /// Log of all sites, and the length of the part that was in a snapshot.
    pub(super) log: Vec<Line>,
    pub(super) shown: usize,
    pub(super) objects: Vec<Object>,
    pub(super) object_log: Vec<ObjectLine>,
    pub(super) pending_destroys: Vec<(ObjectKind, u64)>,
    /// Memory in unknown contexts, and in known ones, is in doubt up to these times.
    pub(super) doubt: (Timestamp, Timestamp),
    /// Number of allocations that were in doubt when their address was reused.
    pub(super) open: u64,
    pub(super) newest: Timestamp,
    /// Time of the current call.
    pub(super) now: Timestamp,
}

/// Memory that ended with a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Released {
    pub(super) allocated_at: Timestamp,
    /// Return time of the call that ended the context.
    pub(super) at: Timestamp,
    /// Where it was allocated, unless its address was reused before.
    pub(super) live: Option<(Option<SiteId>, MemoryKind)>,
}

impl Process {
    /// Names a thread; the first one names the process.
    pub(super) fn name_thread(&mut self, tid: Tid, name: &str, is_first: bool) {
        self.ended_threads.remove(&tid);
        self.names.insert(tid, name.into());
        if is_first && *self.name != *name && self.rename_count < 8 {
            self.name = name.into();
            self.rename_count += 1;
        }
    }

    pub(super) fn new(pid: Pid, info: &ProcessInfo, at: Timestamp) -> Self {
        Self {
            key: ProcessKey { pid, start: info.start },
            uid: Some(info.uid),
            name: info.name.clone(),
            container: None,
            before_trace: info.before_trace,
            unannounced: false,
            no_calls_since_exec: false,
            counted: !info.before_trace,
            ended: None,
            live: Vec::new(),
            pending_frees: Vec::new(),
            freed: Vec::new(),
            names: BTreeMap::new(),
            rename_count: 0,
            ended_threads: BTreeSet::new(),
            contexts: BTreeMap::new(),
            primaries: BTreeMap::new(),
            handles: BTreeMap::new(),
            handle_count: 0,
            pending_releases: Vec::new(),
            mappings: Vec::new(),
            reservations: BTreeMap::new(),
            pools: Vec::new(),
            named: BTreeMap::new(),
            defaults: BTreeMap::new(),
            current: BTreeMap::new(),
            captures: Vec::new(),
            ambiguous: 0,
            early_frees: BTreeMap::new(),
            released_at: Timestamp(0),
            released: Vec::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            graph_reserved: BTreeMap::new(),
            gpus: Vec::new(),
            sees_more: false,
            unplaced_on: None,
            unowned: false,
            any_ended: false,
            driver_usage: BTreeMap::new(),
            failures: BTreeMap::new(),
            api_misuse: ApiMisuse::default(),
            peak: (0, at),
            device_peaks: BTreeMap::new(),
            allocations_total: 0,
            frees_total: 0,
            released_total: 0,
            failed_allocations: 0,
            unknown_frees: 0,
            received: ReceivedCalls::default(),
            lost: LostTotals::default(),
            shared_other: 0,
            log: Vec::new(),
            shown: 0,
            objects: Vec::new(),
            object_log: Vec::new(),
            pending_destroys: Vec::new(),
            doubt: (Timestamp(0), Timestamp(0)),
            open: 0,
            newest: Timestamp(0),
            now: at,
        }
    }

    pub(super) fn after_exec(&self, at: Timestamp) -> Self {
        let start = self.key.start;
        let info = ProcessInfo { start, uid: 0, name: self.name.clone(), before_trace: false };
        let container = self.container.clone();
        Self {
            uid: self.uid,
            container,
            no_calls_since_exec: true,
            ..Self::new(self.key.pid, &info, at)
        }
    }

    pub(super) fn gpu(&self, device: DeviceId) -> Option<GpuId> {
        self.gpus.get(device.0 as usize).copied().flatten()
    }

    /// Returns the GPU of memory on a device; of memory on an unknown device, if it is on one GPU.
    pub(super) fn gpu_of(&self, device: Option<DeviceId>) -> Option<GpuId> {
        device.map_or(self.unplaced_on, |device| self.gpu(device))
    }

    /// Returns the only visible device.
    pub(super) fn only(&self) -> Option<DeviceId> {
        (self.gpus.len() == 1 && !self.sees_more).then_some(DeviceId(0))
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live.iter().map(Live::device_bytes).sum()
    }

    pub(super) fn after_event(&mut self, at: Timestamp) {
        if self.live_bytes() > self.peak.0 {
            self.peak = (self.live_bytes(), at);
        }
        for live in self.live.iter().filter(|live| live.kind.takes_device_memory()) {
            let here = self.live.iter().filter(|other| other.device == live.device);
            let sum: u64 = here.map(Live::device_bytes).sum();
            let peak = self.device_peaks.entry(live.device).or_default();
            *peak = sum.max(*peak);
        }
        let holds = |tid: &Tid| self.live.iter().any(|live| live.tid == *tid);
        self.names.retain(|tid, _| !self.ended_threads.contains(tid) || holds(tid));
    }

    pub(super) fn allocate(&mut self, event: &Event, allocate: &Allocate) {
        let context = allocate.context.filter(|id| id.0 != 0);
        let of_context = context.and_then(|id| self.contexts.entry(id).or_default().device);
        let device = allocate.device.or(of_context).or(self.only());
        if allocate.kind.is_pooled() && self.capture_allocation(event, allocate, device) {
            return;
        }
        let mut live = Live::new(allocate.key, allocate.kind, allocate.bytes, device);
        live.context = context;
        live.site = allocate.site;
        if allocate.kind.is_pooled() {
            self.find_pool(&mut live, allocate.pool);
        }
        self.unowned |= live.device.is_none() && context.is_none();
        let open = |live: &&mut Live| live.key == allocate.key && live.kind == MemoryKind::Imported;
        if allocate.kind == MemoryKind::Imported
            && let Some(live) = self.live.iter_mut().find(open)
        {
            live.openings += 1;
            self.allocations_total += 1;
            self.write(allocate.site, allocate.kind, SiteOp::OpenAgain);
            return;
        }
        self.begin(event, live);
        let early = self.early_frees.remove(&allocate.key);
        self.ambiguous += u64::from(early.is_some_and(|returned| returned >= event.entry_time));
    }

    pub(super) fn begin(&mut self, event: &Event, live: Live) {
        self.allocations_total += 1;
        self.ended_threads.remove(&event.tid);
        self.make_room(live.key, event.time);
        self.sees_more |= live.device.is_some_and(|device| device.0 != 0);
        self.write(live.site, live.kind, SiteOp::Begin(live.bytes));
        self.newest = self.newest.max(event.time);
        self.live.push(Live { at: event.time, tid: event.tid, ..live });
    }

    /// Replaces the live allocation at a reused address; its free is still expected.
    pub(super) fn make_room(&mut self, key: AllocationKey, at: Timestamp) {
        if let Some(position) = self.find(key) {
            self.open += u64::from(self.is_in_doubt(&self.live[position]));
            let old = self.end(position, true);
            for _ in 0..old.openings {
                let context = old.context.filter(|_| !old.kind.is_pooled());
                self.pending_frees.push(PendingFree { key, context, allocated_at: old.at, at });
            }
        }
    }

    pub(super) fn find(&self, key: AllocationKey) -> Option<usize> {
        self.live.iter().position(|live| live.key == key)
    }

    pub(super) fn write(&mut self, site: Option<SiteId>, kind: MemoryKind, op: SiteOp) {
        self.log.push(Line { at: self.now, site, kind, op });
    }

    /// Ends an allocation; `freed`: by a call, even if it was not received.
    pub(super) fn end(&mut self, position: usize, freed: bool) -> Live {
        let old = self.live.remove(position);
        let Live { bytes, at: allocated_at, openings, site, kind, .. } = old;
        let op = if freed {
            SiteOp::Free { bytes, allocated_at, openings }
        } else {
            SiteOp::Release { bytes }
        };
        self.write(site, kind, op);
        if old.key.space == AddressType::Handle {
            self.remove_handle(PhysicalHandleId(old.key.value));
        }
        old
    }

    pub(super) fn free(&mut self, event: &Event, free: &Free) {
        if free.by != FreeFunction::FreeAsync || !self.capture_free(event, free) {
            self.free_key(event, free.key, Some(free.by));
        }
    }

    pub(super) fn free_key(&mut self, event: &Event, key: AllocationKey, by: Option<FreeFunction>) {
        self.freed.push(key);
        let own = |live: &Live| live.key == key && live.at <= event.entry_time;
        if let Some(position) = self.live.iter().position(own) {
            self.frees_total += 1;
            let live = &mut self.live[position];
            self.api_misuse.mismatched_frees += u64::from(by.is_some_and(|by| !by.fits(live.kind)));
            if live.openings > 1 {
                live.openings -= 1;
                let (site, kind) = (live.site, live.kind);
                self.write(site, kind, SiteOp::Close);
            } else {
                self.end(position, true);
            }
        } else if !self.match_ended(event, key) {
            self.unknown_frees += 1;
            let is_known = !self.before_trace && self.lost.allocations == 0;
            if is_known && self.released_at < event.entry_time {
                match self.find(key).map(|position| &self.live[position]) {
                    None => drop(self.early_frees.insert(key, event.time)),
                    Some(live) => self.ambiguous += u64::from(!live.of_graph()),
                }
            }
        }
    }

    /// Matches a free with a replaced allocation.
    pub(super) fn match_pending_free(&mut self, event: &Event, key: AllocationKey) -> bool {
        let own = |old: &PendingFree| old.key == key && old.allocated_at <= event.entry_time;
        let pending = self.pending_frees.iter().rposition(own);
        if let Some(position) = pending {
            self.pending_frees.remove(position);
            self.frees_total += 1;
        }
        pending.is_some()
    }

    /// Matches a free with the youngest memory that has ended and existed when it was entered.
    fn match_ended(&mut self, event: &Event, key: AllocationKey) -> bool {
        let entered = event.entry_time;
        let pending = self.pending_frees.iter().filter(|old| old.key == key);
        let pending = pending.map(|old| old.allocated_at).rfind(|at| *at <= entered);
        let released = self.released.iter().filter(|(of, old)| *of == key && entered <= old.at);
        let released = released.map(|(_, old)| old.allocated_at).rfind(|at| *at <= entered);
        if released > pending {
            self.match_released(event, key)
        } else {
            self.match_pending_free(event, key)
        }
    }

    /// Matches a free with memory that ended with its context while the free was in progress.
    fn match_released(&mut self, event: &Event, key: AllocationKey) -> bool {
        let overlaps = |(released, old): &(AllocationKey, Released)| {
            *released == key && old.allocated_at <= event.entry_time && event.entry_time <= old.at
        };
        let Some(position) = self.released.iter().rposition(overlaps) else { return false };
        let (_, old) = self.released.remove(position);
        self.frees_total += 1;
        self.released_total -= 1;
        if let Some((site, kind)) = old.live {
            self.write(site, kind, SiteOp::Close);
        }
        true
    }

    pub(super) fn fail(&mut self, failed: &FailedCall) {
        *self.failures.entry((failed.function, failed.code)).or_default() += 1;
        self.failed_allocations += u64::from(failed.requested.is_some());
        if let Some(key) = failed.freed
            && (failed.code == 1 || failed.code == 400)
            && self.find(key).is_none()
        {
            let double = self.freed.contains(&key);
            self.api_misuse.double_frees += u64::from(double);
            self.api_misuse.invalid_frees += u64::from(!double);
        }
    }
}
