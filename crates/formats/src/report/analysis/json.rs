//! Analyses as one JSON object. Its names are a contract: `docs/reference/json-report.md`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use engine::analysis::diff::{DiffRow, DiffSide};
use engine::analysis::groups::Group;
use engine::analysis::leaks::{LeakGroup, LeakReport};
use engine::analysis::peak::{GroupAtPeak, Peak};
use engine::analysis::summary::{ProcessSummary, SummaryReport};
use engine::analysis::usage::{UsageReport, UsageSeries};
use engine::analysis::{Amount, GroupKey};
use engine::model::ids::{DeviceId, SiteId};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, StackTable};
use engine::model::units::Timestamp;
use engine::verdict::{SiteVerdict, Verdict};
use engine::view::View;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::views::fragmentation::{FragmentationView, PoolRow};
use super::views::libraries::{self, LibraryRow};
use super::{AnalysisResult, AnalyzedFile, DiffView, OverlaySeries};
use crate::import::{FileState, Warning};
use crate::report::verdict::json::{AnomalyJson, SiteVerdictJson};
use crate::report::view::gpu_facts;
use crate::report::view::json::ViewJson;
use crate::sanitize::sanitize_up_to;

/// Maximum number of characters of a text.
const MAX_TEXT_CHARS: usize = 4096;

fn clean(text: &str) -> String {
    sanitize_up_to(text, MAX_TEXT_CHARS).into_owned()
}

/// Writes a result as one object on one line.
pub fn write(
    out: &mut dyn Write,
    file: &AnalyzedFile<'_>,
    result: AnalysisResult<'_>,
) -> io::Result<()> {
    let mut object = head(file);
    object.insert("analysis".into(), result.name().into());
    match result {
        AnalysisResult::Summary(result, _, state) => {
            view(&mut object, state, file)?;
            summary(&mut object, result, file);
        }
        AnalysisResult::Leaks(result, state) => {
            view(&mut object, state, file)?;
            verdicts(&mut object, state, file)?;
            leaks(&mut object, result, file);
        }
        AnalysisResult::Sites(result) => {
            let all = result.processes.iter().flat_map(|process| &process.sites);
            let sites: Vec<_> = all.map(|site| site_object(site, file)).collect();
            let total = |process: &ProcessSummary| process.sites.len() + process.more_sites;
            let total: usize = result.processes.iter().map(total).sum();
            object.insert("sites_total".into(), total.into());
            object.insert("sites".into(), sites.into());
        }
        AnalysisResult::Libraries(result) => {
            let rows = libraries::rows(result, file);
            let shown = rows.iter().take(file.shown(rows.len())).map(library_object);
            object.insert("libraries_total".into(), rows.len().into());
            object.insert("libraries".into(), shown.collect::<Vec<_>>().into());
        }
        AnalysisResult::Fragmentation(result) => fragmentation(&mut object, result),
        // These may be long, so they are serialized while they are written.
        AnalysisResult::Peak(peaks) => {
            let peaks = peaks.iter().map(|peak| PeakJson { peak, file }).collect();
            return line(
                out,
                &StreamedReport { head: object, body: StreamedBody::Peaks { peaks } },
            );
        }
        AnalysisResult::Usage(UsageReport { totals, series }, overlays) => {
            let object_of = |series| SeriesJson { series, file };
            let body = StreamedBody::Series {
                series: series.iter().map(object_of).collect(),
                totals: totals.iter().map(object_of).collect(),
                overlays: overlays.iter().map(|overlay| OverlayJson { overlay, file }).collect(),
            };
            return line(out, &StreamedReport { head: object, body });
        }
    }
    line(out, &object)
}

/// Writes a comparison as one object on one line.
pub fn write_diff(out: &mut dyn Write, comparison: &DiffView<'_>) -> io::Result<()> {
    let diff = comparison.diff;
    let rows = diff.rows.iter().take(comparison.after.shown(diff.rows.len()));
    let object = json!({
        "analysis": "diff",
        "exact": comparison.before.info.exact() && comparison.after.info.exact(),
        "before": head(&comparison.before),
        "after": head(&comparison.after),
        "held_bytes": [diff.never_freed.0.bytes, diff.never_freed.1.bytes],
        "held_allocations": [diff.never_freed.0.allocations, diff.never_freed.1.allocations],
        "peak_bytes": [diff.peak_bytes.0, diff.peak_bytes.1],
        "sites_total": diff.rows.len(),
        "sites": rows.map(|row| diff_row(row, comparison)).collect::<Vec<_>>(),
    });
    line(out, &object)
}

fn library_object(row: &LibraryRow) -> Value {
    json!({
        "library": clean(&row.library),
        "bytes": row.held.bytes,
        "allocations": row.held.allocations,
        "peak_bytes_max": row.peak_max,
        "bytes_total": row.allocated.bytes,
        "allocations_total": row.allocated.allocations,
        "frees_total": row.freed,
        "pids": row.pids.iter().map(|pid| pid.0).collect::<Vec<_>>(),
    })
}

type JsonObject = serde_json::Map<String, Value>;

fn line(out: &mut dyn Write, object: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, object)?;
    writeln!(out)
}

fn head(file: &AnalyzedFile<'_>) -> JsonObject {
    let warning = |warning: &Warning| {
        json!({
            "text": clean(&warning.text),
            "count": warning.count,
            "inexact": warning.inexact,
        })
    };
    let mut object = JsonObject::new();
    object.insert("file".into(), clean(file.path).into());
    object.insert("source".into(), file.imported.source.name().into());
    object.insert("producer".into(), file.imported.producer.as_deref().map(clean).into());
    object.insert("events".into(), file.imported.events.into());
    object.insert("exact".into(), file.info.exact().into());
    let warnings: Vec<_> = file.info.warnings.iter().map(warning).collect();
    object.insert("warnings".into(), warnings.into());
    let start = file.clock().map(|clock| clock.precise(file.info.origin()));
    object.insert("start_time".into(), start.into());
    object
}

/// Returns RFC 3339, or seconds since the start if the file has no wall clock.
fn time(file: &AnalyzedFile<'_>, at: Timestamp) -> Value {
    match file.clock() {
        Some(clock) => clock.precise(at).into(),
        None => (file.nanos(at) as f64 / 1e9).into(),
    }
}

const fn ordinal(device: Option<DeviceId>) -> Option<u16> {
    match device {
        Some(DeviceId(ordinal)) => Some(ordinal),
        None => None,
    }
}

fn by_kind(amounts: &[(MemoryKind, Amount)]) -> BTreeMap<&'static str, u64> {
    amounts.iter().map(|(kind, amount)| (kind.name(), amount.bytes)).collect()
}

/// One frame of a stack.
#[derive(Serialize)]
pub(crate) struct FrameJson {
    function: String,
    file: Option<String>,
    line: Option<u32>,
    module: Option<String>,
    language: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown_reason: Option<&'static str>,
}

/// Converts a frame, with text sanitized for terminals.
pub(crate) fn frame(frame: &Frame) -> FrameJson {
    FrameJson {
        function: clean(&frame.function),
        file: frame.file.as_deref().map(clean),
        line: Some(frame.line).filter(|line| *line > 0),
        module: frame.module.as_deref().map(clean),
        language: frame.language.name(),
        unknown_reason: frame.unknown.map(|unknown| unknown.name()),
    }
}

fn frames(stacks: &StackTable, site: Option<SiteId>) -> Vec<FrameJson> {
    site.map(|site| stacks.frames(site).map(frame).collect()).unwrap_or_default()
}

/// Returns an object with the amount and frames of a group; callers add more fields.
fn group(file: &AnalyzedFile<'_>, key: &GroupKey, amount: Amount) -> Value {
    json!({
        "bytes": amount.bytes,
        "allocations": amount.allocations,
        "kind": key.kind.name(),
        "device": ordinal(key.device),
        "pid": key.pid.0,
        "frames": frames(&file.info.stacks, key.site),
    })
}

/// Adds one field to the object.
fn with(mut object: Value, name: &str, value: impl Into<Value>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(name.to_owned(), value.into());
    }
    object
}

fn leaks(object: &mut JsonObject, report: &LeakReport, file: &AnalyzedFile<'_>) {
    let list = |leaks: &[LeakGroup]| -> Vec<Value> {
        let shown = leaks.iter().take(file.shown(leaks.len()));
        shown
            .map(|leak| {
                let object = group(file, &leak.key, leak.amount);
                let object = with(object, "live_at_exit", leak.at_exit);
                with(object, "allocations_total", leak.allocations_total)
            })
            .collect()
    };
    let sum = |leaks: &[LeakGroup]| {
        leaks.iter().fold(Amount::default(), |sum, leak| sum.plus(leak.amount))
    };
    let (managed, host) = (sum(&report.managed), sum(&report.host));
    let fields = [
        ("held_bytes", report.leaked.bytes.into()),
        ("held_allocations", report.leaked.allocations.into()),
        ("not_freed_bytes", report.at_exit.bytes.into()),
        ("not_freed_allocations", report.at_exit.allocations.into()),
        ("static_bytes", report.statics.bytes.into()),
        ("static_allocations", report.statics.allocations.into()),
        ("by_kind", json!(by_kind(&report.by_kind))),
        ("sites", list(&report.sites).into()),
        ("sites_total", report.sites.len().into()),
        (
            "managed",
            json!({
                "bytes": managed.bytes,
                "allocations": managed.allocations,
                "sites": list(&report.managed),
            }),
        ),
        ("host_by_kind", json!(by_kind(&report.host_by_kind))),
        (
            "host",
            json!({
                "bytes": host.bytes,
                "allocations": host.allocations,
                "sites": list(&report.host),
            }),
        ),
        ("other_by_kind", json!(by_kind(&report.other_by_kind))),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
}

/// Adds the fields of the view: GPUs, leaks and notes, as in the JSON of a trace.
fn view(object: &mut JsonObject, state: &FileState, file: &AnalyzedFile<'_>) -> io::Result<()> {
    let facts = gpu_facts(&state.gpus);
    let view = View::of(&state.snapshot, &facts);
    let top = file.top.unwrap_or(usize::MAX);
    let fields = serde_json::to_value(ViewJson::new(&view, file.clock().as_ref(), top))?;
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    let others = &state.snapshot.other_verdicts;
    let is_decided = |one: &SiteVerdict| one.verdict != Verdict::NotEnoughData;
    let verdict = match (view.leaks.is_empty(), view.wait) {
        (false, _) => "leak",
        (true, Some(_)) => "too_early",
        (true, None) if others.iter().any(is_decided) => "none",
        (true, None) => "not_enough_data",
    };
    object.insert("verdict".into(), verdict.into());
    Ok(())
}

/// Adds suspects, other verdicts and anomalies, as in the JSON of a trace.
fn verdicts(object: &mut JsonObject, state: &FileState, file: &AnalyzedFile<'_>) -> io::Result<()> {
    let snapshot = &state.snapshot;
    let list = |all: &[SiteVerdict], with_advice: bool| {
        let shown = all.iter().take(file.shown(all.len()));
        let shown: Vec<_> = shown.map(|one| SiteVerdictJson::new(one, with_advice)).collect();
        serde_json::to_value(shown)
    };
    let anomalies: Vec<_> =
        snapshot.anomalies.iter().map(|one| AnomalyJson::new(one, time(file, one.at))).collect();
    let fields = [
        ("suspects", list(&snapshot.suspects, true)?),
        ("suspects_total", snapshot.suspects.len().into()),
        ("other_verdicts", list(&snapshot.other_verdicts, false)?),
        ("other_verdicts_total", snapshot.other_verdicts.len().into()),
        ("anomalies", serde_json::to_value(anomalies)?),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    Ok(())
}

fn site_object(site: &Group, file: &AnalyzedFile<'_>) -> Value {
    let object = group(file, &site.key, site.never_freed());
    let object = with(object, "live_at_exit", site.exited.allocations);
    let object = with(object, "peak_bytes", site.peak_bytes);
    let object = with(object, "allocations_total", site.allocated.allocations);
    with(object, "frees_total", site.freed)
}

fn summary(object: &mut JsonObject, report: &SummaryReport, file: &AnalyzedFile<'_>) {
    let process = |process: &ProcessSummary| {
        let devices = process.devices.iter().map(|on| {
            json!({
                "device": ordinal(on.device),
                "allocations_total": on.allocations,
                "frees_total": on.frees,
                "released_total": on.released,
                "live_bytes": on.live.bytes,
                "live_allocations": on.live.allocations,
                "not_freed_bytes": on.never_freed.bytes.saturating_sub(on.live.bytes),
                "not_freed_allocations":
                    on.never_freed.allocations.saturating_sub(on.live.allocations),
                "peak_bytes": on.peak_bytes,
                "peak_time": time(file, on.peak_at),
                "peak_time_ns": file.nanos(on.peak_at),
                "held_by_kind": by_kind(&on.kinds),
            })
        });
        let sites = process.sites.iter().map(|site| site_object(site, file));
        json!({
            "pid": process.pid.0,
            "name": file.process(process.pid).map(clean),
            "devices": devices.collect::<Vec<_>>(),
            "sites": sites.collect::<Vec<_>>(),
            "sites_total": process.sites.len() + process.more_sites,
        })
    };
    let fields = [
        ("held_bytes", report.never_freed.bytes.into()),
        ("held_allocations", report.never_freed.allocations.into()),
        ("peak_bytes", report.peak_bytes.into()),
        ("peak_time", time(file, report.peak_at)),
        ("peak_time_ns", file.nanos(report.peak_at).into()),
        ("processes", report.processes.iter().map(process).collect::<Vec<_>>().into()),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
}

fn fragmentation(object: &mut JsonObject, view: &FragmentationView) {
    let pool = |pool: &PoolRow| {
        json!({
            "device": ordinal(pool.device),
            "pid": pool.pid.map(|pid| pid.0),
            "pool": clean(&pool.pool),
            "stream": pool.stream.map(|stream| stream.0),
            "reserved_bytes": pool.reserved_bytes,
            "active_bytes": pool.active_bytes,
            "requested_bytes": pool.requested_bytes,
            "largest_free_bytes": pool.largest_free_bytes,
            "internal_ratio": pool.internal,
            "external_ratio": pool.external,
            "releasable_bytes": pool.releasable_bytes,
            "fragmented_bytes": pool.stuck_bytes,
        })
    };
    let advice =
        view.advice.iter().map(|one| json!({ "action": one.action, "reason": one.reason }));
    let would_fit = view.would_fit.iter().map(|one| {
        json!({
            "device": ordinal(one.device),
            "bytes": one.bytes,
            "answer": one.answer,
            "summary": one.text,
        })
    });
    object.insert("pools".into(), view.pools.iter().map(pool).collect::<Vec<_>>().into());
    object.insert("advice".into(), advice.collect::<Vec<_>>().into());
    object.insert("would_fit".into(), would_fit.collect::<Vec<_>>().into());
}

fn diff_row(row: &DiffRow, comparison: &DiffView<'_>) -> Value {
    let side = |side: Option<DiffSide>| {
        side.map(|side| {
            json!({
                "bytes": side.never_freed.bytes,
                "allocations": side.never_freed.allocations,
                "peak_bytes": side.peak_bytes,
                "allocations_total": side.allocated.allocations,
            })
        })
    };
    let frames = match (row.after, row.before) {
        (Some(after), _) => frames(&comparison.after.info.stacks, after.site),
        (None, Some(before)) => frames(&comparison.before.info.stacks, before.site),
        (None, None) => Vec::new(),
    };
    json!({
        "trend": row.trend.name(),
        "moved": row.moved,
        "kind": row.kind.name(),
        "before": side(row.before),
        "after": side(row.after),
        "frames": frames,
    })
}

#[derive(Serialize)]
struct StreamedReport<'a> {
    #[serde(flatten)]
    head: JsonObject,
    #[serde(flatten)]
    body: StreamedBody<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum StreamedBody<'a> {
    Peaks {
        peaks: Vec<PeakJson<'a>>,
    },
    Series {
        series: Vec<SeriesJson<'a>>,
        totals: Vec<SeriesJson<'a>>,
        overlays: Vec<OverlayJson<'a>>,
    },
}

struct PeakJson<'a> {
    peak: &'a Peak,
    file: &'a AnalyzedFile<'a>,
}

impl Serialize for PeakJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<L: Serialize> {
            device: Option<u16>,
            pid: Option<u32>,
            bytes: u64,
            time: Value,
            time_ns: i64,
            live: L,
            live_total: usize,
        }
        let Self { peak, file } = self;
        let shown = file.shown(peak.live.len());
        let live = peak.live.get(..shown).unwrap_or(&[]);
        Fields {
            device: ordinal(peak.device),
            pid: peak.pid.map(|pid| pid.0),
            bytes: peak.bytes,
            time: time(file, peak.at),
            time_ns: file.nanos(peak.at),
            live: StreamedList(live.iter().map(|at| GroupAtPeakJson { at, file })),
            live_total: peak.live.len(),
        }
        .serialize(serializer)
    }
}

struct GroupAtPeakJson<'a> {
    at: &'a GroupAtPeak,
    file: &'a AnalyzedFile<'a>,
}

impl Serialize for GroupAtPeakJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct LiveAtPeakJson {
            address: String,
            bytes: u64,
            tid: u32,
            allocated_ns: i64,
        }
        let Self { at, file } = self;
        let each = at.allocations.iter().map(|held| LiveAtPeakJson {
            address: format!("{:#x}", held.key.value),
            bytes: held.bytes,
            tid: held.tid.0,
            allocated_ns: file.nanos(held.allocated_at),
        });
        let object = group(file, &at.key, at.amount);
        #[derive(Serialize)]
        struct Fields<L: Serialize> {
            #[serde(flatten)]
            group: Value,
            allocation_list: L,
        }
        Fields { group: object, allocation_list: StreamedList(each) }.serialize(serializer)
    }
}

struct SeriesJson<'a> {
    series: &'a UsageSeries,
    file: &'a AnalyzedFile<'a>,
}

impl Serialize for SeriesJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<L: Serialize> {
            device: Option<u16>,
            kind: Option<&'static str>,
            pid: Option<u32>,
            peak_bytes: u64,
            peak_time_ns: i64,
            points: L,
        }
        let Self { series, file } = self;
        let points = series.points.iter().map(|point| (file.nanos(point.at), point.bytes));
        Fields {
            device: ordinal(series.device),
            kind: series.kind.map(MemoryKind::name),
            pid: series.pid.map(|pid| pid.0),
            peak_bytes: series.peak.bytes,
            peak_time_ns: file.nanos(series.peak.at),
            points: StreamedList(points),
        }
        .serialize(serializer)
    }
}

struct OverlayJson<'a> {
    overlay: &'a OverlaySeries,
    file: &'a AnalyzedFile<'a>,
}

impl Serialize for OverlayJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a, L: Serialize> {
            name: &'a str,
            device: Option<u16>,
            points: L,
        }
        let points = self.overlay.points.iter();
        let points = points.map(|(at, bytes)| (self.file.nanos(*at), *bytes));
        let device = ordinal(self.overlay.device);
        Fields { name: &self.overlay.name, device, points: StreamedList(points) }
            .serialize(serializer)
    }
}

/// A list that is serialized while it is written.
struct StreamedList<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for StreamedList<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}
