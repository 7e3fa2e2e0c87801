//! Incident files: a text summary and a JSON object with the same content.
//! `docs/operations/incidents.md` describes them; fields are added, never renamed.

mod json;
mod text;

pub use json::{
    BreakdownJson, CauseJson, GpuJson, GrowthJson, HolderJson, IncidentJson, IncidentRow,
    RequesterJson, SiteJson, VERSION, read,
};
pub use text::{write as write_text, write_redacted};

use engine::model::{
    Bytes, CallStack, DeviceId, GpuId, Holder, Nanos, Pid, SiteName, Tid, Timestamp,
};
use engine::oom::{OomDiagnosis, RequestedResource};
use engine::snapshot::Snapshot;

use super::advice::GpuAdvice;
use crate::export::ReportContext;

/// Text summary of an incident directory.
pub const SUMMARY_FILE: &str = "summary.txt";
/// JSON object of an incident directory.
pub const INCIDENT_FILE: &str = "incident.json";
/// JSON report of the snapshot in an incident directory.
pub const SNAPSHOT_FILE: &str = "snapshot.json";
/// Recording of the last events in an incident directory.
pub const RECORDING_FILE: &str = "recent.arrows";
/// HTML report of an incident directory.
pub const HTML_FILE: &str = "report.html";

/// State of the HTML report until it is written or has failed.
pub const HTML_PENDING: &str = "pending";

engine::named_enum! {
    /// Reason why an incident is written.
    pub enum Trigger {
        /// An allocation failed with an out-of-memory error.
        OutOfMemory => "out_of_memory",
        /// A configured threshold was exceeded.
        Threshold => "threshold",
        /// A user requested it.
        Manual => "manual",
    }
}

impl Trigger {
    /// Returns the name in directory names.
    pub const fn short(self) -> &'static str {
        match self {
            Self::OutOfMemory => "oom",
            other => other.name(),
        }
    }
}

/// Process whose allocation failed or that exceeded a threshold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requester {
    /// Process id.
    pub pid: Pid,
    /// The thread that made the call.
    pub tid: Option<Tid>,
    /// Name of the process, not sanitized.
    pub name: Box<str>,
}

/// The call that failed.
#[derive(Clone, PartialEq, Debug)]
pub struct FailedRequest {
    /// Requested resource.
    pub requested: RequestedResource,
    /// Driver function.
    pub function: Box<str>,
    /// Name of the site.
    pub site: SiteName,
    /// Frames, innermost first, if known.
    pub frames: CallStack,
    /// Diagnosis of the cause.
    pub diagnosis: OomDiagnosis,
}

/// Growth of a holder within some time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HolderGrowth {
    /// Process id.
    pub pid: Pid,
    /// Name of the process, not sanitized.
    pub name: Box<str>,
    /// Growth in bytes; negative if it shrank.
    pub bytes: i64,
    /// Length of the window.
    pub within: Nanos,
}

/// Content of an incident's files.
#[derive(Clone, Copy, Debug)]
pub struct IncidentReport<'a> {
    /// Name of the incident directory.
    pub id: &'a str,
    /// Reason why the incident is written.
    pub trigger: Trigger,
    /// Time of the incident.
    pub at: Timestamp,
    /// Name of the host, not sanitized.
    pub host: &'a str,
    /// Process that triggered the incident.
    pub requester: Option<&'a Requester>,
    /// Exceeded threshold, as a sentence.
    pub limit: Option<&'a str>,
    /// The call that failed.
    pub failed_request: Option<&'a FailedRequest>,
    /// Device ordinal of the process.
    pub device: Option<DeviceId>,
    /// GPU of the host; none if the incident is about all GPUs.
    pub gpu: Option<GpuId>,
    /// Estimated free memory at that time; see
    /// [`engine::oom::MemoryBreakdown::free_estimated`].
    pub free_estimate: Option<Bytes>,
    /// Memory held there at that time by process, largest first.
    pub holders: &'a [Holder],
    /// Processes that grew most in the last minutes.
    pub grown: &'a [HolderGrowth],
    /// Steps that would free memory.
    pub advice: &'a [GpuAdvice],
    /// Snapshot taken soon after.
    pub snapshot: &'a Snapshot,
    /// Names for ids of the snapshot.
    pub context: &'a ReportContext,
    /// Out-of-memory errors of the same process and device that this incident covers.
    pub errors: u64,
    /// Whether the same request succeeded afterwards.
    pub recovered: bool,
    /// Earlier incidents of the same process that were suppressed to limit disk usage.
    pub skipped: u64,
    /// Number of events in the recording.
    pub events: u64,
    /// State of the HTML report.
    pub page: &'a str,
    /// Time from the error to the written directory.
    pub write_delay: Nanos,
}

impl IncidentReport<'_> {
    /// Returns the total memory of the GPU.
    pub fn total(&self) -> Option<Bytes> {
        let gpu = self.gpu.and_then(|gpu| self.context.gpu(gpu));
        gpu.map(|gpu| Bytes(gpu.total_bytes)).filter(|total| total.0 > 0)
    }

    /// Returns the free memory of the GPU as reported by the driver.
    pub fn free(&self) -> Option<Bytes> {
        let view = self.snapshot.gpus.iter().find(|view| Some(view.gpu) == self.gpu);
        view.map(|view| view.free_bytes)
    }

    /// Returns the driver-reported usage of a process, and the part of it that was not traced.
    pub(crate) fn driver_usage(&self, pid: Pid) -> (Option<Bytes>, Option<Bytes>) {
        let process = self.snapshot.processes.iter().find(|process| process.key.pid == pid);
        let views = process.into_iter().flat_map(|process| &process.devices);
        let here = views.filter(|view| self.gpu.is_none() || view.gpu == self.gpu);
        let add = |sum: Option<Bytes>, more: Option<Bytes>| match (sum, more) {
            (Some(sum), Some(more)) => Some(Bytes(sum.0.saturating_add(more.0))),
            (known, None) | (None, known) => known,
        };
        here.fold((None, None), |(driver, untracked), view| {
            (add(driver, view.driver_bytes), add(untracked, view.untracked()))
        })
    }
}
