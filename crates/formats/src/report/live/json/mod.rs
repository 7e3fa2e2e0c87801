//! Snapshots as JSON: one object per snapshot, one per line. The names are a contract: fields are
//! added, never renamed.

mod container;
mod objects;
mod out_of_memory;
mod sites;
mod torch;

use std::collections::BTreeMap;

use engine::model::cuda_error::result_name;
use engine::model::ids::{AddressType, DeviceId, GpuId};
use engine::model::units::Bytes;
use engine::snapshot::{
    AllocationView, ApiMisuse, DeviceView, FailedCallCount, KindView, PoolView, ProcessEnd,
    ProcessView, ReceivedCalls, Snapshot, ThreadView, Uncertainty,
};
use engine::view::{Explanation, ProcessRow, View};
use serde::Serialize;

use super::super::explain::PartJson;
use super::super::kernels::json::ActivityJson;
use super::super::verdict::json::{AnomalyJson, SiteVerdictJson};
use super::super::view::gpu_facts;
use super::super::view::json::{LibraryJson, ProcessRowJson, ViewJson};
use crate::export::{CaptureSource, ReportContext};
use crate::sanitize::sanitize;
use container::ContainerJson;
use objects::ObjectCountsJson;
use out_of_memory::OutOfMemoryJson;
use sites::ProcessSiteJson;
pub use sites::SiteJson;
use torch::TorchJson;

/// Maximum number of leaks and of suspects.
const MAX_LEAKS: usize = 1000;

/// Returns the object for a snapshot, without a line break.
pub fn line(snapshot: &Snapshot, context: &ReportContext) -> serde_json::Result<String> {
    serde_json::to_string(&ReportJson::new(snapshot, context))
}

/// The object of a snapshot.
#[derive(Serialize)]
pub struct ReportJson {
    time: String,
    /// How calls were captured; only in reports of a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    exact: bool,
    lost_events: u64,
    live_bytes: u64,
    live_allocations: u64,
    not_freed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncertainty: Option<UncertaintyJson>,
    #[serde(flatten)]
    view: ViewJson,
    processes: Vec<ProcessJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    out_of_memory: Vec<OutOfMemoryJson>,
    sites: Vec<SiteJson>,
    sites_total: u64,
    /// Allocations with an unknown site.
    allocations_without_stack: u64,
    lost_stacks: u64,
    /// Lost records about creation or destruction of objects; memory values do not depend on them.
    lost_objects: u64,
    /// Launches and copies that were not counted; absent if they are not traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_launches: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_copies: Option<u64>,
    suspects: Vec<SiteVerdictJson>,
    suspects_total: u64,
    other_verdicts: Vec<SiteVerdictJson>,
    anomalies: Vec<AnomalyJson>,
    /// Sites of blocks in PyTorch's cache; absent if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_sites: Option<Vec<SiteJson>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_sites_total: Option<u64>,
}

/// Present if a value is not exact.
#[derive(Serialize)]
struct UncertaintyJson {
    live_bytes_min: u64,
    live_bytes_max: u64,
    lost_allocations: u64,
    lost_allocated_bytes: u64,
    lost_frees: u64,
    lost_failures: u64,
    lost_other: u64,
    lost_stacks: u64,
    /// Only in the totals of a report.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_processes: Option<u64>,
    implied_frees: u64,
    unknown_context: u64,
    ambiguous_calls: u64,
    before_trace: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_since: Option<String>,
    /// Only if capture ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    capture_end_time: Option<String>,
}

/// The object of a process.
#[derive(Serialize)]
pub struct ProcessJson {
    pid: u32,
    uid: Option<u32>,
    name: String,
    #[serde(flatten)]
    row: ProcessRowJson,
    /// Only for processes in a container.
    #[serde(skip_serializing_if = "Option::is_none")]
    container: Option<ContainerJson>,
    exited: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    end_reason: Option<&'static str>,
    exact: bool,
    live_bytes: u64,
    live_allocations: u64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bounds: Option<BoundsJson>,
    allocations_total: u64,
    frees_total: u64,
    released_total: u64,
    failed_allocations: u64,
    unmatched_frees: u64,
    /// Only if `exact` is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    received_calls: Option<Received>,
    /// Driver-reported usage that was not traced, over all GPUs; absent if the driver reports none.
    #[serde(skip_serializing_if = "Option::is_none")]
    untracked_bytes: Option<u64>,
    /// What that memory is for, as far as it is known; absent if the driver reports none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    untracked_parts: Vec<PartJson>,
    before_trace: bool,
    /// Only for processes from before the trace: the time since when their calls are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    traced_since: Option<String>,
    devices: Vec<DeviceJson>,
    live_bytes_by_kind: BTreeMap<&'static str, u64>,
    live_allocations_by_kind: BTreeMap<&'static str, u64>,
    threads: Vec<ThreadJson>,
    failed_calls: Vec<FailedCallJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pools: Vec<PoolJson>,
    reserved_va_bytes: u64,
    api_misuse: BTreeMap<&'static str, u64>,
    #[serde(flatten)]
    activity: Option<ActivityJson>,
    objects: Vec<ObjectCountsJson>,
    /// Only if some were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost_objects: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    torch: Option<TorchJson>,
    sites: Vec<ProcessSiteJson>,
    sites_total: u64,
    /// Memory by library, largest first.
    libraries: Vec<LibraryJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uncertainty: Option<UncertaintyJson>,
}

#[derive(Serialize)]
struct BoundsJson {
    min_bytes: u64,
    max_bytes: u64,
}

#[derive(Serialize)]
struct DeviceJson {
    device: Option<u16>,
    live_bytes: u64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bounds: Option<BoundsJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<GpuJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    untracked_bytes: Option<u64>,
    /// Only if memory on unknown devices may be on this GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    untracked_bytes_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    graph_reserved_bytes: Option<u64>,
}

#[derive(Serialize)]
struct GpuJson {
    index: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

#[derive(Serialize)]
struct PoolJson {
    handle: Option<String>,
    device: Option<u16>,
    used_bytes: u64,
    live_allocations: u64,
    /// As last reported by the driver to the program; absent before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved_time: Option<String>,
    destroyed: bool,
}

/// A failed call; also part of the report of `kernels`.
#[derive(Serialize)]
pub(crate) struct FailedCallJson {
    function: String,
    code: i32,
    error: &'static str,
    count: u64,
}

#[derive(Serialize)]
struct ThreadJson {
    tid: u32,
    name: String,
    live_bytes: u64,
    live_allocations: u64,
    live_bytes_by_kind: BTreeMap<&'static str, u64>,
    live_allocations_by_kind: BTreeMap<&'static str, u64>,
    allocations: Vec<AllocationJson>,
}

#[derive(Serialize)]
struct AllocationJson {
    address: String,
    device: Option<u16>,
    bytes: u64,
    kind: &'static str,
    age_ms: u64,
    address_type: &'static str,
    site: String,
    /// Baseline, only for an allocation that is much larger than it.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_bytes: Option<u64>,
}

const fn ordinal(device: Option<DeviceId>) -> Option<u16> {
    match device {
        Some(device) => Some(device.0),
        None => None,
    }
}

impl ReportJson {
    /// Returns the object of a snapshot.
    #[must_use]
    pub fn new(snapshot: &Snapshot, context: &ReportContext) -> Self {
        let listed = snapshot.listed_uncertainty();
        // `live_bytes` counts running processes, so its bounds do the same.
        let bounded = Uncertainty {
            live_min: snapshot.uncertainty.live_min,
            live_max: snapshot.uncertainty.live_max,
            ..listed.clone()
        };
        let (ended, running): (Vec<_>, Vec<_>) =
            snapshot.processes.iter().partition(|process| process.ended.is_some());
        let tensor_sites_total = Some(snapshot.tensor_sites_total).filter(|total| *total > 0);
        let activity = snapshot.processes.iter().any(|process| process.activity.is_some());
        let facts = gpu_facts(&context.gpus);
        let view = View::of(snapshot, &facts);
        let processes = snapshot.processes.iter().filter_map(|process| {
            let row = view.processes.iter().find(|row| std::ptr::eq(row.process, process))?;
            Some(ProcessJson::new(row, context))
        });
        Self {
            time: context.clock.precise(snapshot.at),
            source: context.source.map(CaptureSource::name),
            exact: listed.exact(),
            lost_events: listed.lost.events(),
            live_bytes: device_bytes(&running),
            live_allocations: running.iter().map(|process| process.live_allocations).sum(),
            not_freed_bytes: device_bytes(&ended),
            uncertainty: UncertaintyJson::new(&bounded, context).map(|uncertainty| {
                UncertaintyJson { lost_processes: Some(listed.lost.processes), ..uncertainty }
            }),
            processes: processes.collect(),
            view: ViewJson::new(&view, Some(&context.clock), MAX_LEAKS),
            out_of_memory: snapshot
                .out_of_memory
                .iter()
                .map(|o| OutOfMemoryJson::new(o, context))
                .collect(),
            sites: snapshot.sites.iter().map(|site| SiteJson::new(site, context)).collect(),
            sites_total: snapshot.sites_total,
            allocations_without_stack: snapshot.without_stack,
            lost_stacks: snapshot.uncertainty.lost.stacks,
            lost_objects: snapshot.uncertainty.lost.objects,
            lost_launches: activity.then_some(snapshot.uncertainty.lost.launches),
            lost_copies: activity.then_some(snapshot.uncertainty.lost.copies),
            suspects: snapshot
                .suspects
                .iter()
                .take(MAX_LEAKS)
                .map(|j| SiteVerdictJson::new(j, true))
                .collect(),
            suspects_total: snapshot.suspects_total,
            other_verdicts: snapshot
                .other_verdicts
                .iter()
                .map(|j| SiteVerdictJson::new(j, false))
                .collect(),
            anomalies: snapshot
                .anomalies
                .iter()
                .map(|a| AnomalyJson::new(a, context.clock.precise(a.at).into()))
                .collect(),
            tensor_sites: tensor_sites_total.map(|_| {
                snapshot.tensor_sites.iter().map(|site| SiteJson::new(site, context)).collect()
            }),
            tensor_sites_total,
        }
    }
}

impl UncertaintyJson {
    fn new(uncertainty: &Uncertainty, context: &ReportContext) -> Option<Self> {
        let lost = &uncertainty.lost;
        (!uncertainty.exact()).then(|| Self {
            live_bytes_min: uncertainty.live_min.0,
            live_bytes_max: uncertainty.live_max.0,
            lost_allocations: lost.allocations,
            lost_allocated_bytes: lost.allocated_bytes,
            lost_frees: lost.frees,
            lost_failures: lost.failures,
            lost_other: lost.other,
            lost_stacks: lost.stacks,
            lost_processes: None,
            implied_frees: uncertainty.implied_frees,
            unknown_context: uncertainty.unknown_context,
            ambiguous_calls: uncertainty.ambiguous_calls,
            before_trace: uncertainty.before_trace,
            lost_since: lost.since.map(|at| context.clock.precise(at)),
            capture_end_time: uncertainty.capture_ended.map(|at| context.clock.precise(at)),
        })
    }
}

/// Calls whose records were received.
#[derive(Serialize)]
struct Received {
    allocations: u64,
    frees: u64,
    failures: u64,
}

impl Received {
    const fn new(calls: ReceivedCalls) -> Self {
        let ReceivedCalls { allocations, frees, failures } = calls;
        Self { allocations, frees, failures }
    }
}

impl ProcessJson {
    /// Drops all sites but the first ones.
    pub fn truncate_sites(&mut self, count: usize) {
        self.sites.truncate(count);
    }

    /// Returns the object of a process.
    #[must_use]
    pub fn new(row: &ProcessRow<'_>, context: &ReportContext) -> Self {
        let process = row.process;
        Self {
            row: ProcessRowJson::new(row),
            pid: process.key.pid.0,
            uid: process.uid,
            name: sanitize(&process.name).into_owned(),
            container: process.container.as_deref().map(ContainerJson::new),
            exited: process.ended.is_some(),
            end_reason: process.ended.map(|end| match end {
                ProcessEnd::Exited => "exit",
                ProcessEnd::Exec => "exec",
            }),
            exact: process.uncertainty.exact(),
            live_bytes: process.live_bytes.0,
            live_allocations: process.live_allocations,
            peak_bytes: process.peak_bytes.0,
            peak_time: (process.peak_bytes.0 > 0).then(|| context.clock.precise(process.peak_at)),
            peak_bounds: process.peak_bounds.map(BoundsJson::new),
            allocations_total: process.allocations_total,
            frees_total: process.frees_total,
            released_total: process.released_total,
            failed_allocations: process.failed_allocations,
            unmatched_frees: process.unknown_frees,
            received_calls: (!process.uncertainty.exact())
                .then(|| Received::new(process.received_calls)),
            untracked_bytes: process.untracked().map(|bytes| bytes.0),
            untracked_parts: untracked_parts(process),
            before_trace: process.before_trace,
            traced_since: process
                .before_trace
                .then(|| context.clock.precise(context.clock.start())),
            devices: process.devices.iter().map(|view| DeviceJson::new(view, context)).collect(),
            live_bytes_by_kind: bytes_by_kind(&process.kinds),
            live_allocations_by_kind: allocations_by_kind(&process.kinds),
            threads: process.threads.iter().map(ThreadJson::new).collect(),
            failed_calls: process
                .failures
                .iter()
                .map(|view| FailedCallJson::new(*view, context))
                .collect(),
            pools: process.pools.iter().map(|view| PoolJson::new(view, context)).collect(),
            reserved_va_bytes: process.reserved_addresses.0,
            api_misuse: api_misuse(&process.api_misuse),
            activity: process.activity.as_ref().map(ActivityJson::new),
            objects: process.objects.iter().map(ObjectCountsJson::new).collect(),
            lost_objects: Some(process.uncertainty.lost.objects).filter(|lost| *lost > 0),
            torch: process.torch.as_ref().map(|view| TorchJson::new(view, context)),
            sites: process
                .sites
                .iter()
                .map(|site| ProcessSiteJson::new(site, process.ended.is_some()))
                .collect(),
            sites_total: process.sites_total,
            libraries: process.libraries.iter().map(LibraryJson::new).collect(),
            uncertainty: UncertaintyJson::new(&process.uncertainty, context),
        }
    }
}

/// Returns the parts of driver-reported memory that were not traced.
fn untracked_parts(process: &ProcessView) -> Vec<PartJson> {
    let explanation = Explanation::of(process).filter(|_| process.ended.is_none());
    let parts = explanation.into_iter().flat_map(|explanation| explanation.parts);
    parts.filter(|part| !part.cause.is_traced()).map(|part| PartJson::new(&part)).collect()
}

fn device_bytes(processes: &[&ProcessView]) -> u64 {
    processes.iter().fold(0, |sum, process| sum.saturating_add(process.live_bytes.0))
}

fn bytes_by_kind(kinds: &[KindView]) -> BTreeMap<&'static str, u64> {
    kinds.iter().map(|view| (view.kind.name(), view.live_bytes.0)).collect()
}

fn allocations_by_kind(kinds: &[KindView]) -> BTreeMap<&'static str, u64> {
    kinds.iter().map(|view| (view.kind.name(), view.live_allocations)).collect()
}

/// Returns the counters that are not zero.
fn api_misuse(counts: &ApiMisuse) -> BTreeMap<&'static str, u64> {
    let all = [
        ("double_frees", counts.double_frees),
        ("invalid_frees", counts.invalid_frees),
        ("mismatched_frees", counts.mismatched_frees),
        ("released_while_mapped", counts.released_while_mapped),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

impl GpuJson {
    fn new(gpu: GpuId, context: &ReportContext) -> Self {
        let named = context.gpu(gpu);
        Self {
            index: gpu.0,
            uuid: named.map(|named| sanitize(&named.uuid).into_owned()),
            name: named.map(|named| sanitize(&named.name).into_owned()),
        }
    }
}

impl BoundsJson {
    fn new((low, high): (Bytes, Bytes)) -> Self {
        Self { min_bytes: low.0, max_bytes: high.0 }
    }
}

impl DeviceJson {
    fn new(view: &DeviceView, context: &ReportContext) -> Self {
        Self {
            device: ordinal(view.device),
            live_bytes: view.live_bytes.0,
            peak_bytes: view.peak_bytes.0,
            peak_bounds: view.peak_bounds.map(BoundsJson::new),
            unknown_reason: (view.device.is_none() && view.live_bytes.0 > 0)
                .then_some("context_before_trace"),
            gpu: view.gpu.map(|gpu| GpuJson::new(gpu, context)),
            driver_bytes: view.driver_bytes.map(|bytes| bytes.0),
            untracked_bytes: view.untracked().map(|bytes| bytes.0),
            untracked_bytes_max: view
                .untracked_max()
                .filter(|max| view.untracked() < Some(*max))
                .map(|bytes| bytes.0),
            graph_reserved_bytes: view.graph_reserved.map(|reported| reported.bytes.0),
        }
    }
}

impl FailedCallJson {
    pub(crate) fn new(view: FailedCallCount, context: &ReportContext) -> Self {
        Self {
            function: context.function(view.function).into_owned(),
            code: view.code,
            error: result_name(view.code),
            count: view.count,
        }
    }
}

impl PoolJson {
    fn new(view: &PoolView, context: &ReportContext) -> Self {
        Self {
            handle: view.pool.map(|pool| format!("{:#x}", pool.0)),
            device: ordinal(view.device),
            used_bytes: view.used.0,
            live_allocations: view.allocations,
            reserved_bytes: view.reserved.map(|reported| reported.bytes.0),
            reserved_time: view.reserved.map(|reported| context.clock.precise(reported.at)),
            destroyed: view.destroyed,
        }
    }
}

impl ThreadJson {
    fn new(thread: &ThreadView) -> Self {
        Self {
            tid: thread.tid.0,
            name: sanitize(&thread.name).into_owned(),
            live_bytes: thread.live_bytes.0,
            live_allocations: thread.live_allocations,
            live_bytes_by_kind: bytes_by_kind(&thread.kinds),
            live_allocations_by_kind: allocations_by_kind(&thread.kinds),
            allocations: thread.allocations.iter().map(AllocationJson::new).collect(),
        }
    }
}

impl AllocationJson {
    fn new(allocation: &AllocationView) -> Self {
        Self {
            address: format!("{:#x}", allocation.key.value),
            device: ordinal(allocation.device),
            bytes: allocation.bytes.0,
            kind: allocation.kind.name(),
            age_ms: allocation.age.millis(),
            address_type: match allocation.key.space {
                AddressType::Pointer => "pointer",
                AddressType::Handle => "handle",
                AddressType::Array => "array",
                AddressType::Pool => "pool",
                AddressType::External => "external",
            },
            site: allocation.site.to_string(),
            baseline_bytes: allocation.baseline.map(|baseline| baseline.0),
        }
    }
}
