//! Measurements that programs request while they are traced, as JSON.

use engine::snapshot::{KeptSite, Measurement, TensorLevels};
use engine::verdict::Resource;
use engine::view::LeakResource;
use serde::Serialize;

use super::analysis::json::{FrameJson, frame};
use super::verdict::json::via;
use super::verdict::kind;
use super::view::stack_location;
use crate::sanitize::sanitize;

/// Limit of sites that are listed; totals include all.
const MAX_SITES: usize = 100;

/// A measurement.
#[derive(Serialize)]
pub struct MeasurementJson {
    duration_ns: u64,
    exact: bool,
    live_before_bytes: u64,
    live_after_bytes: u64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_bounds: Option<[u64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensors: Option<TensorLevelsJson>,
    /// Device and managed memory and tensors that were not freed, without caches.
    kept_bytes: u64,
    kept_host_bytes: u64,
    kept_objects: u64,
    cached_bytes: u64,
    kept: Vec<KeptSiteJson>,
    sites_total: usize,
    /// Nanoseconds since the begin, and the highest live device memory from then on.
    timeline: Vec<[u64; 2]>,
}

#[derive(Serialize)]
struct TensorLevelsJson {
    before_bytes: u64,
    after_bytes: u64,
    peak_bytes: u64,
}

/// Memory or objects of one site.
#[derive(Serialize)]
pub struct KeptSiteJson {
    site: String,
    location: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    via: Vec<String>,
    resource: &'static str,
    kind: &'static str,
    bytes: u64,
    count: u64,
    addresses: Vec<u64>,
    frames: Vec<FrameJson>,
}

impl MeasurementJson {
    /// Returns the object of a measurement.
    #[must_use]
    pub fn new(measurement: &Measurement) -> Self {
        let sum = |wanted: fn(LeakResource) -> bool| {
            let rows = measurement.kept.iter();
            let rows = rows.filter(|row| wanted(LeakResource::of(row.resource)));
            rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes.0))
        };
        let is_object = |row: &&KeptSite| matches!(row.resource, Resource::Objects(_));
        let objects = measurement.kept.iter().filter(is_object);
        Self {
            duration_ns: measurement.duration.0,
            exact: measurement.exact,
            live_before_bytes: measurement.live_before.0,
            live_after_bytes: measurement.live_after.0,
            peak_bytes: measurement.peak.0,
            peak_bounds: measurement.peak_bounds.map(|(low, high)| [low.0, high.0]),
            tensors: measurement.tensors.map(TensorLevelsJson::new),
            kept_bytes: sum(|resource| resource.is_device() || resource == LeakResource::Managed),
            kept_host_bytes: sum(|resource| resource == LeakResource::Host),
            kept_objects: objects.fold(0, |sum, row| row.count.saturating_add(sum)),
            cached_bytes: measurement.cached.0,
            kept: measurement.kept.iter().take(MAX_SITES).map(KeptSiteJson::new).collect(),
            sites_total: measurement.kept.len(),
            timeline: measurement.timeline.iter().map(|(at, bytes)| [at.0, bytes.0]).collect(),
        }
    }
}

impl TensorLevelsJson {
    const fn new(levels: TensorLevels) -> Self {
        Self {
            before_bytes: levels.before.0,
            after_bytes: levels.after.0,
            peak_bytes: levels.peak.0,
        }
    }
}

impl KeptSiteJson {
    /// Returns the object of a site.
    #[must_use]
    pub fn new(row: &KeptSite) -> Self {
        Self {
            site: row.site.to_string(),
            location: sanitize(&stack_location(&row.frames)).into_owned(),
            via: via(&row.frames),
            resource: LeakResource::of(row.resource).name(),
            kind: kind(row.resource),
            bytes: row.bytes.0,
            count: row.count,
            addresses: row.addresses.clone(),
            frames: row.frames.iter().map(frame).collect(),
        }
    }
}
