//! Memory values that support a diagnosis.

use crate::model::ids::{GpuId, Pid};
use crate::model::units::Bytes;
use crate::snapshot::{DeviceView, ProcessView};

use super::{OomContext, RequestedResource};

/// Memory of the device at the time of the failed call. `None` if unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryBreakdown {
    /// Requested size.
    pub asked: Option<Bytes>,
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
    pub(super) fn of(scene: &OomContext<'_>) -> Self {
        let held = |wanted| {
            let holder = scene.holders.iter().find(|(pid, _)| *pid == wanted);
            holder.map_or(Bytes(0), |(_, bytes)| *bytes)
        };
        let reported = scene.snapshot.gpus.iter().find(|view| Some(view.gpu) == scene.gpu);
        let free_told = reported.map(|view| view.free_bytes);
        let processes = &scene.snapshot.processes;
        let asker = processes.iter().find(|process| process.key.pid == scene.pid);
        let others = processes.iter().filter(|process| process.key.pid != scene.pid);
        Self {
            asked: scene
                .asked
                .bytes()
                .filter(|_| !matches!(scene.asked, RequestedResource::Addresses)),
            total: scene.total,
            free_reported: free_told,
            free_estimated: free_told.map(|free| estimated_free(scene, free)),
            context_uncertainty: context_uncertainty(scene),
            traced: sum(scene.holders.iter().map(|(_, bytes)| *bytes)),
            requester: held(scene.pid),
            untracked: untracked(scene),
            cache_unused: asker
                .and_then(|process| cached(process, scene))
                .map(|(later, exact)| (scene.cached.map_or(later, |then| then.max(later)), exact)),
            pool_unused: asker.and_then(|process| pooled(process, scene)),
            others_unused: sum(others.map(|process| {
                let cached = cached(process, scene).map_or(Bytes(0), |(bytes, _)| bytes);
                sum([cached, pooled(process, scene).unwrap_or_default()].into_iter())
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
fn estimated_free(scene: &OomContext<'_>, reported: Bytes) -> Bytes {
    let processes = &scene.snapshot.processes;
    // The untracked memory of processes from before the trace is more than a context.
    let traced = processes.iter().filter(|process| !process.before_trace);
    let views = traced.flat_map(|process| devices_on(process, scene.gpu));
    let biggest = views.filter_map(DeviceView::untracked).map(|bytes| bytes.0).max();
    let context = biggest.unwrap_or(DEFAULT_CONTEXT_BYTES).min(MAX_CONTEXT_BYTES);
    let mut now = i128::from(reported.0);
    let asker = (scene.pid, Bytes(0));
    let holds = scene.pid == Pid(0) || scene.holders.iter().any(|(pid, _)| *pid == scene.pid);
    let holders = scene.holders.iter().chain((!holds).then_some(&asker));
    for (pid, held) in holders {
        let process = processes.iter().find(|process| process.key.pid == *pid);
        let asked = process
            .and_then(|process| devices_on(process, scene.gpu).find_map(|view| view.driver_traced));
        now -= match asked {
            Some(asked) => i128::from(held.0) - i128::from(asked.0),
            None => i128::from(held.0) + i128::from(context),
        };
    }
    let most = scene.total.map_or(u64::MAX, |total| total.0);
    Bytes(u64::try_from(now.max(0)).unwrap_or(u64::MAX).min(most))
}

/// By how much contexts that are not in the report may exceed the estimate.
fn context_uncertainty(scene: &OomContext<'_>) -> Bytes {
    let reported = |pid| {
        let process = scene.snapshot.processes.iter().find(|process| process.key.pid == pid);
        process.is_some_and(|process| {
            devices_on(process, scene.gpu).any(|view| view.driver_traced.is_some())
        })
    };
    let new = scene.holders.iter().filter(|(pid, _)| !reported(*pid)).count() as u64;
    Bytes(new.saturating_mul(MAX_CONTEXT_BYTES - DEFAULT_CONTEXT_BYTES))
}

fn untracked(scene: &OomContext<'_>) -> Option<Bytes> {
    let views = scene.snapshot.processes.iter().flat_map(|process| devices_on(process, scene.gpu));
    let known: Vec<_> = views.filter_map(DeviceView::untracked).collect();
    (!known.is_empty()).then(|| sum(known.into_iter()))
}

/// Whether a device of a process is the one of the failed call.
fn is_target_device(
    process: &ProcessView,
    scene: &OomContext<'_>,
    device: crate::model::ids::DeviceId,
) -> bool {
    match scene.gpu {
        Some(_) => devices_on(process, scene.gpu).any(|view| view.device == Some(device)),
        None => scene.device == Some(device),
    }
}

fn cached(process: &ProcessView, scene: &OomContext<'_>) -> Option<(Bytes, bool)> {
    let torch = process.torch.as_ref()?;
    let devices = torch.devices.iter().filter(|view| is_target_device(process, scene, view.device));
    let mut all = None;
    for view in devices {
        let (unused, exact): (Bytes, bool) = all.unwrap_or((Bytes(0), true));
        let exact = exact && view.fragmentation.is_ok();
        all = Some((Bytes(unused.0.saturating_add(view.cached().0)), exact));
    }
    all
}

fn pooled(process: &ProcessView, scene: &OomContext<'_>) -> Option<Bytes> {
    let mut all = None;
    for pool in &process.pools {
        let here = pool.device.is_some_and(|device| is_target_device(process, scene, device));
        if let Some(reported) = pool.reserved.filter(|_| here) {
            let unused = reported.bytes.0.saturating_sub(pool.used.0);
            let sum: Bytes = all.unwrap_or_default();
            all = Some(Bytes(sum.0.saturating_add(unused)));
        }
    }
    all
}
