//! Assigns values to their metrics.

use crate::metrics::{Metric, MetricFamily, MetricSet, Sample, SampleValue, SeriesLimits, catalog};
use crate::model::GpuId;
use crate::snapshot::OutOfMemory;

use super::input::GpuInfo;

/// Samples of each metric, under construction.
pub(super) struct SampleBuilder {
    families: Vec<MetricFamily>,
}

impl SampleBuilder {
    pub(super) fn new() -> Self {
        let empty = |metric: &&'static Metric| MetricFamily { metric, samples: Vec::new() };
        Self { families: catalog::ALL.iter().map(empty).collect() }
    }

    /// Adds a sample. Label values must be in the order of the catalog, and sanitized.
    pub(super) fn push(
        &mut self,
        metric: &'static Metric,
        labels: Vec<Box<str>>,
        value: SampleValue,
    ) {
        debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        let family = self.families.iter_mut().find(|family| std::ptr::eq(family.metric, metric));
        if let Some(family) = family {
            family.samples.push(Sample { labels, value });
        }
    }

    pub(super) fn push_integer(
        &mut self,
        metric: &'static Metric,
        labels: Vec<Box<str>>,
        value: u64,
    ) {
        self.push(metric, labels, SampleValue::Whole(value));
    }

    /// Returns the metrics with samples, within the limits of the catalog.
    pub(super) fn finish(self, limits: &SeriesLimits, gpus: usize) -> MetricSet {
        let mut families = self.families;
        for family in &mut families {
            family.samples.truncate(family.metric.max_samples(limits, gpus));
        }
        families.retain(|family| !family.samples.is_empty());
        MetricSet { families }
    }
}

/// GPUs of the host, as labels.
#[derive(Clone, Copy)]
pub(super) struct GpuLabels<'a>(pub(super) &'a [GpuInfo]);

impl GpuLabels<'_> {
    /// The GPU if it is one of the host's; `None` otherwise.
    pub(super) fn known_gpu(self, gpu: Option<GpuId>) -> Option<GpuId> {
        gpu.filter(|gpu| self.0.iter().any(|one| one.id == *gpu))
    }

    /// Whether a request was for more memory than its GPU has; than each has if that is unknown.
    pub(super) fn is_oversized(self, oom: &OutOfMemory) -> bool {
        let totals = self.0.iter().filter(|one| oom.gpu.is_none_or(|gpu| gpu == one.id));
        let total = totals.map(|one| one.total.0).max().filter(|total| *total > 0);
        let requested = oom.requested.filter(|(kind, _)| kind.takes_device_memory());
        total.zip(requested).is_some_and(|(total, (_, bytes))| bytes.0 > total)
    }

    /// Labels `gpu` and `uuid`.
    pub(super) fn labels(self, gpu: Option<GpuId>) -> [Box<str>; 2] {
        let found = gpu.and_then(|gpu| self.0.iter().find(|one| one.id == gpu));
        found.map_or_else(Default::default, |found| {
            [found.id.0.to_string().into(), super::label(&found.uuid)]
        })
    }
}
