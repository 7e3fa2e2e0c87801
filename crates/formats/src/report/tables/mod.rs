//! The tables of interactive views: titles, cells and units of each list. Rows are formatted one by
//! one, so a view formats only those that are visible. All texts are sanitized.

pub mod allocations;
pub mod allocators;
pub mod gpus;
pub mod incidents;
pub mod kernels;
pub mod leaks;
pub mod memory_of;
pub mod objects;
pub mod process_filter;
pub mod processes;
pub mod sites;
pub mod stack;

use serde::Serialize;

use super::view::{shorten, shorten_place};

/// Declares tables: the columns and the cells of a row, each column once. Statements in `let { … }`
/// come before the cells.
macro_rules! columns {
    ($(
        $(#[$meta:meta])*
        $vis:vis const $columns:ident, $cells_vis:vis fn $cells:ident($($arg:ident: $arg_type:ty),*)
        $(let { $($statement:tt)* })?
        { $($kind:ident($($spec:expr),*): $cell:expr),* $(,)? }
    )*) => {$(
        /// Columns.
        $vis const $columns: [$crate::report::tables::ColumnSpec; [$(stringify!($kind)),*].len()] =
            [$($crate::report::tables::ColumnSpec::$kind($($spec),*)),*];

        $(#[$meta])*
        $cells_vis fn $cells($($arg: $arg_type),*) -> Vec<String> {
            $($($statement)*)?
            vec![$($cell),*]
        }
    )*};
}
pub(crate) use columns;

/// A column of a table. Pages get its title and alignment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ColumnSpec {
    /// Title.
    pub title: &'static str,
    /// Whether cells are aligned to the right.
    #[serde(rename = "right")]
    pub is_right: bool,
    /// Minimum width to which it may be shortened; `None` if it may not.
    #[serde(skip)]
    pub shrinks_to: Option<usize>,
    /// Columns with a higher rank are left out first where the width does not suffice for all.
    #[serde(skip)]
    pub rank: u8,
    /// Whether its cells are places, which keep their line numbers when they are shortened.
    #[serde(skip)]
    pub is_place: bool,
}

impl ColumnSpec {
    pub(crate) const fn right(title: &'static str, rank: u8) -> Self {
        Self { title, is_right: true, shrinks_to: None, rank, is_place: false }
    }

    pub(crate) const fn left(title: &'static str, rank: u8) -> Self {
        Self { title, is_right: false, shrinks_to: None, rank, is_place: false }
    }

    pub(crate) const fn flexible(title: &'static str, min: usize, rank: u8) -> Self {
        Self { title, is_right: false, shrinks_to: Some(min), rank, is_place: false }
    }

    pub(crate) const fn place(title: &'static str, min: usize, rank: u8) -> Self {
        Self { is_place: true, ..Self::flexible(title, min, rank) }
    }

    /// Shortens a cell to a number of characters.
    pub fn shorten(&self, text: &str, width: usize) -> String {
        if self.is_place { shorten_place(text, width) } else { shorten(text, width) }
    }
}

/// Characters of a small chart, lowest first.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws the last values as one line of at most `width` characters, from the lowest to the highest
/// value. Values that are all equal are drawn in the middle.
pub fn sparkline(values: &[u64], width: usize) -> String {
    let shown = resample(values, width);
    let (low, high) = (shown.iter().min().copied(), shown.iter().max().copied());
    let (low, high) = (low.unwrap_or(0), high.unwrap_or(0));
    let level = |value: &u64| {
        let above = u128::from(value - low) * (LEVELS.len() as u128 - 1);
        let index = above.checked_div(u128::from(high - low)).unwrap_or(LEVELS.len() as u128 / 2);
        LEVELS.get(usize::try_from(index).unwrap_or(0)).copied().unwrap_or(' ')
    };
    shown.iter().map(level).collect()
}

/// Draws values as columns in `height` lines, top line first, from 0 to `top`.
pub fn columns_chart(values: &[u64], top: u64, width: usize, height: usize) -> Vec<String> {
    let shown = resample(values, width);
    let steps = (height * LEVELS.len()) as u128;
    let filled: Vec<usize> = shown
        .iter()
        .map(|value| {
            let eighths = u128::from(*value) * steps / u128::from(top.max(1));
            // A value above 0 is visible.
            let least = u128::from(*value > 0);
            usize::try_from(eighths.clamp(least, steps)).unwrap_or(0)
        })
        .collect();
    let line = |row: usize| {
        let below = (height - 1 - row) * LEVELS.len();
        let cell = |filled: &usize| match filled.saturating_sub(below) {
            0 => ' ',
            part => LEVELS.get(part.min(LEVELS.len()) - 1).copied().unwrap_or(' '),
        };
        filled.iter().map(cell).collect()
    };
    (0..height).map(line).collect()
}

/// Returns the column of a value in a chart of at most `width` columns.
pub fn chart_column(index: usize, length: usize, width: usize) -> usize {
    index / length.div_ceil(width.max(1)).max(1)
}

/// Returns at most `width` values: of several that share a column, the largest.
fn resample(values: &[u64], width: usize) -> Vec<u64> {
    if width == 0 {
        return Vec::new();
    }
    let per_column = values.len().div_ceil(width).max(1);
    values.chunks(per_column).map(|part| part.iter().copied().max().unwrap_or(0)).collect()
}

/// Formats a share in percent; empty if there is no total.
fn percent(part: u64, total: u64) -> String {
    match u128::from(part).checked_mul(100).and_then(|part| part.checked_div(u128::from(total))) {
        Some(share) => format!("{share} %"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparklines_fit_and_keep_peaks() {
        assert_eq!(sparkline(&[0, 1, 2, 3, 4, 5, 6, 7], 8), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[5, 5, 5], 8), "▅▅▅");
        assert_eq!(sparkline(&[], 8), "");
        let mut peak = vec![0; 100];
        peak[41] = 9;
        let line = sparkline(&peak, 10);
        assert_eq!((line.chars().count(), line.matches('█').count()), (10, 1));
    }

    #[test]
    fn charts_have_lines_from_top_to_bottom() {
        assert_eq!(columns_chart(&[0, 1, 8, 16], 16, 4, 2), ["   █", " ▁██"]);
        assert_eq!(columns_chart(&[3], 0, 4, 1), ["█"]);
    }

    #[test]
    fn shares_of_nothing_are_empty() {
        assert_eq!((percent(1, 3), percent(0, 0)), ("33 %".into(), String::new()));
    }
}
