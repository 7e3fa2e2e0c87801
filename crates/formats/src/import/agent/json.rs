//! Fields of answers that are read.

use serde::Deserialize;

use crate::report::tables::incidents::Incident;
use crate::sanitize::sanitize;

#[derive(Deserialize)]
pub(super) struct Report {
    /// Only the API of an agent has this field.
    #[serde(rename = "api")]
    _api: String,
    pub(super) time: String,
    #[serde(default)]
    pub(super) source: Option<String>,
    #[serde(default)]
    pub(super) observed_seconds: f64,
    #[serde(default)]
    pub(super) live_bytes: u64,
    #[serde(default)]
    pub(super) live_allocations: u64,
    #[serde(default)]
    pub(super) uncertainty: Option<Uncertain>,
    #[serde(default)]
    pub(super) gpus: Vec<Gpu>,
    pub(super) processes: Vec<Process>,
    #[serde(default)]
    pub(super) suspects: Vec<Verdict>,
    #[serde(default)]
    pub(super) suspects_total: u64,
    #[serde(default)]
    pub(super) other_verdicts: Vec<Verdict>,
    #[serde(default)]
    pub(super) sites: Vec<Site>,
    #[serde(default)]
    pub(super) sites_total: u64,
    #[serde(default)]
    pub(super) tensor_sites: Vec<Site>,
    #[serde(default)]
    pub(super) tensor_sites_total: u64,
    #[serde(default)]
    pub(super) out_of_memory: Vec<OutOfMemory>,
    #[serde(default)]
    pub(super) anomalies: Vec<Anomaly>,
    #[serde(default)]
    pub(super) too_early_seconds: Option<f64>,
    #[serde(default)]
    pub(super) undecided_sites: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Uncertain {
    pub(super) live_bytes_min: u64,
    pub(super) live_bytes_max: u64,
    pub(super) lost_allocations: u64,
    pub(super) lost_allocated_bytes: u64,
    pub(super) lost_frees: u64,
    pub(super) lost_failures: u64,
    pub(super) lost_other: u64,
    pub(super) lost_stacks: u64,
    pub(super) lost_processes: u64,
    pub(super) implied_frees: u64,
    pub(super) unknown_context: u64,
    pub(super) ambiguous_calls: u64,
    pub(super) before_trace: bool,
    pub(super) capture_end_time: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Gpu {
    pub(super) index: Option<u16>,
    pub(super) name: String,
    pub(super) total_bytes: Option<u64>,
    pub(super) used_bytes: Option<u64>,
    pub(super) growth_bytes_per_hour: Option<i64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) uid: Option<u32>,
    pub(super) name: String,
    pub(super) program: String,
    pub(super) user: String,
    pub(super) container: Option<Container>,
    pub(super) exited: bool,
    pub(super) live_bytes: u64,
    pub(super) live_allocations: u64,
    pub(super) peak_bytes: u64,
    pub(super) peak_time: Option<String>,
    pub(super) allocations_total: u64,
    pub(super) frees_total: u64,
    pub(super) before_trace: bool,
    pub(super) growth_bytes_per_hour: Option<i64>,
    pub(super) verdict: String,
    pub(super) devices: Vec<Device>,
    pub(super) live_bytes_by_kind: std::collections::BTreeMap<String, u64>,
    pub(super) live_allocations_by_kind: std::collections::BTreeMap<String, u64>,
    pub(super) threads: Vec<Thread>,
    pub(super) launches_total: Option<u64>,
    pub(super) kernels: Vec<Kernel>,
    pub(super) copies: Vec<Copies>,
    pub(super) objects: Vec<Objects>,
    pub(super) torch: Option<Torch>,
    pub(super) sites_total: u64,
    pub(super) uncertainty: Option<Uncertain>,
}

#[derive(Deserialize)]
pub(super) struct Container {
    pub(super) id: String,
    #[serde(default)]
    pub(super) runtime: String,
    #[serde(default)]
    pub(super) pod: Option<Pod>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Pod {
    pub(super) uid: String,
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) container: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Device {
    pub(super) device: Option<u16>,
    pub(super) live_bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) gpu: Option<Gpu>,
    pub(super) driver_bytes: Option<u64>,
    pub(super) untracked_bytes: Option<u64>,
    pub(super) untracked_bytes_max: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Thread {
    pub(super) tid: u32,
    pub(super) name: String,
    pub(super) live_bytes: u64,
    pub(super) live_allocations: u64,
    pub(super) allocations: Vec<Allocation>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Allocation {
    pub(super) address: String,
    pub(super) device: Option<u16>,
    pub(super) bytes: u64,
    pub(super) kind: String,
    pub(super) age_ms: u64,
    pub(super) address_type: String,
    pub(super) site: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Kernel {
    pub(super) symbol: Option<String>,
    pub(super) kind: String,
    pub(super) handle: String,
    pub(super) handles: u64,
    pub(super) launches: u64,
    pub(super) launches_per_second: f64,
    pub(super) captured: u64,
    pub(super) failed: u64,
    pub(super) checked: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Copies {
    pub(super) direction: String,
    pub(super) mode: String,
    pub(super) calls: u64,
    pub(super) bytes: u64,
    pub(super) recent_bytes_per_second: f64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Objects {
    pub(super) kind: String,
    pub(super) live: u64,
    pub(super) created: u64,
    pub(super) destroyed: u64,
    pub(super) released: u64,
    pub(super) peak: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Torch {
    pub(super) lost_events: u64,
    pub(super) dropped_blocks: u64,
    pub(super) unavailable_reason: Option<String>,
    pub(super) devices: Vec<TorchDevice>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct TorchDevice {
    pub(super) device: u16,
    pub(super) allocated_bytes: u64,
    pub(super) reserved_bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) live_blocks: u64,
    pub(super) tracked_bytes: u64,
    pub(super) allocations_total: u64,
    pub(super) frees_total: u64,
    pub(super) ooms_total: u64,
    pub(super) releasable_bytes: Option<u64>,
    pub(super) fragmented_bytes: Option<u64>,
    pub(super) largest_free_bytes: Option<u64>,
    pub(super) fragmentation_unknown_reason: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct SiteList {
    pub(super) sites: Vec<Site>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Site {
    pub(super) id: String,
    pub(super) live_bytes: u64,
    pub(super) live_allocations: u64,
    pub(super) delta_bytes: i64,
    pub(super) allocations_total: u64,
    pub(super) bytes_total: u64,
    pub(super) frees_total: u64,
    pub(super) peak_bytes: u64,
    pub(super) max_lifetime_ns: Option<u64>,
    pub(super) lifetime_histogram: Vec<LifetimeBucket>,
    pub(super) history: History,
    pub(super) kinds: Vec<SiteKind>,
    pub(super) objects: Vec<Objects>,
    pub(super) processes: Vec<SiteProcessEntry>,
    pub(super) frames: Vec<FrameEntry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct LifetimeBucket {
    pub(super) min_ns: u64,
    pub(super) count: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct History {
    pub(super) since: String,
    pub(super) window_ns: u64,
    pub(super) live_bytes: Vec<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct SiteKind {
    pub(super) kind: String,
    pub(super) live_bytes: u64,
    pub(super) live_allocations: u64,
    pub(super) allocations_total: u64,
    pub(super) bytes_total: u64,
    pub(super) frees_total: u64,
    pub(super) peak_bytes: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct SiteProcessEntry {
    pub(super) pid: Option<u32>,
    pub(super) live_bytes: u64,
    pub(super) live_allocations: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct FrameEntry {
    pub(super) function: String,
    pub(super) file: Option<String>,
    pub(super) line: Option<u32>,
    pub(super) module: Option<String>,
    pub(super) language: String,
    pub(super) unknown_reason: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Verdict {
    pub(super) pid: Option<u32>,
    pub(super) process: String,
    pub(super) site: String,
    pub(super) resource: String,
    pub(super) kind: String,
    pub(super) device: Option<u16>,
    pub(super) thread: Option<ThreadName>,
    pub(super) verdict: String,
    pub(super) confidence: String,
    pub(super) growth_bytes_per_hour: Option<u64>,
    pub(super) growth_objects_per_hour: Option<u64>,
    pub(super) time_until_full_seconds: Option<u64>,
    pub(super) time_to_verdict_seconds: Option<u64>,
    pub(super) evidence: EvidenceEntry,
    pub(super) frames: Vec<FrameEntry>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct ThreadName {
    pub(super) tid: u32,
    pub(super) name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct EvidenceEntry {
    pub(super) live: u64,
    pub(super) live_count: u64,
    pub(super) window_ns: u64,
    pub(super) window_min: Vec<u64>,
    pub(super) peak: u64,
    pub(super) level_min: u64,
    pub(super) level_max: u64,
    pub(super) returns: u32,
    pub(super) steps: u32,
    pub(super) growing_steps: u32,
    pub(super) shrinking_steps: u32,
    pub(super) created: u64,
    pub(super) freed: u64,
    pub(super) observed_ns: u64,
    pub(super) median_age_ns: Option<u64>,
    pub(super) max_age_ns: Option<u64>,
    pub(super) median_lifetime_ns: Option<u64>,
    pub(super) max_lifetime_ns: Option<u64>,
    pub(super) overdue: u64,
    pub(super) freed_at_end: Option<u64>,
    pub(super) tensors: Option<Tensors>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Tensors {
    pub(super) live_bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) cache_bytes: u64,
    pub(super) growth_bytes_per_hour: u64,
    pub(super) cache_growth_bytes_per_hour: u64,
    pub(super) bounded: bool,
    pub(super) unused_bytes: u64,
    pub(super) failed_captures: u64,
    pub(super) during_capture: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct OutOfMemory {
    time: String,
    pid: u32,
    process: String,
    requested_bytes: Option<u64>,
    holders: Vec<Holder>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Holder {
    pid: u32,
    process: String,
    live_bytes: u64,
}

impl OutOfMemory {
    pub(super) fn incident(&self) -> Incident {
        let requested = self.requested_bytes.map_or_else(
            || "memory".to_owned(),
            |bytes| engine::model::units::Bytes(bytes).to_string(),
        );
        let held = |one: &Holder| {
            let bytes = engine::model::units::Bytes(one.live_bytes);
            format!("{bytes} held by {} (pid {})", sanitize(&one.process), one.pid)
        };
        Incident {
            time: clock_time(&self.time),
            kind: "out of memory".to_owned(),
            pid: Some(self.pid),
            program: sanitize(&self.process).into_owned(),
            summary: format!("requested {requested}"),
            details: self.holders.iter().map(held).collect(),
        }
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Anomaly {
    time: String,
    pid: u32,
    process: String,
    summary: String,
}

impl Anomaly {
    pub(super) fn incident(&self) -> Incident {
        Incident {
            time: clock_time(&self.time),
            kind: "anomaly".to_owned(),
            pid: Some(self.pid),
            program: sanitize(&self.process).into_owned(),
            summary: sanitize(&self.summary).into_owned(),
            details: Vec::new(),
        }
    }
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
    pub(super) fn incident(&self) -> Incident {
        let text = |text: &str| sanitize(text).into_owned();
        Incident {
            time: text(self.time.get(..19).unwrap_or(&self.time)),
            kind: text(&self.trigger.replace('_', " ")),
            pid: self.pid,
            program: text(&self.process),
            summary: text(&self.summary),
            details: vec![text(&self.cause), format!("incident {}", sanitize(&self.id))],
        }
    }
}

/// Returns the time of day of an RFC 3339 time.
fn clock_time(text: &str) -> String {
    let time = text.split_once('T').map_or(text, |(_, time)| time);
    sanitize(time.get(..8).unwrap_or(time)).into_owned()
}
