//! Who holds the device, in words.

use crate::ids::Pid;
use crate::snapshot::{DeviceView, ProcessView};
use crate::units::Bytes;

use super::Scene;
use super::figures::{Figures, on};

/// What a process holds: by traced allocations at that moment, and beyond them by the driver's account.
#[derive(Clone, Copy)]
struct Held {
    pid: Pid,
    traced: Bytes,
    beyond: Bytes,
}

impl Held {
    const fn all(&self) -> u64 {
        self.traced.0.saturating_add(self.beyond.0)
    }

    fn words(&self) -> String {
        match (self.traced.0, self.beyond.0) {
            (_, 0) => self.traced.to_string(),
            (0, _) => format!("{} untracked", self.beyond),
            _ => format!("{} and {} untracked", self.traced, self.beyond),
        }
    }
}

/// Who holds the device: "most" is more than half of what is used.
pub(super) fn sentence(scene: &Scene<'_>, figures: &Figures, free: Option<Bytes>) -> String {
    let all = everybody(scene);
    let sum = all.iter().fold(0_u64, |sum, held| sum.saturating_add(held.all()));
    let used = match (figures.total, free) {
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
    let who = if most.pid == scene.pid {
        "the same process".to_owned()
    } else {
        let name = process(scene, most.pid).map_or("", |process| &*process.name);
        format!("process {} ({name})", most.pid)
    };
    let words = most.words();
    if most.all() > used / 2 {
        format!("most of it was held by {who}: {words}")
    } else {
        format!("the largest holder was {who}: {words}")
    }
}

fn process<'a>(scene: &Scene<'a>, pid: Pid) -> Option<&'a ProcessView> {
    let of = |process: &&ProcessView| process.key.pid == pid;
    let all = &scene.snapshot.processes;
    all.iter().filter(of).find(|process| process.ended.is_none()).or_else(|| all.iter().find(of))
}

/// Those who held traced memory, and those whom the driver's account names.
fn everybody(scene: &Scene<'_>) -> Vec<Held> {
    let beyond = |pid| {
        let views = process(scene, pid).into_iter().flat_map(|process| on(process, scene.gpu));
        let untracked = views.filter_map(DeviceView::untracked);
        Bytes(untracked.fold(0_u64, |sum, bytes| sum.saturating_add(bytes.0)))
    };
    let mut all: Vec<Held> = scene
        .holders
        .iter()
        .map(|(pid, traced)| Held { pid: *pid, traced: *traced, beyond: beyond(*pid) })
        .collect();
    for process in scene.snapshot.processes.iter().filter(|process| process.ended.is_none()) {
        let pid = process.key.pid;
        if !all.iter().any(|held| held.pid == pid) {
            all.push(Held { pid, traced: Bytes(0), beyond: beyond(pid) });
        }
    }
    all.retain(|held| held.all() > 0);
    all
}
