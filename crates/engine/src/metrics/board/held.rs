//! What a process holds at a moment, by GPU.

use std::collections::BTreeMap;

use crate::ids::{DeviceId, GpuId};
use crate::metrics::{Metric, Value, catalogue};
use crate::snapshot::ProcessView;

use super::sheet::{Gpus, Sheet};

/// By GPU; `None` is one that is not known.
pub(super) type Held = BTreeMap<Option<GpuId>, OnGpu>;

/// What one process, or several, hold of one GPU. What is not known has no value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct OnGpu {
    pub(super) live: u64,
    pub(super) peak: u64,
    pub(super) used: Option<u64>,
    untracked: Option<u64>,
    pool_used: Option<u64>,
    pool_reserved: Option<u64>,
    cache_used: Option<u64>,
    cache_reserved: Option<u64>,
    /// Of the caches of which that is known: what is fragmented, and all that they hold.
    fragmented: Option<(u64, u64)>,
}

fn add(sum: &mut Option<u64>, more: Option<u64>) {
    if let Some(more) = more {
        *sum = Some(sum.unwrap_or(0).saturating_add(more));
    }
}

impl OnGpu {
    /// Of another process: its peak was at another time.
    pub(super) fn absorb(&mut self, other: &Self) {
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

    /// Puts it down under the labels of its owner.
    pub(super) fn put(&self, sheet: &mut Sheet, labels: &[Box<str>]) {
        sheet.whole(&catalogue::LIVE, labels.into(), self.live);
        sheet.whole(&catalogue::PEAK, labels.into(), self.peak);
        let told: [(&'static Metric, Option<u64>); 6] = [
            (&catalogue::USED, self.used),
            (&catalogue::UNTRACKED, self.untracked),
            (&catalogue::POOL_USED, self.pool_used),
            (&catalogue::POOL_RESERVED, self.pool_reserved),
            (&catalogue::CACHE_USED, self.cache_used),
            (&catalogue::CACHE_RESERVED, self.cache_reserved),
        ];
        for (metric, value) in told {
            if let Some(value) = value {
                sheet.whole(metric, labels.into(), value);
            }
        }
        if let Some((part, all)) = self.fragmented {
            let ratio = if all == 0 { 0.0 } else { part as f64 / all as f64 };
            sheet.put(&catalogue::FRAGMENTATION, labels.into(), Value::Real(ratio));
        }
    }
}

/// Which GPU a device of a process is.
pub(super) fn gpu_of(
    process: &ProcessView,
    device: Option<DeviceId>,
    gpus: Gpus<'_>,
) -> Option<GpuId> {
    let device = device?;
    let row = process.devices.iter().find(|row| row.device == Some(device));
    gpus.known(row.and_then(|row| row.gpu))
}

/// What a process holds.
pub(super) fn of(process: &ProcessView, gpus: Gpus<'_>) -> Held {
    let mut held = Held::new();
    for row in &process.devices {
        let on = held.entry(gpus.known(row.gpu)).or_default();
        on.live = on.live.saturating_add(row.live_bytes.0);
        // Where two devices are parts of one GPU, the sum is the most that it can have been.
        on.peak = on.peak.saturating_add(row.peak_bytes.0);
        // The account is of the whole GPU, and stands at each of its devices.
        on.used = on.used.max(row.driver_bytes.map(|bytes| bytes.0));
        on.untracked = on.untracked.max(row.untracked().map(|bytes| bytes.0));
    }
    for pool in &process.pools {
        let on = held.entry(gpu_of(process, pool.device, gpus)).or_default();
        add(&mut on.pool_used, Some(pool.used.0));
        add(&mut on.pool_reserved, pool.reserved.map(|told| told.bytes.0));
    }
    for cache in process.torch.iter().flat_map(|torch| &torch.devices) {
        let on = held.entry(gpu_of(process, Some(cache.device), gpus)).or_default();
        add(&mut on.cache_used, Some(cache.allocated.0));
        add(&mut on.cache_reserved, Some(cache.reserved.0));
        if let Ok(lies) = cache.fragmentation {
            let (part, all) = on.fragmented.unwrap_or_default();
            let part = part.saturating_add(lies.fragmented.0);
            on.fragmented = Some((part, all.saturating_add(cache.reserved.0)));
        }
    }
    held
}
