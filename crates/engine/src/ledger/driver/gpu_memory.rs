//! Free memory of the host's GPUs, as the driver reports it.

use std::collections::BTreeMap;

use crate::leak::UsageTrend;
use crate::model::{Bytes, DeviceHolder, GpuId, Timestamp};
use crate::snapshot::GpuView;

/// Free memory by GPU, with its trend.
#[derive(Debug, Default)]
pub(crate) struct GpuMemory {
    gpus: BTreeMap<GpuId, GpuLevel>,
    /// Processes that have a GPU open and that the driver does not list.
    pub(crate) holders: Box<[DeviceHolder]>,
}

#[derive(Debug, Default)]
struct GpuLevel {
    free: Bytes,
    /// Used memory over the last minutes, up to a constant: the total is unknown here.
    used: UsageTrend,
}

impl GpuMemory {
    /// Sets the free memory of a GPU.
    pub(crate) fn set_free(&mut self, gpu: GpuId, free: Bytes, at: Timestamp) {
        let level = self.gpus.entry(gpu).or_default();
        level.free = free;
        level.used.observe(at, used(free));
    }

    /// Forgets all reports.
    pub(crate) fn clear(&mut self) {
        self.gpus.clear();
    }

    /// Free memory of a GPU, if known.
    pub(crate) fn free(&self, gpu: GpuId) -> Option<Bytes> {
        self.gpus.get(&gpu).map(|level| level.free)
    }

    /// The only GPU of the host, if there is just one: memory on an unknown device is there.
    pub(crate) fn only(&self) -> Option<GpuId> {
        self.gpus.keys().next().copied().filter(|_| self.gpus.len() == 1)
    }

    /// Views of all GPUs, ordered by id.
    pub(crate) fn views(&self, at: Timestamp) -> Vec<GpuView> {
        let view = |(gpu, level): (&GpuId, &GpuLevel)| GpuView {
            gpu: *gpu,
            free_bytes: level.free,
            growth_per_hour: level.used.growth_per_hour(at, used(level.free)),
        };
        self.gpus.iter().map(view).collect()
    }
}

fn used(free: Bytes) -> u64 {
    u64::MAX - free.0
}
