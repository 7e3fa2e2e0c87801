//! Incidents as JSON.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use engine::model::holder::Holder;
use engine::model::stack::{Frame, SiteName};
use engine::oom::RequestedResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{HTML_FILE, IncidentReport, RECORDING_FILE, SNAPSHOT_FILE, SUMMARY_FILE, text};
use crate::report::advice::GpuAdvice;
use crate::report::frame_json::FrameJson;
use crate::sanitize::{sanitize, sanitize_up_to};

/// Version of the object. It changes if a reader of the old version would misread the new one.
pub const VERSION: u32 = 1;

/// Maximum size of a file that is read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// An incident as JSON.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IncidentJson {
    /// Version of this object.
    pub version: u32,
    /// Name of the incident directory.
    pub id: String,
    /// `out_of_memory`, `threshold` or `manual`.
    pub trigger: String,
    /// Time, RFC 3339.
    pub time: String,
    /// The host.
    pub host: String,
    /// Title: what happened, in one line.
    pub title: String,
    /// Whether every value is exact.
    pub exact: bool,
    /// Out-of-memory errors of the same process and device that this incident covers.
    pub oom_count: u64,
    /// Whether the same request succeeded afterwards.
    pub recovered: bool,
    /// Earlier incidents of the same process that were suppressed.
    pub suppressed_before: u64,
    /// Process whose allocation failed or that exceeded a threshold.
    pub requester: Option<RequesterJson>,
    /// Requested size; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_bytes: Option<u64>,
    /// Requested memory kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_kind: Option<String>,
    /// Driver function that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The threshold that was exceeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threshold: Option<String>,
    /// Device ordinal of the process.
    pub device: Option<u16>,
    /// GPU; absent if unknown or if the incident is about all GPUs.
    pub gpu: Option<GpuJson>,
    /// Allocation site of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<SiteJson>,
    /// Cause of the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<CauseJson>,
    /// Memory held there at that time by process, traced or reported by the driver, largest first.
    pub holders: Vec<HolderJson>,
    /// Processes that grew in the last minutes, largest first.
    pub growth: Vec<GrowthJson>,
    /// Steps that would free memory.
    pub advice: Vec<GpuAdvice>,
    /// Number of events in the recording.
    pub recorded_events: u64,
    /// Time from the error to the snapshot, in milliseconds.
    pub snapshot_after_ms: u64,
    /// Time from the error to the written directory, in milliseconds.
    pub written_after_ms: u64,
    /// `pending`, `written`, `disabled`, or the reason why it is missing.
    pub html_report: String,
    /// Names of the files.
    pub files: Vec<String>,
}

/// A process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RequesterJson {
    /// Process id.
    pub pid: u32,
    /// The thread that made the call.
    pub tid: Option<u32>,
    /// Name of the process.
    pub name: String,
}

/// A GPU.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuJson {
    /// Index.
    pub index: u16,
    /// `GPU-…`.
    pub uuid: Option<String>,
    /// Vendor's name of the GPU.
    pub name: Option<String>,
    /// Total memory.
    pub total_bytes: Option<u64>,
    /// Free memory as last reported by the driver.
    pub free_bytes: Option<u64>,
}

/// Cause of an out-of-memory error.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CauseJson {
    /// Name of the cause.
    pub name: String,
    /// `possible`, `likely` or `certain`.
    pub confidence: String,
    /// The cause in a sentence.
    pub summary: String,
    /// The memory values that it is based on.
    pub breakdown: Vec<BreakdownJson>,
    /// Signs of quotas or other GPU sharing.
    pub hints: Vec<String>,
}

/// One value of the memory breakdown.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct BreakdownJson {
    /// Name of the value.
    pub name: String,
    /// Size.
    pub bytes: u64,
}

/// Memory held by one process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderJson {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// User id of its owner.
    pub uid: Option<u32>,
    /// Bytes of live traced allocations.
    pub live_bytes: u64,
    /// Number of live traced allocations.
    pub live_allocations: u64,
    /// Driver-reported usage of the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_bytes: Option<u64>,
    /// Driver-reported usage that was not traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untracked_bytes: Option<u64>,
    /// Whether it may hold memory from before the trace.
    pub before_trace: bool,
    /// Sites, largest first.
    pub sites: Vec<SiteJson>,
}

/// An allocation site and its live memory.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteJson {
    /// Site name, as in `trace --format json`.
    pub id: String,
    /// Live bytes.
    pub live_bytes: u64,
    /// Number of live allocations.
    pub live_allocations: u64,
    /// Frames, innermost first, as in `trace --format json`.
    pub frames: Vec<Value>,
}

/// Growth of one process.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GrowthJson {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub process: String,
    /// Growth in bytes; negative if it shrank.
    pub bytes: i64,
    /// Length of the window, in milliseconds.
    pub window_ms: u64,
}

impl IncidentJson {
    /// Converts a report.
    #[must_use]
    pub fn new(report: &IncidentReport<'_>) -> Self {
        let failed = report.failed_request;
        let requested = failed.map(|failed| failed.requested);
        Self {
            version: VERSION,
            id: report.id.to_owned(),
            trigger: report.trigger.name().to_owned(),
            time: report.context.clock.precise(report.at),
            host: sanitize(report.host).into_owned(),
            title: text::headline(report),
            exact: report.snapshot.uncertainty.exact(),
            oom_count: report.errors,
            recovered: report.recovered,
            suppressed_before: report.skipped,
            requester: report.requester.map(|requester| RequesterJson {
                pid: requester.pid.0,
                tid: requester.tid.map(|tid| tid.0),
                name: sanitize(&requester.name).into_owned(),
            }),
            requested_bytes: requested.and_then(RequestedResource::bytes).map(|bytes| bytes.0),
            requested_kind: requested.map(|requested| match requested {
                RequestedResource::Memory(kind, _) => kind.name().to_owned(),
                RequestedResource::Addresses => "addresses".to_owned(),
                RequestedResource::Other => "other".to_owned(),
            }),
            function: failed.map(|failed| sanitize(&failed.function).into_owned()),
            threshold: report.limit.map(|limit| sanitize_up_to(limit, 1000).into_owned()),
            device: report.device.map(|device| device.0),
            gpu: gpu(report),
            site: failed.map(|failed| site(failed.site, (0, 0), &failed.frames)),
            cause: cause(report),
            holders: report.holders.iter().map(|one| holder(report, one)).collect(),
            growth: report.grown.iter().map(growth).collect(),
            advice: report.advice.to_vec(),
            recorded_events: report.events,
            snapshot_after_ms: (report.snapshot.at - report.at).millis(),
            written_after_ms: report.write_delay.millis(),
            html_report: sanitize_up_to(report.page, 1000).into_owned(),
            files: [SUMMARY_FILE, super::INCIDENT_FILE, SNAPSHOT_FILE, RECORDING_FILE, HTML_FILE]
                .map(str::to_owned)
                .to_vec(),
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

fn gpu(report: &IncidentReport<'_>) -> Option<GpuJson> {
    let id = report.gpu?;
    let known = report.context.gpu(id);
    Some(GpuJson {
        index: id.0,
        uuid: known.map(|gpu| sanitize(&gpu.uuid).into_owned()),
        name: known.map(|gpu| sanitize(&gpu.name).into_owned()),
        total_bytes: report.total().map(|bytes| bytes.0),
        free_bytes: report.free().map(|bytes| bytes.0),
    })
}

fn cause(report: &IncidentReport<'_>) -> Option<CauseJson> {
    let diagnosis = &report.failed_request?.diagnosis;
    let breakdown = &diagnosis.memory;
    let cached = breakdown.cache_unused.map(|(bytes, _)| bytes);
    let all = [
        ("requested", breakdown.requested),
        ("total", breakdown.total),
        ("free_reported", breakdown.free_reported),
        ("free_estimated", breakdown.free_estimated),
        ("traced", Some(breakdown.traced)),
        ("requester", Some(breakdown.requester)),
        ("untracked", breakdown.untracked),
        ("cache_unused", cached),
        ("pool_unused", breakdown.pool_unused),
        ("others_unused", Some(breakdown.others_unused)),
    ];
    let entry = |(name, bytes): (&str, Option<engine::model::units::Bytes>)| {
        bytes.map(|bytes| BreakdownJson { name: name.to_owned(), bytes: bytes.0 })
    };
    Some(CauseJson {
        name: diagnosis.cause.name().to_owned(),
        confidence: diagnosis.confidence.name().to_owned(),
        summary: sanitize_up_to(&diagnosis.sentence, 1000).into_owned(),
        breakdown: all.into_iter().filter_map(entry).collect(),
        hints: diagnosis.hints.iter().map(|hint| hint.name().to_owned()).collect(),
    })
}

fn holder(report: &IncidentReport<'_>, one: &Holder) -> HolderJson {
    let (driver, untracked) = report.driver_usage(one.key.pid);
    HolderJson {
        pid: one.key.pid.0,
        process: sanitize(&one.name).into_owned(),
        uid: one.uid,
        live_bytes: one.live_bytes.0,
        live_allocations: one.live_allocations,
        driver_bytes: driver.map(|bytes| bytes.0),
        untracked_bytes: untracked.map(|bytes| bytes.0),
        before_trace: one.before_trace,
        sites: one
            .sites
            .iter()
            .map(|held| site(held.name, (held.live_bytes.0, held.live_allocations), &held.frames))
            .collect(),
    }
}

fn growth(one: &super::HolderGrowth) -> GrowthJson {
    GrowthJson {
        pid: one.pid.0,
        process: sanitize(&one.name).into_owned(),
        bytes: one.bytes,
        window_ms: one.within.millis(),
    }
}

fn site(name: SiteName, (live_bytes, live_allocations): (u64, u64), frames: &[Frame]) -> SiteJson {
    let object = |one: &Frame| serde_json::to_value(FrameJson::new(one)).unwrap_or_default();
    SiteJson {
        id: name.to_string(),
        live_bytes,
        live_allocations,
        frames: frames.iter().map(object).collect(),
    }
}
