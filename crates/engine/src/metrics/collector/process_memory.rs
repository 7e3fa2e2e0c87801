//! Memory of a process at a given time, by GPU.

use std::collections::BTreeMap;

use crate::metrics::{Metric, SampleValue, catalog};
use crate::model::{Allocator, AllocatorPoolView, DeviceId, GpuId};
use crate::snapshot::ProcessView;

use super::sample_builder::{GpuLabels, SampleBuilder};

/// Usage by GPU; `None` is an unknown GPU.
pub(super) type UsageByGpu = BTreeMap<Option<GpuId>, GpuUsage>;

/// Memory of one or more processes on one GPU. Unknown values are `None`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct GpuUsage {
    pub(super) live: u64,
    pub(super) peak: u64,
    pub(super) used: Option<u64>,
    untracked: Option<u64>,
    pool_used: Option<u64>,
    pool_reserved: Option<u64>,
    /// Caches, by index of the allocator.
    caches: [CacheUsage; Allocator::ALL.len()],
}

/// Memory of the caches of one allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct CacheUsage {
    used: Option<u64>,
    reserved: Option<u64>,
    /// Fragmented and total bytes of the caches whose fragmentation is known.
    fragmented: Option<(u64, u64)>,
}

impl CacheUsage {
    fn of(pool: &AllocatorPoolView) -> Self {
        let layout = pool.fragmentation.ok();
        Self {
            used: Some(pool.allocated.0),
            reserved: Some(pool.reserved.0),
            fragmented: layout.map(|layout| (layout.fragmented.0, pool.reserved.0)),
        }
    }

    fn merge(&mut self, other: &Self) {
        add(&mut self.used, other.used);
        add(&mut self.reserved, other.reserved);
        if let Some((part, all)) = other.fragmented {
            let (known, of) = self.fragmented.unwrap_or_default();
            self.fragmented = Some((known.saturating_add(part), of.saturating_add(all)));
        }
    }

    fn add_samples(&self, out: &mut SampleBuilder, labels: &[Box<str>]) {
        for (metric, value) in
            [(&catalog::CACHE_USED, self.used), (&catalog::CACHE_RESERVED, self.reserved)]
        {
            value.into_iter().for_each(|value| out.push_integer(metric, labels.into(), value));
        }
        if let Some((part, all)) = self.fragmented {
            let ratio = if all == 0 { 0.0 } else { part as f64 / all as f64 };
            out.push(&catalog::FRAGMENTATION, labels.into(), SampleValue::Real(ratio));
        }
    }
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

impl GpuUsage {
    /// Adds the usage of another process. Peaks were at different times, so the larger one is kept.
    pub(super) fn merge(&mut self, other: &Self) {
        self.live = self.live.saturating_add(other.live);
        self.peak = self.peak.max(other.peak);
        add(&mut self.used, other.used);
        add(&mut self.untracked, other.untracked);
        add(&mut self.pool_used, other.pool_used);
        add(&mut self.pool_reserved, other.pool_reserved);
        for (sum, more) in self.caches.iter_mut().zip(&other.caches) {
            sum.merge(more);
        }
    }

    /// Adds samples with the labels of the owner.
    pub(super) fn add_samples(&self, out: &mut SampleBuilder, labels: &[Box<str>]) {
        out.push_integer(&catalog::LIVE, labels.into(), self.live);
        out.push_integer(&catalog::PEAK, labels.into(), self.peak);
        let optional: [(&'static Metric, Option<u64>); 4] = [
            (&catalog::USED, self.used),
            (&catalog::UNTRACKED, self.untracked),
            (&catalog::POOL_USED, self.pool_used),
            (&catalog::POOL_RESERVED, self.pool_reserved),
        ];
        for (metric, value) in optional {
            if let Some(value) = value {
                out.push_integer(metric, labels.into(), value);
            }
        }
        for (allocator, cache) in Allocator::ALL.into_iter().zip(&self.caches) {
            cache.add_samples(out, &[labels, &[allocator.name().into()]].concat());
        }
    }
}

/// GPU of a process's device.
pub(super) fn gpu_of(
    process: &ProcessView,
    device: Option<DeviceId>,
    gpus: GpuLabels<'_>,
) -> Option<GpuId> {
    let device = device?;
    let row = process.devices.iter().find(|row| row.device == Some(device));
    gpus.known_gpu(row.and_then(|row| row.gpu))
}

/// Computes the memory of a process by GPU.
pub(super) fn of(process: &ProcessView, gpus: GpuLabels<'_>) -> UsageByGpu {
    let mut usage = UsageByGpu::new();
    for row in &process.devices {
        let on = usage.entry(gpus.known_gpu(row.gpu)).or_default();
        on.live = on.live.saturating_add(row.live_bytes.0);
        // If two devices are parts of one GPU, the sum is an upper bound.
        on.peak = on.peak.saturating_add(row.peak_bytes.0);
        // Driver-reported usage is per GPU, and repeated for each of its devices.
        on.used = on.used.max(row.driver_bytes.map(|bytes| bytes.0));
        on.untracked = on.untracked.max(row.untracked().map(|bytes| bytes.0));
    }
    for pool in &process.pools {
        let on = usage.entry(gpu_of(process, pool.device, gpus)).or_default();
        add(&mut on.pool_used, Some(pool.used.0));
        add(&mut on.pool_reserved, pool.reserved.map(|reported| reported.bytes.0));
    }
    for view in &process.allocators {
        for pool in &view.pools {
            let on = usage.entry(gpu_of(process, pool.device, gpus)).or_default();
            on.caches[view.allocator.index()].merge(&CacheUsage::of(pool));
        }
    }
    usage
}
