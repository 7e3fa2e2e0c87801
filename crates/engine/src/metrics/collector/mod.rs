//! Computes metric values from snapshots. Remembers which processes and containers have their own
//! series, so that series persist and counters only grow; the number of series is bounded.

mod containers;
mod counters;
mod input;
mod libraries;
mod process_memory;
mod processes;
mod sample_builder;
mod sites;

use std::collections::BTreeMap;

use crate::alert::Severity;
use crate::model::{CopyDirection, GpuId, MemoryKind};
use crate::snapshot::{OutOfMemory, ProcessView, Snapshot};

use super::label::label;
use super::{Cardinality, Metric, MetricSet, SampleValue, SeriesLimits, catalog};

use containers::ContainerSeries;
use counters::ProcessCounters;
pub use input::{AgentStats, CollectorInput, GpuInfo, OutcomeCounts};
use processes::ProcessSeries;
use sample_builder::{GpuLabels, SampleBuilder};

/// Label value for everything without its own series.
const OTHER: &str = "other";

/// Collects metrics; keeps the state that counters and series need between snapshots.
#[derive(Debug, Default)]
pub struct MetricsCollector {
    limits: SeriesLimits,
    processes: ProcessSeries,
    containers: ContainerSeries,
    /// Counters of all processes, including ended ones.
    totals: ProcessCounters,
    out_of_memory: BTreeMap<Option<GpuId>, u64>,
    /// Requests larger than the GPU.
    oversized: BTreeMap<Option<GpuId>, u64>,
    ended: u64,
    not_freed: u64,
    /// Kinds that have ever been live: those without live memory are exported as 0.
    kinds: [bool; MemoryKind::COUNT],
    /// Whether launches and copies are counted, according to at least one process.
    counts_activity: bool,
}

impl MetricsCollector {
    /// Creates a collector without state.
    pub fn new(limits: SeriesLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Returns all metrics for a snapshot.
    pub fn observe(&mut self, input: &CollectorInput<'_>) -> MetricSet {
        let gpus = GpuLabels(input.gpus);
        let delta = self.processes.observe(input.snapshot, self.limits.processes);
        self.update_counters(input.snapshot, gpus, delta);
        let mut out = SampleBuilder::new();
        add_agent_stats(input.agent, input.snapshot, &mut out);
        self.add_host_samples(input, gpus, &mut out);
        libraries::add_samples(input.snapshot, &mut out);
        add_gpu_samples(input, gpus, &mut out);
        self.processes.add_samples(input.snapshot, gpus, &mut out);
        self.containers.add_samples(input.snapshot, gpus, self.limits.containers, &mut out);
        sites::add_site_samples(input, self.limits.sites, &mut out);
        sites::add_suspect_samples(input, gpus, self.limits.suspects, &mut out);
        out.finish(&self.limits, input.gpus.len())
    }

    fn update_counters(
        &mut self,
        snapshot: &Snapshot,
        gpus: GpuLabels<'_>,
        delta: ProcessCounters,
    ) {
        self.totals = self.totals.plus(delta);
        for (gpu, times) in &snapshot.ooms_by_gpu {
            let is_oversized = |oom: &&OutOfMemory| oom.gpu == *gpu && gpus.is_oversized(oom);
            let oversized = snapshot.out_of_memory.iter().filter(is_oversized).count() as u64;
            let gpu = gpus.known_gpu(*gpu);
            for (counts, times) in [
                (&mut self.out_of_memory, times.saturating_sub(oversized)),
                (&mut self.oversized, oversized.min(*times)),
            ] {
                let count = counts.entry(gpu).or_default();
                *count = count.saturating_add(times);
            }
        }
        for process in &snapshot.processes {
            self.counts_activity |= process.activity.is_some();
            process.kinds.iter().for_each(|view| {
                if let Some(seen) = self.kinds.get_mut(view.kind.index()) {
                    *seen = true;
                }
            });
            if process.ended.is_some() {
                self.ended = self.ended.saturating_add(1);
                self.not_freed = self.not_freed.saturating_add(process.not_freed().0);
            }
        }
    }

    fn add_host_samples(
        &self,
        input: &CollectorInput<'_>,
        gpus: GpuLabels<'_>,
        out: &mut SampleBuilder,
    ) {
        let running = || input.snapshot.running();
        let ended = self.ended.saturating_add(input.agent.unlisted_ends);
        let unlisted = input.snapshot.device_holders.iter().filter(|holder| holder.has_cuda);
        let counts: [(&'static Metric, u64); 7] = [
            (&catalog::UNLISTED, unlisted.count() as u64),
            (&catalog::PROCESSES, running().count() as u64),
            (&catalog::ENDED, ended),
            (&catalog::NOT_FREED, self.not_freed),
            (&catalog::ALLOCATIONS, self.totals.allocations),
            (&catalog::FREES, self.totals.frees),
            (&catalog::FAILURES, self.totals.failures),
        ];
        for (metric, count) in counts {
            out.push_integer(metric, Vec::new(), count);
        }
        if self.counts_activity {
            out.push_integer(&catalog::LAUNCHES, Vec::new(), self.totals.launches);
            for (direction, bytes) in CopyDirection::ALL.into_iter().zip(self.totals.copied) {
                out.push_integer(&catalog::COPIED, vec![direction.name().into()], bytes);
            }
        }
        // Exported from the start, so that the first error is visible as an increase.
        let all = input.gpus.iter().map(|gpu| Some(gpu.id)).chain([None]);
        for gpu in all {
            for (metric, counts) in [
                (&catalog::OUT_OF_MEMORY, &self.out_of_memory),
                (&catalog::OVERSIZED, &self.oversized),
            ] {
                let count = counts.get(&gpu).copied().unwrap_or(0);
                out.push_integer(metric, gpus.labels(gpu).into(), count);
            }
        }
        for kind in MemoryKind::ALL {
            if self.kinds.get(kind.index()) == Some(&true) {
                let bytes = running()
                    .fold(0_u64, |sum, process| sum.saturating_add(live_of(process, kind)));
                out.push_integer(&catalog::KIND, vec![kind.name().into()], bytes);
            }
        }
    }
}

/// Adds samples of the host's GPUs.
fn add_gpu_samples(input: &CollectorInput<'_>, gpus: GpuLabels<'_>, out: &mut SampleBuilder) {
    let mut live: BTreeMap<Option<GpuId>, u64> = BTreeMap::new();
    for process in input.snapshot.running() {
        for row in &process.devices {
            let sum = live.entry(gpus.known_gpu(row.gpu)).or_default();
            *sum = sum.saturating_add(row.live_bytes.0);
        }
    }
    let elsewhere = live.remove(&None);
    for gpu in input.gpus {
        let labels = || Vec::from(gpus.labels(Some(gpu.id)));
        let live_bytes = live.remove(&Some(gpu.id)).unwrap_or(0);
        let mut named = labels();
        named.push(label(&gpu.name));
        out.push_integer(&catalog::GPU, named, 1);
        out.push_integer(&catalog::GPU_LIVE, labels(), live_bytes);
        // Total memory is unknown if the driver could not be queried; then omit the values below.
        if gpu.total.0 == 0 {
            continue;
        }
        out.push_integer(&catalog::GPU_TOTAL, labels(), gpu.total.0);
        let reported = input.snapshot.gpus.iter().find(|view| view.gpu == gpu.id);
        let Some(free) = reported.map(|view| view.free_bytes.0) else { continue };
        let used = gpu.total.0.saturating_sub(free);
        out.push_integer(&catalog::GPU_FREE, labels(), free);
        out.push_integer(&catalog::GPU_USED, labels(), used);
        // Traced memory on an unknown GPU may be on any of them.
        let traced = live_bytes.saturating_add(elsewhere.unwrap_or(0));
        out.push_integer(&catalog::GPU_UNTRACKED, labels(), used.saturating_sub(traced));
    }
    if let Some(elsewhere) = elsewhere {
        out.push_integer(&catalog::GPU_LIVE, gpus.labels(None).into(), elsewhere);
    }
}

fn live_of(process: &ProcessView, kind: MemoryKind) -> u64 {
    let these = process.kinds.iter().filter(|view| view.kind == kind);
    these.fold(0, |sum, view| sum.saturating_add(view.live_bytes.0))
}

/// Adds samples about the agent itself.
fn add_agent_stats(agent: &AgentStats, snapshot: &Snapshot, out: &mut SampleBuilder) {
    out.push_integer(&catalog::BUILD, vec![label(&agent.version)], 1);
    out.push(&catalog::UP_SINCE, Vec::new(), SampleValue::Real(agent.started));
    out.push_integer(&catalog::READY, Vec::new(), u64::from(agent.ready));
    out.push(&catalog::OWN_CPU, Vec::new(), SampleValue::Real(agent.cpu_seconds));
    out.push_integer(&catalog::OWN_MEMORY, Vec::new(), agent.memory.0);
    out.push_integer(&catalog::DEGRADED, Vec::new(), agent.degraded);
    out.push_integer(&catalog::EVENTS, Vec::new(), agent.events);
    for (class, count) in snapshot.uncertainty.lost.records() {
        out.push_integer(&catalog::LOST, vec![class.into()], count);
    }
    for (function, calls) in &snapshot.unknown_calls {
        out.push_integer(&catalog::UNKNOWN_CALLS, vec![label(function)], *calls);
    }
    out.push_integer(&catalog::EXACT, Vec::new(), u64::from(snapshot.uncertainty.exact()));
    for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(agent.http) {
        out.push_integer(&catalog::HTTP, vec![class.into()], count);
    }
    for severity in Severity::ALL.map(Severity::name) {
        let these = agent.alerts.iter().filter(|(known, _)| &**known == severity);
        let count = these.fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        out.push_integer(&catalog::ALERTS, vec![severity.into()], count);
    }
    for (metric, outcomes) in [
        (&catalog::NOTIFICATIONS, &agent.notifications),
        (&catalog::INCIDENTS, &agent.incidents),
        (&catalog::EXPORTS, &agent.exports),
    ] {
        for ((name, outcome), count) in outcomes {
            out.push_integer(metric, vec![(*name).into(), (*outcome).into()], *count);
        }
    }
}

impl Metric {
    /// Upper limit of its samples on a host with this number of GPUs. Memory on an unknown GPU
    /// counts as one more GPU.
    pub fn max_samples(&self, limits: &SeriesLimits, gpus: usize) -> usize {
        let gpus = gpus.saturating_add(1);
        let of_each = |number: usize| {
            let number = number.saturating_add(1);
            if self.labels.contains(&"gpu") { number.saturating_mul(gpus) } else { number }
        };
        match self.bound {
            Cardinality::Fixed(number) => number,
            Cardinality::Gpus => gpus,
            Cardinality::Processes => of_each(limits.processes),
            Cardinality::Containers => of_each(limits.containers),
            Cardinality::Sites => limits.sites.saturating_add(1),
            Cardinality::Suspects => limits.suspects,
        }
    }
}

/// Upper limit of all samples on a host with this number of GPUs.
pub fn max_total_samples(limits: &SeriesLimits, gpus: usize) -> usize {
    catalog::ALL
        .iter()
        .map(|metric| metric.max_samples(limits, gpus))
        .fold(0, usize::saturating_add)
}
