//! Snapshots as JSON: one object per snapshot, one per line. The names are a contract: fields are
//! added, never renamed. [`crate::import::agent`] reads the same objects.

mod parts;
mod sites;

use std::collections::BTreeMap;

use engine::model::{Bytes, GpuId, Mark, MigInstance, result_name};
use engine::snapshot::{
    AllocationView, ApiMisuse, DeviceView, FailedCallCount, KindView, PoolView, ProcessEnd,
    ProcessView, ReceivedCalls, Snapshot, ThreadView, Uncertainty,
};
use engine::view::{Explanation, ProcessRow, View};

use crate::export::{CaptureSource, ReportContext};
use crate::report::explain::PartJson;
use crate::report::json_objects::{Word, json_objects};
use crate::report::kernels::json::ActivityJson;
use crate::report::verdict::json::{AnomalyJson, SiteVerdictJson};
use crate::report::view::gpu_facts;
use crate::report::view::json::{LibraryJson, ProcessRowJson, ViewJson};
use crate::sanitize::sanitized;
pub(crate) use parts::{
    AllocatorJson, AllocatorPoolJson, ContainerJson, HolderJson, ObjectCountsJson, OutOfMemoryJson,
    SamplingJson, SharedMemoryJson, SiteObjectsJson,
};
use sites::ProcessSiteJson;
pub use sites::SiteJson;
pub(crate) use sites::{LifetimeBucketJson, SiteKindJson, SiteProcessJson};

/// Maximum number of leaks and of suspects.
const MAX_LEAKS: usize = 1000;

/// Returns the object for a snapshot, without a line break.
pub fn line(snapshot: &Snapshot, context: &ReportContext) -> serde_json::Result<String> {
    serde_json::to_string(&ReportJson::new(snapshot, context))
}

json_objects! {
    /// The object of a snapshot.
    pub struct ReportJson(snapshot: &Snapshot, context: &ReportContext): Deserialize
    let {
        let listed = snapshot.listed_uncertainty();
        // `live_bytes` counts running processes, so its bounds do the same.
        let bounded = Uncertainty {
            live_min: snapshot.uncertainty.live_min,
            live_max: snapshot.uncertainty.live_max,
            ..listed.clone()
        };
        let (ended, running): (Vec<_>, Vec<_>) =
            snapshot.processes.iter().partition(|process| process.ended.is_some());
        let lost = &snapshot.uncertainty.lost;
        let tensor_total = Some(snapshot.tensor_sites_total).filter(|total| *total > 0);
        let activity = snapshot.processes.iter().any(|process| process.activity.is_some());
        let facts = gpu_facts(&context.gpus);
        let rows = View::of(snapshot, &facts);
        let site = |site| SiteJson::new(site, context);
        let verdict = |with_advice| move |one| SiteVerdictJson::new(one, with_advice);
    }
    {
        time: String = context.clock.precise(snapshot.at),
        /// How calls were captured; only in reports of a trace.
        source?: Option<Word> = context.source.map(|source| CaptureSource::name(source).into()),
        exact: bool = listed.exact(),
        lost_events: u64 = listed.lost.events(),
        live_bytes: u64 = device_bytes(&running),
        live_allocations: u64 = running.iter().map(|process| process.live_allocations).sum(),
        not_freed_bytes: u64 = device_bytes(&ended),
        uncertainty?: Option<UncertaintyJson> = (!bounded.exact())
            .then(|| UncertaintyJson::new(&bounded, Some(listed.lost.processes), context)),
        /// Calls of memory functions that this version does not know; absent if there are none.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        unknown_calls: BTreeMap<Word, u64> = snapshot.unknown_calls.iter().map(|(name, calls)| (sanitized(name).into(), *calls)).collect(),
        #[serde(flatten)]
        view: ViewJson = ViewJson::new(&rows, Some(&context.clock), MAX_LEAKS),
        processes: Vec<ProcessJson> = processes(snapshot, &rows, context),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        out_of_memory: Vec<OutOfMemoryJson> =
            snapshot.out_of_memory.iter().map(|oom| OutOfMemoryJson::new(oom, context)).collect(),
        sites: Vec<SiteJson> = snapshot.sites.iter().map(site).collect(),
        sites_total: u64 = snapshot.sites_total,
        /// Allocations with an unknown site.
        allocations_without_stack: u64 = snapshot.without_stack,
        lost_stacks: u64 = lost.stacks,
        /// Lost records about creation or destruction of objects; memory values do not depend on them.
        lost_objects: u64 = lost.objects,
        /// Launches and copies that were not counted; absent if they are not traced.
        lost_launches?: Option<u64> = activity.then_some(lost.launches),
        lost_copies?: Option<u64> = activity.then_some(lost.copies),
        suspects: Vec<SiteVerdictJson> =
            snapshot.suspects.iter().take(MAX_LEAKS).map(verdict(true)).collect(),
        suspects_total: u64 = snapshot.suspects_total,
        other_verdicts: Vec<SiteVerdictJson> =
            snapshot.other_verdicts.iter().map(verdict(false)).collect(),
        anomalies: Vec<AnomalyJson> = snapshot
            .anomalies
            .iter()
            .map(|one| AnomalyJson::new(one, context.clock.precise(one.at).into()))
            .collect(),
        /// Marks since the last report; in the last one, the newest.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        marks: Vec<MarkJson> =
            snapshot.marks.iter().map(|mark| MarkJson::new(mark, context)).collect(),
        /// Sites of blocks in PyTorch's cache; absent if there are none.
        tensor_sites?: Option<Vec<SiteJson>> =
            tensor_total.map(|_| snapshot.tensor_sites.iter().map(site).collect()),
        tensor_sites_total?: Option<u64> = tensor_total,
    }

    /// A mark of a user or program.
    pub(crate) struct MarkJson(mark: &Mark, context: &ReportContext): Deserialize {
        time: String = context.clock.precise(mark.at),
        /// `null` for the whole host.
        pid: Option<u32> = mark.pid.map(|pid| pid.0),
        r#type: Word = mark.kind.name().into(),
        label: String = sanitized(&mark.label),
    }

    /// A MIG instance.
    pub(crate) struct MigJson(instance: &MigInstance) {
        uuid: String = sanitized(&instance.uuid),
        profile?: Option<String> =
            Some(sanitized(&instance.profile)).filter(|profile| !profile.is_empty()),
    }

    /// Present if a value is not exact. `processes`: number of lost ones, in the totals of a report.
    pub(crate) struct UncertaintyJson(
        uncertainty: &Uncertainty,
        processes: Option<u64>,
        context: &ReportContext,
    ): Deserialize
    let { let lost = &uncertainty.lost; }
    {
        live_bytes_min: u64 = uncertainty.live_min.0,
        live_bytes_max: u64 = uncertainty.live_max.0,
        lost_allocations: u64 = lost.allocations,
        lost_allocated_bytes: u64 = lost.allocated_bytes,
        lost_frees: u64 = lost.frees,
        lost_failures: u64 = lost.failures,
        lost_other: u64 = lost.other,
        lost_stacks: u64 = lost.stacks,
        lost_processes?: Option<u64> = processes,
        implied_frees: u64 = uncertainty.implied_frees,
        unknown_context: u64 = uncertainty.unknown_context,
        ambiguous_calls: u64 = uncertainty.ambiguous_calls,
        #[serde(default)]
        unknown_calls: u64 = uncertainty.unknown_calls,
        before_trace: bool = uncertainty.before_trace,
        lost_since?: Option<String> = lost.since.map(|at| context.clock.precise(at)),
        /// Only if capture ended early.
        capture_end_time?: Option<String> =
            uncertainty.capture_ended.map(|at| context.clock.precise(at)),
    }

    /// The object of a process.
    pub struct ProcessJson(of: &ProcessRow<'_>, context: &ReportContext): Deserialize
    let {
        let process = of.process;
        let (exited, exact) = (process.ended.is_some(), process.uncertainty.exact());
        let time = |at| context.clock.precise(at);
    }
    {
        pid: u32 = process.key.pid.0,
        uid: Option<u32> = process.uid,
        name: String = sanitized(&process.name),
        #[serde(flatten)]
        row: ProcessRowJson = ProcessRowJson::new(of),
        /// Only for processes in a container.
        container?: Option<ContainerJson> = process.container.as_deref().map(ContainerJson::new),
        /// Only for processes on a MIG instance.
        #[serde(skip_deserializing)]
        mig?: Option<MigJson> = process.mig.as_deref().map(MigJson::new),
        exited: bool = exited,
        end_reason?: Option<Word> = process.ended.map(|end| match end {
            ProcessEnd::Exited => "exit".into(),
            ProcessEnd::Exec => "exec".into(),
        }),
        exact: bool = exact,
        live_bytes: u64 = process.live_bytes.0,
        live_allocations: u64 = process.live_allocations,
        peak_bytes: u64 = process.peak_bytes.0,
        peak_time?: Option<String> = (process.peak_bytes.0 > 0).then(|| time(process.peak_at)),
        peak_bounds?: Option<BoundsJson> = process.peak_bounds.map(BoundsJson::new),
        allocations_total: u64 = process.allocations_total,
        frees_total: u64 = process.frees_total,
        released_total: u64 = process.released_total,
        failed_allocations: u64 = process.failed_allocations,
        unmatched_frees: u64 = process.unknown_frees,
        /// Only if `exact` is false.
        received_calls?: Option<ReceivedJson> =
            (!exact).then(|| ReceivedJson::new(process.received_calls)),
        /// Driver-reported usage that was not traced, over all GPUs; absent if the driver reports none.
        untracked_bytes?: Option<u64> = process.untracked().map(|bytes| bytes.0),
        /// What that memory is for, as far as it is known; absent if the driver reports none.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        untracked_parts: Vec<PartJson> = untracked_parts(process),
        before_trace: bool = process.before_trace,
        /// Only for processes from before the trace: the time since when their calls are counted.
        traced_since?: Option<String> = process.before_trace.then(|| time(context.clock.start())),
        devices: Vec<DeviceJson> =
            process.devices.iter().map(|view| DeviceJson::new(view, context)).collect(),
        live_bytes_by_kind: BTreeMap<Word, u64> = bytes_by_kind(&process.kinds),
        live_allocations_by_kind: BTreeMap<Word, u64> = allocations_by_kind(&process.kinds),
        threads: Vec<ThreadJson> = process.threads.iter().map(ThreadJson::new).collect(),
        #[serde(skip_deserializing)]
        failed_calls: Vec<FailedCallJson> = failed_calls(process, context),
        #[serde(skip_serializing_if = "Vec::is_empty", skip_deserializing)]
        pools: Vec<PoolJson> =
            process.pools.iter().map(|view| PoolJson::new(view, context)).collect(),
        /// Absent if it shares none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        shared_memory: Vec<SharedMemoryJson> =
            process.shared_memory.iter().map(SharedMemoryJson::new).collect(),
        reserved_va_bytes: u64 = process.reserved_addresses.0,
        #[serde(skip_deserializing)]
        api_misuse: BTreeMap<&'static str, u64> = api_misuse(&process.api_misuse),
        #[serde(flatten)]
        activity: Option<ActivityJson> = process.activity.as_ref().map(ActivityJson::new),
        objects: Vec<ObjectCountsJson> =
            process.objects.iter().map(ObjectCountsJson::new).collect(),
        /// Only if some were lost.
        lost_objects?: Option<u64> =
            Some(process.uncertainty.lost.objects).filter(|lost| *lost > 0),
        allocators: Vec<AllocatorJson> =
            process.allocators.iter().map(|view| AllocatorJson::new(view, context)).collect(),
        #[serde(skip_deserializing)]
        sites: Vec<ProcessSiteJson> =
            process.sites.iter().map(|site| ProcessSiteJson::new(site, exited)).collect(),
        sites_total: u64 = process.sites_total,
        /// Memory by library, largest first.
        #[serde(skip_deserializing)]
        libraries: Vec<LibraryJson> = process.libraries.iter().map(LibraryJson::new).collect(),
        uncertainty?: Option<UncertaintyJson> =
            (!exact).then(|| UncertaintyJson::new(&process.uncertainty, None, context)),
    }

    pub(crate) struct BoundsJson(bounds: (Bytes, Bytes)): Deserialize {
        min_bytes: u64 = bounds.0.0,
        max_bytes: u64 = bounds.1.0,
    }

    /// Calls whose records were received.
    pub(crate) struct ReceivedJson(calls: ReceivedCalls): Deserialize {
        allocations: u64 = calls.allocations,
        frees: u64 = calls.frees,
        failures: u64 = calls.failures,
    }

    pub(crate) struct DeviceJson(view: &DeviceView, context: &ReportContext): Deserialize
    let { let is_unknown = view.device.is_none() && view.live_bytes.0 > 0; }
    {
        device: Option<u16> = view.device.map(|device| device.0),
        live_bytes: u64 = view.live_bytes.0,
        peak_bytes: u64 = view.peak_bytes.0,
        peak_bounds?: Option<BoundsJson> = view.peak_bounds.map(BoundsJson::new),
        unknown_reason?: Option<Word> = is_unknown.then_some("context_before_trace".into()),
        gpu?: Option<GpuJson> = view.gpu.map(|gpu| GpuJson::new(gpu, context)),
        driver_bytes?: Option<u64> = view.driver_bytes.map(|bytes| bytes.0),
        untracked_bytes?: Option<u64> = view.untracked().map(|bytes| bytes.0),
        /// Only if memory on unknown devices may be on this GPU.
        untracked_bytes_max?: Option<u64> =
            view.untracked_max().filter(|max| view.untracked() < Some(*max)).map(|bytes| bytes.0),
        graph_reserved_bytes?: Option<u64> = view.graph_reserved.map(|reported| reported.bytes.0),
    }

    pub(crate) struct GpuJson(gpu: GpuId, context: &ReportContext): Deserialize
    let { let named = context.gpu(gpu); }
    {
        index: u16 = gpu.0,
        uuid?: Option<String> = named.map(|named| sanitized(&named.uuid)),
        name?: Option<String> = named.map(|named| sanitized(&named.name)),
    }

    pub(crate) struct PoolJson(view: &PoolView, context: &ReportContext) {
        handle: Option<String> = view.pool.map(|pool| format!("{:#x}", pool.0)),
        device: Option<u16> = view.device.map(|device| device.0),
        used_bytes: u64 = view.used.0,
        live_allocations: u64 = view.allocations,
        /// As last reported by the driver to the program; absent before that.
        reserved_bytes?: Option<u64> = view.reserved.map(|reported| reported.bytes.0),
        reserved_time?: Option<String> =
            view.reserved.map(|reported| context.clock.precise(reported.at)),
        destroyed: bool = view.destroyed,
    }

    /// A failed call; also part of the report of `kernels`.
    pub(crate) struct FailedCallJson(view: FailedCallCount, context: &ReportContext) {
        function: String = context.function(view.function).into_owned(),
        code: i32 = view.code,
        error: &'static str = result_name(view.code),
        count: u64 = view.count,
    }

    pub(crate) struct ThreadJson(thread: &ThreadView): Deserialize {
        tid: u32 = thread.tid.0,
        name: String = sanitized(&thread.name),
        live_bytes: u64 = thread.live_bytes.0,
        live_allocations: u64 = thread.live_allocations,
        live_bytes_by_kind: BTreeMap<Word, u64> = bytes_by_kind(&thread.kinds),
        live_allocations_by_kind: BTreeMap<Word, u64> = allocations_by_kind(&thread.kinds),
        allocations: Vec<AllocationJson> =
            thread.allocations.iter().map(AllocationJson::new).collect(),
    }

    pub(crate) struct AllocationJson(allocation: &AllocationView): Deserialize {
        address: String = format!("{:#x}", allocation.key.value),
        device: Option<u16> = allocation.device.map(|device| device.0),
        bytes: u64 = allocation.bytes.0,
        kind: Word = allocation.kind.name().into(),
        age_ms: u64 = allocation.age.millis(),
        address_type: Word = allocation.key.space.name().into(),
        site: String = allocation.site.to_string(),
        /// Baseline, only for an allocation that is much larger than it.
        baseline_bytes?: Option<u64> = allocation.baseline.map(|baseline| baseline.0),
    }
}

impl ProcessJson {
    /// Drops all sites but the first ones.
    pub fn truncate_sites(&mut self, count: usize) {
        self.sites.truncate(count);
    }
}

/// Returns the objects of all processes, in the order of the snapshot.
fn processes(snapshot: &Snapshot, view: &View<'_>, context: &ReportContext) -> Vec<ProcessJson> {
    let row = |process: &ProcessView| {
        let row = view.processes.iter().find(|row| std::ptr::eq(row.process, process))?;
        Some(ProcessJson::new(row, context))
    };
    snapshot.processes.iter().filter_map(row).collect()
}

/// Returns the parts of driver-reported memory that were not traced.
fn untracked_parts(process: &ProcessView) -> Vec<PartJson> {
    let explanation = Explanation::of(process).filter(|_| process.ended.is_none());
    let parts = explanation.into_iter().flat_map(|explanation| explanation.parts);
    parts.filter(|part| !part.cause.is_traced()).map(|part| PartJson::new(&part)).collect()
}

/// Returns the failed calls of a process.
pub(crate) fn failed_calls(process: &ProcessView, context: &ReportContext) -> Vec<FailedCallJson> {
    process.failures.iter().map(|view| FailedCallJson::new(*view, context)).collect()
}

fn device_bytes(processes: &[&ProcessView]) -> u64 {
    processes.iter().fold(0, |sum, process| sum.saturating_add(process.live_bytes.0))
}

fn bytes_by_kind(kinds: &[KindView]) -> BTreeMap<Word, u64> {
    kinds.iter().map(|view| (view.kind.name().into(), view.live_bytes.0)).collect()
}

fn allocations_by_kind(kinds: &[KindView]) -> BTreeMap<Word, u64> {
    kinds.iter().map(|view| (view.kind.name().into(), view.live_allocations)).collect()
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
