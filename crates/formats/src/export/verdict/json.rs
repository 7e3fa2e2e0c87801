//! Verdicts and anomalies as objects.

use engine::verdict::{Anomaly, CacheTensors, Evidence, Judgement, Subject, Unusual};
use serde::Serialize;

use super::{advice, kind, sentence, unusual};
use crate::export::Names;
use crate::export::analysis::json::{FrameObject, frame};
use crate::plain::plain;

/// What is thought of one place.
#[derive(Serialize)]
pub(in crate::export) struct JudgementObject {
    pid: Option<u32>,
    process: String,
    site: String,
    subject: &'static str,
    kind: &'static str,
    device: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<Thread>,
    verdict: &'static str,
    sureness: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    objects_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_until_full: Option<u64>,
    sentence: String,
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

/// Quantities are bytes, or numbers of objects.
#[derive(Serialize)]
struct EvidenceObject {
    live: u64,
    live_count: u64,
    window_ns: u64,
    lows: Vec<u64>,
    peak: u64,
    level_min: u64,
    level_max: u64,
    returns: u32,
    steps: u32,
    growing_steps: u32,
    shrinking_steps: u32,
    begun: u64,
    ended: u64,
    watched_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_age_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_life_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    longest_life_ns: Option<u64>,
    overdue: u64,
    /// Only of memory that PyTorch's cache took and that grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<TensorsObject>,
}

/// What the tensors of PyTorch's cache did.
#[derive(Serialize)]
pub(in crate::export) struct TensorsObject {
    live_bytes: u64,
    peak_bytes: u64,
    cache_bytes: u64,
    bytes_per_hour: u64,
    cache_bytes_per_hour: u64,
    bounded: bool,
}

impl TensorsObject {
    pub(in crate::export) fn new(of: CacheTensors) -> Self {
        Self {
            live_bytes: of.live,
            peak_bytes: of.peak,
            cache_bytes: of.cache,
            bytes_per_hour: of.per_hour,
            cache_bytes_per_hour: of.cache_per_hour,
            bounded: of.bounded,
        }
    }
}

/// Something unusual.
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
    what: &'static str,
    bytes: u64,
    usual_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usual_of: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allocations: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    within_ns: Option<u64>,
    sentence: String,
    frames: Vec<FrameObject>,
}

impl JudgementObject {
    /// `accused`: with advice.
    pub(in crate::export) fn new(judged: &Judgement, accused: bool) -> Self {
        let Evidence { per_hour, full_in, .. } = judged.evidence;
        let bytes = judged.subject.is_bytes();
        Self {
            pid: judged.pid.map(|pid| pid.0),
            process: plain(&judged.process).into_owned(),
            site: judged.site.to_string(),
            subject: match judged.subject {
                Subject::Memory(_) => "memory",
                Subject::Tensors => "tensors",
                Subject::Objects(_) => "objects",
            },
            kind: kind(judged.subject),
            device: judged.device.map(|device| device.0),
            thread: judged
                .thread
                .as_ref()
                .map(|(tid, name)| Thread { tid: tid.0, name: plain(name).into_owned() }),
            verdict: judged.verdict.name(),
            sureness: judged.sureness.name(),
            bytes_per_hour: bytes.then_some(per_hour),
            objects_per_hour: (!bytes).then_some(per_hour),
            seconds_until_full: full_in.map(|time| time.0 / 1_000_000_000),
            sentence: sentence(judged.subject, judged.verdict, &judged.evidence),
            advice: accused.then(|| {
                let frames: Vec<_> = judged.frames.iter().collect();
                advice(judged.subject, &judged.evidence, &frames)
            }),
            evidence: EvidenceObject::new(&judged.evidence),
            frames: judged.frames.iter().map(frame).collect(),
        }
    }
}

impl EvidenceObject {
    fn new(of: &Evidence) -> Self {
        Self {
            live: of.live,
            live_count: of.live_count,
            window_ns: of.window.0,
            lows: of.lows.clone(),
            peak: of.peak,
            level_min: of.level.0,
            level_max: of.level.1,
            returns: of.returns,
            steps: of.steps,
            growing_steps: of.growing_steps,
            shrinking_steps: of.shrinking_steps,
            begun: of.begun,
            ended: of.ended,
            watched_ns: of.watched.0,
            median_age_ns: of.median_age.map(|time| time.0),
            oldest_ns: of.oldest.map(|time| time.0),
            median_life_ns: of.median_life.map(|time| time.0),
            longest_life_ns: of.longest_life.map(|time| time.0),
            overdue: of.overdue,
            tensors: of.tensors.map(TensorsObject::new),
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
            what: "growth",
            bytes: 0,
            usual_bytes: 0,
            address: None,
            live: None,
            usual_of: None,
            allocations: None,
            within_ns: None,
            sentence: unusual(anomaly),
            frames: anomaly.frames.iter().map(frame).collect(),
        };
        match anomaly.what {
            Unusual::Size { key, bytes, usual, of, of_site, live } => Self {
                what: "size",
                bytes: bytes.0,
                usual_bytes: usual.0,
                address: Some(format!("{:#x}", key.value)),
                live: Some(live),
                usual_of: Some(if of_site { "site" } else { "process" }),
                allocations: Some(of),
                ..base
            },
            Unusual::Growth { bytes, within, usual } => {
                Self { bytes: bytes.0, usual_bytes: usual.0, within_ns: Some(within.0), ..base }
            }
        }
    }
}
