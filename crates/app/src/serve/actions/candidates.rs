//! Candidates for an action: the processes that hold memory on the device, from the latest
//! snapshot.

use engine::model::holder::DeviceFilter;
use engine::model::ids::{Pid, ProcessKey};
use engine::model::units::{Bytes, Nanos};
use engine::snapshot::{DeviceView, ProcessView, Snapshot};

use crate::advise_snapshot;

/// A process on which an action may be taken.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Candidate {
    pub(super) key: ProcessKey,
    /// Memory that its exit would free.
    pub(super) bytes: Bytes,
    pub(super) idle: Option<Nanos>,
}

/// Returns the processes that hold memory on the device, except `exclude`: idle ones first, then by
/// size.
pub(super) fn candidates(
    snapshot: &Snapshot,
    device: DeviceFilter,
    exclude: Option<Pid>,
    idle: &dyn Fn(&ProcessView) -> Option<Nanos>,
) -> Vec<Candidate> {
    let running = snapshot.processes.iter().filter(|one| one.ended.is_none());
    let others = running.filter(|one| Some(one.key.pid) != exclude);
    let mut all: Vec<Candidate> = others
        .filter_map(|process| {
            let bytes = held(process, device);
            let is_candidate = bytes.0 > 0 && !advise_snapshot::is_protected(process);
            is_candidate.then(|| Candidate { key: process.key, bytes, idle: idle(process) })
        })
        .collect();
    let is_idle = |one: &Candidate| one.idle.is_some_and(|idle| idle >= engine::advice::IDLE_AFTER);
    all.sort_by_key(|one| (!is_idle(one), std::cmp::Reverse(one.bytes), one.key.pid));
    all
}

/// Traced memory plus untracked memory, which includes allocations from before the agent.
fn held(process: &ProcessView, device: DeviceFilter) -> Bytes {
    let views = process.devices.iter().filter(|view| matches(view, device));
    let bytes = |view: &DeviceView| {
        view.live_bytes.0.saturating_add(view.untracked().unwrap_or_default().0)
    };
    Bytes(views.map(bytes).fold(0, u64::saturating_add))
}

fn matches(view: &DeviceView, device: DeviceFilter) -> bool {
    match device {
        DeviceFilter::AllDevices => true,
        DeviceFilter::Gpu(gpu) => view.gpu == Some(gpu),
        // Device ordinals differ between processes, so the GPU decides if it is known.
        DeviceFilter::Device(ordinal, gpu) => match (view.gpu, gpu) {
            (Some(one), Some(other)) => one == other,
            _ => view.device == Some(ordinal),
        },
    }
}
