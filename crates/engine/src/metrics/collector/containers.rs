//! Series of containers: totals of their processes. Containers with equal labels are merged.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::metrics::catalog;
use crate::snapshot::Snapshot;

use super::OTHER;
use super::process_memory;
use super::process_memory::UsageByGpu;
use super::processes::container_labels;
use super::sample_builder::{GpuLabels, SampleBuilder};

/// `container`, `pod`, `namespace`.
type ContainerLabels = [Box<str>; 3];

/// Containers with their own series, as long as a process runs in them.
#[derive(Debug, Default)]
pub(super) struct ContainerSeries {
    own: BTreeSet<ContainerLabels>,
}

impl ContainerSeries {
    /// Selects the containers that get series, and adds their samples.
    pub(super) fn add_samples(
        &mut self,
        snapshot: &Snapshot,
        gpus: GpuLabels<'_>,
        room: usize,
        out: &mut SampleBuilder,
    ) {
        let mut all: BTreeMap<ContainerLabels, UsageByGpu> = BTreeMap::new();
        for process in snapshot.running() {
            let Some(container) = process.container.as_deref() else { continue };
            let usage = all.entry(container_labels(Some(container))).or_default();
            for (gpu, on) in process_memory::of(process, gpus) {
                usage.entry(gpu).or_default().merge(&on);
            }
        }
        self.own.retain(|labels| all.contains_key(labels));
        let live =
            |usage: &UsageByGpu| usage.values().fold(0_u64, |sum, on| sum.saturating_add(on.live));
        let mut new: Vec<_> =
            all.iter().filter(|(labels, _)| !self.own.contains(*labels)).collect();
        new.sort_by_key(|(labels, usage)| (Reverse(live(usage)), *labels));
        let free_slots = room.saturating_sub(self.own.len());
        let new: Vec<ContainerLabels> =
            new.into_iter().take(free_slots).map(|(labels, _)| labels.clone()).collect();
        self.own.extend(new);
        let mut other = UsageByGpu::new();
        for (labels, usage) in &all {
            if self.own.contains(labels) {
                add_usage_samples(usage, labels, gpus, out);
                continue;
            }
            for (gpu, on) in usage {
                other.entry(*gpu).or_default().merge(on);
            }
        }
        add_usage_samples(&other, &[OTHER, "", ""].map(Box::from), gpus, out);
    }
}

fn add_usage_samples(
    usage: &UsageByGpu,
    labels: &ContainerLabels,
    gpus: GpuLabels<'_>,
    out: &mut SampleBuilder,
) {
    for (gpu, on) in usage {
        let all: Vec<_> = gpus.labels(*gpu).into_iter().chain(labels.iter().cloned()).collect();
        if let Some(used) = on.used {
            out.push_integer(&catalog::CONTAINER_USED, all.clone(), used);
        }
        out.push_integer(&catalog::CONTAINER_LIVE, all, on.live);
    }
}
