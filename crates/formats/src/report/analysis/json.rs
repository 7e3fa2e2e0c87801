//! Analyses as one JSON object. Its names are a contract: `docs/reference/json-report.md`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use engine::analysis::diff::{DiffRow, DiffSide};
use engine::analysis::fragmentation::PoolFragmentation;
use engine::analysis::groups::Group;
use engine::analysis::leaks::{LeakGroup, LeakReport};
use engine::analysis::peak::{GroupAtPeak, LiveAtPeak, Peak};
use engine::analysis::phases::PhaseUsage;
use engine::analysis::summary::{DeviceSummary, ProcessSummary, SummaryReport};
use engine::analysis::usage::UsageSeries;
use engine::analysis::{Amount, GroupKey};
use engine::model::{MemoryKind, Timestamp};
use engine::verdict::{SiteVerdict, Verdict};
use engine::view::View;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::views::fragmentation::{AdviceRow, FragmentationView, WouldFit, pool_name, pool_pid};
use super::views::libraries::{self, LibraryRow};
use super::views::marks;
use super::{AnalysisResult, AnalyzedFile, DiffView, OverlaySeries};
use crate::import::{FileState, Warning};
use crate::report::frame_json::{FrameJson, long_text};
use crate::report::json_objects::json_objects;
use crate::report::verdict::json::{AnomalyJson, SiteVerdictJson};
use crate::report::view::gpu_facts;
use crate::report::view::json::ViewJson;

/// Writes a result as one object on one line.
pub fn write(
    out: &mut dyn Write,
    file: &AnalyzedFile<'_>,
    result: AnalysisResult<'_>,
) -> io::Result<()> {
    match result {
        AnalysisResult::Summary(summary, ..) => {
            write_report(out, file, &result, SummaryJson::new(summary, file))
        }
        AnalysisResult::Leaks(leaks, state) => {
            write_report(out, file, &result, LeaksJson::new(leaks, state, file))
        }
        AnalysisResult::Sites(sites) => {
            write_report(out, file, &result, SitesJson::new(sites, file))
        }
        AnalysisResult::Libraries(report) => {
            let rows = libraries::rows(report, file);
            write_report(out, file, &result, LibrariesJson::new(&rows, file))
        }
        AnalysisResult::Fragmentation(view) => {
            write_report(out, file, &result, FragmentationJson::new(view))
        }
        AnalysisResult::Marks(phases) => {
            write_report(out, file, &result, MarksJson::new(phases, file))
        }
        AnalysisResult::Peak(peaks) => {
            let peaks = Streamed(peaks.iter().map(|peak| In(peak, file)));
            write_report(out, file, &result, PeaksBody { peaks })
        }
        AnalysisResult::Usage(report, overlays) => {
            let body = SeriesBody {
                series: Streamed(report.series.iter().map(|series| In(series, file))),
                totals: Streamed(report.totals.iter().map(|series| In(series, file))),
                overlays: Streamed(overlays.iter().map(|overlay| In(overlay, file))),
            };
            write_report(out, file, &result, body)
        }
    }
}

/// Writes a comparison as one object on one line.
pub fn write_diff(out: &mut dyn Write, comparison: &DiffView<'_>) -> io::Result<()> {
    line(out, &DiffJson::new(comparison))
}

/// Fields of every report, and those of one analysis.
#[derive(Serialize)]
struct ReportJson<B> {
    #[serde(flatten)]
    head: HeadJson,
    analysis: &'static str,
    #[serde(flatten)]
    state: Option<StateJson>,
    #[serde(flatten)]
    body: B,
}

fn write_report(
    out: &mut dyn Write,
    file: &AnalyzedFile<'_>,
    result: &AnalysisResult<'_>,
    body: impl Serialize,
) -> io::Result<()> {
    let (head, analysis) = (HeadJson::new(file), result.name());
    let state = result.state().map(|state| StateJson::new(state, file));
    line(out, &ReportJson { head, analysis, state, body })
}

fn line(out: &mut dyn Write, object: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, object)?;
    writeln!(out)
}

json_objects! {
    struct HeadJson(of: &AnalyzedFile<'_>) {
        file: String = long_text(of.path),
        source: &'static str = of.imported.source.name(),
        producer: Option<String> = of.imported.producer.as_deref().map(long_text),
        events: u64 = of.imported.events,
        exact: bool = of.info.exact(),
        warnings: Vec<WarningJson> = of.info.warnings.iter().map(WarningJson::new).collect(),
        start_time: Option<String> = of.clock().map(|clock| clock.precise(of.info.origin())),
    }

    struct WarningJson(warning: &Warning) {
        text: String = long_text(&warning.text),
        count: u64 = warning.count,
        inexact: bool = warning.inexact,
    }

    /// GPUs, leaks and notes, as in the JSON of a trace.
    struct StateJson(state: &FileState, file: &AnalyzedFile<'_>)
    let {
        let facts = gpu_facts(&state.gpus);
        let of = View::of(&state.snapshot, &facts);
        let is_decided = |one: &SiteVerdict| one.verdict != Verdict::NotEnoughData;
        let top = file.top.unwrap_or(usize::MAX);
    }
    {
        #[serde(flatten)]
        view: ViewJson = ViewJson::new(&of, file.clock().as_ref(), top),
        verdict: &'static str = match (of.leaks.is_empty(), of.wait) {
            (false, _) => "leak",
            (true, Some(_)) => "too_early",
            (true, None) if state.snapshot.other_verdicts.iter().any(is_decided) => "none",
            (true, None) => "not_enough_data",
        },
    }

    /// Suspects, other verdicts and anomalies, as in the JSON of a trace.
    struct VerdictsJson(state: &FileState, file: &AnalyzedFile<'_>)
    let {
        let snapshot = &state.snapshot;
        let list = |all: &[SiteVerdict], with_advice: bool| {
            let shown = all.iter().take(file.shown(all.len()));
            shown.map(|one| SiteVerdictJson::new(one, with_advice)).collect()
        };
    }
    {
        suspects: Vec<SiteVerdictJson> = list(&snapshot.suspects, true),
        suspects_total: usize = snapshot.suspects.len(),
        other_verdicts: Vec<SiteVerdictJson> = list(&snapshot.other_verdicts, false),
        other_verdicts_total: usize = snapshot.other_verdicts.len(),
        anomalies: Vec<AnomalyJson> = snapshot
            .anomalies
            .iter()
            .map(|one| AnomalyJson::new(one, time(file, one.at)))
            .collect(),
    }

    /// Amount and frames of a group; others add more fields.
    struct GroupJson(key: &GroupKey, amount: Amount, file: &AnalyzedFile<'_>) {
        allocations: u64 = amount.allocations,
        bytes: u64 = amount.bytes,
        device: Option<u16> = key.device.map(|device| device.0),
        frames: Vec<FrameJson> = key
            .site
            .map(|site| file.info.stacks.frames(site).map(FrameJson::new).collect())
            .unwrap_or_default(),
        kind: &'static str = key.kind.name(),
        pid: u32 = key.pid.0,
    }

    struct LeakGroupJson(leak: &LeakGroup, file: &AnalyzedFile<'_>) {
        #[serde(flatten)]
        group: GroupJson = GroupJson::new(&leak.key, leak.amount, file),
        live_at_exit: u64 = leak.at_exit,
        allocations_total: u64 = leak.allocations_total,
    }

    struct SiteGroupJson(site: &Group, file: &AnalyzedFile<'_>) {
        #[serde(flatten)]
        group: GroupJson = GroupJson::new(&site.key, site.never_freed(), file),
        live_at_exit: u64 = site.exited.allocations,
        peak_bytes: u64 = site.peak_bytes,
        allocations_total: u64 = site.allocated.allocations,
        frees_total: u64 = site.freed,
    }

    struct LeaksJson(report: &LeakReport, state: &FileState, file: &AnalyzedFile<'_>) {
        #[serde(flatten)]
        verdicts: VerdictsJson = VerdictsJson::new(state, file),
        held_bytes: u64 = report.leaked.bytes,
        held_allocations: u64 = report.leaked.allocations,
        not_freed_bytes: u64 = report.at_exit.bytes,
        not_freed_allocations: u64 = report.at_exit.allocations,
        static_bytes: u64 = report.statics.bytes,
        static_allocations: u64 = report.statics.allocations,
        by_kind: BTreeMap<&'static str, u64> = by_kind(&report.by_kind),
        sites: Vec<LeakGroupJson> = leak_groups(&report.sites, file),
        sites_total: usize = report.sites.len(),
        managed: LeakClassJson = LeakClassJson::new(&report.managed, file),
        host_by_kind: BTreeMap<&'static str, u64> = by_kind(&report.host_by_kind),
        host: LeakClassJson = LeakClassJson::new(&report.host, file),
        other_by_kind: BTreeMap<&'static str, u64> = by_kind(&report.other_by_kind),
    }

    struct LeakClassJson(leaks: &[LeakGroup], file: &AnalyzedFile<'_>)
    let { let sum = leaks.iter().fold(Amount::default(), |sum, leak| sum.plus(leak.amount)); }
    {
        bytes: u64 = sum.bytes,
        allocations: u64 = sum.allocations,
        sites: Vec<LeakGroupJson> = leak_groups(leaks, file),
    }

    struct SitesJson(report: &SummaryReport, file: &AnalyzedFile<'_>)
    let { let groups = report.processes.iter().flat_map(|process| &process.sites); }
    {
        sites_total: usize =
            report.processes.iter().map(|process| process.sites.len() + process.more_sites).sum(),
        sites: Vec<SiteGroupJson> = groups.map(|site| SiteGroupJson::new(site, file)).collect(),
    }

    struct LibrariesJson(rows: &[LibraryRow], file: &AnalyzedFile<'_>) {
        libraries_total: usize = rows.len(),
        libraries: Vec<LibraryJson> =
            rows.iter().take(file.shown(rows.len())).map(LibraryJson::new).collect(),
    }

    struct LibraryJson(row: &LibraryRow) {
        library: String = long_text(&row.library),
        bytes: u64 = row.held.bytes,
        allocations: u64 = row.held.allocations,
        peak_bytes_max: u64 = row.peak_max,
        bytes_total: u64 = row.allocated.bytes,
        allocations_total: u64 = row.allocated.allocations,
        frees_total: u64 = row.freed,
        pids: Vec<u32> = row.pids.iter().map(|pid| pid.0).collect(),
    }

    struct MarksJson(phases: &[PhaseUsage], file: &AnalyzedFile<'_>) {
        phases_total: usize = phases.len(),
        phases: Vec<PhaseJson> =
            phases.iter().take(file.shown(phases.len())).map(|one| PhaseJson::new(one, file)).collect(),
    }

    struct PhaseJson(usage: &PhaseUsage, file: &AnalyzedFile<'_>)
    let { let phase = &usage.phase; }
    {
        label: String = long_text(&phase.label),
        r#type: &'static str = marks::kind(phase),
        pid: Option<u32> = phase.pid.map(|pid| pid.0),
        begin_time: Value = time(file, phase.begin),
        begin_ns: i64 = file.nanos(phase.begin),
        /// `null` if nothing ended it.
        end_ns: Option<i64> = phase.end.map(|end| file.nanos(end)),
        begin_bytes: u64 = usage.begin_bytes,
        peak_bytes: u64 = usage.peak_bytes,
        end_bytes: u64 = usage.end_bytes,
    }

    struct SummaryJson(report: &SummaryReport, file: &AnalyzedFile<'_>) {
        held_bytes: u64 = report.never_freed.bytes,
        held_allocations: u64 = report.never_freed.allocations,
        peak_bytes: u64 = report.peak_bytes,
        peak_time: Value = time(file, report.peak_at),
        peak_time_ns: i64 = file.nanos(report.peak_at),
        processes: Vec<ProcessJson> =
            report.processes.iter().map(|process| ProcessJson::new(process, file)).collect(),
    }

    struct ProcessJson(process: &ProcessSummary, file: &AnalyzedFile<'_>) {
        pid: u32 = process.pid.0,
        name: Option<String> = file.process(process.pid).map(long_text),
        devices: Vec<DeviceJson> =
            process.devices.iter().map(|on| DeviceJson::new(on, file)).collect(),
        sites: Vec<SiteGroupJson> =
            process.sites.iter().map(|site| SiteGroupJson::new(site, file)).collect(),
        sites_total: usize = process.sites.len() + process.more_sites,
    }

    struct DeviceJson(on: &DeviceSummary, file: &AnalyzedFile<'_>) {
        device: Option<u16> = on.device.map(|device| device.0),
        allocations_total: u64 = on.allocations,
        frees_total: u64 = on.frees,
        released_total: u64 = on.released,
        live_bytes: u64 = on.live.bytes,
        live_allocations: u64 = on.live.allocations,
        not_freed_bytes: u64 = on.never_freed.bytes.saturating_sub(on.live.bytes),
        not_freed_allocations: u64 =
            on.never_freed.allocations.saturating_sub(on.live.allocations),
        peak_bytes: u64 = on.peak_bytes,
        peak_time: Value = time(file, on.peak_at),
        peak_time_ns: i64 = file.nanos(on.peak_at),
        held_by_kind: BTreeMap<&'static str, u64> = by_kind(&on.kinds),
    }

    struct FragmentationJson(view: &FragmentationView) {
        pools: Vec<PoolJson> = view.pools.iter().map(PoolJson::new).collect(),
        advice: Vec<AdviceRow> = view.advice.clone(),
        would_fit: Vec<WouldFit> = view.would_fit.clone(),
    }

    struct PoolJson(of: &PoolFragmentation) {
        device: Option<u16> = of.device.map(|device| device.0),
        pid: Option<u32> = pool_pid(of).map(|pid| pid.0),
        pool: String = pool_name(of),
        stream: Option<u64> = of.stream.map(|stream| stream.0),
        reserved_bytes: Option<u64> = of.reserved_bytes,
        active_bytes: u64 = of.active_bytes,
        requested_bytes: Option<u64> = of.requested_bytes,
        largest_free_bytes: Option<u64> = of.largest_free_bytes,
        internal_ratio: Option<f64> = of.internal,
        external_ratio: Option<f64> = of.external,
        releasable_bytes: Option<u64> = of.releasable_bytes,
        fragmented_bytes: Option<u64> = of.stuck_bytes,
    }

    struct DiffJson(of: &DiffView<'_>)
    let { let (diff, shown) = (of.diff, of.after.shown(of.diff.rows.len())); }
    {
        analysis: &'static str = "diff",
        exact: bool = of.before.info.exact() && of.after.info.exact(),
        before: HeadJson = HeadJson::new(&of.before),
        after: HeadJson = HeadJson::new(&of.after),
        held_bytes: [u64; 2] = [diff.never_freed.0.bytes, diff.never_freed.1.bytes],
        held_allocations: [u64; 2] =
            [diff.never_freed.0.allocations, diff.never_freed.1.allocations],
        peak_bytes: [u64; 2] = [diff.peak_bytes.0, diff.peak_bytes.1],
        sites_total: usize = diff.rows.len(),
        sites: Vec<DiffRowJson> =
            diff.rows.iter().take(shown).map(|row| DiffRowJson::new(row, of)).collect(),
    }

    struct DiffRowJson(row: &DiffRow, of: &DiffView<'_>)
    let {
        let file = if row.after.is_some() { &of.after } else { &of.before };
        let site = row.after.or(row.before).and_then(|side| side.site);
    }
    {
        trend: &'static str = row.trend.name(),
        moved: bool = row.moved,
        kind: &'static str = row.kind.name(),
        before: Option<DiffSideJson> = row.before.map(DiffSideJson::new),
        after: Option<DiffSideJson> = row.after.map(DiffSideJson::new),
        frames: Vec<FrameJson> = site
            .map(|site| file.info.stacks.frames(site).map(FrameJson::new).collect())
            .unwrap_or_default(),
    }

    struct DiffSideJson(side: DiffSide) {
        bytes: u64 = side.never_freed.bytes,
        allocations: u64 = side.never_freed.allocations,
        peak_bytes: u64 = side.peak_bytes,
        allocations_total: u64 = side.allocated.allocations,
    }

    struct LiveAtPeakJson(held: &LiveAtPeak, file: &AnalyzedFile<'_>) {
        address: String = format!("{:#x}", held.key.value),
        bytes: u64 = held.bytes,
        tid: u32 = held.tid.0,
        allocated_ns: i64 = file.nanos(held.allocated_at),
    }
}

/// Returns RFC 3339, or seconds since the start if the file has no wall clock.
fn time(file: &AnalyzedFile<'_>, at: Timestamp) -> Value {
    match file.clock() {
        Some(clock) => clock.precise(at).into(),
        None => (file.nanos(at) as f64 / 1e9).into(),
    }
}

fn by_kind(amounts: &[(MemoryKind, Amount)]) -> BTreeMap<&'static str, u64> {
    amounts.iter().map(|(kind, amount)| (kind.name(), amount.bytes)).collect()
}

fn leak_groups(leaks: &[LeakGroup], file: &AnalyzedFile<'_>) -> Vec<LeakGroupJson> {
    let shown = leaks.iter().take(file.shown(leaks.len()));
    shown.map(|leak| LeakGroupJson::new(leak, file)).collect()
}

#[derive(Serialize)]
struct PeaksBody<P> {
    peaks: P,
}

#[derive(Serialize)]
struct SeriesBody<S, T, O> {
    series: S,
    totals: T,
    overlays: O,
}

/// A value of a file that is serialized while it is written.
struct In<'a, T>(&'a T, &'a AnalyzedFile<'a>);

/// A list that is serialized while it is written.
struct Streamed<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Streamed<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

impl Serialize for In<'_, Peak> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<L> {
            device: Option<u16>,
            pid: Option<u32>,
            bytes: u64,
            time: Value,
            time_ns: i64,
            live: L,
            live_total: usize,
        }
        let Self(peak, file) = self;
        let live = peak.live.iter().take(file.shown(peak.live.len()));
        Fields {
            device: peak.device.map(|device| device.0),
            pid: peak.pid.map(|pid| pid.0),
            bytes: peak.bytes,
            time: time(file, peak.at),
            time_ns: file.nanos(peak.at),
            live: Streamed(live.map(|group| In(group, file))),
            live_total: peak.live.len(),
        }
        .serialize(serializer)
    }
}

impl Serialize for In<'_, GroupAtPeak> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<L> {
            #[serde(flatten)]
            group: GroupJson,
            allocation_list: L,
        }
        let Self(at, file) = self;
        let each = at.allocations.iter().map(|held| LiveAtPeakJson::new(held, file));
        let group = GroupJson::new(&at.key, at.amount, file);
        Fields { group, allocation_list: Streamed(each) }.serialize(serializer)
    }
}

impl Serialize for In<'_, UsageSeries> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<L> {
            device: Option<u16>,
            kind: Option<&'static str>,
            pid: Option<u32>,
            peak_bytes: u64,
            peak_time_ns: i64,
            points: L,
        }
        let Self(series, file) = self;
        let points = series.points.iter().map(|point| (file.nanos(point.at), point.bytes));
        Fields {
            device: series.device.map(|device| device.0),
            kind: series.kind.map(MemoryKind::name),
            pid: series.pid.map(|pid| pid.0),
            peak_bytes: series.peak.bytes,
            peak_time_ns: file.nanos(series.peak.at),
            points: Streamed(points),
        }
        .serialize(serializer)
    }
}

impl Serialize for In<'_, OverlaySeries> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a, L> {
            name: &'a str,
            device: Option<u16>,
            points: L,
        }
        let Self(overlay, file) = self;
        let points = overlay.points.iter().map(|(at, bytes)| (file.nanos(*at), *bytes));
        let device = overlay.device.map(|device| device.0);
        Fields { name: &overlay.name, device, points: Streamed(points) }.serialize(serializer)
    }
}
