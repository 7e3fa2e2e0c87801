//! Analyses as one JSON object. Its names are a contract: `docs/reference/json-report.md`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use engine::analysis::diff::{DiffRow, DiffSide};
use engine::analysis::leaks::{LeakGroup, LeakReport};
use engine::analysis::peak::{GroupAtPeak, Peak};
use engine::analysis::summary::{ProcessSummary, SummaryReport};
use engine::analysis::suspects::{FileAnomaly, FileSiteVerdict, SuspectReport};
use engine::analysis::usage::{UsageReport, UsageSeries};
use engine::analysis::{Amount, GroupKey};
use engine::model::ids::{DeviceId, SiteId};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, StackTable};
use engine::model::units::{Nanos, Timestamp};
use engine::verdict::{AnomalyKind, SiteVerdict, Verdict};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::views::fragmentation::{FragmentationView, PoolRow};
use super::views::suspects::{first_low, resource};
use super::{AnalysisResult, AnalyzedFile, DiffView, OverlaySeries};
use crate::import::Warning;
use crate::report::verdict;
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
        AnalysisResult::Leaks(result) => leaks(&mut object, result, file),
        AnalysisResult::Suspects(result) => suspects(&mut object, result, file),
        AnalysisResult::Summary(result) => summary(&mut object, result, file),
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
        "leaked_bytes": [diff.never_freed.0.bytes, diff.never_freed.1.bytes],
        "leaked_allocations": [diff.never_freed.0.allocations, diff.never_freed.1.allocations],
        "peak_bytes": [diff.peak_bytes.0, diff.peak_bytes.1],
        "sites_total": diff.rows.len(),
        "sites": rows.map(|row| diff_row(row, comparison)).collect::<Vec<_>>(),
    });
    line(out, &object)
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
        ("leaked_bytes", report.leaked.bytes.into()),
        ("leaked_allocations", report.leaked.allocations.into()),
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

fn suspects(object: &mut JsonObject, report: &SuspectReport, file: &AnalyzedFile<'_>) {
    let other_verdicts = &file.info.verdicts;
    let other_leaks = other_verdicts.iter().any(|one| one.verdict == Verdict::Leak);
    let outcome = match (report.suspects.is_empty() && !other_leaks, report.has_enough_data()) {
        (false, _) => "suspects",
        (true, true) => "none",
        (true, false) => "not_enough_data",
    };
    let list = |all: &[FileSiteVerdict]| -> Value {
        all.iter().take(file.shown(all.len())).map(|one| site_verdict(one, file)).collect()
    };
    let anomalies = report.anomalies.iter().map(|one| anomaly(one, file));
    let fields = [
        ("verdict", outcome.into()),
        ("suspects", list(&report.suspects)),
        ("suspects_total", report.suspects.len().into()),
        ("other_verdicts", list(&report.others)),
        ("other_verdicts_total", report.others.len().into()),
        ("anomalies", anomalies.collect()),
        ("tensors_and_objects", other_verdicts.iter().map(tensor_or_object).collect()),
    ];
    object.extend(fields.map(|(name, value)| (name.to_owned(), value)));
}

/// Returns the verdict on tensors or objects of a site.
fn tensor_or_object(one: &SiteVerdict) -> Value {
    let rate =
        if one.resource.is_bytes() { "growth_bytes_per_hour" } else { "growth_objects_per_hour" };
    json!({
        "resource": if one.resource.is_bytes() { "tensors" } else { "objects" },
        "kind": verdict::kind(one.resource),
        "pid": one.pid.map(|pid| pid.0),
        "site": one.site.to_string(),
        "verdict": one.verdict.name(),
        "confidence": one.confidence.name(),
        (rate): one.evidence.growth_per_hour,
        "live": one.evidence.live,
        "live_count": one.evidence.live_count,
        "created": one.evidence.created,
        "freed": one.evidence.freed,
        "summary": verdict::summary(one.resource, one.verdict, &one.evidence),
        "frames": one.frames.iter().map(frame).collect::<Vec<_>>(),
    })
}

fn site_verdict(one: &FileSiteVerdict, file: &AnalyzedFile<'_>) -> Value {
    let evidence = &one.evidence;
    let nanos = |span: Option<Nanos>| span.map(|span| span.0);
    let evidence = json!({
        "growth_bytes_per_hour": evidence.growth_per_hour,
        "first_bytes": first_low(evidence),
        "last_bytes": evidence.window_min.last().copied().unwrap_or(0),
        "window_min": evidence.window_min,
        "window_ns": evidence.window.0,
        "steps": evidence.steps,
        "growing_steps": evidence.growing_steps,
        "shrinking_steps": evidence.shrinking_steps,
        "observed_ns": evidence.window.0.saturating_mul(u64::from(evidence.steps)),
        "created": evidence.created,
        "freed": evidence.freed,
        "overdue_bytes": evidence.overdue,
        "mean_age_ns": evidence.mean_age.0,
        "median_age_ns": nanos(evidence.median_age),
        "max_age_ns": nanos(evidence.oldest),
        "mean_lifetime_ns": nanos(evidence.mean_life),
        "median_lifetime_ns": nanos(evidence.median_life),
        "max_lifetime_ns": nanos(evidence.longest_life),
        "peak_bytes": evidence.peak,
        "level_min_bytes": evidence.level.0,
        "level_max_bytes": evidence.level.1,
        "returns": evidence.returns,
        "tensors": evidence.tensors.map(verdict::json::TensorsObject::new),
    });
    let object = with(group(file, &one.key, one.live), "evidence", evidence);
    let object = with(
        object,
        "summary",
        verdict::summary(resource(one.key.kind), one.verdict, &one.evidence),
    );
    with(with(object, "verdict", one.verdict.name()), "confidence", one.confidence.name())
}

fn anomaly(anomaly: &FileAnomaly, file: &AnalyzedFile<'_>) -> Value {
    let mut object = json!({
        "time": time(file, anomaly.at),
        "time_ns": file.nanos(anomaly.at),
        "kind": anomaly.key.kind.name(),
        "device": ordinal(anomaly.key.device),
        "pid": anomaly.key.pid.0,
        "tid": anomaly.tid.map(|tid| tid.0),
        "frames": frames(&file.info.stacks, anomaly.key.site),
    });
    let fields = match anomaly.details {
        AnomalyKind::Size { key, bytes, baseline, of, of_site, live } => json!({
            "type": "size",
            "bytes": bytes.0,
            "baseline_bytes": baseline.0,
            "address": format!("{:#x}", key.value),
            "baseline_samples": of,
            "baseline_scope": if of_site { "site" } else { "process" },
            "live": live,
        }),
        AnomalyKind::Growth { bytes, within, baseline } => json!({
            "type": "growth",
            "bytes": bytes.0,
            "baseline_bytes": baseline.0,
            "window_ns": within.0,
        }),
    };
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    object
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
                "leaked_bytes": on.never_freed.bytes,
                "leaked_allocations": on.never_freed.allocations,
                "peak_bytes": on.peak_bytes,
                "peak_time": time(file, on.peak_at),
                "peak_time_ns": file.nanos(on.peak_at),
                "never_freed_by_kind": by_kind(&on.kinds),
            })
        });
        let sites = process.sites.iter().map(|site| {
            let object = group(file, &site.key, site.never_freed());
            let object = with(object, "peak_bytes", site.peak_bytes);
            let object = with(object, "allocations_total", site.allocated.allocations);
            with(object, "frees_total", site.freed)
        });
        json!({
            "pid": process.pid.0,
            "name": file.process(process.pid).map(clean),
            "devices": devices.collect::<Vec<_>>(),
            "sites": sites.collect::<Vec<_>>(),
            "sites_total": process.sites.len() + process.more_sites,
        })
    };
    let fields = [
        ("leaked_bytes", report.never_freed.bytes.into()),
        ("leaked_allocations", report.never_freed.allocations.into()),
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
