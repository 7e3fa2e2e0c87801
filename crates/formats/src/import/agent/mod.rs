//! Answers of an agent's API, as snapshots. The reverse of [`crate::report::live::json`], as far as
//! views need it: what an answer does not contain stays empty. Unknown fields are ignored, so older
//! and newer agents can be read.

mod json;
mod process;
mod verdict;

use std::sync::Arc;

use engine::model::{
    Bytes, CallStack, Frame, GpuId, Language, LostDelta, Nanos, SiteId, SiteName, StackTable,
    Timestamp, UnknownReason,
};
use engine::snapshot::{GpuView, LostTotals, SiteView, Snapshot, Uncertainty, Undecided};

use crate::WallClock;
use crate::export::{CaptureSource, GpuLabel, ReportContext};
use crate::recording::FunctionTable;
use crate::report::frame_json::FrameJson;
use crate::report::live::json::{ReportJson, SiteJson, UncertaintyJson};
use crate::report::tables::incidents::Incident;
use crate::report::verdict::json::SiteVerdictJson;
use crate::report::view::json::GpuRowJson;

/// State of a host, as its agent reports it.
pub struct AgentState {
    /// Snapshot. Times are nanoseconds since 1970.
    pub snapshot: Snapshot,
    /// GPUs and clock.
    pub context: ReportContext,
    /// Out-of-memory errors and anomalies since the agent's last snapshot.
    pub events: Vec<Incident>,
}

/// Reads `/api/v1/snapshot`. `zone`: the time zone in which times are shown.
///
/// # Errors
/// It is not such an answer.
pub fn snapshot(
    bytes: &[u8],
    zone: impl FnOnce(WallClock) -> WallClock,
) -> Result<AgentState, serde_json::Error> {
    let _: json::RequiredFields = serde_json::from_slice(bytes)?;
    let report: ReportJson = serde_json::from_slice(bytes)?;
    let (view, tensor_sites) = (&report.view, report.tensor_sites.as_deref().unwrap_or_default());
    let mut stacks = Stacks::default();
    for one in report.suspects.iter().chain(&report.other_verdicts) {
        stacks.learn(&one.frames);
    }
    for site in report.sites.iter().chain(tensor_sites) {
        stacks.learn(&site.frames);
    }
    let at = time(&report.time);
    let observed = Nanos((view.observed_seconds * 1e9) as u64);
    let verdicts = |list: &[SiteVerdictJson], stacks: &mut Stacks| {
        list.iter().filter_map(|one| verdict::read(one, stacks)).collect::<Vec<_>>()
    };
    let mut snapshot = Snapshot {
        at,
        observed,
        is_live: true,
        live_bytes: Bytes(report.live_bytes),
        live_allocations: report.live_allocations,
        uncertainty: uncertainty(report.uncertainty.as_ref(), report.live_bytes),
        unknown_calls: report
            .unknown_calls
            .iter()
            .map(|(name, calls)| ((**name).into(), *calls))
            .collect(),
        suspects: verdicts(&report.suspects, &mut stacks),
        suspects_total: report.suspects_total,
        other_verdicts: verdicts(&report.other_verdicts, &mut stacks),
        tensor_sites: tensor_sites.iter().map(|one| site(one, &mut stacks)).collect(),
        tensor_sites_total: report.tensor_sites_total.unwrap_or(0),
        sites_total: report.sites_total,
        processes: report.processes.iter().map(|one| process::read(one, at)).collect(),
        gpus: view.gpus.iter().filter_map(gpu).collect(),
        marks: report.marks.iter().filter_map(json::mark).collect(),
        ..Snapshot::default()
    };
    set_undecided(&mut snapshot, &report);
    let labels = view.gpus.iter().filter_map(|gpu| {
        let (index, total) = (gpu.index?, gpu.total_bytes.unwrap_or(0));
        let (uuid, name) = (String::new(), gpu.name.clone());
        Some(GpuLabel { id: GpuId(index), uuid, name, total_bytes: total })
    });
    let start = Timestamp(at.0.saturating_sub(observed.0));
    let utc = i64::try_from(start.0).unwrap_or(0);
    let context = ReportContext {
        clock: zone(WallClock::recorded(start, utc, None, 0).in_local_time()),
        function: |_| "an unknown function",
        recorded: FunctionTable::default(),
        gpus: labels.collect(),
        source: report.source.as_deref().and_then(CaptureSource::from_name),
    };
    let clock = &context.clock;
    let events = report.out_of_memory.iter().map(|one| json::out_of_memory(one, clock));
    let events = events.chain(report.anomalies.iter().map(|one| json::anomaly(one, clock)));
    let events = events.collect();
    Ok(AgentState { snapshot, context, events })
}

/// Reads `/api/v1/sites?pid=PID`.
///
/// # Errors
/// It is not such an answer.
pub fn sites(bytes: &[u8]) -> Result<Vec<SiteView>, serde_json::Error> {
    let list: json::SiteList = serde_json::from_slice(bytes)?;
    let mut stacks = Stacks::default();
    list.sites.iter().for_each(|site| stacks.learn(&site.frames));
    // In the list of one process, its values are those of the site.
    let own = |one: &SiteJson| SiteView { processes: Vec::new(), ..site(one, &mut stacks) };
    Ok(list.sites.iter().map(own).collect())
}

/// Reads `/api/v1/incidents`, newest first. `clock`: that of the agent's snapshot.
///
/// # Errors
/// It is not such an answer.
pub fn incidents(bytes: &[u8], clock: &WallClock) -> Result<Vec<Incident>, serde_json::Error> {
    let list: json::IncidentList = serde_json::from_slice(bytes)?;
    Ok(list.incidents.iter().map(|one| one.incident(clock)).collect())
}

/// Call stacks of an answer: each is judged with all others in mind.
#[derive(Default)]
struct Stacks(StackTable);

impl Stacks {
    fn learn(&mut self, frames: &[FrameJson]) {
        let _ = self.read(frames);
    }

    fn read(&mut self, frames: &[FrameJson]) -> CallStack {
        let frames: Vec<Frame> = frames.iter().map(frame).collect();
        self.0.call_stack_of(&frames)
    }
}

fn frame(entry: &FrameJson) -> Frame {
    let text = |text: &Option<String>| text.as_deref().map(Arc::from);
    Frame {
        function: entry.function.as_str().into(),
        file: text(&entry.file),
        line: entry.line.unwrap_or(0),
        module: text(&entry.module),
        language: Language::from_name(&entry.language).unwrap_or_default(),
        unknown: entry
            .unknown_reason
            .as_deref()
            .map(|reason| UnknownReason::from_name(reason).unwrap_or(UnknownReason::NotRecorded)),
    }
}

/// Parses the name of a site.
fn site_name(text: &str) -> SiteName {
    let pending = text.strip_prefix("pending-").and_then(|id| id.parse().ok());
    match (text, pending) {
        ("none", _) => SiteName::Unknown,
        ("other", _) => SiteName::Other,
        (_, Some(id)) => SiteName::Pending(SiteId(id)),
        _ => SiteName::from_text(text).unwrap_or(SiteName::Unknown),
    }
}

/// Parses a time; 0 if the text is not one.
fn time(text: &str) -> Timestamp {
    let nanos = text.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_nanosecond);
    Timestamp(u64::try_from(nanos).unwrap_or(0))
}

fn gpu(row: &GpuRowJson) -> Option<GpuView> {
    let free = row.total_bytes?.saturating_sub(row.used_bytes?);
    Some(GpuView {
        gpu: GpuId(row.index?),
        free_bytes: Bytes(free),
        growth_per_hour: row.growth_bytes_per_hour,
    })
}

fn site(entry: &SiteJson, stacks: &mut Stacks) -> SiteView {
    process::site(entry, stacks.read(&entry.frames))
}

fn uncertainty(entry: Option<&UncertaintyJson>, live: u64) -> Uncertainty {
    let Some(entry) = entry else {
        let (live_min, live_max) = (Bytes(live), Bytes(live));
        return Uncertainty { live_min, live_max, ..Uncertainty::default() };
    };
    Uncertainty {
        lost: LostTotals {
            counts: LostDelta {
                allocations: entry.lost_allocations,
                allocated_bytes: entry.lost_allocated_bytes,
                frees: entry.lost_frees,
                failures: entry.lost_failures,
                other: entry.lost_other,
                stacks: entry.lost_stacks,
                processes: entry.lost_processes.unwrap_or(0),
                ..LostDelta::default()
            },
            since: None,
        },
        live_min: Bytes(entry.live_bytes_min),
        live_max: Bytes(entry.live_bytes_max),
        implied_frees: entry.implied_frees,
        before_trace: entry.before_trace,
        capture_ended: entry.capture_end_time.as_deref().map(time),
        unknown_context: entry.unknown_context,
        ambiguous_calls: entry.ambiguous_calls,
        unknown_calls: entry.unknown_calls,
    }
}

/// Sets how long processes have to wait for a verdict. Only the total of sites is known.
fn set_undecided(snapshot: &mut Snapshot, report: &ReportJson) {
    let Some(seconds) = report.view.too_early_seconds else { return };
    let wait = Nanos((seconds * 1e9) as u64);
    let mut rest = report.view.undecided_sites;
    let processes = snapshot.processes.iter_mut().zip(&report.processes);
    let mut waiting: Vec<_> = processes.filter(|(_, one)| one.row.verdict == "too_early").collect();
    let last = waiting.len().saturating_sub(1);
    for (index, (process, _)) in waiting.iter_mut().enumerate() {
        let sites = if index == last { rest } else { 1.min(rest) };
        rest -= sites;
        process.undecided = Some(Undecided { sites, wait });
    }
}
