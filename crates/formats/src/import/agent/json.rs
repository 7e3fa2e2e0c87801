//! Answers besides the objects of [`crate::report::live::json`], and events as incidents.

use engine::model::{Bytes, Mark, MarkKind, Pid};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::time;
use crate::WallClock;
use crate::report::live::json::{HolderJson, MarkJson, OutOfMemoryJson, SiteJson};
use crate::report::tables::incidents::Incident;
use crate::report::verdict::json::AnomalyJson;
use crate::sanitize::{sanitize, sanitized};

/// Fields that every snapshot of an agent has; only its API has `api`.
#[derive(Deserialize)]
pub(super) struct RequiredFields {
    #[serde(rename = "api")]
    _api: ApiVersion,
    #[serde(rename = "time")]
    _time: String,
    #[serde(rename = "processes")]
    _processes: Vec<IgnoredAny>,
}

/// Versions of the API that can be read.
#[derive(Deserialize)]
enum ApiVersion {
    #[serde(rename = "v1")]
    V1,
}

#[derive(Deserialize)]
pub(super) struct SiteList {
    pub(super) sites: Vec<SiteJson>,
}

pub(super) fn out_of_memory(oom: &OutOfMemoryJson, clock: &WallClock) -> Incident {
    let requested = oom.requested_bytes.map(|bytes| Bytes(bytes).to_string());
    let held = |one: &HolderJson| {
        format!("{} held by {} (pid {})", Bytes(one.live_bytes), sanitize(&one.process), one.pid)
    };
    Incident {
        time: clock.second(time(&oom.time)),
        kind: "out of memory".to_owned(),
        pid: Some(oom.pid),
        program: sanitized(&oom.process),
        summary: format!("requested {}", requested.as_deref().unwrap_or("memory")),
        details: oom.holders.iter().map(held).collect(),
    }
}

pub(super) fn anomaly(anomaly: &AnomalyJson, clock: &WallClock) -> Incident {
    Incident {
        time: clock.second(time(anomaly.time.as_str().unwrap_or_default())),
        kind: "anomaly".to_owned(),
        pid: Some(anomaly.pid),
        program: sanitized(&anomaly.process),
        summary: sanitized(&anomaly.summary),
        details: Vec::new(),
    }
}

pub(super) fn mark(mark: &MarkJson) -> Option<Mark> {
    let kind = MarkKind::from_name(&mark.r#type)?;
    let (at, pid, label) = (time(&mark.time), mark.pid.map(Pid), mark.label.as_str().into());
    Some(Mark { at, pid, kind, label })
}

#[derive(Deserialize)]
pub(super) struct IncidentList {
    pub(super) incidents: Vec<IncidentEntry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct IncidentEntry {
    id: String,
    trigger: String,
    cause: String,
    time: String,
    pid: Option<u32>,
    process: String,
    summary: String,
}

impl IncidentEntry {
    pub(super) fn incident(&self, clock: &WallClock) -> Incident {
        Incident {
            time: clock.second(time(&self.time)),
            kind: sanitized(&self.trigger.replace('_', " ")),
            pid: self.pid,
            program: sanitized(&self.process),
            summary: sanitized(&self.summary),
            details: vec![
                format!("cause: {}", sanitize(&self.cause.replace('_', " "))),
                format!("incident {}", sanitize(&self.id)),
            ],
        }
    }
}
