//! Verdicts and anomalies as JSON.

use engine::verdict::{Anomaly, CacheTensors, Evidence, Judgement, Subject, Unusual};
use serde::Serialize;

use super::{advice, kind, sentence, unusual};
use crate::export::Names;
use crate::export::analysis::json::{FrameObject, frame};
use crate::plain::plain;

/// Verdict on one site.
#[derive(Serialize)]
pub(in crate::export) struct JudgementObject {
    pid: Option<u32>,
    process: String,
    site: String,
    resource: &'static str,
    kind: &'static str,
    device: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<Thread>,
    verdict: &'static str,
    confidence: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_objects_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_until_full_seconds: Option<u64>,
    summary: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
    evidence: EvidenceObject,
    frames: Vec<FrameObject>,
}

#[derive(Serialize)]
struct Thread {
    tid: u32,
    name: String,
}

/// Evidence. Quantities are bytes, or numbers of objects.
#[derive(Serialize)]
struct EvidenceObject {
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
    /// Only for growing memory of PyTorch's cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<TensorsObject>,
}

/// Behavior of the tensors in PyTorch's cache.
#[derive(Serialize)]
pub(in crate::export) struct TensorsObject {
    live_bytes: u64,
    peak_bytes: u64,
    cache_bytes: u64,
    growth_bytes_per_hour: u64,
    cache_growth_bytes_per_hour: u64,
    bounded: bool,
}

impl TensorsObject {
    pub(in crate::export) fn new(tensors: CacheTensors) -> Self {
        Self {
            live_bytes: tensors.live,
            peak_bytes: tensors.peak,
            cache_bytes: tensors.cache,
            growth_bytes_per_hour: tensors.per_hour,
            cache_growth_bytes_per_hour: tensors.cache_per_hour,
            bounded: tensors.bounded,
        }
    }
}

/// An anomaly.
#[derive(Serialize)]
pub(in crate::export) struct AnomalyObject {
    time: String,
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
    frames: Vec<FrameObject>,
}

impl JudgementObject {
    /// Converts a verdict; `with_advice` for suspects.
    pub(in crate::export) fn new(verdict: &Judgement, with_advice: bool) -> Self {
        let Evidence { per_hour, full_in, .. } = verdict.evidence;
        let bytes = verdict.subject.is_bytes();
        Self {
            pid: verdict.pid.map(|pid| pid.0),
            process: plain(&verdict.process).into_owned(),
            site: verdict.site.to_string(),
            resource: match verdict.subject {
                Subject::Memory(_) => "memory",
                Subject::Tensors => "tensors",
                Subject::Objects(_) => "objects",
            },
            kind: kind(verdict.subject),
            device: verdict.device.map(|device| device.0),
            thread: verdict
                .thread
                .as_ref()
                .map(|(tid, name)| Thread { tid: tid.0, name: plain(name).into_owned() }),
            verdict: verdict.verdict.name(),
            confidence: verdict.sureness.name(),
            growth_bytes_per_hour: bytes.then_some(per_hour),
            growth_objects_per_hour: (!bytes).then_some(per_hour),
            time_until_full_seconds: full_in.map(|time| time.0 / 1_000_000_000),
            summary: sentence(verdict.subject, verdict.verdict, &verdict.evidence),
            advice: with_advice.then(|| {
                let frames: Vec<_> = verdict.frames.iter().collect();
                advice(verdict.subject, &verdict.evidence, &frames)
            }),
            evidence: EvidenceObject::new(&verdict.evidence),
            frames: verdict.frames.iter().map(frame).collect(),
        }
    }
}

impl EvidenceObject {
    fn new(evidence: &Evidence) -> Self {
        Self {
            live: evidence.live,
            live_count: evidence.live_count,
            window_ns: evidence.window.0,
            window_min: evidence.lows.clone(),
            peak: evidence.peak,
            level_min: evidence.level.0,
            level_max: evidence.level.1,
            returns: evidence.returns,
            steps: evidence.steps,
            growing_steps: evidence.growing_steps,
            shrinking_steps: evidence.shrinking_steps,
            created: evidence.begun,
            freed: evidence.ended,
            observed_ns: evidence.watched.0,
            median_age_ns: evidence.median_age.map(|time| time.0),
            max_age_ns: evidence.oldest.map(|time| time.0),
            median_lifetime_ns: evidence.median_life.map(|time| time.0),
            max_lifetime_ns: evidence.longest_life.map(|time| time.0),
            overdue: evidence.overdue,
            tensors: evidence.tensors.map(TensorsObject::new),
        }
    }
}

impl AnomalyObject {
    pub(in crate::export) fn new(anomaly: &Anomaly, names: &Names) -> Self {
        let plain = |text: &str| plain(text).into_owned();
        let base = Self {
            time: names.clock.precise(anomaly.at),
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
            summary: unusual(anomaly),
            frames: anomaly.frames.iter().map(frame).collect(),
        };
        match anomaly.what {
            Unusual::Size { key, bytes, usual, of, of_site, live } => Self {
                r#type: "size",
                bytes: bytes.0,
                baseline_bytes: usual.0,
                address: Some(format!("{:#x}", key.value)),
                live: Some(live),
                baseline_scope: Some(if of_site { "site" } else { "process" }),
                baseline_samples: Some(of),
                ..base
            },
            Unusual::Growth { bytes, within, usual } => {
                Self { bytes: bytes.0, baseline_bytes: usual.0, window_ns: Some(within.0), ..base }
            }
        }
    }
}
