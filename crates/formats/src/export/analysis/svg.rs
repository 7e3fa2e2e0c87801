//! Memory over time as a picture inside the page.

use std::io::{self, Write};

use engine::units::{Bytes, Moment};

use super::html::escape;
use super::model::{Chart, Curve};

/// The picture's own units.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 90.0;
const BOTTOM: f64 = 30.0;
const TOP: f64 = 10.0;

const COLOURS: [&str; 6] = ["#1565c0", "#ef6c00", "#2e7d32", "#6a1b9a", "#c62828", "#00838f"];

/// Writes a chart; nothing where there is nothing to show.
pub(super) fn write(out: &mut dyn Write, chart: &Chart) -> io::Result<()> {
    let all = || chart.curves.iter().flat_map(|curve| &curve.points);
    let Some(top) = all().map(|(_, bytes)| *bytes).max().filter(|top| *top > 0) else {
        return Ok(());
    };
    let first = all().map(|(at, _)| *at).min().unwrap_or_default();
    let last = all().map(|(at, _)| *at).max().unwrap_or_default();
    let frame = Frame { first, span: (last - first).0.max(1) as f64, top: top as f64 };
    writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"memory over time\" \
         font-size=\"12\" fill=\"currentColor\">"
    )?;
    for quarter in 0..=4_u32 {
        let bytes = top as f64 * f64::from(quarter) / 4.0;
        let y = frame.y(bytes);
        writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#8884\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            Bytes(bytes as u64)
        )?;
    }
    let base = HEIGHT - BOTTOM + 18.0;
    writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"{base}\">{}</text>\
         <text x=\"{WIDTH}\" y=\"{base}\" text-anchor=\"end\">{}</text>",
        escape(&chart.ends.0),
        escape(&chart.ends.1)
    )?;
    for (curve, colour) in chart.curves.iter().zip(COLOURS.iter().cycle()) {
        path(out, curve, colour, &frame)?;
    }
    writeln!(out, "</svg>")?;
    write!(out, "<p class=\"dim\">")?;
    for (curve, colour) in chart.curves.iter().zip(COLOURS.iter().cycle()) {
        write!(out, "<span style=\"color:{colour}\">■</span> {} &nbsp; ", escape(&curve.name))?;
    }
    writeln!(out, "</p>")
}

struct Frame {
    first: Moment,
    span: f64,
    top: f64,
}

impl Frame {
    fn x(&self, at: Moment) -> f64 {
        LEFT + (at - self.first).0 as f64 / self.span * (WIDTH - LEFT)
    }

    fn y(&self, bytes: f64) -> f64 {
        TOP + (1.0 - bytes / self.top) * (HEIGHT - BOTTOM - TOP)
    }
}

fn path(out: &mut dyn Write, curve: &Curve, colour: &str, frame: &Frame) -> io::Result<()> {
    write!(out, "<path fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" d=\"")?;
    for (number, (at, bytes)) in curve.points.iter().enumerate() {
        let (x, y) = (frame.x(*at), frame.y(*bytes as f64));
        if number == 0 {
            write!(out, "M{x:.1},{y:.1}")?;
        } else {
            write!(out, "H{x:.1}V{y:.1}")?;
        }
    }
    // The last height holds to the end.
    writeln!(out, "H{WIDTH}\"/>")
}
