//! Memory over time as a picture in a file: SVG, which adapts to light and dark, or PNG. One or more
//! files beside each other, at one scale.
//!
//! A picture is laid out once, as a scene of few sorts of shapes; `svg` and `png` only draw them, so
//! both look the same. Pictures have their own letters (`glyphs`), and need no font of the system.

mod glyphs;
mod layout;
mod png;
mod scene;
mod svg;
mod ticks;

use std::io::{self, Write};

use engine::analysis::bands::{Band, Course, Drawn};
use engine::units::Moment;

use super::analysis::{Overlay, Subject, frames};
use crate::plain::plain;

/// A picture.
#[derive(Clone, PartialEq, Debug)]
pub struct Chart {
    /// What stands above it (may be hostile text).
    pub title: String,
    /// One for each file.
    pub panels: Vec<Panel>,
    /// Width and height, in units of which letters are 12 high.
    pub size: (u32, u32),
    /// Light, dark, or as the reader likes it.
    pub theme: Theme,
    /// Times of day instead of seconds, where the file knows them.
    pub clock: bool,
}

/// Colours of a picture.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Theme {
    /// SVG: what the reader's system prefers. PNG: light.
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
    /// Names of the bands, and whether it is the rest of them.
    bands: Vec<(String, bool)>,
    /// Nanoseconds since the file's beginning, and each band from then on.
    rows: Vec<(i64, Vec<u64>)>,
    peak: (i64, u64),
    /// The first and last moment of the file.
    span: (i64, i64),
    /// The wall clock at the beginning, in nanoseconds since 1970, UTC.
    utc: Option<i64>,
    /// Names and points of other tools' accounts.
    lines: Vec<(String, Vec<(i64, u64)>)>,
}

impl Panel {
    /// The bands of a file, under a title (which may be hostile text).
    #[must_use]
    pub fn new(
        title: &str,
        subject: &Subject<'_>,
        drawn: &Drawn,
        course: &Course,
        overlays: &[Overlay],
    ) -> Self {
        let nanos = |at: Moment| subject.nanos(at);
        let named = course.bands.iter().map(|band| band_name(*band, subject)).collect();
        let (bands, places) = joined(named);
        let mut now: Vec<u64> = vec![0; course.bands.len()];
        let rows = course.rows().map(|(at, cells)| {
            for (band, bytes) in cells {
                if let Some(now) = now.get_mut(*band as usize) {
                    *now = *bytes;
                }
            }
            let mut sums = vec![0; bands.len()];
            for (place, bytes) in places.iter().zip(&now) {
                if let Some(sum) = sums.get_mut(*place) {
                    *sum = bytes.saturating_add(*sum);
                }
            }
            (nanos(at), sums)
        });
        let rows: Vec<_> = rows.collect();
        let line = |overlay: &Overlay| {
            let points = overlay.points.iter().map(|(at, bytes)| (nanos(*at), *bytes));
            (plain(&overlay.name).into_owned(), points.collect())
        };
        let span = drawn.span.or(subject.facts.span).unwrap_or_default();
        Self {
            title: plain(title).into_owned(),
            bands,
            rows,
            peak: (nanos(drawn.peak_at), drawn.peak_bytes),
            span: (nanos(span.0), nanos(span.1)),
            utc: subject.facts.clock.map(|(_, utc)| utc),
            lines: overlays.iter().map(line).collect(),
        }
    }

    /// The most that is drawn.
    fn top(&self) -> u64 {
        let lines = self.lines.iter().flat_map(|(_, points)| points).map(|(_, bytes)| *bytes);
        lines.chain([self.peak.1]).max().unwrap_or(0)
    }
}

/// Bands of one name become one: stacks that differ in libraries only look the same in a legend. Also,
/// for each band that there was, which one it is now.
fn joined(named: Vec<(String, bool)>) -> (Vec<(String, bool)>, Vec<usize>) {
    let mut bands: Vec<(String, bool)> = Vec::new();
    let mut places = Vec::new();
    for band in named {
        let place = bands.iter().position(|known| *known == band).unwrap_or(bands.len());
        if place == bands.len() {
            bands.push(band);
        }
        places.push(place);
    }
    (bands, places)
}

/// What a band is called, and whether it is the rest.
fn band_name(band: Band, subject: &Subject<'_>) -> (String, bool) {
    let name = match band {
        Band::Kind(kind) => kind.to_string(),
        Band::Site(site) => {
            let frames: Vec<_> =
                site.map(|site| subject.facts.stacks.frames(site).collect()).unwrap_or_default();
            if frames.is_empty() { "(no call stack)".to_owned() } else { frames::label(&frames) }
        }
        Band::Process(pid) => match subject.process(pid) {
            Some(name) => format!("{pid} {name}"),
            None => pid.to_string(),
        },
        Band::Device(Some(device)) => device.to_string(),
        Band::Device(None) => "gpu_?".to_owned(),
        Band::Rest(count) => return (format!("{count} others"), true),
    };
    (plain(&name).into_owned(), false)
}

/// Writes a picture as SVG.
pub fn write_svg(out: &mut dyn Write, chart: &Chart) -> io::Result<()> {
    svg::write(out, &layout::scene(chart), chart.theme)
}

/// Writes a picture as PNG, two pixels for each unit in either direction.
pub fn write_png(out: &mut dyn Write, chart: &Chart) -> io::Result<()> {
    png::write(out, &layout::scene(chart), chart.theme)
}
