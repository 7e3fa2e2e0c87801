//! Verdicts.

use engine::model::{DeviceId, MemoryKind, Nanos, ObjectKind, Pid, SamplingInterval, Tid};
use engine::verdict::{CacheTensors, Confidence, Evidence, Resource, SiteVerdict, Verdict};

use super::{Stacks, site_name};
use crate::report::verdict::json::{SiteVerdictJson, TensorsJson};
use crate::sanitize::sanitize;

/// Reads a verdict; `None` if it is about something that this version does not know.
pub(super) fn read(entry: &SiteVerdictJson, stacks: &mut Stacks) -> Option<SiteVerdict> {
    let confidence = Confidence::from_name(&entry.confidence);
    Some(SiteVerdict {
        pid: entry.pid.map(Pid),
        process: entry.process.as_str().into(),
        site: site_name(&entry.site),
        frames: stacks.read(&entry.frames),
        resource: resource(entry)?,
        device: entry.device.map(DeviceId),
        thread: entry.thread.as_ref().map(|one| (Tid(one.tid), one.name.as_str().into())),
        verdict: Verdict::from_name(&entry.verdict)?,
        confidence: confidence.unwrap_or(Confidence::Possible),
        evidence: evidence(entry),
    })
}

fn resource(entry: &SiteVerdictJson) -> Option<Resource> {
    match &*entry.resource {
        "tensors" | "blocks" => {
            MemoryKind::from_name(&entry.kind).and_then(MemoryKind::allocator).map(Resource::Blocks)
        }
        "objects" => ObjectKind::from_name(&entry.kind).map(Resource::Objects),
        _ => MemoryKind::from_name(&entry.kind).map(Resource::Memory),
    }
}

fn evidence(entry: &SiteVerdictJson) -> Evidence {
    let one = &entry.evidence;
    let seconds = |seconds: u64| Nanos(seconds.saturating_mul(1_000_000_000));
    Evidence {
        live: one.live,
        live_count: one.live_count,
        window: Nanos(one.window_ns),
        window_min: one.window_min.clone(),
        peak: one.peak,
        level: (one.level_min, one.level_max),
        returns: one.returns,
        steps: one.steps,
        growing_steps: one.growing_steps,
        shrinking_steps: one.shrinking_steps,
        growth_per_hour: entry.growth_bytes_per_hour.or(entry.growth_objects_per_hour).unwrap_or(0),
        created: one.created,
        freed: one.freed,
        observed: Nanos(one.observed_ns),
        median_age: one.median_age_ns.map(Nanos),
        oldest: one.max_age_ns.map(Nanos),
        median_life: one.median_lifetime_ns.map(Nanos),
        longest_life: one.max_lifetime_ns.map(Nanos),
        overdue: one.overdue,
        time_to_verdict: entry.time_to_verdict_seconds.map(seconds),
        freed_at_end: one.freed_at_end.unwrap_or(0),
        is_freeing: one.is_freeing == Some(true),
        time_until_full: entry.time_until_full_seconds.map(seconds),
        tensors: one.tensors.as_ref().map(tensors),
        sampling: one.sampling_interval_bytes.and_then(SamplingInterval::from_bytes),
        kept_by: one.kept_by.as_deref().map(|text| sanitize(text).into()),
        ..Evidence::default()
    }
}

fn tensors(one: &TensorsJson) -> CacheTensors {
    CacheTensors {
        live: one.live_bytes,
        peak: one.peak_bytes,
        cache: one.cache_bytes,
        growth_per_hour: one.growth_bytes_per_hour,
        cache_growth_per_hour: one.cache_growth_bytes_per_hour,
        bounded: one.bounded,
        unused: one.unused_bytes,
        failed_captures: one.failed_captures,
        during_capture: one.during_capture,
    }
}
