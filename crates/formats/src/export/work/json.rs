//! Launches and copies as JSON. The names are a contract: fields are added, never renamed.

use engine::snapshot::{CopyView, KernelView, ProcessView, Snapshot, WorkView};
use engine::work::{Launched, Shape};
use serde::Serialize;

use super::super::Names;
use super::super::json::Failure;
use super::{bandwidth_at, exact, kernel_name, mean_bandwidth, named_by, rate};
use crate::plain::{LONGEST_KERNEL, plain, plain_up_to};

/// Returns the object of `vramscope kernels` for a snapshot, without a line break.
pub fn line(snapshot: &Snapshot, names: &Names) -> serde_json::Result<String> {
    serde_json::to_string(&Report::new(snapshot, names))
}

#[derive(Serialize)]
struct Report {
    time: String,
    exact: bool,
    lost_events: u64,
    lost_launches: u64,
    lost_copies: u64,
    launches_total: u64,
    processes: Vec<Process>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    uid: Option<u32>,
    name: String,
    exited: bool,
    before_trace: bool,
    #[serde(flatten)]
    work: Work,
    failed_calls: Vec<Failure>,
}

/// Activity of a process; also part of the report of `trace`.
#[derive(Serialize)]
pub(crate) struct Work {
    launches_total: u64,
    launches_per_second: f64,
    captured_launches: u64,
    failed_launches: u64,
    checked_launches: u64,
    kernels_total: u64,
    kernels: Vec<Kernel>,
    copies: Vec<Copies>,
}

#[derive(Serialize)]
struct Kernel {
    name: String,
    full_name: String,
    symbol: Option<String>,
    kind: &'static str,
    handle: String,
    handles: u64,
    launches: u64,
    share: f64,
    launches_per_second: f64,
    grid: Option<[u32; 3]>,
    block: Option<[u32; 3]>,
    shared_bytes: Option<u32>,
    shape_launches: Option<u64>,
    shape_exact: bool,
    last_grid: Option<[u32; 3]>,
    last_block: Option<[u32; 3]>,
    last_shared_bytes: Option<u32>,
    captured: u64,
    failed: u64,
    checked: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_source: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unnamed_reason: Option<&'static str>,
}

#[derive(Serialize)]
struct Copies {
    direction: &'static str,
    mode: &'static str,
    calls: u64,
    bytes: u64,
    /// For synchronous copies: their bytes over their time.
    bytes_per_second: Option<f64>,
    recent_bytes_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth: Option<Bandwidth>,
}

/// Percentiles of bytes per second over calls, accurate to less than 25 %.
#[derive(Serialize)]
struct Bandwidth {
    p10: Option<u64>,
    p50: Option<u64>,
    p90: Option<u64>,
    p99: Option<u64>,
}

impl Report {
    fn new(snapshot: &Snapshot, names: &Names) -> Self {
        let lost = &snapshot.certainty.lost;
        let processes: Vec<_> =
            snapshot.processes.iter().filter_map(|view| Process::new(view, names)).collect();
        Self {
            time: names.clock.precise(snapshot.at),
            exact: exact(snapshot),
            lost_events: lost.events(),
            lost_launches: lost.launches,
            lost_copies: lost.copies,
            launches_total: processes.iter().map(|process| process.work.launches_total).sum(),
            processes,
        }
    }
}

impl Process {
    fn new(view: &ProcessView, names: &Names) -> Option<Self> {
        Some(Self {
            pid: view.key.pid.0,
            uid: view.uid,
            name: plain(&view.name).into_owned(),
            exited: view.ended.is_some(),
            before_trace: view.before_trace,
            work: Work::new(view.work.as_ref()?),
            failed_calls: view
                .failures
                .iter()
                .map(|failure| Failure::new(*failure, names))
                .collect(),
        })
    }
}

impl Work {
    pub(crate) fn new(view: &WorkView) -> Self {
        Self {
            launches_total: view.launches,
            launches_per_second: rate(view.recent_launches, view.window),
            captured_launches: view.captured,
            failed_launches: view.failed,
            checked_launches: view.checked,
            kernels_total: view.kernels_total,
            kernels: view.kernels.iter().map(|kernel| Kernel::new(kernel, view)).collect(),
            copies: view.copies.iter().map(|copies| Copies::new(copies, view)).collect(),
        }
    }
}

impl Kernel {
    fn new(kernel: &KernelView, activity: &WorkView) -> Self {
        let name = kernel_name(kernel);
        let (kind, handle) = match kernel.target {
            Launched::Kernel(kernel) => ("kernel", kernel.0),
            Launched::Graph(exec) => ("graph", exec.0),
        };
        let common = kernel.common.map(|(shape, _)| shape);
        let grid = |shape: Option<Shape>| shape.map(|shape| shape.grid);
        let block = |shape: Option<Shape>| shape.map(|shape| shape.block);
        Self {
            name: name.short,
            full_name: name.full,
            symbol: kernel
                .name
                .as_deref()
                .map(|name| plain_up_to(name, LONGEST_KERNEL).into_owned()),
            kind,
            handle: format!("{handle:#x}"),
            handles: kernel.handles,
            launches: kernel.launches,
            share: if activity.launches == 0 {
                0.0
            } else {
                kernel.launches as f64 / activity.launches as f64
            },
            launches_per_second: rate(kernel.recent, activity.window),
            grid: grid(common),
            block: block(common),
            shared_bytes: common.map(|shape| shape.shared_bytes),
            shape_launches: kernel.common.map(|(_, count)| count),
            shape_exact: kernel.common_is_exact,
            last_grid: grid(kernel.last),
            last_block: block(kernel.last),
            last_shared_bytes: kernel.last.map(|shape| shape.shared_bytes),
            captured: kernel.captured,
            failed: kernel.failed,
            checked: kernel.checked,
            name_source: kernel.by.map(named_by),
            unnamed_reason: kernel.why.map(super::why_nameless),
        }
    }
}

impl Copies {
    fn new(view: &CopyView, activity: &WorkView) -> Self {
        Self {
            direction: view.direction.name(),
            mode: if view.asynchronous { "async" } else { "sync" },
            calls: view.calls,
            bytes: view.bytes.0,
            bytes_per_second: mean_bandwidth(view),
            recent_bytes_per_second: rate(view.recent_bytes.0, activity.window),
            duration_seconds: (!view.asynchronous).then_some(view.time.0 as f64 / 1e9),
            bandwidth: (!view.asynchronous).then(|| Bandwidth {
                p10: bandwidth_at(view, 0.10),
                p50: bandwidth_at(view, 0.50),
                p90: bandwidth_at(view, 0.90),
                p99: bandwidth_at(view, 0.99),
            }),
        }
    }
}
