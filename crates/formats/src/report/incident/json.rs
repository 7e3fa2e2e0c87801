//! Incidents as JSON.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use engine::model::{Bytes, Frame, GpuId, Holder, SiteName};
use engine::oom::{MemoryBreakdown, OomDiagnosis, RequestedResource};
use engine::snapshot::ProcessView;
use serde_json::Value;

use super::{
    HTML_FILE, HolderGrowth, INCIDENT_FILE, IncidentReport, RECORDING_FILE, Requester,
    SNAPSHOT_FILE, SUMMARY_FILE, text,
};
use crate::report::advice::GpuAdvice;
use crate::report::frame_json::FrameJson;
use crate::report::json_objects::json_objects;
use crate::sanitize::{sanitize_up_to, sanitized};

/// Version of the object. It changes if a reader of the old version would misread the new one.
pub const VERSION: u32 = 1;

/// Maximum size of a file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;

json_objects! {
    @fields(pub)
    /// An incident as JSON.
    #[derive(Clone, PartialEq, Debug)]
    pub struct IncidentJson(of: &IncidentReport<'_>): Deserialize
    let {
        let failed = of.failed_request;
        let requested = failed.map(|failed| failed.requested);
    }
    {
        /// Version of this object.
        version: u32 = VERSION,
        /// Name of the incident directory.
        id: String = of.id.to_owned(),
        /// `out_of_memory`, `threshold` or `manual`.
        trigger: String = of.trigger.name().to_owned(),
        /// Time, RFC 3339.
        time: String = of.context.clock.precise(of.at),
        /// The host.
        host: String = sanitized(of.host),
        /// Title: what happened, in one line.
        title: String = text::headline(of),
        /// Whether every value is exact.
        exact: bool = of.snapshot.uncertainty.exact(),
        /// Out-of-memory errors of the same process and device that this incident covers.
        oom_count: u64 = of.errors,
        /// Whether the same request succeeded afterwards.
        recovered: bool = of.recovered,
        /// Earlier incidents of the same process that were suppressed.
        suppressed_before: u64 = of.skipped,
        /// Process whose allocation failed or that exceeded a threshold.
        requester: Option<RequesterJson> = of.requester.map(|requester| {
            let mut processes = of.snapshot.processes.iter();
            RequesterJson::new(requester, processes.find(|one| one.key.pid == requester.pid))
        }),
        /// Requested size; absent if unknown.
        requested_bytes?: Option<u64> =
            requested.and_then(RequestedResource::bytes).map(|bytes| bytes.0),
        /// Requested memory kind.
        requested_kind?: Option<String> = requested.map(|requested| match requested {
                RequestedResource::Memory(kind, _) => kind.name().to_owned(),
                RequestedResource::Addresses => "addresses".to_owned(),
                RequestedResource::Other => "other".to_owned(),
            }),
        /// Driver function that failed.
        function?: Option<String> = failed.map(|failed| sanitized(&failed.function)),
        /// The threshold that was exceeded.
        threshold?: Option<String> =
            of.limit.map(|limit| sanitize_up_to(limit, 1000).into_owned()),
        /// Device ordinal of the process.
        device: Option<u16> = of.device.map(|device| device.0),
        /// GPU; absent if unknown or if the incident is about all GPUs.
        gpu: Option<GpuJson> = of.gpu.map(|gpu| GpuJson::new(gpu, of)),
        /// Allocation site of the request.
        site?: Option<SiteJson> =
            failed.map(|failed| SiteJson::new(failed.site, (0, 0), &failed.frames)),
        /// Cause of the error.
        cause?: Option<CauseJson> = failed.map(|failed| CauseJson::new(&failed.diagnosis)),
        /// Memory held there at that time by process, traced or reported by the driver, largest first.
        holders: Vec<HolderJson> = of.holders.iter().map(|one| HolderJson::new(one, of)).collect(),
        /// Processes that grew in the last minutes, largest first.
        growth: Vec<GrowthJson> = of.grown.iter().map(GrowthJson::new).collect(),
        /// Steps that would free memory.
        advice: Vec<GpuAdvice> = of.advice.to_vec(),
        /// Number of events in the recording.
        recorded_events: u64 = of.events,
        /// Time from the error to the snapshot, in milliseconds.
        snapshot_after_ms: u64 = (of.snapshot.at - of.at).millis(),
        /// Time from the error to the written directory, in milliseconds.
        written_after_ms: u64 = of.write_delay.millis(),
        /// `pending`, `written`, `disabled`, or the reason why it is missing.
        html_report: String = sanitize_up_to(of.page, 1000).into_owned(),
        /// Names of the files.
        files: Vec<String> =
            [SUMMARY_FILE, INCIDENT_FILE, SNAPSHOT_FILE, RECORDING_FILE, HTML_FILE]
                .map(str::to_owned)
                .to_vec(),
    }

    /// A process.
    #[derive(Clone, PartialEq, Debug)]
    pub struct RequesterJson(of: &Requester, process: Option<&ProcessView>): Deserialize
    let {
        let group = process.map(|process| &process.identity.group);
        let pod_of = process.and_then(|process| process.container.as_ref()?.pod.as_ref());
    }
    {
        /// Process id.
        pid: u32 = of.pid.0,
        /// The thread that made the call.
        tid: Option<u32> = of.tid.map(|tid| tid.0),
        /// Name of the process.
        name: String = sanitized(&of.name),
        /// Script, module or executable.
        program?: Option<String> = process.map(|process| sanitized(process.program())),
        /// Release of the program.
        release?: Option<String> = group.and_then(|group| group.release.as_deref()).map(sanitized),
        /// Name of the user.
        user?: Option<String> =
            process.and_then(|process| process.identity.user.as_deref()).map(sanitized),
        /// Job of a scheduler.
        job?: Option<String> = group.and_then(|group| group.job.as_deref()).map(sanitized),
        /// Pod.
        pod?: Option<String> = pod_of.and_then(|pod| pod.name.as_deref()).map(sanitized),
        /// Namespace of the pod.
        namespace?: Option<String> = pod_of.and_then(|pod| pod.namespace.as_deref()).map(sanitized),
    }

    /// A GPU.
    #[derive(Clone, PartialEq, Debug)]
    pub struct GpuJson(gpu: GpuId, report: &IncidentReport<'_>): Deserialize
    let {
        let known = report.context.gpu(gpu);
    }
    {
        /// Index.
        index: u16 = gpu.0,
        /// `GPU-…`.
        uuid: Option<String> = known.map(|gpu| sanitized(&gpu.uuid)),
        /// Vendor's name of the GPU.
        name: Option<String> = known.map(|gpu| sanitized(&gpu.name)),
        /// Total memory.
        total_bytes: Option<u64> = report.total().map(|bytes| bytes.0),
        /// Free memory as last reported by the driver.
        free_bytes: Option<u64> = report.free().map(|bytes| bytes.0),
    }

    /// Cause of an out-of-memory error.
    #[derive(Clone, PartialEq, Debug)]
    pub struct CauseJson(of: &OomDiagnosis): Deserialize {
        /// Name of the cause.
        name: String = of.cause.name().to_owned(),
        /// `possible`, `likely` or `certain`.
        confidence: String = of.confidence.name().to_owned(),
        /// The cause in a sentence.
        summary: String = sanitize_up_to(&of.sentence, 1000).into_owned(),
        /// The memory values that it is based on.
        breakdown: Vec<BreakdownJson> = breakdown(&of.memory),
        /// Signs of quotas or other GPU sharing.
        hints: Vec<String> = of.hints.iter().map(|hint| hint.name().to_owned()).collect(),
    }

    /// One value of the memory breakdown.
    #[derive(Clone, PartialEq, Debug)]
    pub struct BreakdownJson(value: &str, size: Bytes): Deserialize {
        /// Name of the value.
        name: String = value.to_owned(),
        /// Size.
        bytes: u64 = size.0,
    }

    /// Memory held by one process.
    #[derive(Clone, PartialEq, Debug)]
    pub struct HolderJson(of: &Holder, report: &IncidentReport<'_>): Deserialize
    let {
        let (driver, untracked) = report.driver_usage(of.key.pid);
    }
    {
        /// Process id.
        pid: u32 = of.key.pid.0,
        /// Name of the process.
        process: String = sanitized(&of.name),
        /// User id of its owner.
        uid: Option<u32> = of.uid,
        /// Bytes of live traced allocations.
        live_bytes: u64 = of.live_bytes.0,
        /// Number of live traced allocations.
        live_allocations: u64 = of.live_allocations,
        /// Driver-reported usage of the process.
        driver_bytes?: Option<u64> = driver.map(|bytes| bytes.0),
        /// Driver-reported usage that was not traced.
        untracked_bytes?: Option<u64> = untracked.map(|bytes| bytes.0),
        /// Whether it may hold memory from before the trace.
        before_trace: bool = of.before_trace,
        /// Sites, largest first.
        sites: Vec<SiteJson> = of
            .sites
            .iter()
            .map(|one| SiteJson::new(one.name, (one.live_bytes.0, one.live_allocations), &one.frames))
            .collect(),
    }

    /// An allocation site and its live memory.
    #[derive(Clone, PartialEq, Debug)]
    pub struct SiteJson(name: SiteName, live: (u64, u64), stack: &[Frame]): Deserialize
    let {
        let object = |one: &Frame| serde_json::to_value(FrameJson::new(one)).unwrap_or_default();
    }
    {
        /// Site name, as in `trace --format json`.
        id: String = name.to_string(),
        /// Live bytes.
        live_bytes: u64 = live.0,
        /// Number of live allocations.
        live_allocations: u64 = live.1,
        /// Frames, innermost first, as in `trace --format json`.
        frames: Vec<Value> = stack.iter().map(object).collect(),
    }

    /// Growth of one process.
    #[derive(Clone, PartialEq, Debug)]
    pub struct GrowthJson(of: &HolderGrowth): Deserialize {
        /// Process id.
        pid: u32 = of.pid.0,
        /// Name of the process.
        process: String = sanitized(&of.name),
        /// Growth in bytes; negative if it shrank.
        bytes: i64 = of.bytes,
        /// Length of the window, in milliseconds.
        window_ms: u64 = of.within.millis(),
    }
}

/// Values of an incident in the agent's tables. All text is sanitized.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct IncidentRow {
    /// Name of the incident directory.
    pub id: String,
    /// Time, in microseconds since 1970, UTC.
    pub micros: Option<i64>,
    /// `out_of_memory`, `threshold` or `manual`.
    pub trigger: String,
    /// Diagnosed cause, and its confidence.
    pub cause: Option<(String, String)>,
    /// Whether the same request succeeded afterwards.
    pub recovered: bool,
    /// Number of errors.
    pub errors: u64,
    /// Process whose allocation failed or that exceeded a threshold.
    pub requester: Option<RequesterJson>,
    /// Index and UUID of the GPU.
    pub gpu: Option<(u16, Option<String>)>,
    /// Requested bytes.
    pub requested_bytes: Option<u64>,
    /// What happened, in one line.
    pub summary: String,
}

impl IncidentRow {
    /// Takes the values of an incident, which may come from a file.
    pub fn new(of: &IncidentJson) -> Self {
        let clean = |text: &Option<String>| text.as_deref().map(sanitized);
        let time: Option<jiff::Timestamp> = of.time.parse().ok();
        let requester = of.requester.as_ref().map(|one| RequesterJson {
            pid: one.pid,
            tid: one.tid,
            name: sanitized(&one.name),
            program: clean(&one.program),
            release: clean(&one.release),
            user: clean(&one.user),
            job: clean(&one.job),
            pod: clean(&one.pod),
            namespace: clean(&one.namespace),
        });
        Self {
            id: sanitized(&of.id),
            micros: time.map(jiff::Timestamp::as_microsecond),
            trigger: sanitized(&of.trigger),
            cause: of.cause.as_ref().map(|one| (sanitized(&one.name), sanitized(&one.confidence))),
            recovered: of.recovered,
            errors: of.oom_count,
            requester,
            gpu: of.gpu.as_ref().map(|gpu| (gpu.index, clean(&gpu.uuid))),
            requested_bytes: of.requested_bytes,
            summary: sanitized(&of.title),
        }
    }
}

/// Reads the object of an incident directory. Fields that another version did not write are empty.
pub fn read(path: &Path) -> io::Result<IncidentJson> {
    let mut text = Vec::new();
    let length = File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut text)?;
    if length as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("file larger than {MAX_FILE_BYTES} bytes")));
    }
    let object: IncidentJson = serde_json::from_slice(&text)?;
    if object.version == 0 {
        return Err(io::Error::other("no version field: not an incident.json"));
    }
    Ok(object)
}

fn breakdown(memory: &MemoryBreakdown) -> Vec<BreakdownJson> {
    let cached = memory.cache_unused.map(|(bytes, _)| bytes);
    let all = [
        ("requested", memory.requested),
        ("total", memory.total),
        ("free_reported", memory.free_reported),
        ("free_estimated", memory.free_estimated),
        ("traced", Some(memory.traced)),
        ("requester", Some(memory.requester)),
        ("untracked", memory.untracked),
        ("cache_unused", cached),
        ("pool_unused", memory.pool_unused),
        ("others_unused", Some(memory.others_unused)),
    ];
    all.into_iter().filter_map(|(name, bytes)| Some(BreakdownJson::new(name, bytes?))).collect()
}
