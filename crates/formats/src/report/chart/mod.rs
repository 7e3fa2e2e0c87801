//! Memory over time as an SVG (adapts to light and dark) or PNG file: one or more files next to
//! each other at one scale.
//!
//! A chart is laid out once, as a scene of a few kinds of shapes; `svg` and `png` only draw them,
//! so both look the same. Charts use embedded glyphs (`glyphs`) and need no system font.

mod glyphs;
mod layout;
mod png;
mod scene;
mod svg;
mod ticks;

use std::io::{self, Write};

use engine::analysis::bands::{Band, BandScanResult, BandSeries};
use engine::headline::UNKNOWN_LIBRARY;
use engine::model::{Phase, SiteId, Timestamp};

use super::analysis::{AnalyzedFile, OverlaySeries};
use super::view::stack_location;
use crate::sanitize::sanitize;

/// A chart.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// Title, not yet sanitized.
    pub title: String,
    /// One panel per file.
    pub panels: Vec<Panel>,
    /// Width and height, in units where text is 12 high.
    pub size: (u32, u32),
    /// Light, dark, or the reader's preference.
    pub theme: Theme,
    /// Shows times of day instead of seconds, if the file has a wall clock.
    pub clock: bool,
}

/// Color theme.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Theme {
    /// SVG: the preference of the reader's system. PNG: light.
    #[default]
    Auto,
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// The memory of one file.
#[derive(Clone, PartialEq, Debug)]
pub struct Panel {
    title: String,
    /// Names of the bands, and whether a band is the rest.
    bands: Vec<(String, bool)>,
    /// Nanoseconds since the start of the file, and the value of each band from then on.
    rows: Vec<(i64, Vec<u64>)>,
    peak: (i64, u64),
    /// Memory of the device, if the file is about one device of known size.
    capacity: Option<u64>,
    /// First and last time of the file.
    span: (i64, i64),
    /// Wall clock at the start, in nanoseconds since 1970, UTC.
    utc: Option<i64>,
    /// Names and points of series of other tools.
    lines: Vec<(String, Vec<(i64, u64)>)>,
    /// Time between marks.
    phases: Vec<PanelPhase>,
}

/// The time between two marks.
#[derive(Clone, PartialEq, Debug)]
struct PanelPhase {
    label: String,
    begin: i64,
    /// Only if it began and ended by marks of its own.
    end: Option<i64>,
}

impl Panel {
    /// Creates the panel of a file. The title is sanitized here.
    pub fn new(
        title: &str,
        file: &AnalyzedFile<'_>,
        scan: &BandScanResult,
        series: &BandSeries,
        overlays: &[OverlaySeries],
    ) -> Self {
        let nanos = |at: Timestamp| file.nanos(at);
        let named = series.bands.iter().map(|band| band_name(*band, file)).collect();
        let (bands, indices) = merged(named);
        let mut now: Vec<u64> = vec![0; series.bands.len()];
        let rows = series.rows().map(|(at, cells)| {
            for (band, bytes) in cells {
                if let Some(now) = now.get_mut(*band as usize) {
                    *now = *bytes;
                }
            }
            let mut sums = vec![0; bands.len()];
            for (index, bytes) in indices.iter().zip(&now) {
                if let Some(sum) = sums.get_mut(*index) {
                    *sum = bytes.saturating_add(*sum);
                }
            }
            (nanos(at), sums)
        });
        let rows: Vec<_> = rows.collect();
        let line = |overlay: &OverlaySeries| {
            let points = overlay.points.iter().map(|(at, bytes)| (nanos(*at), *bytes));
            (sanitize(&overlay.name).into_owned(), points.collect())
        };
        let span = scan.span.or(file.info.span).unwrap_or_default();
        let phase = |phase: Phase| PanelPhase {
            label: sanitize(&phase.label).into_owned(),
            begin: nanos(phase.begin),
            end: phase.end.filter(|_| !phase.is_point).map(nanos),
        };
        Self {
            title: sanitize(title).into_owned(),
            bands,
            rows,
            peak: (nanos(scan.peak_at), scan.peak_bytes),
            capacity: capacity(file),
            span: (nanos(span.0), nanos(span.1)),
            utc: file.info.clock.map(|(_, utc)| utc),
            lines: overlays.iter().map(line).collect(),
            phases: file.info.phases().into_iter().map(phase).collect(),
        }
    }

    /// Returns the maximum of all series.
    fn top(&self) -> u64 {
        let lines = self.lines.iter().flat_map(|(_, points)| points).map(|(_, bytes)| *bytes);
        let top = lines.chain([self.peak.1]).max().unwrap_or(0);
        let capacity = self.capacity.filter(|capacity| top >= capacity / MAX_CAPACITY_RATIO);
        top.max(capacity.unwrap_or(0))
    }
}

/// A device that is larger than its used part by more than this would squeeze the curves: then its
/// size is only printed.
const MAX_CAPACITY_RATIO: u64 = 4;

/// Returns the memory of the device, if there is only one and its size is known.
fn capacity(file: &AnalyzedFile<'_>) -> Option<u64> {
    let mut sizes = file.info.devices.values().map(|(_, total)| *total);
    let only = sizes.next().flatten();
    only.filter(|_| sizes.next().is_none())
}

/// Merges bands of the same name: stacks that differ only in library frames look the same in a
/// legend. Also returns the new index of each band.
fn merged(named: Vec<(String, bool)>) -> (Vec<(String, bool)>, Vec<usize>) {
    let mut bands: Vec<(String, bool)> = Vec::new();
    let mut indices = Vec::new();
    for band in named {
        let index = bands.iter().position(|known| *known == band).unwrap_or(bands.len());
        if index == bands.len() {
            bands.push(band);
        }
        indices.push(index);
    }
    (bands, indices)
}

/// Returns the name of a band, and whether it is the rest.
fn band_name(band: Band, file: &AnalyzedFile<'_>) -> (String, bool) {
    let name = match band {
        Band::Kind(kind) => kind.to_string(),
        Band::Site(site) => {
            let stack = site.map(|site| file.info.stacks.call_stack(site)).unwrap_or_default();
            stack_location(&stack)
        }
        Band::Process(pid) => match file.process(pid) {
            Some(name) => format!("{pid} {name}"),
            None => pid.to_string(),
        },
        Band::Device(Some(device)) => device.to_string(),
        Band::Device(None) => "gpu_?".to_owned(),
        Band::Library(site) => library_name(site, file),
        Band::Rest(count) => return (format!("{count} others"), true),
    };
    (sanitize(&name).into_owned(), false)
}

/// Returns the name of a library, given one of its sites.
pub(super) fn library_name(site: Option<SiteId>, file: &AnalyzedFile<'_>) -> String {
    let library = site.map(|site| file.info.stacks.library(site));
    library.as_deref().unwrap_or(UNKNOWN_LIBRARY).to_owned()
}

/// Writes a chart as SVG.
pub fn write_svg(out: &mut dyn Write, chart: &Chart) -> io::Result<()> {
    svg::write(out, &layout::scene(chart), chart.theme)
}

/// Writes a chart as PNG, two pixels per unit in either direction.
pub fn write_png(out: &mut dyn Write, chart: &Chart) -> io::Result<()> {
    png::write(out, &layout::scene(chart), chart.theme)
}
