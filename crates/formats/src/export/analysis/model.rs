//! What a report consists of, before it has a form: lines, tables and charts.

use engine::units::{Bytes, Moment, Nanos};

/// A report for people.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Page {
    /// The answer, in one line.
    pub headline: String,
    /// It is bad news.
    pub alarm: bool,
    /// What else there is to say at once.
    pub lines: Vec<Line>,
    /// The rest.
    pub sections: Vec<Section>,
    /// What a reader should know of the figures.
    pub notes: Vec<Line>,
}

/// A line of text, which may be hostile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// As it is.
    Plain(String),
    /// Of less interest.
    Dim(String),
    /// Of more interest.
    Alarm(String),
}

/// A part of a page.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Section {
    /// What it is about.
    pub title: String,
    /// A picture of it.
    pub chart: Option<Chart>,
    /// The figures.
    pub table: Table,
    /// What the table leaves out.
    pub after: Vec<Line>,
}

/// Rows of figures.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<&'static str>,
    /// As many cells each.
    pub rows: Vec<Vec<Cell>>,
}

/// A figure or a text, which may be hostile.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// Nothing to tell.
    Empty,
    /// A text.
    Text(String),
    /// A size.
    Bytes(u64),
    /// The difference of two sizes.
    Difference(i128),
    /// A number of things.
    Count(u64),
    /// A part of a whole, from 0 to 1.
    Share(f64),
    /// A moment: how people read it, and nanoseconds since the file's beginning.
    Time(String, i64),
    /// A span of time.
    Span(Nanos),
    /// An address or handle.
    Address(u64),
    /// A call stack, innermost frame first: short for people, and in full.
    Stack {
        /// Lines for people.
        short: Vec<String>,
        /// All frames.
        full: Vec<String>,
    },
}

/// Memory over time.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Chart {
    /// Steps: each height holds until the next.
    pub curves: Vec<Curve>,
    /// How the first and last moment are called.
    pub ends: (String, String),
}

/// A curve of a chart.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Curve {
    /// What it is.
    pub name: String,
    /// Moments and bytes.
    pub points: Vec<(Moment, u64)>,
}

impl Cell {
    /// A size, signed.
    pub(super) fn difference(before: u64, after: u64) -> Self {
        Self::Difference(i128::from(after) - i128::from(before))
    }

    /// How people read it; stacks are not a matter of one line.
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
            Self::Span(span) => super::super::text::age(*span),
            Self::Address(address) => format!("{address:#x}"),
            Self::Stack { short, .. } => short.first().cloned().unwrap_or_default(),
        }
    }

    /// How programs read it.
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

    /// Whether it is written to the right of its column.
    pub(super) const fn is_figure(&self) -> bool {
        !matches!(self, Self::Text(_) | Self::Stack { .. } | Self::Time(..) | Self::Empty)
    }

    /// Lines beyond the first.
    pub(super) fn more_lines(&self) -> &[String] {
        match self {
            Self::Stack { short, .. } => short.get(1..).unwrap_or(&[]),
            _ => &[],
        }
    }
}
