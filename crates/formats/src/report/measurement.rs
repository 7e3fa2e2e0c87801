//! Measurements that programs request while they are traced, as JSON.

use engine::snapshot::{KeptSite, Measurement, TensorLevels};
use engine::verdict::Resource;
use engine::view::LeakResource;

use super::frame_json::{FrameJson, frames};
use super::json_objects::json_objects;
use super::verdict::json::via;
use super::verdict::kind;
use super::view::stack_location;
use crate::sanitize::sanitized;

/// Limit of sites that are listed; totals include all.
const MAX_SITES: usize = 100;

json_objects! {
    /// A measurement.
    pub struct MeasurementJson(of: &Measurement)
    let {
        let sum = |wanted: fn(LeakResource) -> bool| {
            let rows = of.kept.iter().filter(|row| wanted(LeakResource::of(row.resource)));
            rows.fold(0, |sum: u64, row| sum.saturating_add(row.bytes.0))
        };
        let is_object = |row: &&KeptSite| matches!(row.resource, Resource::Objects(_));
        let objects = of.kept.iter().filter(is_object);
    }
    {
        duration_ns: u64 = of.duration.0,
        exact: bool = of.exact,
        live_before_bytes: u64 = of.live_before.0,
        live_after_bytes: u64 = of.live_after.0,
        peak_bytes: u64 = of.peak.0,
        peak_bounds?: Option<[u64; 2]> = of.peak_bounds.map(|(low, high)| [low.0, high.0]),
        tensors?: Option<TensorLevelsJson> = of.tensors.map(TensorLevelsJson::new),
        /// Device and managed memory and tensors that were not freed, without caches.
        kept_bytes: u64 = sum(|resource| resource.is_device() || resource == LeakResource::Managed),
        kept_host_bytes: u64 = sum(|resource| resource == LeakResource::Host),
        kept_objects: u64 = objects.fold(0, |sum, row| row.count.saturating_add(sum)),
        cached_bytes: u64 = of.cached.0,
        kept: Vec<KeptSiteJson> = of.kept.iter().take(MAX_SITES).map(KeptSiteJson::new).collect(),
        sites_total: usize = of.kept.len(),
        /// Nanoseconds since the begin, and the highest live device memory from then on.
        timeline: Vec<[u64; 2]> = of.timeline.iter().map(|(at, bytes)| [at.0, bytes.0]).collect(),
    }

    pub(crate) struct TensorLevelsJson(levels: TensorLevels) {
        before_bytes: u64 = levels.before.0,
        after_bytes: u64 = levels.after.0,
        peak_bytes: u64 = levels.peak.0,
    }

    /// Memory or objects of one site.
    pub struct KeptSiteJson(row: &KeptSite) {
        site: String = row.site.to_string(),
        location: String = sanitized(&stack_location(&row.frames)),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        via: Vec<String> = via(&row.frames),
        resource: &'static str = LeakResource::of(row.resource).name(),
        kind: &'static str = kind(row.resource),
        bytes: u64 = row.bytes.0,
        count: u64 = row.count,
        /// Only if these are estimates from sampled blocks.
        sampling_interval_bytes?: Option<u64> = row.sampling.map(|one| one.bytes().0),
        addresses: Vec<u64> = row.addresses.clone(),
        frames: Vec<FrameJson> = frames(&row.frames),
    }
}
