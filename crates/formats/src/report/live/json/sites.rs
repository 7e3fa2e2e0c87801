//! Allocation sites as JSON.

use engine::snapshot::{SiteHistory, SiteKindView, SiteProcess, SiteView};

use super::parts::SiteObjectsJson;
use crate::export::ReportContext;
use crate::report::frame_json::{FrameJson, frames};
use crate::report::json_objects::{Word, json_objects};

json_objects! {
    /// A site of all processes.
    pub struct SiteJson(site: &SiteView, context: &ReportContext): Deserialize
    let { let time = |at| context.clock.precise(at); }
    {
        id: String = site.name.to_string(),
        live_bytes: u64 = site.live_bytes.0,
        live_allocations: u64 = site.live_allocations,
        delta_bytes: i64 = site.grown,
        allocations_total: u64 = site.allocations_total,
        bytes_total: u64 = site.bytes_total.0,
        frees_total: u64 = site.freed_total,
        /// Only if these values are estimates from sampled blocks.
        sampling_interval_bytes?: Option<u64> = site.sampling.map(|one| one.bytes().0),
        peak_bytes: u64 = site.peak_bytes.0,
        peak_time?: Option<String> = site.peak_at.map(time),
        first_seen: String = time(site.seen.0),
        last_seen: String = time(site.seen.1),
        median_lifetime_ns?: Option<u64> = site.median_lifetime().map(|time| time.0),
        max_lifetime_ns?: Option<u64> = site.longest_lifetime.map(|time| time.0),
        lifetime_histogram: Vec<LifetimeBucketJson> =
            site.lifetimes.iter().map(LifetimeBucketJson::new).collect(),
        history: HistoryJson = HistoryJson::new(&site.growth, context),
        kinds: Vec<SiteKindJson> = site.kinds.iter().map(SiteKindJson::new).collect(),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        objects: Vec<SiteObjectsJson> = site.objects.iter().map(SiteObjectsJson::new).collect(),
        processes: Vec<SiteProcessJson> = site.processes.iter().map(SiteProcessJson::new).collect(),
        frames: Vec<FrameJson> = frames(&site.frames),
    }

    /// A bucket of the lifetime histogram.
    pub(crate) struct LifetimeBucketJson(bucket: &(u8, u64)): Deserialize
    let { let from = 1_u64.checked_shl(u32::from(bucket.0)).unwrap_or(u64::MAX); }
    {
        min_ns: u64 = if bucket.0 == 0 { 0 } else { from },
        count: u64 = bucket.1,
    }

    pub(crate) struct HistoryJson(history: &SiteHistory, context: &ReportContext): Deserialize {
        since: String = context.clock.precise(history.start),
        window_ns: u64 = history.window.0,
        live_bytes: Vec<u64> = history.live.iter().map(|bytes| bytes.0).collect(),
    }

    pub(crate) struct SiteKindJson(view: &SiteKindView): Deserialize {
        kind: Word = view.kind.name().into(),
        live_bytes: u64 = view.live_bytes.0,
        live_allocations: u64 = view.live_allocations,
        allocations_total: u64 = view.allocations_total,
        bytes_total: u64 = view.bytes_total.0,
        frees_total: u64 = view.freed_total,
        peak_bytes: u64 = view.peak_bytes.0,
    }

    pub(crate) struct SiteProcessJson(view: &SiteProcess): Deserialize {
        pid: Option<u32> = view.pid.map(|pid| pid.0),
        live_bytes: u64 = view.live_bytes.0,
        live_allocations: u64 = view.live_allocations,
    }

    /// A site of one process; its frames are in the list of all sites. `with_frames`: also here,
    /// because a site of an ended process may be missing there.
    pub(crate) struct ProcessSiteJson(site: &SiteView, with_frames: bool) {
        id: String = site.name.to_string(),
        live_bytes: u64 = site.live_bytes.0,
        live_allocations: u64 = site.live_allocations,
        allocations_total: u64 = site.allocations_total,
        bytes_total: u64 = site.bytes_total.0,
        kinds: Vec<SiteKindJson> = site.kinds.iter().map(SiteKindJson::new).collect(),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        objects: Vec<SiteObjectsJson> = site.objects.iter().map(SiteObjectsJson::new).collect(),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        frames: Vec<FrameJson> = if with_frames { frames(&site.frames) } else { Vec::new() },
    }
}
