//! Holders of untraced memory: after a restart of the agent, everything allocated before.

use std::cmp::Reverse;

use engine::model::{Bytes, DeviceId, GpuId, Holder, Pid};
use engine::snapshot::{DeviceView, ProcessView, Snapshot};

/// Adds holders that only the driver reports, and sorts all by traced and untracked memory. A
/// process that exited meanwhile counts if it is the `requester`.
pub(in crate::incidents) fn add_untraced(
    holders: &mut Vec<Holder>,
    snapshot: &Snapshot,
    (gpu, device): (Option<GpuId>, Option<DeviceId>),
    requester: Option<Pid>,
) {
    // Driver-reported usage is by GPU, so nothing can be added if only the device ordinal is known.
    let on_gpu = |view: &&DeviceView| match gpu {
        Some(_) => view.gpu == gpu,
        None => device.is_none(),
    };
    let sum = |all: &mut dyn Iterator<Item = Bytes>| {
        all.fold(0_u64, |sum, more| sum.saturating_add(more.0))
    };
    for process in &snapshot.processes {
        let counts = process.ended.is_none() || Some(process.key.pid) == requester;
        let views = process.devices.iter().filter(on_gpu);
        let driver_bytes = sum(&mut views.filter_map(|view| view.driver_bytes));
        let known = holders.iter().any(|holder| holder.key.pid == process.key.pid);
        if counts && driver_bytes > 0 && !known {
            holders.push(Holder {
                key: process.key,
                uid: process.uid,
                name: process.program().into(),
                live_bytes: Bytes(0),
                live_allocations: 0,
                sites: Vec::new(),
                before_trace: process.before_trace,
            });
        }
    }
    let untracked = |process: &ProcessView| {
        sum(&mut process.devices.iter().filter(on_gpu).filter_map(DeviceView::untracked))
    };
    holders.sort_by_cached_key(|holder| {
        let process = snapshot.processes.iter().find(|process| process.key == holder.key);
        let all = holder.live_bytes.0.saturating_add(process.map_or(0, untracked));
        (Reverse(all), holder.key.pid)
    });
}

#[cfg(test)]
mod tests {
    use engine::ledger::Ledger;
    use engine::model::{
        Allocate, AllocationKey, DeviceFilter, Event, EventKind, MemoryKind, ProcessInfo, Tid,
        Timestamp,
    };
    use engine::snapshot::SnapshotOptions;

    use super::*;

    fn apply(ledger: &mut Ledger, pid: u32, kind: EventKind) {
        let at = Timestamp(1000);
        ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind });
    }

    /// Process 1 was traced, 2 predates the trace, 3 holds only memory of another GPU.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::new();
        for (pid, traced, gpu, driver_bytes) in [(1, 50, 0, 60), (2, 0, 0, 900), (3, 0, 1, 700)] {
            let before_trace = traced == 0;
            let info = ProcessInfo { start: 1, uid: 7, name: "x".into(), before_trace };
            apply(&mut ledger, pid, EventKind::Process(info));
            apply(&mut ledger, pid, EventKind::Gpus([Some(GpuId(0)), Some(GpuId(1))].into()));
            if traced > 0 {
                let (key, kind, device) =
                    (AllocationKey::address(7), MemoryKind::Device, Some(DeviceId(0)));
                let (context, pool, stream, site) = (None, None, None, None);
                let bytes = traced;
                let new = Allocate { key, kind, bytes, context, device, pool, stream, site };
                apply(&mut ledger, pid, EventKind::Allocate(new));
            }
            apply(
                &mut ledger,
                pid,
                EventKind::DriverUsage { gpu: GpuId(gpu), bytes: driver_bytes, only: false },
            );
        }
        ledger
    }

    fn pids(
        device: (Option<GpuId>, Option<DeviceId>),
        requester: Option<u32>,
        ends: bool,
    ) -> Vec<u32> {
        let mut ledger = ledger();
        let mut holders = ledger.holders(DeviceFilter::AllDevices);
        if ends {
            apply(&mut ledger, 2, EventKind::Exit);
        }
        let snapshot = ledger.snapshot(Timestamp(2000), &SnapshotOptions::default());
        add_untraced(&mut holders, &snapshot, device, requester.map(Pid));
        assert!(holders.iter().all(|one| one.before_trace == (one.live_bytes.0 == 0)));
        holders.iter().map(|one| one.key.pid.0).collect()
    }

    #[test]
    fn preexisting_processes_hold_driver_reported_memory() {
        let device = Some(DeviceId(0));
        assert_eq!(pids((Some(GpuId(0)), device), None, false), [2, 1]);
        assert_eq!(pids((Some(GpuId(1)), None), None, false), [3, 1]);
        assert_eq!(pids((None, None), None, false), [2, 3, 1]);
        // The GPU of that ordinal is unknown.
        assert_eq!(pids((None, device), None, false), [1]);
    }

    #[test]
    fn exited_requester_still_counts() {
        let gpu = (Some(GpuId(0)), None);
        assert_eq!(pids(gpu, None, true), [1]);
        assert_eq!(pids(gpu, Some(2), true), [2, 1]);
    }
}
