//! A report as text for a terminal or a file: the result first, then aligned tables.

use std::io::{self, Write};

use engine::model::units::{Bytes, Timestamp};

use super::document::{AsciiChart, Cell, Document, Line, Section, Table};
use crate::report::live::text::TextStyle;
use crate::report::view::fit;
use crate::sanitize::sanitize_up_to;

/// Maximum number of characters of a line.
const MAX_LINE_CHARS: usize = 400;

/// Width and height of a chart, in characters.
const CHART_SIZE: (usize, usize) = (72, 8);

fn clean(text: &str) -> String {
    sanitize_up_to(text, MAX_LINE_CHARS).into_owned()
}

/// Writes a report.
pub(super) fn write(out: &mut dyn Write, document: &Document, style: TextStyle) -> io::Result<()> {
    let headline = clean(&document.headline);
    let headline = if document.alarm { style.alarm(&headline) } else { style.bold(&headline) };
    writeln!(out, "{headline}")?;
    for one in &document.lines {
        line(out, one, style)?;
    }
    for part in &document.sections {
        section(out, part, style)?;
    }
    if !document.notes.is_empty() {
        writeln!(out)?;
    }
    for note in &document.notes {
        line(out, note, style)?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, line: &Line, style: TextStyle) -> io::Result<()> {
    match line {
        Line::Plain(text) => writeln!(out, "{}", clean(text)),
        Line::Dim(text) => writeln!(out, "{}", style.dim(&clean(text))),
        Line::Alarm(text) => writeln!(out, "{}", style.alarm(&clean(text))),
    }
}

fn section(out: &mut dyn Write, section: &Section, style: TextStyle) -> io::Result<()> {
    if section.chart.is_none() && section.table.rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    if !section.title.is_empty() {
        writeln!(out, "{}", style.bold(&clean(&section.title)))?;
    }
    if let Some(series_chart) = &section.chart {
        chart(out, series_chart, style)?;
    }
    table(out, &section.table, style)?;
    for one in &section.after {
        line(out, one, style)?;
    }
    Ok(())
}

fn table(out: &mut dyn Write, table: &Table, style: TextStyle) -> io::Result<()> {
    if table.rows.is_empty() {
        return Ok(());
    }
    let cells: Vec<Vec<String>> = table
        .rows
        .iter()
        .map(|row| row.iter().map(|cell| clean(&cell.short())).collect())
        .collect();
    let is_numeric = |column: usize| {
        let mut in_column = table.rows.iter().filter_map(|row| row.get(column));
        in_column.any(Cell::is_numeric)
    };
    let mut widths = Vec::new();
    for (column, name) in table.columns.iter().enumerate() {
        let cells = cells.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widths.push((widest.max(name.len()), is_numeric(column)));
    }
    let room = fit_last(&mut widths, style.width);
    let head: Vec<String> = table.columns.iter().map(|name| name.to_uppercase()).collect();
    writeln!(out, "{}", style.dim(&aligned(&head, &widths)))?;
    for (row, mut cells) in table.rows.iter().zip(cells) {
        cells.last_mut().into_iter().for_each(|cell| *cell = fit(cell, room));
        writeln!(out, "{}", aligned(&cells, &widths))?;
        for (column, cell) in row.iter().enumerate() {
            let indent: usize = widths.iter().take(column).map(|(width, _)| width + 2).sum();
            for more in cell.more_lines() {
                writeln!(out, "  {:indent$}{}", "", style.dim(&fit(&clean(more), room)))?;
            }
        }
    }
    Ok(())
}

/// Minimum width of the last column.
const MIN_LAST_WIDTH: usize = 24;

/// Shortens the last column, which has the site, so that a row fits. Returns the room for it.
fn fit_last(widths: &mut [(usize, bool)], width: usize) -> usize {
    let all: usize = widths.iter().map(|(width, _)| width + 2).sum();
    let Some((last, is_numeric)) = widths.last_mut() else { return width };
    if *is_numeric {
        return *last;
    }
    let room = width.saturating_sub(all - *last).max(MIN_LAST_WIDTH);
    *last = (*last).min(room);
    room
}

fn aligned(cells: &[String], widths: &[(usize, bool)]) -> String {
    let mut text = String::new();
    for (cell, (width, right)) in cells.iter().zip(widths) {
        text += "  ";
        let fill = " ".repeat(width.saturating_sub(cell.chars().count()));
        if *right {
            text += &fill;
        }
        text += cell;
        if !*right {
            text += &fill;
        }
    }
    text.trim_end().to_owned()
}

/// Draws the first series with block characters of eight heights.
fn chart(out: &mut dyn Write, chart: &AsciiChart, style: TextStyle) -> io::Result<()> {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let Some(curve) = chart.curves.first() else { return Ok(()) };
    let times = || chart.curves.iter().flat_map(|curve| &curve.points).map(|(at, _)| *at);
    let (Some(first), Some(last)) = (times().min(), times().max()) else { return Ok(()) };
    let heights = heights(&curve.points, (first, last), CHART_SIZE.0);
    let Some(top) = heights.iter().copied().max().filter(|top| *top > 0) else { return Ok(()) };
    let label = Bytes(top).to_string();
    for row in (0..CHART_SIZE.1).rev() {
        let bar = |height: &u64| {
            let eighths =
                (u128::from(*height) * (CHART_SIZE.1 as u128) * 8).div_ceil(u128::from(top));
            let here = eighths.saturating_sub(row as u128 * 8).min(8) as usize;
            BARS.get(here).copied().unwrap_or(' ')
        };
        let text: String = heights.iter().map(bar).collect();
        let side = if row + 1 == CHART_SIZE.1 { label.clone() } else { " ".repeat(label.len()) };
        writeln!(out, "  {} {}", style.dim(&side), text.trim_end())?;
    }
    let (first, last) = (clean(&chart.ends.0), clean(&chart.ends.1));
    let room = CHART_SIZE.0.saturating_sub(first.chars().count() + last.chars().count());
    let axis = format!("{:width$} {first}{:room$}{last}", "", "", width = label.len());
    writeln!(out, "  {}", style.dim(&axis))
}

/// Returns the maximum in each of `columns` equal time spans.
fn heights(
    points: &[(Timestamp, u64)],
    (first, last): (Timestamp, Timestamp),
    columns: usize,
) -> Vec<u64> {
    let span = u128::from((last - first).0).max(1);
    let column = |at: Timestamp| {
        let index = u128::from((at - first).0) * (columns as u128 - 1) / span;
        usize::try_from(index).unwrap_or(0).min(columns - 1)
    };
    let mut heights = vec![0; columns];
    let mut now = 0;
    let mut reached = 0;
    for (at, bytes) in points {
        let to = column(*at);
        for height in heights.iter_mut().take(to + 1).skip(reached + 1) {
            *height = now;
        }
        reached = to;
        now = *bytes;
        if let Some(height) = heights.get_mut(to) {
            *height = now.max(*height);
        }
    }
    for height in heights.iter_mut().skip(reached + 1) {
        *height = now;
    }
    heights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_holds_until_the_next_point() {
        let points =
            [(Timestamp(0), 5), (Timestamp(50), 9), (Timestamp(50), 2), (Timestamp(100), 0)];
        assert_eq!(heights(&points, (Timestamp(0), Timestamp(100)), 5), [5, 5, 9, 2, 2]);
        assert_eq!(heights(&[(Timestamp(3), 7)], (Timestamp(1), Timestamp(5)), 3), [0, 7, 7]);
        assert_eq!(heights(&[(Timestamp(3), 7)], (Timestamp(3), Timestamp(3)), 3), [7, 7, 7]);
    }

    #[test]
    fn numbers_are_right_aligned_and_text_left_aligned() {
        let table = Table {
            columns: vec!["bytes", "site"],
            rows: vec![
                vec![Cell::Bytes(8), Cell::Text("a\x1b[31m".into())],
                vec![
                    Cell::Bytes(1 << 20),
                    Cell::Stack { short: vec!["f".into(), "g".into()], full: Vec::new() },
                ],
            ],
        };
        let mut out = Vec::new();
        super::table(&mut out, &table, TextStyle::default()).unwrap();
        let want = "     BYTES  SITE\n       8 B  a\\u{1b}[31m\n  1.00 MiB  f\n            g\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
