//! Who comes into question: everybody that holds memory of the device, by the newest snapshot.

use engine::holding::Where;
use engine::ids::{Pid, ProcessKey};
use engine::snapshot::{DeviceView, ProcessView, Snapshot};
use engine::units::{Bytes, Nanos};

use crate::advising;

/// Somebody to whom something might be done.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Candidate {
    pub(super) key: ProcessKey,
    /// What its end would give back.
    pub(super) bytes: Bytes,
    pub(super) idle: Option<Nanos>,
}

/// Those who hold something there, but for one. Who has been idle for long comes first, then who holds
/// most.
pub(super) fn candidates(
    snapshot: &Snapshot,
    place: Where,
    but: Option<Pid>,
    idle: &dyn Fn(&ProcessView) -> Option<Nanos>,
) -> Vec<Candidate> {
    let running = snapshot.processes.iter().filter(|one| one.ended.is_none());
    let others = running.filter(|one| Some(one.key.pid) != but);
    let mut all: Vec<Candidate> = others
        .filter_map(|process| {
            let bytes = held(process, place);
            let is_wanted = bytes.0 > 0 && !advising::is_protected(process);
            is_wanted.then(|| Candidate { key: process.key, bytes, idle: idle(process) })
        })
        .collect();
    let is_idle = |one: &Candidate| one.idle.is_some_and(|idle| idle >= engine::advice::IDLE);
    all.sort_by_key(|one| (!is_idle(one), std::cmp::Reverse(one.bytes), one.key.pid));
    all
}

/// What was traced, and what the driver's account has beyond that: also what was there before the agent.
fn held(process: &ProcessView, place: Where) -> Bytes {
    let views = process.devices.iter().filter(|view| lies(view, place));
    let bytes = |view: &DeviceView| {
        view.live_bytes.0.saturating_add(view.untracked().unwrap_or_default().0)
    };
    Bytes(views.map(bytes).fold(0, u64::saturating_add))
}

fn lies(view: &DeviceView, place: Where) -> bool {
    match place {
        Where::Anywhere => true,
        Where::Gpu(gpu) => view.gpu == Some(gpu),
        // Processes count devices as they like; where the GPU is known, that tells.
        Where::Device(device, gpu) => match (view.gpu, gpu) {
            (Some(one), Some(other)) => one == other,
            _ => view.device == Some(device),
        },
    }
}
