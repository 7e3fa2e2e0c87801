//! Describes in words which process holds the memory of the device.

use crate::model::ids::Pid;
use crate::model::units::Bytes;
use crate::snapshot::{DeviceView, ProcessView};

use super::OomContext;
use super::breakdown::{MemoryBreakdown, devices_on};

/// Memory of a process: traced at that time, and untracked according to the driver.
#[derive(Clone, Copy)]
struct HolderUsage {
    pid: Pid,
    traced: Bytes,
    untracked: Bytes,
}

impl HolderUsage {
    const fn all(&self) -> u64 {
        self.traced.0.saturating_add(self.untracked.0)
    }

    fn words(&self) -> String {
        match (self.traced.0, self.untracked.0) {
            (_, 0) => self.traced.to_string(),
            (0, _) => format!("{} untracked", self.untracked),
            _ => format!("{} and {} untracked", self.traced, self.untracked),
        }
    }
}

/// Describes the largest holder; "most" means more than half of the used memory.
pub(super) fn sentence(
    scene: &OomContext<'_>,
    memory: &MemoryBreakdown,
    free: Option<Bytes>,
) -> String {
    let all = all_holders(scene);
    let sum = all.iter().fold(0_u64, |sum, held| sum.saturating_add(held.all()));
    let used = match (memory.total, free) {
        (Some(total), Some(free)) => total.0.saturating_sub(free.0).max(sum),
        _ => sum,
    };
    let Some(most) = all.iter().max_by_key(|held| (held.all(), held.pid.0)) else {
        return match used {
            0 => "holders unknown".to_owned(),
            used => format!("holders of the {} in use are unknown", Bytes(used)),
        };
    };
    let elsewhere = used.saturating_sub(sum);
    if elsewhere > most.all() {
        return format!("{} held by no known process", Bytes(elsewhere));
    }
    let holder = if most.pid == scene.pid {
        "the same process".to_owned()
    } else {
        let name = process(scene, most.pid).map_or("", |process| &*process.name);
        format!("process {} ({name})", most.pid)
    };
    let words = most.words();
    if most.all() > used / 2 {
        format!("most of it was held by {holder}: {words}")
    } else {
        format!("the largest holder was {holder}: {words}")
    }
}

fn process<'a>(scene: &OomContext<'a>, pid: Pid) -> Option<&'a ProcessView> {
    let of = |process: &&ProcessView| process.key.pid == pid;
    let all = &scene.snapshot.processes;
    all.iter().filter(of).find(|process| process.ended.is_none()).or_else(|| all.iter().find(of))
}

/// Processes with traced memory, and processes with driver-reported usage.
fn all_holders(scene: &OomContext<'_>) -> Vec<HolderUsage> {
    let untracked = |pid| {
        let views =
            process(scene, pid).into_iter().flat_map(|process| devices_on(process, scene.gpu));
        let untracked = views.filter_map(DeviceView::untracked);
        Bytes(untracked.fold(0_u64, |sum, bytes| sum.saturating_add(bytes.0)))
    };
    let mut all: Vec<HolderUsage> = scene
        .holders
        .iter()
        .map(|(pid, traced)| HolderUsage { pid: *pid, traced: *traced, untracked: untracked(*pid) })
        .collect();
    for process in scene.snapshot.processes.iter().filter(|process| process.ended.is_none()) {
        let pid = process.key.pid;
        if !all.iter().any(|held| held.pid == pid) {
            all.push(HolderUsage { pid, traced: Bytes(0), untracked: untracked(pid) });
        }
    }
    all.retain(|held| held.all() > 0);
    all
}
