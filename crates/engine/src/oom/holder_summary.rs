//! Describes in words which process holds the memory of the device.

use crate::model::{Bytes, Pid};
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

    fn describe(&self) -> String {
        match (self.traced.0, self.untracked.0) {
            (_, 0) => self.traced.to_string(),
            (0, _) => format!("{} untracked", self.untracked),
            _ => format!("{} and {} untracked", self.traced, self.untracked),
        }
    }
}

/// Describes the largest holder; "most" means more than half of the used memory.
pub(super) fn sentence(
    oom: &OomContext<'_>,
    memory: &MemoryBreakdown,
    free: Option<Bytes>,
) -> String {
    let all = all_holders(oom);
    let sum = all.iter().fold(0_u64, |sum, usage| sum.saturating_add(usage.all()));
    let used = match (memory.total, free) {
        (Some(total), Some(free)) => total.0.saturating_sub(free.0).max(sum),
        _ => sum,
    };
    let Some(largest) = all.iter().max_by_key(|usage| (usage.all(), usage.pid.0)) else {
        return match used {
            0 => "holders unknown".to_owned(),
            used => format!("holders of the {} in use are unknown", Bytes(used)),
        };
    };
    let elsewhere = used.saturating_sub(sum);
    if elsewhere > largest.all() {
        return format!("{} held by no known process", Bytes(elsewhere));
    }
    let holder = if largest.pid == oom.pid {
        "the same process".to_owned()
    } else {
        let name = process(oom, largest.pid).map_or("", ProcessView::program);
        format!("process {} ({name})", largest.pid)
    };
    let amount = largest.describe();
    if largest.all() > used / 2 {
        format!("most of it was held by {holder}: {amount}")
    } else {
        format!("the largest holder was {holder}: {amount}")
    }
}

fn process<'a>(oom: &OomContext<'a>, pid: Pid) -> Option<&'a ProcessView> {
    let of = |process: &&ProcessView| process.key.pid == pid;
    let all = &oom.snapshot.processes;
    all.iter().filter(of).find(|process| process.ended.is_none()).or_else(|| all.iter().find(of))
}

/// Processes with traced memory, and processes with driver-reported usage.
fn all_holders(oom: &OomContext<'_>) -> Vec<HolderUsage> {
    let untracked = |pid| {
        let views = process(oom, pid).into_iter().flat_map(|process| devices_on(process, oom.gpu));
        let untracked = views.filter_map(DeviceView::untracked);
        Bytes(untracked.fold(0_u64, |sum, bytes| sum.saturating_add(bytes.0)))
    };
    let mut all: Vec<HolderUsage> = oom
        .holders
        .iter()
        .map(|(pid, traced)| HolderUsage { pid: *pid, traced: *traced, untracked: untracked(*pid) })
        .collect();
    for process in oom.snapshot.running() {
        let pid = process.key.pid;
        if !all.iter().any(|usage| usage.pid == pid) {
            all.push(HolderUsage { pid, traced: Bytes(0), untracked: untracked(pid) });
        }
    }
    all.retain(|usage| usage.all() > 0);
    all
}
