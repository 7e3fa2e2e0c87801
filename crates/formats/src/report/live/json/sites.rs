//! Allocation sites as JSON.

use engine::snapshot::{SiteHistory, SiteKindView, SiteProcess, SiteView};
use serde::Serialize;

use super::ReportContext;
use super::objects::SiteObjectsJson;
use crate::report::analysis::json::{FrameJson, frame};

/// A site of all processes.
#[derive(Serialize)]
pub struct SiteJson {
    id: String,
    live_bytes: u64,
    live_allocations: u64,
    delta_bytes: i64,
    allocations_total: u64,
    bytes_total: u64,
    frees_total: u64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_time: Option<String>,
    first_seen: String,
    last_seen: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    median_lifetime_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lifetime_ns: Option<u64>,
    lifetime_histogram: Vec<LifetimeBucketJson>,
    history: HistoryJson,
    kinds: Vec<SiteKindJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    objects: Vec<SiteObjectsJson>,
    processes: Vec<SiteProcessJson>,
    frames: Vec<FrameJson>,
}

/// A bucket of the lifetime histogram.
#[derive(Serialize)]
struct LifetimeBucketJson {
    min_ns: u64,
    count: u64,
}

#[derive(Serialize)]
struct HistoryJson {
    since: String,
    window_ns: u64,
    live_bytes: Vec<u64>,
}

#[derive(Serialize)]
struct SiteKindJson {
    kind: &'static str,
    live_bytes: u64,
    live_allocations: u64,
    allocations_total: u64,
    bytes_total: u64,
    frees_total: u64,
    peak_bytes: u64,
}

#[derive(Serialize)]
struct SiteProcessJson {
    pid: Option<u32>,
    live_bytes: u64,
    live_allocations: u64,
}

/// A site of one process; its frames are in the list of all sites.
#[derive(Serialize)]
pub(super) struct ProcessSiteJson {
    id: String,
    live_bytes: u64,
    live_allocations: u64,
    allocations_total: u64,
    bytes_total: u64,
    kinds: Vec<SiteKindJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    objects: Vec<SiteObjectsJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    frames: Vec<FrameJson>,
}

impl SiteJson {
    /// Returns the object of a site.
    #[must_use]
    pub fn new(site: &SiteView, context: &ReportContext) -> Self {
        let time = |at| context.clock.precise(at);
        Self {
            id: site.name.to_string(),
            live_bytes: site.live_bytes.0,
            live_allocations: site.live_allocations,
            delta_bytes: site.grown,
            allocations_total: site.allocations_total,
            bytes_total: site.bytes_total.0,
            frees_total: site.freed_total,
            peak_bytes: site.peak_bytes.0,
            peak_time: site.peak_at.map(time),
            first_seen: time(site.seen.0),
            last_seen: time(site.seen.1),
            median_lifetime_ns: site.median_lifetime().map(|time| time.0),
            max_lifetime_ns: site.longest_lifetime.map(|time| time.0),
            lifetime_histogram: site.lifetimes.iter().map(lifetimes).collect(),
            history: HistoryJson::new(&site.growth, context),
            kinds: site.kinds.iter().map(SiteKindJson::new).collect(),
            objects: site.objects.iter().map(SiteObjectsJson::new).collect(),
            processes: site.processes.iter().map(SiteProcessJson::new).collect(),
            frames: site.frames.iter().map(frame).collect(),
        }
    }
}

impl ProcessSiteJson {
    /// `frames`: whether to include the frames. A site of an ended process may be missing in the
    /// list of all sites.
    pub(super) fn new(site: &SiteView, frames: bool) -> Self {
        let shown = if frames { &site.frames[..] } else { &[] };
        Self {
            id: site.name.to_string(),
            live_bytes: site.live_bytes.0,
            live_allocations: site.live_allocations,
            allocations_total: site.allocations_total,
            bytes_total: site.bytes_total.0,
            kinds: site.kinds.iter().map(SiteKindJson::new).collect(),
            objects: site.objects.iter().map(SiteObjectsJson::new).collect(),
            frames: shown.iter().map(frame).collect(),
        }
    }
}

fn lifetimes((power, count): &(u8, u64)) -> LifetimeBucketJson {
    let from = 1_u64.checked_shl(u32::from(*power)).unwrap_or(u64::MAX);
    LifetimeBucketJson { min_ns: if *power == 0 { 0 } else { from }, count: *count }
}

impl HistoryJson {
    fn new(growth: &SiteHistory, context: &ReportContext) -> Self {
        Self {
            since: context.clock.precise(growth.start),
            window_ns: growth.window.0,
            live_bytes: growth.live.iter().map(|bytes| bytes.0).collect(),
        }
    }
}

impl SiteKindJson {
    fn new(view: &SiteKindView) -> Self {
        Self {
            kind: view.kind.name(),
            live_bytes: view.live_bytes.0,
            live_allocations: view.live_allocations,
            allocations_total: view.allocations_total,
            bytes_total: view.bytes_total.0,
            frees_total: view.freed_total,
            peak_bytes: view.peak_bytes.0,
        }
    }
}

impl SiteProcessJson {
    fn new(view: &SiteProcess) -> Self {
        Self {
            pid: view.pid.map(|pid| pid.0),
            live_bytes: view.live_bytes.0,
            live_allocations: view.live_allocations,
        }
    }
}
