//! Launches and copies as JSON. The names are a contract: fields are added, never renamed.

use engine::model::activity::{LaunchShape, LaunchTarget};
use engine::snapshot::{ActivityView, CopyView, KernelView, ProcessView, Snapshot};
use serde::Serialize;

use super::super::live::json::FailedCallJson;
use super::{bandwidth_at, exact, kernel_name, mean_bandwidth, name_source, rate};
use crate::export::ReportContext;
use crate::sanitize::{MAX_KERNEL_NAME_CHARS, sanitize, sanitize_up_to};

/// Returns the object of `vramscope kernels` for a snapshot, without a line break.
pub fn line(snapshot: &Snapshot, context: &ReportContext) -> serde_json::Result<String> {
    serde_json::to_string(&ReportJson::new(snapshot, context))
}

#[derive(Serialize)]
struct ReportJson {
    time: String,
    exact: bool,
    lost_events: u64,
    lost_launches: u64,
    lost_copies: u64,
    launches_total: u64,
    processes: Vec<ProcessJson>,
}

#[derive(Serialize)]
struct ProcessJson {
    pid: u32,
    uid: Option<u32>,
    name: String,
    exited: bool,
    before_trace: bool,
    #[serde(flatten)]
    activity: ActivityJson,
    failed_calls: Vec<FailedCallJson>,
}

/// Activity of a process; also part of the report of `trace`.
#[derive(Serialize)]
pub(crate) struct ActivityJson {
    launches_total: u64,
    launches_per_second: f64,
    captured_launches: u64,
    failed_launches: u64,
    checked_launches: u64,
    kernels_total: u64,
    kernels: Vec<KernelJson>,
    copies: Vec<CopiesJson>,
}

#[derive(Serialize)]
struct KernelJson {
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
struct CopiesJson {
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
    bandwidth: Option<BandwidthJson>,
}

/// Percentiles of bytes per second over calls, accurate to less than 25 %.
#[derive(Serialize)]
struct BandwidthJson {
    p10: Option<u64>,
    p50: Option<u64>,
    p90: Option<u64>,
    p99: Option<u64>,
}

impl ReportJson {
    fn new(snapshot: &Snapshot, context: &ReportContext) -> Self {
        let lost = &snapshot.uncertainty.lost;
        let processes: Vec<_> =
            snapshot.processes.iter().filter_map(|view| ProcessJson::new(view, context)).collect();
        Self {
            time: context.clock.precise(snapshot.at),
            exact: exact(snapshot),
            lost_events: lost.events(),
            lost_launches: lost.launches,
            lost_copies: lost.copies,
            launches_total: processes.iter().map(|process| process.activity.launches_total).sum(),
            processes,
        }
    }
}

impl ProcessJson {
    fn new(view: &ProcessView, context: &ReportContext) -> Option<Self> {
        Some(Self {
            pid: view.key.pid.0,
            uid: view.uid,
            name: sanitize(&view.name).into_owned(),
            exited: view.ended.is_some(),
            before_trace: view.before_trace,
            activity: ActivityJson::new(view.activity.as_ref()?),
            failed_calls: view
                .failures
                .iter()
                .map(|failure| FailedCallJson::new(*failure, context))
                .collect(),
        })
    }
}

impl ActivityJson {
    pub(crate) fn new(view: &ActivityView) -> Self {
        Self {
            launches_total: view.launches,
            launches_per_second: rate(view.recent_launches, view.window),
            captured_launches: view.captured,
            failed_launches: view.failed,
            checked_launches: view.checked,
            kernels_total: view.kernels_total,
            kernels: view.kernels.iter().map(|kernel| KernelJson::new(kernel, view)).collect(),
            copies: view.copies.iter().map(|copies| CopiesJson::new(copies, view)).collect(),
        }
    }
}

impl KernelJson {
    fn new(kernel: &KernelView, activity: &ActivityView) -> Self {
        let name = kernel_name(kernel);
        let (kind, handle) = match kernel.target {
            LaunchTarget::Kernel(kernel) => ("kernel", kernel.0),
            LaunchTarget::Graph(exec) => ("graph", exec.0),
        };
        let common = kernel.common.map(|(shape, _)| shape);
        let grid = |shape: Option<LaunchShape>| shape.map(|shape| shape.grid);
        let block = |shape: Option<LaunchShape>| shape.map(|shape| shape.block);
        Self {
            name: name.short,
            full_name: name.full,
            symbol: kernel
                .name
                .as_deref()
                .map(|name| sanitize_up_to(name, MAX_KERNEL_NAME_CHARS).into_owned()),
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
            name_source: kernel.name_source.map(name_source),
            unnamed_reason: kernel.unnamed_reason.map(super::unnamed_reason_name),
        }
    }
}

impl CopiesJson {
    fn new(view: &CopyView, activity: &ActivityView) -> Self {
        Self {
            direction: view.direction.name(),
            mode: if view.asynchronous { "async" } else { "sync" },
            calls: view.calls,
            bytes: view.bytes.0,
            bytes_per_second: mean_bandwidth(view),
            recent_bytes_per_second: rate(view.recent_bytes.0, activity.window),
            duration_seconds: (!view.asynchronous).then_some(view.time.0 as f64 / 1e9),
            bandwidth: (!view.asynchronous).then(|| BandwidthJson {
                p10: bandwidth_at(view, 0.10),
                p50: bandwidth_at(view, 0.50),
                p90: bandwidth_at(view, 0.90),
                p99: bandwidth_at(view, 0.99),
            }),
        }
    }
}
