//! The figures that a diagnosis rests on.

use crate::ids::{GpuId, Pid};
use crate::snapshot::{DeviceView, ProcessView};
use crate::units::Bytes;

use super::{Asked, Scene};

/// What is known of the device at the moment when a call was refused. What is `None` nobody told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// What was asked for.
    pub asked: Option<Bytes>,
    /// All of the device's memory.
    pub total: Option<Bytes>,
    /// What was free when the driver's account was asked last.
    pub free_told: Option<Bytes>,
    /// What was free at the moment, about: the same less what was traced to grow since, and less a
    /// context for each process that is not in the account yet.
    pub free: Option<Bytes>,
    /// By how much that may be too much: how big contexts are that are not in the account is a guess.
    pub unsure: Bytes,
    /// What traced allocations of all processes held of it.
    pub traced: Bytes,
    /// What the one who asked held of it.
    pub asker: Bytes,
    /// What the driver's account has of all processes beyond what was traced.
    pub untracked: Option<Bytes>,
    /// What PyTorch's cache of the one who asked held and no tensor used; and whether that is exact.
    pub cache_unused: Option<(Bytes, bool)>,
    /// What pools of the one who asked reserved and did not use, as the driver told last.
    pub pool_unused: Option<Bytes>,
    /// What caches and pools of the others held unused.
    pub others_unused: Bytes,
}

impl Figures {
    pub(super) fn of(scene: &Scene<'_>) -> Self {
        let held = |wanted| {
            let holder = scene.holders.iter().find(|(pid, _)| *pid == wanted);
            holder.map_or(Bytes(0), |(_, bytes)| *bytes)
        };
        let told = scene.snapshot.gpus.iter().find(|view| Some(view.gpu) == scene.gpu);
        let free_told = told.map(|view| view.free_bytes);
        let processes = &scene.snapshot.processes;
        let asker = processes.iter().find(|process| process.key.pid == scene.pid);
        let others = processes.iter().filter(|process| process.key.pid != scene.pid);
        Self {
            asked: scene.asked.bytes().filter(|_| !matches!(scene.asked, Asked::Addresses)),
            total: scene.total,
            free_told,
            free: free_told.map(|free| free_now(scene, free)),
            unsure: unsure(scene),
            traced: sum(scene.holders.iter().map(|(_, bytes)| *bytes)),
            asker: held(scene.pid),
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

pub(super) fn on(process: &ProcessView, gpu: Option<GpuId>) -> impl Iterator<Item = &DeviceView> {
    process.devices.iter().filter(move |view| gpu.is_some() && view.gpu == gpu)
}

/// What the context of a process is taken for where no account of one was ever asked, and the most
/// that it is taken for.
const CONTEXT: u64 = 512 << 20;
const LARGEST_CONTEXT: u64 = 1 << 30;

/// What was told, less what was allocated since and with what was freed since. A process that is too
/// new to be in the driver's account has a context, too: as big as the biggest that is known.
fn free_now(scene: &Scene<'_>, told: Bytes) -> Bytes {
    let processes = &scene.snapshot.processes;
    // What was there before the trace is more than a context.
    let traced = processes.iter().filter(|process| !process.before_trace);
    let views = traced.flat_map(|process| on(process, scene.gpu));
    let biggest = views.filter_map(DeviceView::untracked).map(|bytes| bytes.0).max();
    let context = biggest.unwrap_or(CONTEXT).min(LARGEST_CONTEXT);
    let mut now = i128::from(told.0);
    let asker = (scene.pid, Bytes(0));
    let holds = scene.pid == Pid(0) || scene.holders.iter().any(|(pid, _)| *pid == scene.pid);
    let holders = scene.holders.iter().chain((!holds).then_some(&asker));
    for (pid, held) in holders {
        let process = processes.iter().find(|process| process.key.pid == *pid);
        let asked =
            process.and_then(|process| on(process, scene.gpu).find_map(|view| view.driver_traced));
        now -= match asked {
            Some(asked) => i128::from(held.0) - i128::from(asked.0),
            None => i128::from(held.0) + i128::from(context),
        };
    }
    let most = scene.total.map_or(u64::MAX, |total| total.0);
    Bytes(u64::try_from(now.max(0)).unwrap_or(u64::MAX).min(most))
}

/// What contexts that are not in the account may take more than they were taken for.
fn unsure(scene: &Scene<'_>) -> Bytes {
    let told = |pid| {
        let process = scene.snapshot.processes.iter().find(|process| process.key.pid == pid);
        process
            .is_some_and(|process| on(process, scene.gpu).any(|view| view.driver_traced.is_some()))
    };
    let new = scene.holders.iter().filter(|(pid, _)| !told(*pid)).count() as u64;
    Bytes(new.saturating_mul(LARGEST_CONTEXT - CONTEXT))
}

fn untracked(scene: &Scene<'_>) -> Option<Bytes> {
    let views = scene.snapshot.processes.iter().flat_map(|process| on(process, scene.gpu));
    let known: Vec<_> = views.filter_map(DeviceView::untracked).collect();
    (!known.is_empty()).then(|| sum(known.into_iter()))
}

/// Whether a device of a process is the one that is meant.
fn is_meant(process: &ProcessView, scene: &Scene<'_>, device: crate::ids::DeviceId) -> bool {
    match scene.gpu {
        Some(_) => on(process, scene.gpu).any(|view| view.device == Some(device)),
        None => scene.device == Some(device),
    }
}

fn cached(process: &ProcessView, scene: &Scene<'_>) -> Option<(Bytes, bool)> {
    let torch = process.torch.as_ref()?;
    let devices = torch.devices.iter().filter(|view| is_meant(process, scene, view.device));
    let mut all = None;
    for view in devices {
        let (unused, exact): (Bytes, bool) = all.unwrap_or((Bytes(0), true));
        let exact = exact && view.fragmentation.is_ok();
        all = Some((Bytes(unused.0.saturating_add(view.cached().0)), exact));
    }
    all
}

fn pooled(process: &ProcessView, scene: &Scene<'_>) -> Option<Bytes> {
    let mut all = None;
    for pool in &process.pools {
        let here = pool.device.is_some_and(|device| is_meant(process, scene, device));
        if let Some(told) = pool.reserved.filter(|_| here) {
            let unused = told.bytes.0.saturating_sub(pool.used.0);
            let sum: Bytes = all.unwrap_or_default();
            all = Some(Bytes(sum.0.saturating_add(unused)));
        }
    }
    all
}
