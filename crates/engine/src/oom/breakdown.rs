//! Memory values that support a diagnosis.

use crate::model::{AllocatorPoolView, Bytes, GpuId, Pid};
use crate::snapshot::{DeviceView, ProcessView};

use super::{OomContext, RequestedResource};

/// Memory of the device at the time of the failed call. `None` if unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryBreakdown {
    /// Requested size.
    pub requested: Option<Bytes>,
    /// Total memory of the device.
    pub total: Option<Bytes>,
    /// Free memory as last reported by the driver.
    pub free_reported: Option<Bytes>,
    /// Estimated free memory at the time of the call: the reported value minus traced growth since,
    /// minus a context for each process that the report does not include yet.
    pub free_estimated: Option<Bytes>,
    /// By how much `free_estimated` may be too high: the size of contexts that are not in the
    /// report is a guess.
    pub context_uncertainty: Bytes,
    /// Traced memory of all processes.
    pub traced: Bytes,
    /// Traced memory of the requester.
    pub requester: Bytes,
    /// Driver-reported usage of all processes minus their traced memory.
    pub untracked: Option<Bytes>,
    /// Unused memory of the requester's PyTorch cache, and whether that is exact.
    pub cache_unused: Option<(Bytes, bool)>,
    /// Reserved but unused memory of the requester's pools, as last reported by the driver.
    pub pool_unused: Option<Bytes>,
    /// Unused memory in caches and pools of other processes.
    pub others_unused: Bytes,
}

impl MemoryBreakdown {
    pub(super) fn of(oom: &OomContext<'_>) -> Self {
        let held_by = |wanted| {
            let holder = oom.holders.iter().find(|(pid, _)| *pid == wanted);
            holder.map_or(Bytes(0), |(_, bytes)| *bytes)
        };
        let reported = oom.snapshot.gpus.iter().find(|view| Some(view.gpu) == oom.gpu);
        let free_reported = reported.map(|view| view.free_bytes);
        let processes = &oom.snapshot.processes;
        let requester = processes.iter().find(|process| process.key.pid == oom.pid);
        let others = processes.iter().filter(|process| process.key.pid != oom.pid);
        Self {
            requested: oom
                .requested
                .bytes()
                .filter(|_| !matches!(oom.requested, RequestedResource::Addresses)),
            total: oom.total,
            free_reported,
            free_estimated: free_reported.map(|free| estimated_free(oom, free)),
            context_uncertainty: context_uncertainty(oom),
            traced: sum(oom.holders.iter().map(|(_, bytes)| *bytes)),
            requester: held_by(oom.pid),
            untracked: untracked(oom),
            cache_unused: requester
                .and_then(|process| cached(process, oom))
                .map(|(later, exact)| (oom.cached.map_or(later, |then| then.max(later)), exact)),
            pool_unused: requester.and_then(|process| pooled(process, oom)),
            others_unused: sum(others.map(|process| {
                let cached = cached(process, oom).map_or(Bytes(0), |(bytes, _)| bytes);
                sum([cached, pooled(process, oom).unwrap_or_default()].into_iter())
            })),
        }
    }
}

fn sum(all: impl Iterator<Item = Bytes>) -> Bytes {
    Bytes(all.fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
}

pub(super) fn devices_on(
    process: &ProcessView,
    gpu: Option<GpuId>,
) -> impl Iterator<Item = &DeviceView> {
    process.devices.iter().filter(move |view| gpu.is_some() && view.gpu == gpu)
}

/// Assumed size of a context if no report shows one, and upper limit of that assumption.
const DEFAULT_CONTEXT_BYTES: u64 = 512 << 20;
const MAX_CONTEXT_BYTES: u64 = 1 << 30;

/// Estimates free memory from the last report and the traced changes since. A process that is not
/// in the report yet also has a context, assumed to be as large as the largest known one.
fn estimated_free(oom: &OomContext<'_>, reported: Bytes) -> Bytes {
    let processes = &oom.snapshot.processes;
    // The untracked memory of processes from before the trace is more than a context.
    let traced = processes.iter().filter(|process| !process.before_trace);
    let views = traced.flat_map(|process| devices_on(process, oom.gpu));
    let biggest = views.filter_map(DeviceView::untracked).map(|bytes| bytes.0).max();
    let context = biggest.unwrap_or(DEFAULT_CONTEXT_BYTES).min(MAX_CONTEXT_BYTES);
    let mut now = i128::from(reported.0);
    let requester = (oom.pid, Bytes(0));
    let holds = oom.pid == Pid(0) || oom.holders.iter().any(|(pid, _)| *pid == oom.pid);
    let holders = oom.holders.iter().chain((!holds).then_some(&requester));
    for (pid, held) in holders {
        let process = processes.iter().find(|process| process.key.pid == *pid);
        let traced_before = process
            .and_then(|process| devices_on(process, oom.gpu).find_map(|view| view.driver_traced));
        now -= match traced_before {
            Some(before) => i128::from(held.0) - i128::from(before.0),
            None => i128::from(held.0) + i128::from(context),
        };
    }
    // A report can be older than the traced values that are stored with it.
    let traced = sum(oom.holders.iter().map(|(_, bytes)| *bytes));
    let max = oom.total.map_or(u64::MAX, |total| total.0.saturating_sub(traced.0));
    Bytes(u64::try_from(now.max(0)).unwrap_or(u64::MAX).min(max))
}

/// By how much contexts that are not in the report may exceed the estimate.
fn context_uncertainty(oom: &OomContext<'_>) -> Bytes {
    let reported = |pid| {
        let process = oom.snapshot.processes.iter().find(|process| process.key.pid == pid);
        process.is_some_and(|process| {
            devices_on(process, oom.gpu).any(|view| view.driver_traced.is_some())
        })
    };
    let new = oom.holders.iter().filter(|(pid, _)| !reported(*pid)).count() as u64;
    Bytes(new.saturating_mul(MAX_CONTEXT_BYTES - DEFAULT_CONTEXT_BYTES))
}

fn untracked(oom: &OomContext<'_>) -> Option<Bytes> {
    let views = oom.snapshot.processes.iter().flat_map(|process| devices_on(process, oom.gpu));
    let known: Vec<_> = views.filter_map(DeviceView::untracked).collect();
    (!known.is_empty()).then(|| sum(known.into_iter()))
}

/// Whether a device of a process is the one of the failed call.
fn is_target_device(
    process: &ProcessView,
    oom: &OomContext<'_>,
    device: crate::model::ids::DeviceId,
) -> bool {
    match oom.gpu {
        Some(_) => devices_on(process, oom.gpu).any(|view| view.device == Some(device)),
        None => oom.device == Some(device),
    }
}

fn cached(process: &ProcessView, oom: &OomContext<'_>) -> Option<(Bytes, bool)> {
    let pools = process.allocators.iter().flat_map(|view| &view.pools);
    let here = |pool: &&AllocatorPoolView| {
        pool.device.is_some_and(|device| is_target_device(process, oom, device))
    };
    let mut all = None;
    for view in pools.filter(here) {
        let (unused, exact): (Bytes, bool) = all.unwrap_or((Bytes(0), true));
        let exact = exact && view.fragmentation.is_ok();
        all = Some((Bytes(unused.0.saturating_add(view.cached().0)), exact));
    }
    all
}

fn pooled(process: &ProcessView, oom: &OomContext<'_>) -> Option<Bytes> {
    let mut all = None;
    for pool in &process.pools {
        let here = pool.device.is_some_and(|device| is_target_device(process, oom, device));
        if let Some(reported) = pool.reserved.filter(|_| here) {
            let unused = reported.bytes.0.saturating_sub(pool.used.0);
            let sum: Bytes = all.unwrap_or_default();
            all = Some(Bytes(sum.0.saturating_add(unused)));
        }
    }
    all
}
