//! Data of the HTML report: a JSON object, and blocks of numbers that it refers to.

use std::collections::HashMap;

use engine::analysis::Amount;
use engine::analysis::bands::{Band, BandSeries, GroupBy};
use engine::analysis::groups::Group;
use engine::analysis::leaks::LeakGroup;
use engine::analysis::lifetimes::Lifetime;
use engine::model::{AllocationChange, EndReason, MemoryKind, Phase, SiteId, Timestamp};
use engine::verdict::{AnomalyKind, SiteVerdict};
use engine::view::View;
use serde_json::{Value, json};

use super::packed_data::{NumberPacker, PackedData};
use super::strings::StringTable;
use super::{HtmlReport, segments};
use crate::import::FileState;
use crate::report::analysis::{AnalyzedFile, OverlaySeries};
use crate::report::chart::library_name;
use crate::report::verdict::{kind, summary};
use crate::report::view::out_of_memory_line;
use crate::report::view::{gpu_facts, gpu_lines, headline, leak_sentence};
use crate::sanitize::{sanitize, sanitize_up_to};

/// Maximum number of listed out-of-memory errors, the newest.
const MAX_OUT_OF_MEMORY: usize = 5;

/// Maximum number of sites in the table; the others are summed.
const MAX_SITES: usize = 3000;

/// Maximum number of rows of the lists of leaks.
const MAX_LEAK_ROWS: usize = 1000;

/// Maximum number of lines for memory that does not count in the sum.
const MAX_EXTRA_LINES: usize = 12;

/// Collects the object and its blocks of numbers.
pub(super) fn collect(report: &HtmlReport<'_>) -> (Value, PackedData) {
    let file = &report.file;
    let mut strings = StringTable::new(&file.info.stacks);
    let mut packed = PackedData::default();
    let mut all = info(report);
    let mut insert = |name: &str, value: Value| {
        if let Some(all) = all.as_object_mut() {
            all.insert(name.to_owned(), value);
        }
    };
    insert("sites", sites(report, &mut strings));
    let series = report.series.iter().map(|one| series(one, file, &mut strings, &mut packed));
    insert("series", series.collect());
    insert("lines", lines(report, &mut packed));
    insert("overlays", overlays(report.overlays, file, &mut packed));
    insert("leaks", leaks(report, &mut strings));
    insert("growing", growing(report.state, file, &mut strings));
    insert("allocations", allocations(report, &mut strings, &mut packed));
    insert("segments", segments::add_segments(report, &mut strings, &mut packed));
    let left_out = strings.left_out;
    let (texts, frames, stacks, count) = strings.finish();
    let part = packed.add(stacks);
    insert("texts", json!(texts));
    insert("frames", json!(frames));
    insert("stacks", json!({"part": part, "count": count, "left_out": left_out}));
    (all, packed)
}

fn amount(amount: Amount) -> Value {
    json!([amount.bytes, amount.allocations])
}

/// Returns the values that describe the file as a whole.
fn info(report: &HtmlReport<'_>) -> Value {
    let file = &report.file;
    let info = file.info;
    let warnings = info.warnings.iter().map(|warning| {
        let text = sanitize_up_to(&warning.text, 500);
        json!({"text": text, "count": warning.count, "inexact": warning.inexact})
    });
    let devices = info.devices.iter().map(|(device, (name, total))| {
        json!({"device": device.0, "name": sanitize(name), "total_bytes": total})
    });
    let nanos = |at: Timestamp| file.nanos(at);
    let span = info.span.unwrap_or_default();
    let scan = report.scan;
    let kinds = report.leaks.by_kind.iter();
    let kinds = kinds.map(|(kind, sum)| json!([kind.name(), sum.bytes, sum.allocations]));
    json!({
        "file": file.path,
        "source": file.imported.source.name(),
        "producer": file.imported.producer.as_deref().map(sanitize),
        "events": file.imported.events,
        "exact": info.exact(),
        "warnings": warnings.collect::<Value>(),
        "memory": file.memory_phrase(),
        "held_phrase": file.held_phrase(),
        "opens": report.initial_view.name(),
        // As in the time zone of other reports on the file.
        "wall_ms": file.clock().map(|clock| {
            clock.utc_nanos() / 1_000_000 + i64::from(clock.offset()) * 1000
        }),
        "span": [nanos(span.0), nanos(span.1)],
        "kind_names": MemoryKind::ALL.map(MemoryKind::name),
        "devices": devices.collect::<Value>(),
        "processes": processes(report),
        "peaks": peaks(report),
        "peak": {"bytes": scan.peak_bytes, "ns": nanos(scan.peak_at)},
        "never_freed": amount(report.leaks.leaked),
        "statics": amount(report.leaks.statics),
        "never_freed_by_kind": kinds.collect::<Value>(),
        "changes": scan.changes,
        "phases": info.phases().iter().map(|phase| phase_row(phase, file)).collect::<Value>(),
    })
}

/// Returns the time between two marks.
fn phase_row(phase: &Phase, file: &AnalyzedFile<'_>) -> Value {
    json!({
        "label": sanitize(&phase.label),
        "pid": phase.pid.map(|pid| pid.0),
        "begin": file.nanos(phase.begin),
        // Points have no length of their own.
        "end": phase.end.filter(|_| !phase.is_point).map(|end| file.nanos(end)),
    })
}

/// Returns one row per process and device.
fn processes(report: &HtmlReport<'_>) -> Value {
    let file = &report.file;
    let rows = report.summary.processes.iter().flat_map(|process| {
        process.devices.iter().map(|device| {
            let kinds = device.kinds.iter();
            json!({
                "pid": process.pid.0,
                "name": file.process(process.pid).map(sanitize),
                "device": device.device.map(|device| device.0),
                "allocations": device.allocations,
                "frees": device.frees,
                "released": device.released,
                "live": amount(device.live),
                "never_freed": amount(device.never_freed),
                "peak_bytes": device.peak_bytes,
                "peak_ns": file.nanos(device.peak_at),
                "kinds": kinds.map(|(kind, sum)| json!([kind.name(), sum.bytes])).collect::<Value>(),
            })
        })
    });
    rows.collect()
}

/// Returns the peak of each device.
fn peaks(report: &HtmlReport<'_>) -> Value {
    let totals = report.usage.totals.iter().filter(|series| series.peak.bytes > 0);
    let row = totals.map(|series| {
        let ns = report.file.nanos(series.peak.at);
        json!({"device": series.device.map(|device| device.0), "bytes": series.peak.bytes, "ns": ns})
    });
    row.collect()
}

/// Returns the rows of the table of sites: the stack, and values in the order that the script
/// expects.
fn sites(report: &HtmlReport<'_>, strings: &mut StringTable<'_>) -> Value {
    let at_peak: HashMap<Option<SiteId>, Amount> = report.at_peak.iter().copied().collect();
    let all = report.scan.totals(GroupBy::Site);
    let mut rows = Vec::new();
    let mut rest = [0_u64; 6];
    for (index, total) in all.iter().enumerate() {
        let Band::Site(site) = total.key else { continue };
        let Group { allocated, freed, live, exited, peak_bytes, peak_at, .. } = *total;
        let never_freed = live.plus(exited);
        let live_at_peak = at_peak.get(&site).copied().unwrap_or_default();
        let sums = [
            never_freed.bytes,
            never_freed.allocations,
            allocated.bytes,
            allocated.allocations,
            live_at_peak.bytes,
            live_at_peak.allocations,
        ];
        if index >= MAX_SITES {
            for (rest, sum) in rest.iter_mut().zip(sums) {
                *rest = rest.saturating_add(sum);
            }
            continue;
        }
        let at = report.file.nanos(peak_at);
        rows.push(json!([strings.site(site), sums, freed, peak_bytes, at]));
    }
    json!({"rows": rows, "total": all.len(), "rest": rest})
}

/// Encodes bands over time. Each row is the time since the previous row, the number of changed
/// bands, and their indices and differences.
fn series(
    series: &BandSeries,
    file: &AnalyzedFile<'_>,
    strings: &mut StringTable<'_>,
    packed: &mut PackedData,
) -> Value {
    let mut numbers = NumberPacker::default();
    let mut previous = vec![0; series.bands.len()];
    let mut last = None;
    for (at, cells) in series.rows() {
        numbers.put((at - last.unwrap_or(at)).0);
        last = Some(at);
        numbers.put(cells.len() as u64);
        for (band, bytes) in cells {
            numbers.put(u64::from(*band));
            if let Some(previous) = previous.get_mut(*band as usize) {
                numbers.step(*previous, *bytes);
                *previous = *bytes;
            }
        }
    }
    let first = series.rows().next().map_or(0, |(at, _)| file.nanos(at));
    let bands = series.bands.iter().map(|band| match band {
        Band::Kind(kind) => json!({"name": kind.name()}),
        Band::Site(site) => json!({"site": strings.site(*site)}),
        Band::Process(pid) => {
            let name = file.process(*pid).map_or_else(String::new, |name| format!(" {name}"));
            json!({"name": sanitize(&format!("{pid}{name}")), "pid": pid.0})
        }
        Band::Device(device) => match device {
            Some(device) => json!({"name": device.to_string(), "device": device.0}),
            None => json!({"name": "gpu_?"}),
        },
        Band::Library(site) => json!({"name": sanitize(&library_name(*site, file))}),
        Band::Rest(count) => json!({"rest": count}),
    });
    json!({
        "by": series.by.name(),
        "bands": bands.collect::<Value>(),
        "rows": series.len(),
        "first": first,
        "part": packed.add(numbers),
    })
}

/// Encodes a line: times since the previous point, and differences of sizes.
fn line(points: &[(i64, u64)], packed: &mut PackedData) -> Value {
    let mut numbers = NumberPacker::default();
    let (mut last, mut size) = (points.first().map_or(0, |point| point.0), 0);
    for (at, bytes) in points {
        numbers.put(last.abs_diff(*at));
        numbers.step(size, *bytes);
        (last, size) = (*at, *bytes);
    }
    let first = points.first().map_or(0, |point| point.0);
    json!({"first": first, "count": points.len(), "part": packed.add(numbers)})
}

/// Returns the series of kinds that are not in the sum: host memory, managed memory, reservations.
fn lines(report: &HtmlReport<'_>, packed: &mut PackedData) -> Value {
    let file = &report.file;
    let scope = file.imported.source.scope();
    let separate = report.usage.series.iter();
    let mut separate: Vec<_> = separate
        .filter(|series| series.kind.is_some_and(|kind| !scope.counts(kind)))
        .filter(|series| series.peak.bytes > 0)
        .collect();
    separate.sort_by_key(|series| std::cmp::Reverse(series.peak.bytes));
    let rows = separate.iter().take(MAX_EXTRA_LINES).map(|series| {
        let points: Vec<_> =
            series.points.iter().map(|point| (file.nanos(point.at), point.bytes)).collect();
        json!({
            "kind": series.kind.map(MemoryKind::name),
            "pid": series.pid.map(|pid| pid.0),
            "device": series.device.map(|device| device.0),
            "peak_bytes": series.peak.bytes,
            "line": line(&points, packed),
        })
    });
    rows.collect()
}

fn overlays(overlays: &[OverlaySeries], file: &AnalyzedFile<'_>, packed: &mut PackedData) -> Value {
    let rows = overlays.iter().map(|overlay| {
        let points = overlay.points.iter().map(|(at, bytes)| (file.nanos(*at), *bytes));
        let points: Vec<_> = points.collect();
        json!({"name": sanitize(&overlay.name), "line": line(&points, packed)})
    });
    rows.collect()
}

/// Returns the memory that was never freed, by class.
fn leaks(report: &HtmlReport<'_>, strings: &mut StringTable<'_>) -> Value {
    let leaks = report.leaks;
    let mut list = |leaks: &[LeakGroup]| {
        let all = leaks.iter().fold(Amount::default(), |sum, leak| sum.plus(leak.amount));
        let rows = leaks.iter().take(MAX_LEAK_ROWS).map(|leak| {
            let group = leak.key;
            json!({
                "site": strings.site(group.site),
                "bytes": leak.amount.bytes,
                "count": leak.amount.allocations,
                "at_exit": leak.at_exit,
                "began": leak.allocations_total,
                "kind": group.kind.name(),
                "static": group.kind.is_static(),
                "device": group.device.map(|device| device.0),
                "pid": group.pid.0,
            })
        });
        json!({"rows": rows.collect::<Value>(), "total": leaks.len(), "sum": amount(all)})
    };
    json!({
        "counted": list(&leaks.sites),
        "managed": list(&leaks.managed),
        "host": list(&leaks.host),
    })
}

/// Returns leaks, their sites, other verdicts and anomalies.
fn growing(state: &FileState, file: &AnalyzedFile<'_>, strings: &mut StringTable<'_>) -> Value {
    let facts = gpu_facts(&state.gpus);
    let view = View::of(&state.snapshot, &facts);
    let snapshot = &state.snapshot;
    let mut row = |one: &SiteVerdict| {
        json!({
            "site": strings.site_of(&one.frames),
            "verdict": one.verdict.name(),
            "confidence": one.confidence.name(),
            "summary": summary(one.resource, one.verdict, &one.evidence),
            "per_hour": one.evidence.growth_per_hour,
            "live": [one.evidence.live, one.evidence.live_count],
            "is_bytes": one.resource.is_bytes(),
            "lows": one.evidence.window_min,
            "steps": [one.evidence.growing_steps, one.evidence.steps],
            "began": one.evidence.created,
            "freed": one.evidence.freed,
            "kind": kind(one.resource),
            "device": one.device.map(|device| device.0),
            "pid": one.pid.map_or(0, |pid| pid.0),
            "process": sanitize(&one.process),
        })
    };
    let suspects: Value = snapshot.suspects.iter().take(MAX_LEAK_ROWS).map(&mut row).collect();
    let others: Value = snapshot.other_verdicts.iter().take(MAX_LEAK_ROWS).map(&mut row).collect();
    let anomalies = snapshot.anomalies.iter().take(MAX_LEAK_ROWS).map(|anomaly| {
        let (bytes, baseline, kind) = match anomaly.details {
            AnomalyKind::Size { bytes, baseline, .. } => (bytes, baseline, "size"),
            AnomalyKind::Growth { bytes, baseline, .. } => (bytes, baseline, "growth"),
        };
        json!({
            "site": strings.site_of(&anomaly.frames),
            "time": file.time(anomaly.at),
            "type": kind,
            "bytes": bytes.0,
            "baseline": baseline.0,
            "kind": anomaly.kind.name(),
            "pid": anomaly.pid.0,
        })
    });
    let anomalies: Value = anomalies.collect();
    let leaks = view.leaks.iter().take(MAX_LEAK_ROWS).map(|leak| {
        json!({
            "site": strings.site_of(leak.stack),
            "text": sanitize(&leak_sentence(leak)),
            "advice": leak.advice.text,
        })
    });
    let leaks: Value = leaks.collect();
    let clock = file.clock();
    let last = snapshot.out_of_memory.iter().rev().take(MAX_OUT_OF_MEMORY).rev();
    let ooms = last.filter(|oom| oom.recovered.is_none()).filter_map(|oom| {
        let text = out_of_memory_line(oom, &state.gpus, clock.as_ref()?);
        Some(json!({"site": strings.site_of(&oom.frames), "text": sanitize(&text)}))
    });
    let ooms: Value = ooms.collect();
    json!({
        "ooms": ooms,
        "headline": headline(&view),
        "gpus": gpu_lines(&view, ""),
        "leaks": leaks,
        "leaks_total": view.leaks.len(),
        "suspects": suspects,
        "others": others,
        "anomalies": anomalies,
    })
}

/// Encodes the largest allocations, ordered by start time.
fn allocations(
    report: &HtmlReport<'_>,
    strings: &mut StringTable<'_>,
    packed: &mut PackedData,
) -> Value {
    let allocations = &report.largest.allocations;
    let mut numbers = NumberPacker::default();
    let mut last = allocations.first().map_or(Timestamp(0), |allocation| allocation.allocated_at);
    let first =
        allocations.first().map_or(0, |allocation| report.file.nanos(allocation.allocated_at));
    for allocation in allocations {
        let Lifetime { change, allocated_at, ended } = *allocation;
        let AllocationChange { key, bytes, pid, tid, device, kind, site, .. } = change;
        numbers.put((allocated_at - last).0);
        last = allocated_at;
        let (age, reason) = match ended {
            None => (0, 0),
            Some((end, reason)) => ((end - allocated_at).0, end_reason_number(reason)),
        };
        numbers.put(reason);
        numbers.put(age);
        numbers.put(bytes);
        numbers.put(u64::from(pid.0));
        numbers.put(u64::from(tid.0));
        numbers.put(device.map_or(0, |device| u64::from(device.0) + 1));
        numbers.put(kind.index() as u64);
        numbers.put(strings.site(site) as u64);
        numbers.put_fixed(key.value);
    }
    let (count, all) = (allocations.len(), report.largest.count);
    json!({"count": count, "total": all, "first": first, "part": packed.add(numbers)})
}

/// Returns the number of an end reason as the script expects it; 0 is live.
const fn end_reason_number(reason: EndReason) -> u64 {
    match reason {
        EndReason::Freed => 1,
        EndReason::Replaced => 2,
        EndReason::Released => 3,
        EndReason::ProcessExited => 4,
    }
}
