//! A report as text for a terminal or a file: the result first, then aligned tables.

use std::io::{self, Write};

use engine::model::{Bytes, Timestamp};

use super::document::{AsciiChart, Cell, Document, Line, Section, Table};
use crate::report::live::text::TextStyle;
use crate::report::text_page::TextPage;
use crate::report::view::{fit, without_directories};
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
pub(super) fn write(out: &mut TextPage<'_>, document: &Document) -> io::Result<()> {
    let paint = if document.alarm { TextStyle::alarm } else { TextStyle::bold };
    out.wrapped(paint, &clean(&document.headline), 2)?;
    for one in &document.lines {
        line(out, one)?;
    }
    for part in &document.sections {
        section(out, part)?;
    }
    if !document.notes.is_empty() {
        writeln!(out)?;
    }
    for note in &document.notes {
        line(out, note)?;
    }
    Ok(())
}

fn line(out: &mut TextPage<'_>, line: &Line) -> io::Result<()> {
    match line {
        Line::Plain(text) => out.wrapped(TextStyle::plain, &clean(text), 2),
        Line::Dim(text) => out.wrapped(TextStyle::dim, &clean(text), 2),
        Line::Alarm(text) => out.wrapped(TextStyle::alarm, &clean(text), 2),
    }
}

fn section(out: &mut TextPage<'_>, section: &Section) -> io::Result<()> {
    if section.chart.is_none() && section.table.rows.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    if !section.title.is_empty() {
        out.wrapped(TextStyle::bold, &clean(&section.title), 2)?;
    }
    if let Some(series_chart) = &section.chart {
        chart(out, series_chart)?;
    }
    table(out, &section.table)?;
    for one in &section.after {
        line(out, one)?;
    }
    Ok(())
}

fn table(out: &mut TextPage<'_>, table: &Table) -> io::Result<()> {
    if table.rows.is_empty() {
        return Ok(());
    }
    let mut columns: Vec<Column> =
        (0..table.columns.len()).map(|index| Column::of(table, index)).collect();
    columns.retain(|column| !column.is_empty);
    if total(&columns) > out.style.width {
        columns.retain(|column| !column.is_zero);
    }
    if total(&columns) > out.style.width {
        columns.retain(|column| !column.is_constant);
    }
    let is_too_wide = total(&columns) > out.style.width;
    // The site, or another long text, gets its own lines.
    let below = columns.pop_if(|last| is_too_wide && !last.is_numeric);
    shrink(&mut columns, out.style.width);
    let head = columns.iter().map(|column| column.title.clone());
    out.dim(&aligned(head, &columns))?;
    for row in &table.rows {
        let cells: Vec<Vec<String>> = columns.iter().map(|column| column.lines(row)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        for index in 0..height {
            let line = cells.iter().map(|lines| lines.get(index).cloned().unwrap_or_default());
            let line = aligned(line, &columns);
            writeln!(out, "{}", if index == 0 { line } else { out.style.dim(&line) })?;
        }
        let Some(below) = &below else { continue };
        for line in below.lines(row) {
            let line = if below.is_stack { line } else { format!("{}: {line}", below.name) };
            let text = fit(&line, out.style.width.saturating_sub(INDENT));
            writeln!(out, "{:INDENT$}{}", "", out.style.dim(&text))?;
        }
    }
    Ok(())
}

/// Indentation of texts below their row.
const INDENT: usize = 6;

/// A column as it is printed.
struct Column {
    index: usize,
    name: &'static str,
    title: String,
    width: usize,
    is_numeric: bool,
    is_stack: bool,
    /// Whether no row has a value.
    is_empty: bool,
    /// Whether no row has a value other than zero.
    is_zero: bool,
    /// Whether all rows have the same kind or device, and there is more than one.
    is_constant: bool,
}

impl Column {
    fn of(table: &Table, index: usize) -> Self {
        let cells = || table.rows.iter().filter_map(|row| row.get(index));
        let name = table.columns.get(index).copied().unwrap_or_default();
        let title = name.to_uppercase();
        let mut column = Self {
            index,
            name,
            is_stack: cells().any(|cell| matches!(cell, Cell::Stack { .. })),
            width: usize::MAX,
            is_empty: cells().all(|cell| cell.short().is_empty()),
            is_constant: matches!(&*title, "KIND" | "DEVICE")
                && table.rows.len() > 1
                && cells().all(|cell| Some(cell) == cells().next()),
            title,
            is_numeric: cells().any(Cell::is_numeric),
            is_zero: cells()
                .all(|cell| matches!(cell, Cell::Empty | Cell::Bytes(0) | Cell::Count(0))),
        };
        let lines = table.rows.iter().flat_map(|row| column.lines(row));
        let widest = lines.map(|line| line.chars().count()).max().unwrap_or(0);
        column.width = widest.max(column.title.len());
        column
    }

    /// Returns the lines of a cell; files of stacks have no directories.
    fn lines(&self, row: &[Cell]) -> Vec<String> {
        let texts = match row.get(self.index) {
            Some(Cell::Stack { short, .. }) => {
                short.iter().map(|line| without_directories(&clean(line))).collect()
            }
            Some(cell) => vec![clean(&cell.short())],
            None => Vec::new(),
        };
        texts.iter().map(|text| fit(text, self.width)).filter(|text| !text.is_empty()).collect()
    }
}

/// Smallest width to which columns of texts are shortened.
const MIN_WIDTH: usize = 8;

fn total(columns: &[Column]) -> usize {
    columns.iter().map(|column| column.width + 2).sum()
}

/// Shortens columns of texts, the widest first, until a row fits.
fn shrink(columns: &mut [Column], width: usize) {
    while total(columns) > width {
        let texts =
            columns.iter_mut().filter(|column| !column.is_numeric && column.width > MIN_WIDTH);
        match texts.max_by_key(|column| column.width) {
            Some(column) => column.width -= 1,
            None => return,
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
fn chart(out: &mut TextPage<'_>, chart: &AsciiChart) -> io::Result<()> {
    const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let Some(curve) = chart.curves.first() else { return Ok(()) };
    let times = || chart.curves.iter().flat_map(|curve| &curve.points).map(|(at, _)| *at);
    let (Some(first), Some(last)) = (times().min(), times().max()) else { return Ok(()) };
    let top = curve.points.iter().map(|(_, bytes)| *bytes).max();
    let Some(top) = top.filter(|top| *top > 0) else { return Ok(()) };
    let label = Bytes(top).to_string();
    let width = out.style.width.saturating_sub(label.len() + 3).clamp(CHART_WIDTH.0, CHART_WIDTH.1);
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
        writeln!(out, "  {} {}", out.style.dim(&side), text.trim_end())?;
    }
    let (first, last) = (clean(&chart.ends.0), clean(&chart.ends.1));
    let room = width.saturating_sub(first.chars().count() + last.chars().count());
    let axis = format!("{:indent$} {first}{:room$}{last}", "", "", indent = label.len());
    writeln!(out, "  {}", out.style.dim(&axis))
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
        super::table(&mut TextPage::new(&mut out, TextStyle::default()), &table).unwrap();
        let want = "     BYTES  SITE\n       8 B  a\\u{1b}[31m\n  1.00 MiB  f\n            g\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }
}
