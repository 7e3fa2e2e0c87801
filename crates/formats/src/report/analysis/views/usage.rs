//! Memory over time.

use std::io::{self, Write};

use engine::analysis::usage::{UsageReport, UsageSeries};
use engine::model::{Bytes, MemoryKind, Timestamp};

use super::super::document::{AsciiChart, Cell, ChartSeries, Document, Section, Table, table};
use super::super::{AnalyzedFile, OverlaySeries, device, location, tsv};
use super::leaks::device_number;

pub(crate) fn document(
    usage: &UsageReport,
    overlays: &[OverlaySeries],
    file: &AnalyzedFile<'_>,
) -> Document {
    let highest = usage.totals.iter().max_by_key(|series| series.peak.bytes);
    let Some(highest) = highest.filter(|series| series.peak.bytes > 0) else {
        let headline = format!("No {} was allocated", file.memory_phrase());
        return Document { headline, ..Document::default() };
    };
    let last = highest.points.last().map_or(0, |point| point.bytes);
    let headline = format!(
        "Peak {} on {} at {}; {} at the end",
        Bytes(highest.peak.bytes),
        device(highest.device).short(),
        file.time(highest.peak.at),
        Bytes(last)
    );
    let mut sections: Vec<_> =
        usage.totals.iter().map(|series| chart(series, overlays, file)).collect();
    sections.push(by_kind(usage, file));
    Document { headline, sections, ..Document::default() }
}

fn curve(series: &UsageSeries) -> ChartSeries {
    let points = series.points.iter().map(|point| (point.at, point.bytes)).collect();
    ChartSeries { name: device(series.device).short(), points }
}

fn chart(series: &UsageSeries, overlays: &[OverlaySeries], file: &AnalyzedFile<'_>) -> Section {
    let mut curves = vec![curve(series)];
    let same_device = |one: &&OverlaySeries| one.device.is_none() || one.device == series.device;
    let curve_of =
        |one: &OverlaySeries| ChartSeries { name: one.name.clone(), points: one.points.clone() };
    curves.extend(overlays.iter().filter(same_device).map(curve_of));
    let times = || curves.iter().flat_map(|curve| &curve.points).map(|(at, _)| *at);
    let (first, last) = (times().min(), times().max());
    let time = |at: Option<Timestamp>| at.map_or_else(String::new, |at| file.time(at));
    let ends = (time(first), time(last));
    let name = device(series.device).short();
    let known = series.device.and_then(|device| file.info.devices.get(&device));
    let title = match known {
        Some((model, Some(total))) => format!("{name}: {model}, {}", Bytes(*total)),
        Some((model, None)) => format!("{name}: {model}"),
        None => name,
    };
    Section { title, chart: Some(AsciiChart { curves, ends }), ..Section::default() }
}

fn by_kind(usage: &UsageReport, file: &AnalyzedFile<'_>) -> Section {
    let program = |series: &UsageSeries| series.pid.and_then(|pid| file.process(pid)).unwrap_or("");
    let kind = |series: &UsageSeries| series.kind.map_or("all", MemoryKind::name).to_owned();
    let table = table!(usage.series.iter(), |series| {
        "device": series.kind.map_or(Cell::Empty, |kind| location(series.device, kind)),
        "pid": Cell::pid(series.pid),
        "program": Cell::Text(program(series).to_owned()),
        "kind": Cell::Text(kind(series)),
        "peak": Cell::Bytes(series.peak.bytes),
        "at": Cell::Time(file.time(series.peak.at), file.nanos(series.peak.at)),
        "at the end": Cell::Bytes(series.points.last().map_or(0, |point| point.bytes)),
    });
    Section::list("By device, process and kind", table, usage.series.len())
}

/// Writes every point; device totals have no process and kind.
pub(crate) fn rows(
    usage: &UsageReport,
    overlays: &[OverlaySeries],
    file: &AnalyzedFile<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    tsv::head(out, &["time", "time_ns", "device", "kind", "pid", "bytes", "source"])?;
    for series in usage.totals.iter().chain(&usage.series) {
        for point in &series.points {
            let cells = [
                file.plain_time(point.at),
                Cell::Time(String::new(), file.nanos(point.at)),
                device_number(series.device),
                series.kind.map_or(Cell::Empty, |kind| Cell::Text(kind.to_string())),
                Cell::pid(series.pid),
                Cell::Bytes(point.bytes),
                Cell::Empty,
            ];
            tsv::row(out, &cells)?;
        }
    }
    for overlay in overlays {
        for (at, bytes) in &overlay.points {
            let cells = [
                file.plain_time(*at),
                Cell::Time(String::new(), file.nanos(*at)),
                Cell::Empty,
                Cell::Empty,
                Cell::Empty,
                Cell::Bytes(*bytes),
                Cell::Text(overlay.name.clone()),
            ];
            tsv::row(out, &cells)?;
        }
    }
    Ok(())
}
