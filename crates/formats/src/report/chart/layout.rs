//! Layout of a chart.

use engine::model::Bytes;

use super::scene::{Paint, Scene, Shape, TextAnchor};
use super::{Chart, Panel, glyphs, ticks};

/// Font sizes.
const FONT_SIZE: f64 = 12.0;
const TITLE_FONT_SIZE: f64 = 16.0;

/// Margins: around the chart, left for size labels, above a panel, and below it for time labels.
const MARGIN: f64 = 16.0;
const MARGIN_LEFT: f64 = 66.0;
const MARGIN_TOP: f64 = 30.0;
const MARGIN_BOTTOM: f64 = 30.0;

/// Height of the bar of a phase, and where the labels of phases are above a panel.
const PHASE_HEIGHT: f64 = 3.0;
const PHASE_LABELS: f64 = 24.0;

/// Maximum width of the label of a phase.
const MAX_PHASE_WIDTH: f64 = 160.0;

/// Height of a line of the legend, and the maximum width of an entry.
const LEGEND_LINE_HEIGHT: f64 = 19.0;
const MAX_LEGEND_ENTRY_WIDTH: f64 = 380.0;

/// Maximum number of lines of the legend; further entries are omitted. The largest bands come
/// first.
const MAX_LEGEND_LINES: usize = 8;

/// Lays out a chart.
pub(super) fn scene(chart: &Chart) -> Scene {
    let (width, height) = (f64::from(chart.size.0), f64::from(chart.size.1));
    let mut shapes = vec![Shape::Box(Paint::Page, [0.0, 0.0, width, height])];
    let title = glyphs::fit(&chart.title, TITLE_FONT_SIZE, width - 2.0 * MARGIN);
    shapes.push(text(
        Paint::Text,
        (MARGIN, MARGIN + TITLE_FONT_SIZE - 2.0),
        TITLE_FONT_SIZE,
        TextAnchor::Left,
        true,
        title,
    ));
    let names = names(chart);
    let legend = legend(&names, chart, width, height);
    let bottom = height - MARGIN - legend.lines as f64 * LEGEND_LINE_HEIGHT;
    shapes.extend(legend.shapes);
    let max_bytes = chart.panels.iter().map(Panel::top).max().unwrap_or(0).max(1);
    let span = |panel: &Panel| panel.span.1.saturating_sub(panel.span.0);
    let longest = chart.panels.iter().map(span).max().unwrap_or(0).max(1000);
    // With several files, each panel has a line with its name.
    let titles = if chart.panels.len() > 1 { LEGEND_LINE_HEIGHT } else { 0.0 };
    let has_phases = chart.panels.iter().any(|panel| !panel.phases.is_empty());
    let labels = if has_phases { LEGEND_LINE_HEIGHT } else { 0.0 };
    let top = MARGIN + TITLE_FONT_SIZE + MARGIN_TOP + titles + labels;
    let each = (width - MARGIN) / chart.panels.len().max(1) as f64;
    for (index, panel) in chart.panels.iter().enumerate() {
        let left = MARGIN_LEFT + each * index as f64;
        let area = PlotArea {
            left,
            right: (left + each - MARGIN_LEFT).max(left + 10.0),
            top,
            bottom: (bottom - MARGIN_BOTTOM).max(top + 20.0),
            from: panel.span.0,
            to: panel.span.0.saturating_add(longest),
            max_bytes: max_bytes as f64 * 1.05,
        };
        axes(&mut shapes, &area, panel, chart);
        bands(&mut shapes, &area, panel, &names);
        lines(&mut shapes, &area, panel);
        phases(&mut shapes, &area, panel);
        capacity(&mut shapes, &area, panel);
        peak(&mut shapes, &area, panel, chart);
    }
    Scene { size: (width, height), label: label(chart), shapes }
}

fn label(chart: &Chart) -> String {
    let peaks = chart.panels.iter().map(|panel| {
        let at = ticks::time(panel.peak.0, 1_000_000, None);
        format!("{}: peak {} at {at}", panel.title, Bytes(panel.peak.1))
    });
    format!("{}. {}", chart.title, peaks.collect::<Vec<_>>().join("; "))
}

fn text(
    paint: Paint,
    at: (f64, f64),
    size: f64,
    anchor: TextAnchor,
    bold: bool,
    text: String,
) -> Shape {
    Shape::Text { paint, at, size, anchor, bold, text }
}

/// Returns the bands of all panels by name, so that a band in two panels has one color.
fn names(chart: &Chart) -> Vec<(String, bool)> {
    let mut names: Vec<(String, bool)> = Vec::new();
    for (name, is_rest) in chart.panels.iter().flat_map(|panel| &panel.bands) {
        // The rests of all files share one entry.
        let known = names.iter().any(|(other, rest)| is_rest & rest || other == name);
        if !known {
            names.push((name.clone(), *is_rest));
        }
    }
    names.sort_by_key(|(_, is_rest)| *is_rest);
    names
}

fn paint(names: &[(String, bool)], band: &(String, bool)) -> Paint {
    if band.1 {
        return Paint::Rest;
    }
    names.iter().position(|(name, _)| *name == band.0).map_or(Paint::Rest, Paint::Band)
}

struct Legend {
    lines: usize,
    shapes: Vec<Shape>,
}

/// Lays out the entries in lines, from the bottom up.
fn legend(names: &[(String, bool)], chart: &Chart, width: f64, height: f64) -> Legend {
    let bands = names.iter().map(|band| {
        let name = if band.1 && chart.panels.len() > 1 { "others" } else { &*band.0 };
        (paint(names, band), name.to_owned(), false)
    });
    let mut others: Vec<&str> = Vec::new();
    for (name, _) in chart.panels.iter().flat_map(|panel| &panel.lines) {
        if !others.contains(&&**name) {
            others.push(name);
        }
    }
    let others = others.into_iter().map(|name| (Paint::Text, name.to_owned(), true));
    let entries: Vec<_> = bands.chain(others).collect();
    let room = MAX_LEGEND_ENTRY_WIDTH.min(width - 2.0 * MARGIN);
    let (mut x, mut line) = (MARGIN, 0);
    let mut items = Vec::new();
    for (paint, name, is_line) in entries {
        let name = glyphs::fit(&name, FONT_SIZE, room - 36.0);
        let wide = glyphs::width(&name, FONT_SIZE) + 36.0;
        if x > MARGIN && x + wide > width - MARGIN {
            (x, line) = (MARGIN, line + 1);
        }
        items.push((x, line, paint, name, is_line));
        x += wide;
    }
    items.retain(|(_, line, ..)| *line < MAX_LEGEND_LINES);
    let count = items.last().map_or(0, |(_, line, ..)| line + 1);
    let mut shapes = Vec::new();
    for (x, line, paint, name, is_line) in items {
        let y = height - MARGIN - (count - line) as f64 * LEGEND_LINE_HEIGHT + FONT_SIZE + 4.0;
        if is_line {
            let points = vec![(x, y - 4.0), (x + 14.0, y - 4.0)];
            shapes.push(Shape::Line { paint, width: 1.6, dashed: true, points });
        } else {
            shapes.push(Shape::Box(paint, [x, y - 10.0, 12.0, 12.0]));
        }
        shapes.push(text(Paint::Text, (x + 19.0, y), FONT_SIZE, TextAnchor::Left, false, name));
    }
    Legend { lines: count, shapes }
}

struct PlotArea {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    from: i64,
    to: i64,
    max_bytes: f64,
}

impl PlotArea {
    fn x(&self, at: i64) -> f64 {
        let span = (i128::from(self.to) - i128::from(self.from)).max(1) as f64;
        let since = (i128::from(at) - i128::from(self.from)) as f64;
        self.left + (since / span).clamp(0.0, 1.0) * (self.right - self.left)
    }

    fn y(&self, bytes: u64) -> f64 {
        let part = (bytes as f64 / self.max_bytes).min(1.0);
        self.bottom - part * (self.bottom - self.top)
    }
}

fn axes(shapes: &mut Vec<Shape>, area: &PlotArea, panel: &Panel, chart: &Chart) {
    let room = area.right - area.left;
    let title = glyphs::fit(&panel.title, FONT_SIZE, room);
    if chart.panels.len() > 1 {
        let at = (area.left, MARGIN + TITLE_FONT_SIZE + LEGEND_LINE_HEIGHT);
        shapes.push(text(Paint::Dim, at, FONT_SIZE, TextAnchor::Left, true, title));
    }
    let wanted = ((area.bottom - area.top) / 60.0).max(2.0) as u32;
    for bytes in ticks::sizes(area.max_bytes as u64, wanted) {
        let y = area.y(bytes);
        let points = vec![(area.left, y), (area.right, y)];
        shapes.push(Shape::Line { paint: Paint::Grid, width: 1.0, dashed: false, points });
        let at = (area.left - 8.0, y + 4.0);
        shapes.push(text(Paint::Dim, at, FONT_SIZE, TextAnchor::Right, false, ticks::size(bytes)));
    }
    let utc = panel.utc.filter(|_| chart.clock);
    // Round times of day, not round offsets from the start.
    let offset = utc.unwrap_or(0);
    let ends = [area.from, area.to].map(|end| end.saturating_add(offset));
    let (marks, step) = ticks::times(ends[0], ends[1], (room / 110.0).max(2.0) as u32);
    for at in marks.into_iter().map(|mark| mark.saturating_sub(offset)) {
        let x = area.x(at);
        let points = vec![(x, area.bottom), (x, area.bottom + 4.0)];
        shapes.push(Shape::Line { paint: Paint::Dim, width: 1.0, dashed: false, points });
        let position = (x, area.bottom + 18.0);
        let mark = ticks::time(at, step, utc);
        shapes.push(text(Paint::Dim, position, FONT_SIZE, TextAnchor::Middle, false, mark));
    }
}

/// Draws each band as an area between two step curves: values hold until the next row.
fn bands(shapes: &mut Vec<Shape>, area: &PlotArea, panel: &Panel, names: &[(String, bool)]) {
    let end = area.x(panel.span.1);
    let columns = columns(area, panel);
    let mut base = vec![0_u64; columns.len()];
    for (index, band) in panel.bands.iter().enumerate() {
        let lower = edge(area, &columns, &base, end);
        for (base, (_, values)) in base.iter_mut().zip(&columns) {
            *base = base.saturating_add(values.get(index).copied().unwrap_or(0));
        }
        let mut points = edge(area, &columns, &base, end);
        points.extend(lower.into_iter().rev());
        shapes.push(Shape::Area(paint(names, band), points));
    }
}

/// Width of a column: a pixel of a PNG.
const COLUMN_WIDTH: f64 = 0.5;

/// Returns the values to draw and where they begin. Of the rows in one column the highest is drawn,
/// one column wide: a spike that is narrower than a pixel would fade.
fn columns<'a>(area: &PlotArea, panel: &'a Panel) -> Vec<(f64, &'a [u64])> {
    let column = |at: i64| ((area.x(at) - area.left) / COLUMN_WIDTH) as u64;
    let sum = |values: &[u64]| values.iter().fold(0_u64, |sum, value| sum.saturating_add(*value));
    let mut drawn: Vec<(f64, &[u64])> = Vec::new();
    for rows in panel.rows.chunk_by(|(a, _), (b, _)| column(*a) == column(*b)) {
        let (Some((at, _)), Some((_, last))) = (rows.first(), rows.last()) else { continue };
        let x = area.x(*at);
        let highest = rows.iter().map(|(_, values)| values).max_by_key(|values| sum(values));
        drawn.extend(highest.map(|values| (x, &**values)));
        if rows.len() > 1 {
            drawn.push((x + COLUMN_WIDTH, last));
        }
    }
    drawn
}

fn edge(area: &PlotArea, columns: &[(f64, &[u64])], sizes: &[u64], end: f64) -> Vec<(f64, f64)> {
    let mut points = Vec::with_capacity(2 * sizes.len() + 1);
    let mut y = area.y(0);
    for ((x, _), bytes) in columns.iter().zip(sizes) {
        let x = x.min(end);
        points.push((x, y));
        y = area.y(*bytes);
        points.push((x, y));
    }
    points.push((end, y));
    points
}

/// Draws the memory of the device as a line; beyond the scale, only its size is printed.
fn capacity(shapes: &mut Vec<Shape>, area: &PlotArea, panel: &Panel) {
    let Some(bytes) = panel.capacity.filter(|bytes| *bytes > 0) else { return };
    let label = format!("GPU memory {}", Bytes(bytes));
    let is_shown = bytes as f64 <= area.max_bytes;
    let y = if is_shown { area.y(bytes) } else { area.top };
    if is_shown {
        let points = vec![(area.left, y), (area.right, y)];
        shapes.push(Shape::Line { paint: Paint::Text, width: 1.0, dashed: false, points });
    }
    let at = (area.right, y - 5.0);
    shapes.push(text(Paint::Dim, at, FONT_SIZE, TextAnchor::Right, false, label));
}

fn lines(shapes: &mut Vec<Shape>, area: &PlotArea, panel: &Panel) {
    for (_, all) in &panel.lines {
        let inside = all.iter().filter(|(at, _)| *at >= area.from && *at <= area.to);
        let points = inside.map(|(at, bytes)| (area.x(*at), area.y(*bytes))).collect();
        shapes.push(Shape::Line { paint: Paint::Text, width: 1.6, dashed: true, points });
    }
}

/// Draws a line where each phase begins, a bar for its length, and its label if there is room.
fn phases(shapes: &mut Vec<Shape>, area: &PlotArea, panel: &Panel) {
    let mut free = area.left;
    for phase in &panel.phases {
        if phase.begin > panel.span.1 || phase.end.is_some_and(|end| end < panel.span.0) {
            continue;
        }
        let x = area.x(phase.begin);
        let points = vec![(x, area.top), (x, area.bottom)];
        shapes.push(Shape::Line { paint: Paint::Dim, width: 0.8, dashed: true, points });
        if let Some(end) = phase.end {
            let width = (area.x(end) - x).max(1.0);
            let bar = [x, area.top - PHASE_LABELS + PHASE_HEIGHT, width, PHASE_HEIGHT];
            shapes.push(Shape::Box(Paint::Dim, bar));
        }
        let label = glyphs::fit(&phase.label, FONT_SIZE, MAX_PHASE_WIDTH);
        let wide = glyphs::width(&label, FONT_SIZE);
        let left = if x + wide <= area.right { x } else { area.right - wide };
        if left >= free {
            let at = (left, area.top - PHASE_LABELS);
            shapes.push(text(Paint::Dim, at, FONT_SIZE, TextAnchor::Left, false, label));
            free = left + wide + 8.0;
        }
    }
}

fn peak(shapes: &mut Vec<Shape>, area: &PlotArea, panel: &Panel, chart: &Chart) {
    let (at, bytes) = panel.peak;
    if bytes == 0 {
        return;
    }
    let (x, y) = (area.x(at), area.y(bytes));
    let points = vec![(area.left, y), (area.right, y)];
    shapes.push(Shape::Line { paint: Paint::Alarm, width: 1.0, dashed: true, points });
    shapes.push(Shape::Dot(Paint::Alarm, (x, y)));
    let utc = panel.utc.filter(|_| chart.clock);
    let label = format!("peak {} at {}", Bytes(bytes), ticks::time(at, 1_000_000, utc));
    let room = glyphs::width(&label, FONT_SIZE);
    let (anchor_x, anchor) = if x + room + 8.0 <= area.right {
        (x, TextAnchor::Left)
    } else if x - room >= area.left {
        (x, TextAnchor::Right)
    } else {
        (area.left, TextAnchor::Left)
    };
    shapes.push(text(Paint::Alarm, (anchor_x, y - 7.0), FONT_SIZE, anchor, false, label));
}
