//! One JSON object per snapshot, one line each. The names are a contract: fields are added, never
//! renamed.

use std::collections::BTreeMap;

use engine::ids::{DeviceId, Space};
use engine::result::result_name;
use engine::snapshot::{
    AllocationView, Certainty, End, OutOfMemory, ProcessView, Snapshot, ThreadView,
};
use serde::Serialize;

use super::Names;
use crate::plain::plain;

/// The object for a snapshot, without a line end.
pub fn line(snapshot: &Snapshot, names: &Names) -> serde_json::Result<String> {
    serde_json::to_string(&Report::new(snapshot, names))
}

#[derive(Serialize)]
struct Report {
    time: String,
    exact: bool,
    lost_events: u64,
    live_bytes: u64,
    live_allocations: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncertainty: Option<Uncertainty>,
    processes: Vec<Process>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    out_of_memory: Vec<Oom>,
}

/// Only where a figure is not exact.
#[derive(Serialize)]
struct Uncertainty {
    live_bytes_at_least: u64,
    live_bytes_at_most: u64,
    lost_allocations: u64,
    lost_allocated_bytes: u64,
    lost_frees: u64,
    lost_failures: u64,
    lost_other: u64,
    unseen_frees: u64,
    allocated_before_trace: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_since: Option<String>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    uid: Option<u32>,
    name: String,
    exited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_by: Option<&'static str>,
    exact: bool,
    live_bytes: u64,
    live_allocations: u64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_time: Option<String>,
    allocations_total: u64,
    frees_total: u64,
    released_total: u64,
    failed_allocations: u64,
    unknown_frees: u64,
    devices: Vec<Device>,
    kinds: BTreeMap<&'static str, u64>,
    kind_allocations: BTreeMap<&'static str, u64>,
    threads: Vec<Thread>,
    failures: Vec<Failure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncertainty: Option<Uncertainty>,
}

#[derive(Serialize)]
struct Device {
    device: Option<u16>,
    live_bytes: u64,
    peak_bytes: u64,
}

#[derive(Serialize)]
struct Failure {
    function: &'static str,
    code: i32,
    name: &'static str,
    count: u64,
}

#[derive(Serialize)]
struct Thread {
    tid: u32,
    name: String,
    live_bytes: u64,
    live_allocations: u64,
    allocations: Vec<Allocation>,
}

#[derive(Serialize)]
struct Allocation {
    address: String,
    device: Option<u16>,
    bytes: u64,
    kind: &'static str,
    age_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<&'static str>,
}

#[derive(Serialize)]
struct Oom {
    time: String,
    pid: u32,
    tid: u32,
    name: String,
    device: Option<u16>,
    asked_bytes: Option<u64>,
    kind: Option<&'static str>,
    holders: Vec<Holder>,
}

#[derive(Serialize)]
struct Holder {
    pid: u32,
    name: String,
    live_bytes: u64,
}

const fn ordinal(device: Option<DeviceId>) -> Option<u16> {
    match device {
        Some(device) => Some(device.0),
        None => None,
    }
}

impl Report {
    fn new(snapshot: &Snapshot, names: &Names) -> Self {
        Self {
            time: names.clock.precise(snapshot.at),
            exact: snapshot.certainty.exact(),
            lost_events: snapshot.certainty.lost.events(),
            // Of every process in this object: those that ended count with what they had not freed.
            live_bytes: snapshot.processes.iter().map(|p| p.live_bytes.0).sum(),
            live_allocations: snapshot.processes.iter().map(|p| p.live_allocations).sum(),
            uncertainty: Uncertainty::new(&snapshot.certainty, names),
            processes: snapshot.processes.iter().map(|p| Process::new(p, names)).collect(),
            out_of_memory: snapshot.out_of_memory.iter().map(|o| Oom::new(o, names)).collect(),
        }
    }
}

impl Uncertainty {
    fn new(certainty: &Certainty, names: &Names) -> Option<Self> {
        let lost = &certainty.lost;
        (!certainty.exact()).then(|| Self {
            live_bytes_at_least: certainty.live_at_least.0,
            live_bytes_at_most: certainty.live_at_most.0,
            lost_allocations: lost.allocations,
            lost_allocated_bytes: lost.allocated_bytes,
            lost_frees: lost.frees,
            lost_failures: lost.failures,
            lost_other: lost.other,
            unseen_frees: certainty.unseen_frees,
            allocated_before_trace: certainty.before_trace,
            lost_since: lost.since.map(|moment| names.clock.precise(moment)),
        })
    }
}

impl Process {
    fn new(process: &ProcessView, names: &Names) -> Self {
        let kinds = &process.kinds;
        Self {
            pid: process.key.pid.0,
            uid: process.uid,
            name: plain(&process.name).into_owned(),
            exited: process.ended.is_some(),
            ended_by: process.ended.map(|end| match end {
                End::Exited => "exit",
                End::Replaced => "exec",
            }),
            exact: process.certainty.exact(),
            live_bytes: process.live_bytes.0,
            live_allocations: process.live_allocations,
            peak_bytes: process.peak_bytes.0,
            peak_time: (process.peak_bytes.0 > 0).then(|| names.clock.precise(process.peak_at)),
            allocations_total: process.allocations_total,
            frees_total: process.frees_total,
            released_total: process.released_total,
            failed_allocations: process.failed_allocations,
            unknown_frees: process.unknown_frees,
            devices: process
                .devices
                .iter()
                .map(|view| Device {
                    device: ordinal(view.device),
                    live_bytes: view.live_bytes.0,
                    peak_bytes: view.peak_bytes.0,
                })
                .collect(),
            kinds: kinds.iter().map(|view| (view.kind.name(), view.live_bytes.0)).collect(),
            kind_allocations: kinds
                .iter()
                .map(|view| (view.kind.name(), view.live_allocations))
                .collect(),
            threads: process.threads.iter().map(Thread::new).collect(),
            failures: process
                .failures
                .iter()
                .map(|failure| Failure {
                    function: (names.function)(failure.function),
                    code: failure.code,
                    name: result_name(failure.code),
                    count: failure.count,
                })
                .collect(),
            uncertainty: Uncertainty::new(&process.certainty, names),
        }
    }
}

impl Thread {
    fn new(thread: &ThreadView) -> Self {
        Self {
            tid: thread.tid.0,
            name: plain(&thread.name).into_owned(),
            live_bytes: thread.live_bytes.0,
            live_allocations: thread.live_allocations,
            allocations: thread.allocations.iter().map(Allocation::new).collect(),
        }
    }
}

impl Allocation {
    fn new(allocation: &AllocationView) -> Self {
        Self {
            address: format!("{:#x}", allocation.key.value),
            device: ordinal(allocation.device),
            bytes: allocation.bytes.0,
            kind: allocation.kind.name(),
            age_ms: allocation.age.millis(),
            handle: match allocation.key.space {
                Space::Address => None,
                Space::Handle => Some("handle"),
                Space::Array => Some("array"),
                Space::Pool => Some("pool"),
                Space::External => Some("external"),
            },
        }
    }
}

impl Oom {
    fn new(oom: &OutOfMemory, names: &Names) -> Self {
        Self {
            time: names.clock.precise(oom.at),
            pid: oom.pid.0,
            tid: oom.tid.0,
            name: plain(&oom.name).into_owned(),
            device: ordinal(oom.device),
            asked_bytes: oom.asked.map(|(_, bytes)| bytes.0),
            kind: oom.asked.map(|(kind, _)| kind.name()),
            holders: oom
                .holders
                .iter()
                .map(|(pid, name, bytes)| Holder {
                    pid: pid.0,
                    name: plain(name).into_owned(),
                    live_bytes: bytes.0,
                })
                .collect(),
        }
    }
}
