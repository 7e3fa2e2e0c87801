//! Structure of a report before rendering: lines, tables and charts.

use std::cmp::Reverse;

use engine::model::{Bytes, Nanos, Pid, Timestamp};
use hashbrown::HashMap;

/// A report for readers.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Document {
    /// Result in one line.
    pub headline: String,
    /// Whether the headline is an alarm.
    pub alarm: bool,
    /// Lines below the headline.
    pub lines: Vec<Line>,
    /// Sections with tables and charts.
    pub sections: Vec<Section>,
    /// Notes on the accuracy of the values.
    pub notes: Vec<Line>,
}

/// A line of text, not yet sanitized.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// Normal.
    Plain(String),
    /// Less important.
    Dim(String),
    /// More important.
    Alarm(String),
}

/// A section of a report.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Section {
    /// Title; empty if none.
    pub title: String,
    /// Chart above the table.
    pub chart: Option<AsciiChart>,
    /// Table.
    pub table: Table,
    /// Lines after the table, such as omitted rows.
    pub after: Vec<Line>,
}

/// A table.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// Column names.
    pub columns: Vec<&'static str>,
    /// Rows; each has one cell per column.
    pub rows: Vec<Vec<Cell>>,
}

/// Returns a table: the name of each column, and its cell in a row.
macro_rules! table {
    ($rows:expr, |$row:pat_param| { $($column:literal: $cell:expr),* $(,)? }) => {
        Table {
            columns: vec![$($column),*],
            rows: $rows.map(|$row| vec![$($cell),*]).collect(),
        }
    };
}
pub(super) use table;

/// A value or a text, not yet sanitized.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// No value.
    Empty,
    /// A text.
    Text(String),
    /// A size.
    Bytes(u64),
    /// The difference of two sizes.
    Difference(i128),
    /// A number of things.
    Count(u64),
    /// A ratio from 0 to 1.
    Share(f64),
    /// A time: as text, and in nanoseconds since the start of the file.
    Time(String, i64),
    /// A duration.
    Span(Nanos),
    /// An address or handle.
    Address(u64),
    /// A call stack, innermost frame first: shortened, and complete.
    Stack {
        /// Shortened lines.
        short: Vec<String>,
        /// All frames.
        full: Vec<String>,
    },
}

/// Chart of memory over time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AsciiChart {
    /// Step curves: each value holds until the next point.
    pub curves: Vec<ChartSeries>,
    /// Labels of the first and last time.
    pub ends: (String, String),
}

/// One series of a chart.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ChartSeries {
    /// Label.
    pub name: String,
    /// Timestamps and bytes.
    pub points: Vec<(Timestamp, u64)>,
}

impl Section {
    /// Returns a section with the largest rows, whose first cell is a size. Rows with the same texts
    /// are one: their stacks differ only in folded frames.
    pub(super) fn merged(title: impl Into<String>, table: Table, most: usize) -> Self {
        let mut merged: Vec<Vec<Cell>> = Vec::new();
        let mut known: HashMap<Vec<String>, usize> = HashMap::new();
        for row in table.rows {
            let texts = row.iter().map(Cell::identity).collect();
            let index = *known.entry(texts).or_insert(merged.len());
            match merged.get_mut(index) {
                Some(sum) => sum.iter_mut().zip(&row).for_each(|(sum, cell)| sum.add(cell)),
                None => merged.push(row),
            }
        }
        let size = |row: &Vec<Cell>| match row.first() {
            Some(Cell::Bytes(bytes)) => Reverse(*bytes),
            _ => Reverse(0),
        };
        merged.sort_by_key(size);
        let all = merged.len();
        merged.truncate(most);
        Self::list(title, Table { columns: table.columns, rows: merged }, all)
    }

    /// Returns a section with a table. `all`: number of rows, of which the table has the first ones.
    pub(super) fn list(title: impl Into<String>, table: Table, all: usize) -> Self {
        let after = super::omitted_note(all, table.rows.len()).into_iter().collect();
        Self { title: title.into(), table, after, ..Self::default() }
    }
}

impl Cell {
    /// Returns a process id; empty if there is none.
    pub(super) fn pid(pid: Option<Pid>) -> Self {
        pid.map_or(Self::Empty, |pid| Self::Text(pid.to_string()))
    }

    /// Returns the signed difference of two sizes.
    pub(super) fn difference(before: u64, after: u64) -> Self {
        Self::Difference(i128::from(after) - i128::from(before))
    }

    /// Returns the text of a cell that does not count anything, with all shown frames.
    fn identity(&self) -> String {
        match self {
            Self::Stack { short, .. } => short.join("\n"),
            Self::Text(text) => text.clone(),
            _ => String::new(),
        }
    }

    /// Adds the cell of another row; of durations, keeps the longest.
    fn add(&mut self, other: &Self) {
        match (self, other) {
            (Self::Bytes(sum), Self::Bytes(more)) | (Self::Count(sum), Self::Count(more)) => {
                *sum = sum.saturating_add(*more);
            }
            (Self::Share(sum), Self::Share(more)) => *sum += more,
            (Self::Span(longest), Self::Span(more)) => *longest = (*longest).max(*more),
            _ => {}
        }
    }

    /// Formats the value for readers; of a stack, only the first line.
    pub(super) fn short(&self) -> String {
        match self {
            Self::Empty => String::new(),
            Self::Text(text) | Self::Time(text, _) => text.clone(),
            Self::Bytes(bytes) => Bytes(*bytes).to_string(),
            Self::Difference(bytes) => {
                let size = Bytes(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
                match bytes.signum() {
                    0 => "=".to_owned(),
                    1 => format!("+{size}"),
                    _ => format!("-{size}"),
                }
            }
            Self::Count(count) => count.to_string(),
            Self::Share(share) => format!("{:.1} %", share * 100.0),
            Self::Span(span) => super::super::live::text::format_age(*span),
            Self::Address(address) => format!("{address:#x}"),
            Self::Stack { short, .. } => short.first().cloned().unwrap_or_default(),
        }
    }

    /// Formats the value for TSV.
    pub(super) fn raw(&self) -> String {
        match self {
            Self::Bytes(number) | Self::Count(number) => number.to_string(),
            Self::Difference(bytes) => bytes.to_string(),
            Self::Share(share) => format!("{share:.6}"),
            Self::Span(span) => span.0.to_string(),
            Self::Time(_, nanos) => nanos.to_string(),
            Self::Stack { full, .. } => full.join(" <- "),
            Self::Empty | Self::Text(_) | Self::Address(_) => self.short(),
        }
    }

    /// Returns whether the cell is right-aligned.
    pub(super) const fn is_numeric(&self) -> bool {
        !matches!(self, Self::Text(_) | Self::Stack { .. } | Self::Time(..) | Self::Empty)
    }
}
