//! Launches and copies as JSON. The names are a contract: fields are added, never renamed.

use engine::model::{LaunchShape, LaunchTarget};
use engine::snapshot::{ActivityView, CopyView, KernelView, ProcessView, Snapshot};
use serde::Deserialize;

use super::{bandwidth_at, exact, kernel_name, mean_bandwidth, rate};
use crate::export::ReportContext;
use crate::report::json_objects::{Word, json_objects};
use crate::report::live::json::{FailedCallJson, failed_calls};
use crate::sanitize::{MAX_KERNEL_NAME_CHARS, sanitize_up_to, sanitized};

/// Returns the object of `vramscope kernels` for a snapshot, without a line break.
pub fn line(snapshot: &Snapshot, context: &ReportContext) -> serde_json::Result<String> {
    serde_json::to_string(&ReportJson::new(snapshot, context))
}

json_objects! {
    struct ReportJson(snapshot: &Snapshot, context: &ReportContext)
    let {
        let lost = &snapshot.uncertainty.lost;
        let active = |view| Some(ProcessJson::new(view, view.activity.as_ref()?, context));
        let active: Vec<_> = snapshot.processes.iter().filter_map(active).collect();
    }
    {
        time: String = context.clock.precise(snapshot.at),
        exact: bool = exact(snapshot),
        lost_events: u64 = lost.events(),
        lost_launches: u64 = lost.launches,
        lost_copies: u64 = lost.copies,
        launches_total: u64 = active.iter().map(|process| process.activity.launches_total).sum(),
        processes: Vec<ProcessJson> = active,
    }

    struct ProcessJson(view: &ProcessView, of: &ActivityView, context: &ReportContext) {
        pid: u32 = view.key.pid.0,
        uid: Option<u32> = view.uid,
        name: String = sanitized(&view.name),
        exited: bool = view.ended.is_some(),
        before_trace: bool = view.before_trace,
        #[serde(flatten)]
        activity: ActivityJson = ActivityJson::new(of),
        failed_calls: Vec<FailedCallJson> = failed_calls(view, context),
    }

    /// Activity of a process; also part of the report of `trace`.
    #[derive(Deserialize)]
    pub(crate) struct ActivityJson(view: &ActivityView) {
        launches_total: u64 = view.launches,
        #[serde(default)]
        launches_per_second: f64 = rate(view.recent_launches, view.window),
        #[serde(default)]
        captured_launches: u64 = view.captured,
        #[serde(default)]
        failed_launches: u64 = view.failed,
        #[serde(default)]
        checked_launches: u64 = view.checked,
        #[serde(default)]
        kernels_total: u64 = view.kernels_total,
        #[serde(default)]
        kernels: Vec<KernelJson> =
            view.kernels.iter().map(|kernel| KernelJson::new(kernel, view)).collect(),
        #[serde(default)]
        copies: Vec<CopiesJson> =
            view.copies.iter().map(|copies| CopiesJson::new(copies, view)).collect(),
    }

    pub(crate) struct KernelJson(kernel: &KernelView, activity: &ActivityView): Deserialize
    let {
        let named = kernel_name(kernel);
        let (target, address) = match kernel.target {
            LaunchTarget::Kernel(kernel) => ("kernel", kernel.0),
            LaunchTarget::Graph(exec) => ("graph", exec.0),
        };
        let all = activity.launches;
        let common = kernel.common.map(|(shape, _)| shape);
        let grid_of = |shape: Option<LaunchShape>| shape.map(|shape| shape.grid);
        let block_of = |shape: Option<LaunchShape>| shape.map(|shape| shape.block);
        let text = |name: &str| sanitize_up_to(name, MAX_KERNEL_NAME_CHARS).into_owned();
    }
    {
        name: String = named.short,
        full_name: String = named.full,
        symbol: Option<String> = kernel.name.as_deref().map(text),
        kind: Word = target.into(),
        handle: String = format!("{address:#x}"),
        handles: u64 = kernel.handles,
        launches: u64 = kernel.launches,
        share: f64 = if all == 0 { 0.0 } else { kernel.launches as f64 / all as f64 },
        launches_per_second: f64 = rate(kernel.recent, activity.window),
        grid: Option<[u32; 3]> = grid_of(common),
        block: Option<[u32; 3]> = block_of(common),
        shared_bytes: Option<u32> = common.map(|shape| shape.shared_bytes),
        shape_launches: Option<u64> = kernel.common.map(|(_, count)| count),
        shape_exact: bool = kernel.common_is_exact,
        last_grid: Option<[u32; 3]> = grid_of(kernel.last),
        last_block: Option<[u32; 3]> = block_of(kernel.last),
        last_shared_bytes: Option<u32> = kernel.last.map(|shape| shape.shared_bytes),
        captured: u64 = kernel.captured,
        failed: u64 = kernel.failed,
        checked: u64 = kernel.checked,
        name_source?: Option<Word> = kernel.name_source.map(|source| source.name().into()),
        unnamed_reason?: Option<Word> = kernel.unnamed_reason.map(|reason| reason.name().into()),
    }

    pub(crate) struct CopiesJson(view: &CopyView, activity: &ActivityView): Deserialize {
        direction: Word = view.direction.name().into(),
        mode: Word = if view.asynchronous { "async".into() } else { "sync".into() },
        calls: u64 = view.calls,
        bytes: u64 = view.bytes.0,
        /// For synchronous copies: their bytes over their time.
        bytes_per_second: Option<f64> = mean_bandwidth(view),
        recent_bytes_per_second: f64 = rate(view.recent_bytes.0, activity.window),
        duration_seconds?: Option<f64> =
            (!view.asynchronous).then_some(view.time.0 as f64 / 1e9),
        bandwidth?: Option<BandwidthJson> = (!view.asynchronous).then(|| BandwidthJson::new(view)),
    }

    /// Percentiles of bytes per second over calls, accurate to less than 25 %.
    pub(crate) struct BandwidthJson(view: &CopyView): Deserialize {
        p10: Option<u64> = bandwidth_at(view, 0.10),
        p50: Option<u64> = bandwidth_at(view, 0.50),
        p90: Option<u64> = bandwidth_at(view, 0.90),
        p99: Option<u64> = bandwidth_at(view, 0.99),
    }
}
