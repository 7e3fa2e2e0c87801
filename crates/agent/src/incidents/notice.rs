//! Messages about incidents, for receivers of alerts.

use std::path::Path;

use engine::alert::Severity;
use formats::report::incident::{IncidentJson, Trigger};
use formats::sanitize::sanitize;
use serde::Serialize;

/// An incident whose directory is complete, after its process had time to recover. All text is
/// sanitized.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct IncidentNotice {
    /// Name of the incident.
    pub(crate) id: String,
    /// Its directory.
    pub(crate) dir: String,
    /// `out_of_memory`, `threshold` or `manual`.
    pub(crate) trigger: &'static str,
    /// Diagnosed cause of an out-of-memory error.
    pub(crate) cause: Option<String>,
    /// Whether the process got the memory after all.
    pub(crate) recovered: bool,
    /// The GPU.
    pub(crate) gpu: Option<u16>,
    /// Process that requested the memory or crossed the threshold, and its user.
    pub(crate) pid: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) process: Option<String>,
    /// Requested bytes.
    pub(crate) requested_bytes: Option<u64>,
    /// Time of the incident, RFC 3339.
    #[serde(skip)]
    pub(crate) time: String,
    /// What happened, in one line.
    #[serde(skip)]
    pub(crate) title: String,
}

impl IncidentNotice {
    pub(super) fn new(
        object: &IncidentJson,
        trigger: Trigger,
        dir: &Path,
        uid: Option<u32>,
    ) -> Self {
        let clean = |text: &str| sanitize(text).into_owned();
        let requester = object.requester.as_ref();
        Self {
            id: clean(&object.id),
            dir: dir.to_string_lossy().into_owned(),
            trigger: trigger.name(),
            cause: object.cause.as_ref().map(|cause| clean(&cause.name)),
            recovered: object.recovered,
            gpu: object.gpu.as_ref().map(|gpu| gpu.index),
            pid: requester.map(|requester| requester.pid),
            uid,
            process: requester.map(|requester| clean(&requester.name)),
            requested_bytes: object.requested_bytes,
            time: clean(&object.time),
            title: clean(&object.title),
        }
    }

    /// Severity: an error that the program did not get over is critical.
    pub(crate) fn severity(&self) -> Severity {
        let is_failure = self.trigger == Trigger::OutOfMemory.name() && !self.recovered;
        if is_failure { Severity::Critical } else { Severity::Warning }
    }

    /// Returns the environment variables of a command, without their prefix.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let number = |number: Option<u64>| number.map(|it| it.to_string()).unwrap_or_default();
        vec![
            ("INCIDENT_DIR", self.dir.clone()),
            ("TRIGGER", self.trigger.into()),
            ("CAUSE", self.cause.clone().unwrap_or_default()),
            ("RECOVERED", self.recovered.to_string()),
            ("GPU", number(self.gpu.map(u64::from))),
            ("PID", number(self.pid.map(u64::from))),
            ("UID", number(self.uid.map(u64::from))),
            ("PROCESS", self.process.clone().unwrap_or_default()),
            ("BYTES", number(self.requested_bytes)),
        ]
    }
}
