//! The view model: what every output shows of a snapshot. Text, JSON, HTML reports, metrics and
//! advice read it, so they have the same suspects, counts, sums and order.
//!
//! The answer comes first: GPUs with the time until they are full, processes with their verdict,
//! and leaks, grouped by program and function and ordered by what fills a GPU first.

mod explain;
mod functions;
mod groups;
mod history;
mod leaks;
mod memory_groups;
mod notes;
mod order;
mod processes;

pub use explain::{ExplainedPart, Explanation, PartCause, PrecisionSums};
pub use functions::{FunctionRow, functions};
pub use groups::{GroupBy, GroupTotals, group_label, tree};
pub use history::UsageHistory;
pub use leaks::{Leak, LeakPart, LeakProcess, LeakResource};
pub use memory_groups::{GroupRow, Grouping};
pub use notes::Note;
pub use order::{ProcessOrder, SiteOrder};
pub use processes::{NotFreedRow, ProcessRow, ProcessState};

use std::collections::BTreeMap;

use crate::leak::MIN_GROWTH;
use crate::model::{Bytes, DeviceId, GpuId, Nanos, Timestamp};
use crate::snapshot::{ProcessView, Snapshot};

/// Name and size of a GPU of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuFacts<'a> {
    /// Index.
    pub id: GpuId,
    /// Model (untrusted).
    pub name: &'a str,
    /// Total memory; 0 if unknown.
    pub total: Bytes,
}

/// What outputs show of a snapshot.
#[derive(Clone, PartialEq, Debug)]
pub struct View<'a> {
    /// Time of the snapshot.
    pub at: Timestamp,
    /// Time since the trace began.
    pub observed: Nanos,
    /// GPUs that are known or used, ordered by index; memory on unknown GPUs last.
    pub gpus: Vec<GpuRow<'a>>,
    /// Processes: those that leak first, by their worst leak; then by used memory; ended ones last.
    pub processes: Vec<ProcessRow<'a>>,
    /// Leak suspects: those that fill a GPU first, then host memory, then objects.
    pub leaks: Vec<Leak<'a>>,
    /// Memory that ended processes without a caching allocator had not freed, largest first.
    pub not_freed: Vec<NotFreedRow<'a>>,
    /// Time until growth can be classified; `None` if it can be now.
    pub wait: Option<Nanos>,
    /// What readers should know about the accuracy of the values.
    pub notes: Vec<Note>,
}

/// A GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuRow<'a> {
    /// Index; `None` for memory on unknown GPUs.
    pub gpu: Option<GpuId>,
    /// Model (untrusted); empty if unknown.
    pub name: &'a str,
    /// Total memory, if known.
    pub total: Option<Bytes>,
    /// Used memory, as the driver reports it.
    pub used: Option<Bytes>,
    /// Traced live memory of running processes.
    pub traced: Bytes,
    /// Driver-reported memory of those processes that was not traced.
    pub untracked: Bytes,
    /// Growth of the used memory per hour, from the driver's own values if there are any.
    pub growth_per_hour: Option<i64>,
    /// Time until it is full, if it grows and its free memory is known.
    pub time_until_full: Option<Nanos>,
    /// Number of running processes with memory on it.
    pub processes: u64,
}

impl GpuRow<'_> {
    /// Returns whether the driver knows the GPU and reports no memory of it, as for GPUs that share
    /// their memory with the CPU.
    #[must_use]
    pub const fn is_memory_unreported(&self) -> bool {
        !self.name.is_empty() && self.total.is_none()
    }
}

impl<'a> View<'a> {
    /// Builds the view of a snapshot. `gpus`: the GPUs of the host, as far as they are known.
    pub fn of(snapshot: &'a Snapshot, gpus: &[GpuFacts<'a>]) -> Self {
        let placement = Placement::of(snapshot, gpus);
        let leaks = leaks::of(snapshot, &placement);
        let gpus = gpu_rows(snapshot, gpus, &placement, &leaks);
        Self {
            at: snapshot.at,
            observed: snapshot.observed,
            processes: processes::of(snapshot, &leaks, &placement),
            not_freed: processes::not_freed(snapshot),
            wait: wait(snapshot),
            notes: notes::of(snapshot, &gpus),
            gpus,
            leaks,
        }
    }

    /// Number of running and ended processes that leak.
    pub fn leaking_processes(&self) -> usize {
        self.processes.iter().filter(|process| !process.leaks.is_empty()).count()
    }

    /// Number of sites that grow, but not yet for long enough for a verdict.
    pub fn undecided_sites(&self) -> u64 {
        let undecided = self.processes.iter().filter_map(|row| row.process.undecided);
        undecided.map(|undecided| undecided.sites).sum()
    }

    /// The GPU that is full first.
    pub fn first_full(&self) -> Option<&GpuRow<'a>> {
        let full = self.gpus.iter().filter(|gpu| gpu.time_until_full.is_some());
        full.min_by_key(|gpu| gpu.time_until_full)
    }

    /// Memory that ended processes without a caching allocator had not freed.
    pub fn not_freed_bytes(&self) -> Bytes {
        Bytes(self.not_freed.iter().fold(0, |sum, row| sum.saturating_add(row.bytes.0)))
    }
}

/// Returns the time until the sites that grow can be classified. If none does, nothing is said to be
/// free of leaks before the shortest observation that shows one.
fn wait(snapshot: &Snapshot) -> Option<Nanos> {
    if !snapshot.is_live {
        return None;
    }
    let mut running = snapshot.running();
    let undecided = running.clone().filter_map(|process| process.undecided);
    let growing = undecided.map(|undecided| undecided.wait).max();
    let start = rest_of_start(snapshot);
    growing.or(start.filter(|_| running.any(|process| process.live_allocations > 0)))
}

/// Returns the time until a trace is long enough to show growth; `None` if it is.
fn rest_of_start(snapshot: &Snapshot) -> Option<Nanos> {
    let rest = Nanos(MIN_GROWTH.0.saturating_sub(snapshot.observed.0));
    Some(rest).filter(|rest| snapshot.is_live && *rest > Nanos(0))
}

/// Where the devices of processes are.
pub(crate) struct Placement {
    /// The only GPU of the host: memory on an unknown device is there.
    only: Option<GpuId>,
    /// Free memory, as reported.
    free: BTreeMap<GpuId, Bytes>,
}

impl Placement {
    fn of(snapshot: &Snapshot, gpus: &[GpuFacts<'_>]) -> Self {
        let reported = snapshot.gpus.iter().map(|view| view.gpu);
        let mut known: Vec<GpuId> = gpus.iter().map(|gpu| gpu.id).chain(reported).collect();
        known.sort_unstable();
        known.dedup();
        let only = known.first().copied().filter(|_| known.len() == 1);
        Self { only, free: snapshot.gpus.iter().map(|view| (view.gpu, view.free_bytes)).collect() }
    }

    /// GPU of a device of a process.
    fn gpu(&self, process: Option<&ProcessView>, device: Option<DeviceId>) -> Option<GpuId> {
        let rows = process.into_iter().flat_map(|process| &process.devices);
        let row = rows.into_iter().find(|row| row.device.is_some() && row.device == device);
        row.and_then(|row| row.gpu).or(self.only)
    }

    fn time_until_full(&self, gpu: Option<GpuId>, growth_per_hour: u64) -> Option<Nanos> {
        let free = self.free.get(&gpu?).filter(|_| growth_per_hour > 0)?;
        Some(Nanos::until_used_up(free.0, growth_per_hour))
    }
}

/// Memory of running processes on one GPU.
#[derive(Clone, Copy, Default)]
struct ProcessSums {
    traced: u64,
    untracked: u64,
    processes: u64,
    growth: Option<i64>,
}

fn gpu_rows<'a>(
    snapshot: &Snapshot,
    facts: &[GpuFacts<'a>],
    placement: &Placement,
    leaks: &[Leak<'_>],
) -> Vec<GpuRow<'a>> {
    let sums = process_sums(snapshot, placement);
    let mut known: Vec<Option<GpuId>> = facts.iter().map(|gpu| Some(gpu.id)).collect();
    known.extend(snapshot.gpus.iter().map(|view| Some(view.gpu)));
    known.extend(sums.keys());
    known.sort_unstable_by_key(|gpu| (gpu.is_none(), *gpu));
    known.dedup();
    let is_only = known.len() == 1;
    // Programs that start take memory, too.
    let is_start = rest_of_start(snapshot).is_some();
    let row = |gpu: Option<GpuId>| {
        let facts = facts.iter().find(|facts| Some(facts.id) == gpu);
        let reported = snapshot.gpus.iter().find(|view| Some(view.gpu) == gpu);
        let total = facts.map(|facts| facts.total).filter(|total| total.0 > 0);
        let sum = sums.get(&gpu).copied().unwrap_or_default();
        let used = total
            .zip(reported)
            .map(|(total, view)| Bytes(total.0.saturating_sub(view.free_bytes.0)));
        // The driver's value may be older than the traced one.
        let is_behind = used.is_some_and(|used| used.0 < sum.traced);
        let growth_per_hour = match reported {
            Some(reported) if !is_behind => reported.growth_per_hour,
            _ => sum.growth.filter(|_| is_only),
        };
        let fills = |leak: &&Leak<'_>| leak.time_until_full.is_some() && leak.gpu == gpu;
        let leaked = leaks.iter().filter(fills);
        let leaked = leaked.fold(0, |sum: u64, leak| sum.saturating_add(leak.growth_per_hour));
        // A cache can absorb a leak for some time: then the driver reports no growth.
        let growth = growth_per_hour.and_then(|growth| u64::try_from(growth).ok());
        let growth = growth.filter(|growth| *growth > 0 && (!is_start || leaked > 0));
        GpuRow {
            gpu,
            name: facts.map_or("", |facts| facts.name),
            total,
            used: used.map(|used| used.max(Bytes(sum.traced))),
            traced: Bytes(sum.traced),
            untracked: Bytes(sum.untracked),
            growth_per_hour,
            time_until_full: placement.time_until_full(gpu, growth.unwrap_or(leaked)),
            processes: sum.processes,
        }
    };
    known.into_iter().map(row).collect()
}

fn process_sums(
    snapshot: &Snapshot,
    placement: &Placement,
) -> BTreeMap<Option<GpuId>, ProcessSums> {
    let mut sums: BTreeMap<Option<GpuId>, ProcessSums> = BTreeMap::new();
    for process in snapshot.running() {
        let mut own: BTreeMap<Option<GpuId>, ProcessSums> = BTreeMap::new();
        for row in &process.devices {
            let on = own.entry(row.gpu.or(placement.only)).or_default();
            on.traced = on.traced.saturating_add(row.live_bytes.0);
            // Reported per GPU, and repeated for each of its devices.
            on.untracked = on.untracked.max(row.untracked().unwrap_or_default().0);
        }
        own.retain(|_, on| on.traced > 0 || on.untracked > 0);
        for (gpu, on) in own {
            let sum = sums.entry(gpu).or_default();
            sum.traced = sum.traced.saturating_add(on.traced);
            sum.untracked = sum.untracked.saturating_add(on.untracked);
            sum.processes += 1;
            if let Some(growth) = process.growth_per_hour {
                sum.growth = Some(sum.growth.unwrap_or(0).saturating_add(growth));
            }
        }
    }
    sums
}
