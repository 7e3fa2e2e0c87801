//! A report as text for a terminal or a file: the result first, then aligned tables.

use std::io::{self, Write};

use engine::model::{Bytes, Timestamp};

use super::document::{AsciiChart, Cell, Document, Line, Section, Table};
use crate::report::live::text::TextStyle;
use crate::report::view::{fit, wrap};
use crate::sanitize::sanitize_up_to;

/// Maximum number of characters of a line.
const MAX_LINE_CHARS: usize = 400;

/// Height of a chart in lines, and its smallest and largest width.
const CHART_HEIGHT: usize = 8;
const CHART_WIDTH: (usize, usize) = (20, 100);

fn clean(text: &str) -> String {
    sanitize_up_to(text, MAX_LINE_CHARS).into_owned()
}

/// Writes a report.
pub(super) fn write(out: &mut dyn Write, document: &Document, style: TextStyle) -> io::Result<()> {
    for headline in wrap(&clean(&document.headline), style.width, 2) {
        let headline = if document.alarm { style.alarm(&headline) } else { style.bold(&headline) };
        writeln!(out, "{headline}")?;
    }
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
    let (Line::Plain(text) | Line::Dim(text) | Line::Alarm(text)) = line;
    for text in wrap(&clean(text), style.width, 2) {
        let text = match line {
            Line::Plain(_) => text,
            Line::Dim(_) => style.dim(&text),
            Line::Alarm(_) => style.alarm(&text),
        };
        writeln!(out, "{text}")?;
    }
    Ok(())
}

fn section(out: &mut dyn Write, section: &Section, style: TextStyle) -> io::Result<()> {
    if section.chart.is_none() && section.table.rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    if !section.title.is_empty() {
        for title in wrap(&clean(&section.title), style.width, 2) {
            writeln!(out, "{}", style.bold(&title))?;
        }
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
    let mut columns: Vec<Column> =
        (0..table.columns.len()).map(|index| Column::of(table, index)).collect();
    if total(&columns) > style.width {
        columns.retain(|column| !column.is_zero);
    }
    if total(&columns) > style.width {
        columns.retain(|column| !column.is_constant);
    }
    shrink(&mut columns, style.width);
    let head = columns.iter().map(|column| column.title.clone());
    writeln!(out, "{}", style.dim(&aligned(head, &columns)))?;
    for row in &table.rows {
        let cells: Vec<&Cell> = columns.iter().filter_map(|column| row.get(column.index)).collect();
        let short = cells
            .iter()
            .zip(&columns)
            .map(|(cell, column)| fit(&clean(&cell.short()), column.width));
        writeln!(out, "{}", aligned(short, &columns))?;
        let mut indent = 0;
        for (cell, column) in cells.iter().zip(&columns) {
            for more in cell.more_lines() {
                let more = fit(&clean(more), column.width);
                writeln!(out, "  {:indent$}{}", "", style.dim(&more))?;
            }
            indent += column.width + 2;
        }
    }
    Ok(())
}

/// A column as it is printed.
struct Column {
    index: usize,
    title: String,
    width: usize,
    is_numeric: bool,
    /// Whether no row has a value other than zero.
    is_zero: bool,
    /// Whether all rows have the same kind or device, and there is more than one.
    is_constant: bool,
}

impl Column {
    fn of(table: &Table, index: usize) -> Self {
        let cells = || table.rows.iter().filter_map(|row| row.get(index));
        let title = table.columns.get(index).map_or_else(String::new, |name| name.to_uppercase());
        let lines = cells().flat_map(|cell| {
            let more = cell.more_lines().iter().map(|line| clean(line));
            std::iter::once(clean(&cell.short())).chain(more)
        });
        let widest = lines.map(|line| line.chars().count()).max().unwrap_or(0);
        Self {
            index,
            width: widest.max(title.len()),
            is_constant: matches!(&*title, "KIND" | "DEVICE")
                && table.rows.len() > 1
                && cells().all(|cell| Some(cell) == cells().next()),
            title,
            is_numeric: cells().any(Cell::is_numeric),
            is_zero: cells()
                .all(|cell| matches!(cell, Cell::Empty | Cell::Bytes(0) | Cell::Count(0))),
        }
    }
}

/// Smallest widths to which columns of texts are shortened: the last one, which has the site, and
/// others.
const MIN_WIDTHS: (usize, usize) = (24, 8);

fn total(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width + 2).sum()
}

/// Shortens columns of texts, the last one first, until a row fits.
fn shrink(columns: &mut [Column], width: usize) {
    let last = columns.len().saturating_sub(1);
    for (is_last, min) in [(true, MIN_WIDTHS.0), (false, MIN_WIDTHS.1), (true, MIN_WIDTHS.1)] {
        loop {
            let excess = total(columns).saturating_sub(width);
            let texts = columns.iter_mut().enumerate().filter(|(index, column)| {
                !column.is_numeric && (*index == last) == is_last && column.width > min
            });
            match texts.max_by_key(|(_, column)| column.width) {
                Some((_, column)) if excess > 0 => column.width -= 1,
                _ => break,
            }
        }
    }
}

fn aligned(cells: impl Iterator<Item = String>, columns: &[Column]) -> String {
    let mut text = String::new();
    for (cell, column) in cells.zip(columns) {
        text += "  ";
        let fill = " ".repeat(column.width.saturating_sub(cell.chars().count()));
        if column.is_numeric {
            text += &fill;
        }
        text += &cell;
        if !column.is_numeric {
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
    let top = curve.points.iter().map(|(_, bytes)| *bytes).max();
    let Some(top) = top.filter(|top| *top > 0) else { return Ok(()) };
    let label = Bytes(top).to_string();
    let width = style.width.saturating_sub(label.len() + 3).clamp(CHART_WIDTH.0, CHART_WIDTH.1);
    let heights = heights(&curve.points, (first, last), width);
    for row in (0..CHART_HEIGHT).rev() {
        let bar = |height: &u64| {
            let eighths =
                (u128::from(*height) * (CHART_HEIGHT as u128) * 8).div_ceil(u128::from(top));
            let here = eighths.saturating_sub(row as u128 * 8).min(8) as usize;
            BARS.get(here).copied().unwrap_or(' ')
        };
        let text: String = heights.iter().map(bar).collect();
        let side = if row + 1 == CHART_HEIGHT { label.clone() } else { " ".repeat(label.len()) };
        writeln!(out, "  {} {}", style.dim(&side), text.trim_end())?;
    }
    let (first, last) = (clean(&chart.ends.0), clean(&chart.ends.1));
    let room = width.saturating_sub(first.chars().count() + last.chars().count());
    let axis = format!("{:indent$} {first}{:room$}{last}", "", "", indent = label.len());
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
