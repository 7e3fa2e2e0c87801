//! Memory of a process at a given time, by GPU.

use std::collections::BTreeMap;

use crate::metrics::{Metric, SampleValue, catalog};
use crate::model::{DeviceId, GpuId};
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
    cache_used: Option<u64>,
    cache_reserved: Option<u64>,
    /// Fragmented and total bytes of the caches whose fragmentation is known.
    fragmented: Option<(u64, u64)>,
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
        add(&mut self.cache_used, other.cache_used);
        add(&mut self.cache_reserved, other.cache_reserved);
        if let Some((part, all)) = other.fragmented {
            let (known, of) = self.fragmented.unwrap_or_default();
            self.fragmented = Some((known.saturating_add(part), of.saturating_add(all)));
        }
    }

    /// Adds samples with the labels of the owner.
    pub(super) fn add_samples(&self, out: &mut SampleBuilder, labels: &[Box<str>]) {
        out.push_integer(&catalog::LIVE, labels.into(), self.live);
        out.push_integer(&catalog::PEAK, labels.into(), self.peak);
        let optional: [(&'static Metric, Option<u64>); 6] = [
            (&catalog::USED, self.used),
            (&catalog::UNTRACKED, self.untracked),
            (&catalog::POOL_USED, self.pool_used),
            (&catalog::POOL_RESERVED, self.pool_reserved),
            (&catalog::CACHE_USED, self.cache_used),
            (&catalog::CACHE_RESERVED, self.cache_reserved),
        ];
        for (metric, value) in optional {
            if let Some(value) = value {
                out.push_integer(metric, labels.into(), value);
            }
        }
        if let Some((part, all)) = self.fragmented {
            let ratio = if all == 0 { 0.0 } else { part as f64 / all as f64 };
            out.push(&catalog::FRAGMENTATION, labels.into(), SampleValue::Real(ratio));
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
    for cache in process.torch.iter().flat_map(|torch| &torch.devices) {
        let on = usage.entry(gpu_of(process, Some(cache.device), gpus)).or_default();
        add(&mut on.cache_used, Some(cache.allocated.0));
        add(&mut on.cache_reserved, Some(cache.reserved.0));
        if let Ok(fragmentation) = cache.fragmentation {
            let (part, all) = on.fragmented.unwrap_or_default();
            let part = part.saturating_add(fragmentation.fragmented.0);
            on.fragmented = Some((part, all.saturating_add(cache.reserved.0)));
        }
    }
    usage
}
