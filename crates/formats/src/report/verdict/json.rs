//! Verdicts and anomalies as JSON.

use engine::leak::advise;
use engine::model::stack::CallStack;
use engine::verdict::{Anomaly, AnomalyKind, CacheTensors, Evidence, Resource, SiteVerdict};
use serde::Serialize;

use super::{anomaly_summary, kind, short_location, summary};
use crate::report::analysis::json::{FrameJson, frame};
use crate::sanitize::sanitize;

/// Verdict on one site.
#[derive(Serialize)]
pub struct SiteVerdictJson {
    pid: Option<u32>,
    process: String,
    site: String,
    location: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    via: Vec<String>,
    resource: &'static str,
    kind: &'static str,
    device: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<ThreadJson>,
    verdict: &'static str,
    confidence: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_objects_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_until_full_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_to_verdict_seconds: Option<u64>,
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    evidence: EvidenceJson,
    frames: Vec<FrameJson>,
}

const fn resource(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory(_) => "memory",
        Resource::Tensors => "tensors",
        Resource::Objects(_) => "objects",
    }
}

/// Returns what lies between the headline and the driver.
pub(crate) fn via(stack: &CallStack) -> Vec<String> {
    stack.headline().via.iter().map(|name| sanitize(name).into_owned()).collect()
}

#[derive(Serialize)]
struct ThreadJson {
    tid: u32,
    name: String,
}

/// Evidence. Quantities are bytes, or numbers of objects.
#[derive(Serialize)]
struct EvidenceJson {
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_by: Option<String>,
    live: u64,
    live_count: u64,
    window_ns: u64,
    window_min: Vec<u64>,
    peak: u64,
    level_min: u64,
    level_max: u64,
    returns: u32,
    steps: u32,
    growing_steps: u32,
    shrinking_steps: u32,
    created: u64,
    freed: u64,
    observed_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_age_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_age_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_lifetime_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lifetime_ns: Option<u64>,
    overdue: u64,
    /// Only if the program freed it at its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_at_end: Option<u64>,
    /// Only for growing memory of PyTorch's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<TensorsObject>,
}

/// Behavior of the tensors in PyTorch's cache.
#[derive(Serialize)]
pub(crate) struct TensorsObject {
    live_bytes: u64,
    peak_bytes: u64,
    cache_bytes: u64,
    growth_bytes_per_hour: u64,
    cache_growth_bytes_per_hour: u64,
    bounded: bool,
    unused_bytes: u64,
    failed_captures: u64,
    during_capture: bool,
}

impl TensorsObject {
    pub(crate) fn new(tensors: CacheTensors) -> Self {
        Self {
            live_bytes: tensors.live,
            peak_bytes: tensors.peak,
            cache_bytes: tensors.cache,
            growth_bytes_per_hour: tensors.growth_per_hour,
            cache_growth_bytes_per_hour: tensors.cache_growth_per_hour,
            bounded: tensors.bounded,
            unused_bytes: tensors.unused,
            failed_captures: tensors.failed_captures,
            during_capture: tensors.during_capture,
        }
    }
}

/// An anomaly.
#[derive(Serialize)]
pub(crate) struct AnomalyJson {
    time: serde_json::Value,
    pid: u32,
    process: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<String>,
    site: String,
    device: Option<u16>,
    kind: &'static str,
    r#type: &'static str,
    bytes: u64,
    baseline_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_scope: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline_samples: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_ns: Option<u64>,
    summary: String,
    frames: Vec<FrameJson>,
}

impl SiteVerdictJson {
    /// Converts a verdict; `with_advice` for suspects.
    #[must_use]
    pub fn new(verdict: &SiteVerdict, with_advice: bool) -> Self {
        let Evidence { growth_per_hour: per_hour, time_until_full: full_in, .. } = verdict.evidence;
        let bytes = verdict.resource.is_bytes();
        let advice = with_advice
            .then(|| advise([(verdict.resource, &verdict.evidence, &*verdict.frames)], 1));
        Self {
            pid: verdict.pid.map(|pid| pid.0),
            process: sanitize(&verdict.process).into_owned(),
            site: verdict.site.to_string(),
            location: sanitize(&short_location(verdict.site, &verdict.frames)).into_owned(),
            via: via(&verdict.frames),
            resource: resource(verdict.resource),
            kind: kind(verdict.resource),
            device: verdict.device.map(|device| device.0),
            thread: verdict
                .thread
                .as_ref()
                .map(|(tid, name)| ThreadJson { tid: tid.0, name: sanitize(name).into_owned() }),
            verdict: verdict.verdict.name(),
            confidence: verdict.confidence.name(),
            growth_bytes_per_hour: bytes.then_some(per_hour),
            growth_objects_per_hour: (!bytes).then_some(per_hour),
            time_until_full_seconds: full_in.map(|time| time.0 / 1_000_000_000),
            time_to_verdict_seconds: verdict
                .evidence
                .time_to_verdict
                .map(|time| time.0.div_ceil(1_000_000_000)),
            summary: summary(verdict.resource, verdict.verdict, &verdict.evidence),
            cause: advice.as_ref().map(|advice| advice.cause),
            advice: advice.map(|advice| advice.text),
            evidence: EvidenceJson::new(&verdict.evidence),
            frames: verdict.frames.iter().map(frame).collect(),
        }
    }
}

impl EvidenceJson {
    fn new(evidence: &Evidence) -> Self {
        Self {
            kept_by: evidence.kept_by.as_deref().map(|text| sanitize(text).into_owned()),
            live: evidence.live,
            live_count: evidence.live_count,
            window_ns: evidence.window.0,
            window_min: evidence.window_min.clone(),
            peak: evidence.peak,
            level_min: evidence.level.0,
            level_max: evidence.level.1,
            returns: evidence.returns,
            steps: evidence.steps,
            growing_steps: evidence.growing_steps,
            shrinking_steps: evidence.shrinking_steps,
            created: evidence.created,
            freed: evidence.freed,
            observed_ns: evidence.observed.0,
            median_age_ns: evidence.median_age.map(|time| time.0),
            max_age_ns: evidence.oldest.map(|time| time.0),
            median_lifetime_ns: evidence.median_life.map(|time| time.0),
            max_lifetime_ns: evidence.longest_life.map(|time| time.0),
            overdue: evidence.overdue,
            freed_at_end: (evidence.freed_at_end > 0).then_some(evidence.freed_at_end),
            tensors: evidence.tensors.map(TensorsObject::new),
        }
    }
}

impl AnomalyJson {
    /// Converts an anomaly; `time` is RFC 3339, or a number of seconds.
    pub(crate) fn new(anomaly: &Anomaly, time: serde_json::Value) -> Self {
        let plain = |text: &str| sanitize(text).into_owned();
        let base = Self {
            time,
            pid: anomaly.pid.0,
            process: plain(&anomaly.process),
            tid: anomaly.tid.map(|tid| tid.0),
            thread: anomaly.tid.map(|_| plain(&anomaly.thread)),
            site: anomaly.site.to_string(),
            device: anomaly.device.map(|device| device.0),
            kind: anomaly.kind.name(),
            r#type: "growth",
            bytes: 0,
            baseline_bytes: 0,
            address: None,
            live: None,
            baseline_scope: None,
            baseline_samples: None,
            window_ns: None,
            summary: anomaly_summary(anomaly),
            frames: anomaly.frames.iter().map(frame).collect(),
        };
        match anomaly.details {
            AnomalyKind::Size { key, bytes, baseline, of, of_site, live } => Self {
                r#type: "size",
                bytes: bytes.0,
                baseline_bytes: baseline.0,
                address: Some(format!("{:#x}", key.value)),
                live: Some(live),
                baseline_scope: Some(if of_site { "site" } else { "process" }),
                baseline_samples: Some(of),
                ..base
            },
            AnomalyKind::Growth { bytes, within, baseline } => Self {
                bytes: bytes.0,
                baseline_bytes: baseline.0,
                window_ns: Some(within.0),
                ..base
            },
        }
    }
}
