//! Verdicts and anomalies as JSON.

use engine::leak::advise;
use engine::model::{Allocator, CallStack, Tid};
use engine::verdict::{Anomaly, AnomalyKind, CacheTensors, Evidence, Resource, SiteVerdict};
use serde_json::Value;

use super::{anomaly_summary, kind, short_location, summary};
use crate::report::frame_json::{FrameJson, frames};
use crate::report::json_objects::{Word, json_objects};
use crate::sanitize::sanitized;

json_objects! {
    /// Verdict on one site. `with_advice`: for suspects.
    pub struct SiteVerdictJson(of: &SiteVerdict, with_advice: bool): Deserialize
    let {
        let found = &of.evidence;
        let is_bytes = of.resource.is_bytes();
        let advised = with_advice.then(|| advise([(of.resource, found, &*of.frames)], 1));
    }
    {
        pid: Option<u32> = of.pid.map(|pid| pid.0),
        process: String = sanitized(&of.process),
        site: String = of.site.to_string(),
        location: String = sanitized(&short_location(of.site, &of.frames)),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        via: Vec<String> = via(&of.frames),
        resource: Word = resource(of.resource).into(),
        kind: Word = kind(of.resource).into(),
        device: Option<u16> = of.device.map(|device| device.0),
        thread?: Option<ThreadJson> = of.thread.as_ref().map(ThreadJson::new),
        verdict: Word = of.verdict.name().into(),
        confidence: Word = of.confidence.name().into(),
        growth_bytes_per_hour?: Option<u64> = is_bytes.then_some(found.growth_per_hour),
        growth_objects_per_hour?: Option<u64> = (!is_bytes).then_some(found.growth_per_hour),
        time_until_full_seconds?: Option<u64> =
            found.time_until_full.map(|time| time.0 / 1_000_000_000),
        time_to_verdict_seconds?: Option<u64> =
            found.time_to_verdict.map(|time| time.0.div_ceil(1_000_000_000)),
        summary: String = summary(of.resource, of.verdict, found),
        cause?: Option<Word> = advised.as_ref().map(|advice| advice.cause.into()),
        advice?: Option<String> = advised.map(|advice| advice.text),
        evidence: EvidenceJson = EvidenceJson::new(found),
        frames: Vec<FrameJson> = frames(&of.frames),
    }

    pub(crate) struct ThreadJson(thread: &(Tid, Box<str>)): Deserialize {
        tid: u32 = thread.0.0,
        name: String = sanitized(&thread.1),
    }

    /// Evidence. Quantities are bytes, or numbers of objects.
    pub(crate) struct EvidenceJson(evidence: &Evidence): Deserialize {
        kept_by?: Option<String> = evidence.kept_by.as_deref().map(sanitized),
        live: u64 = evidence.live,
        live_count: u64 = evidence.live_count,
        window_ns: u64 = evidence.window.0,
        window_min: Vec<u64> = evidence.window_min.clone(),
        peak: u64 = evidence.peak,
        level_min: u64 = evidence.level.0,
        level_max: u64 = evidence.level.1,
        returns: u32 = evidence.returns,
        steps: u32 = evidence.steps,
        growing_steps: u32 = evidence.growing_steps,
        shrinking_steps: u32 = evidence.shrinking_steps,
        created: u64 = evidence.created,
        freed: u64 = evidence.freed,
        observed_ns: u64 = evidence.observed.0,
        median_age_ns?: Option<u64> = evidence.median_age.map(|time| time.0),
        max_age_ns?: Option<u64> = evidence.oldest.map(|time| time.0),
        median_lifetime_ns?: Option<u64> = evidence.median_life.map(|time| time.0),
        max_lifetime_ns?: Option<u64> = evidence.longest_life.map(|time| time.0),
        overdue: u64 = evidence.overdue,
        /// Only if the program freed it at its end, or is about to.
        freed_at_end?: Option<u64> =
            (evidence.freed_at_end > 0).then_some(evidence.freed_at_end),
        /// Only if the program still frees it.
        is_freeing?: Option<bool> = evidence.is_freeing.then_some(true),
        /// Only if the quantities are estimates from sampled blocks.
        sampling_interval_bytes?: Option<u64> = evidence.sampling.map(|one| one.bytes().0),
        /// Only for growing memory of PyTorch's cache.
        tensors?: Option<TensorsJson> = evidence.tensors.map(TensorsJson::new),
    }

    /// Behavior of the tensors in PyTorch's cache.
    pub(crate) struct TensorsJson(tensors: CacheTensors): Deserialize {
        live_bytes: u64 = tensors.live,
        peak_bytes: u64 = tensors.peak,
        cache_bytes: u64 = tensors.cache,
        growth_bytes_per_hour: u64 = tensors.growth_per_hour,
        cache_growth_bytes_per_hour: u64 = tensors.cache_growth_per_hour,
        bounded: bool = tensors.bounded,
        unused_bytes: u64 = tensors.unused,
        failed_captures: u64 = tensors.failed_captures,
        during_capture: bool = tensors.during_capture,
    }

    /// An anomaly; `at` is RFC 3339, or a number of seconds.
    pub(crate) struct AnomalyJson(anomaly: &Anomaly, at: Value): Deserialize
    let {
        let (size, growth) = match anomaly.details {
            AnomalyKind::Size { key, of, of_site, live, .. } => {
                (Some((key, live, if of_site { "site" } else { "process" }, of)), None)
            }
            AnomalyKind::Growth { within, .. } => (None, Some(within)),
        };
        let (AnomalyKind::Size { bytes: found, baseline, .. }
        | AnomalyKind::Growth { bytes: found, baseline, .. }) = anomaly.details;
    }
    {
        time: Value = at,
        pid: u32 = anomaly.pid.0,
        process: String = sanitized(&anomaly.process),
        tid?: Option<u32> = anomaly.tid.map(|tid| tid.0),
        thread?: Option<String> = anomaly.tid.map(|_| sanitized(&anomaly.thread)),
        site: String = anomaly.site.to_string(),
        device: Option<u16> = anomaly.device.map(|device| device.0),
        kind: Word = anomaly.kind.name().into(),
        r#type: Word = if growth.is_some() { "growth".into() } else { "size".into() },
        bytes: u64 = found.0,
        baseline_bytes: u64 = baseline.0,
        address?: Option<String> = size.map(|(key, ..)| format!("{:#x}", key.value)),
        live?: Option<bool> = size.map(|(_, live, ..)| live),
        baseline_scope?: Option<Word> = size.map(|(_, _, scope, _)| scope.into()),
        baseline_samples?: Option<u64> = size.map(|(.., samples)| samples),
        window_ns?: Option<u64> = growth.map(|within| within.0),
        summary: String = anomaly_summary(anomaly),
        frames: Vec<FrameJson> = frames(&anomaly.frames),
    }
}

const fn resource(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory(_) => "memory",
        Resource::Blocks(Allocator::PyTorch) => "tensors",
        Resource::Blocks(_) => "blocks",
        Resource::Objects(_) => "objects",
    }
}

/// Returns what lies between the headline and the driver.
pub(crate) fn via(stack: &CallStack) -> Vec<String> {
    stack.headline().via.iter().map(|name| sanitized(name)).collect()
}
