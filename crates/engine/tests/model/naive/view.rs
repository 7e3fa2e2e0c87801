//! The view of a process in a snapshot.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use engine::model::event::MemoryLocation;
use engine::model::ids::{DeviceId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::program::ProcessIdentity;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::{
    AllocationView, DeviceView, FailedCallCount, KindView, OverheadView, PoolView, ProcessView,
    SnapshotOptions, SortOrder, ThreadView, Uncertainty,
};

use super::{Live, Naive, Process};

impl Process {
    pub(super) fn view(
        &self,
        at: Timestamp,
        options: &SnapshotOptions,
        all: &Naive,
    ) -> ProcessView {
        let (sites, sites_total) = all.sites(&[(self, false)], at, options, false);
        let at = self.ended.map_or(at, |(_, ended_at)| ended_at);
        let total = Bytes(self.live_bytes());
        let mut failures: Vec<_> = self
            .failures
            .iter()
            .map(|(&(function, code), &count)| FailedCallCount { function, code, count })
            .collect();
        failures.sort_by_key(|failure| Reverse(failure.count));
        ProcessView {
            mig: None,
            shared_memory: Vec::new(),
            key: self.key,
            uid: self.uid,
            name: self.name.clone(),
            identity: ProcessIdentity::default(),
            container: self.container.clone().map(Arc::new),
            ended: self.ended.map(|(end, _)| end),
            before_trace: self.before_trace,
            live_bytes: total,
            live_allocations: self.live.len() as u64,
            peak_bytes: Bytes(self.peak.0),
            peak_at: self.peak.1,
            peak_bounds: None,
            allocations_total: self.allocations_total,
            frees_total: self.frees_total,
            released_total: self.released_total,
            failed_allocations: self.failed_allocations,
            unknown_frees: self.unknown_frees,
            received_calls: self.received,
            failures,
            devices: self.devices(),
            kinds: kinds(self.live.iter()),
            threads: self.threads(at, options, all),
            pools: self.pools(),
            reserved_addresses: Bytes(self.reservations.values().map(|(bytes, _)| bytes).sum()),
            api_misuse: self.api_misuse,
            activity: None,
            objects: self.object_views(),
            allocators: Vec::new(),
            sites,
            sites_total,
            libraries: Vec::new(),
            overhead: OverheadView::default(),
            growth_per_hour: None,
            undecided: None,
            uncertainty: Uncertainty {
                lost: self.lost,
                live_min: total,
                live_max: total,
                implied_frees: self.pending_frees.len() as u64,
                before_trace: self.before_trace,
                capture_ended: None,
                unknown_context: self.in_doubt(),
                ambiguous_calls: self.ambiguous_calls(),
                unknown_calls: 0,
            },
        }
    }

    fn devices(&self) -> Vec<DeviceView> {
        let mut devices: BTreeSet<_> = self.device_peaks.keys().copied().flatten().collect();
        devices.extend(self.graph_reserved.keys());
        let ordinals = (0..self.gpus.len()).map(|ordinal| DeviceId(ordinal as u16));
        devices.extend(ordinals.filter(|device| {
            self.gpu(*device).is_some_and(|gpu| self.driver_usage.contains_key(&gpu))
        }));
        let mut rows: Vec<_> = devices.into_iter().map(|device| self.row(Some(device))).collect();
        rows.extend(Some(self.row(None)).filter(|row| row.live_bytes.0 > 0));
        let listed: Vec<_> = rows.iter().filter_map(|row| row.gpu).collect();
        let unknown = self.driver_usage.iter().filter(|(gpu, _)| !listed.contains(gpu));
        rows.extend(unknown.map(|(gpu, bytes)| DeviceView {
            device: None,
            live_bytes: Bytes(0),
            peak_bytes: Bytes(0),
            peak_bounds: None,
            gpu: Some(*gpu),
            driver_bytes: Some(*bytes),
            driver_traced: None,
            driver_unplaced: Bytes(0),
            graph_reserved: None,
        }));
        rows
    }

    fn row(&self, device: Option<DeviceId>) -> DeviceView {
        let held = self.live.iter().filter(|live| live.device == device);
        let gpu = self.gpu_of(device);
        DeviceView {
            device,
            live_bytes: Bytes(held.map(Live::device_bytes).sum()),
            peak_bytes: Bytes(self.device_peaks.get(&device).copied().unwrap_or(0)),
            peak_bounds: None,
            gpu,
            driver_bytes: gpu.and_then(|gpu| self.driver_usage.get(&gpu).copied()),
            driver_traced: None,
            driver_unplaced: Bytes(0),
            graph_reserved: device.and_then(|device| self.graph_reserved.get(&device).copied()),
        }
    }

    /// Returns pools that are in use or have reported their size, by device, handle and age; memory
    /// without a known pool is one row.
    fn pools(&self) -> Vec<PoolView> {
        let row = |number: Option<usize>| {
            let live = self.live.iter().filter(|live| live.kind.is_pooled() && !live.of_graph());
            let held: Vec<_> = live.filter(|live| live.pool == number).collect();
            let pool = number.map(|number| &self.pools[number]);
            let view = PoolView {
                pool: pool.and_then(|pool| pool.id),
                device: pool.and_then(|pool| match pool.location {
                    Some(MemoryLocation::Device(device)) => Some(device),
                    _ => None,
                }),
                used: Bytes(held.iter().map(|live| live.bytes).sum()),
                allocations: held.len() as u64,
                reserved: pool.and_then(|pool| pool.reserved),
                destroyed: pool.is_some_and(|pool| pool.destroyed),
            };
            let idle = view.allocations == 0 && (view.reserved.is_none() || view.destroyed);
            (!idle).then_some(view)
        };
        let mut views: Vec<_> =
            (0..self.pools.len()).filter_map(|number| row(Some(number))).collect();
        views.sort_by_key(|view| (view.device.is_none(), view.device, view.pool));
        // Host memory without a pool is not listed.
        views.extend(row(None));
        views
    }

    fn threads(&self, at: Timestamp, options: &SnapshotOptions, all: &Naive) -> Vec<ThreadView> {
        let tids: BTreeSet<_> = self.live.iter().map(|live| live.tid).collect();
        let mut threads: Vec<(Tid, Vec<&Live>)> = tids
            .into_iter()
            .map(|tid| (tid, self.live.iter().filter(|live| live.tid == tid).collect()))
            .collect();
        threads.sort_by_key(|(tid, held)| (rank(held, options), *tid));
        let show = |(tid, mut held): (Tid, Vec<&Live>)| {
            let live_bytes = Bytes(held.iter().map(|live| live.device_bytes()).sum());
            let (live_allocations, kinds) = (held.len() as u64, kinds(held.iter().copied()));
            held.sort_by_key(|live| match options.sort {
                SortOrder::Age => (Reverse(0), live.at),
                SortOrder::Size | SortOrder::Count => (Reverse(live.bytes), live.at),
            });
            held.retain(|live| live.bytes >= options.min_size.0 && at - live.at >= options.min_age);
            held.truncate(options.top);
            let allocations = held.iter().map(|live| AllocationView {
                baseline: None,
                key: live.key,
                device: live.device,
                bytes: Bytes(live.bytes),
                kind: live.kind,
                age: at - live.at,
                site: all.site_name(live.site),
            });
            let name = self.names.get(&tid).cloned().unwrap_or_default();
            let allocations = allocations.collect();
            ThreadView { tid, name, live_bytes, live_allocations, kinds, allocations }
        };
        threads.into_iter().map(show).collect()
    }
}

pub(super) fn rank(held: &[&Live], options: &SnapshotOptions) -> (Reverse<u64>, u64) {
    match options.sort {
        SortOrder::Size => (Reverse(held.iter().map(|live| live.device_bytes()).sum()), 0),
        SortOrder::Count => (Reverse(held.len() as u64), 0),
        SortOrder::Age => (Reverse(0), held.iter().map(|live| live.at.0).min().unwrap_or(u64::MAX)),
    }
}

/// Returns totals by kind.
fn kinds<'a>(live: impl Iterator<Item = &'a Live> + Clone) -> Vec<KindView> {
    let row = |kind: MemoryKind| {
        let held = || live.clone().filter(|live| live.kind == kind);
        KindView {
            kind,
            live_bytes: Bytes(held().map(|live| live.bytes).sum()),
            live_allocations: held().count() as u64,
            unknown_sizes: held().filter(|live| live.bytes == 0).count() as u64,
        }
    };
    MemoryKind::ALL.into_iter().map(row).filter(|row| row.live_allocations > 0).collect()
}
