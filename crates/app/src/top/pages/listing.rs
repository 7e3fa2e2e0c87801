//! A table of which only the visible rows are formatted.

use std::hash::{DefaultHasher, Hash, Hasher};

use engine::model::{ProcessKey, SiteName};
use formats::report::tables::ColumnSpec;

use crate::top::theme::Tone;

/// What a row stands for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum Target {
    /// A process of a host.
    Process { host: usize, key: ProcessKey },
    /// A group of processes.
    Group(String),
    /// A site of the process that is looked at.
    Site { name: SiteName, is_tensors: bool },
    /// A leak of a host, by its id.
    Leak { host: usize, id: u64 },
    /// Nothing behind it.
    #[default]
    Nothing,
}

/// A row.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Row {
    pub(crate) cells: Vec<String>,
    pub(crate) tone: Tone,
    pub(crate) target: Target,
}

/// A table.
pub(crate) struct Listing<'a> {
    pub(crate) columns: Vec<ColumnSpec>,
    /// Columns that are drawn as charts.
    pub(crate) charts: Vec<usize>,
    /// What stays the same of each row while rows move: selections follow it.
    pub(crate) ids: Vec<u64>,
    /// Formats a row.
    pub(crate) row: Box<dyn Fn(usize) -> Row + 'a>,
    /// Column that the rows are sorted by, and whether that is reversed.
    pub(crate) sorted: Option<(usize, bool)>,
    /// Text if there are no rows.
    pub(crate) empty: String,
}

impl<'a> Listing<'a> {
    /// Returns a table of entries. `id`: what stays the same of each, `row`: how it is shown.
    pub(crate) fn of<T: 'a>(
        columns: Vec<ColumnSpec>,
        entries: Vec<T>,
        empty: impl Into<String>,
        id: impl Fn(&T) -> u64,
        row: impl Fn(&T) -> Row + 'a,
    ) -> Self {
        Self {
            columns,
            charts: Vec::new(),
            ids: entries.iter().map(id).collect(),
            row: Box::new(move |index| entries.get(index).map(&row).unwrap_or_default()),
            sorted: None,
            empty: empty.into(),
        }
    }
}

/// Returns an id of a row.
pub(crate) fn id_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Position in a table or text.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Cursor {
    pub(crate) index: usize,
    /// First visible row.
    pub(crate) offset: usize,
    /// Id of the selected row; `None` after a key moved the selection.
    pub(crate) id: Option<u64>,
    /// Whether the reader has chosen a row: until then, the first one is selected.
    pub(crate) is_chosen: bool,
}

impl Cursor {
    /// Moves by a number of rows.
    pub(crate) fn step(&mut self, by: isize) {
        self.choose(self.index.saturating_add_signed(by));
    }

    /// Selects a row.
    pub(crate) fn choose(&mut self, index: usize) {
        (self.index, self.id, self.is_chosen) = (index, None, true);
    }

    /// Follows the selected row, and scrolls so that it is visible.
    pub(crate) fn follow(&mut self, ids: &[u64], height: usize) {
        let id = self.id.filter(|_| self.is_chosen);
        let found = id.and_then(|id| ids.iter().position(|one| *one == id));
        self.index = found.unwrap_or(self.index).min(ids.len().saturating_sub(1));
        self.id = ids.get(self.index).copied();
        let last = ids.len().saturating_sub(height);
        let lowest = self.index.saturating_sub(height.saturating_sub(1));
        self.offset = self.offset.min(last).clamp(lowest, self.index);
    }
}

/// Returns the width of each column that fits, 0 for those that are left out. `cells`: the widths
/// of the cells of the visible rows.
pub(crate) fn layout(columns: &[ColumnSpec], cells: &[Vec<usize>], width: usize) -> Vec<usize> {
    let title = |spec: &ColumnSpec| spec.title.chars().count();
    let mut widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, spec)| {
            let widest = cells.iter().filter_map(|row| row.get(index)).max();
            widest.copied().unwrap_or(0).max(title(spec))
        })
        .collect();
    let least = |index: usize, width: usize| {
        columns.get(index).and_then(|spec| spec.shrinks_to).map_or(width, |min| min.min(width))
    };
    let total = |widths: &[usize], of: &dyn Fn(usize, usize) -> usize| {
        let shown = widths.iter().enumerate().filter(|(_, width)| **width > 0);
        shown.fold(0, |sum, (index, width)| sum + of(index, *width) + 1).saturating_sub(1)
    };
    // Columns that do not fit even if the others are as narrow as possible.
    while total(&widths, &least) > width {
        let shown = (0..widths.len()).filter(|index| widths.get(*index).is_some_and(|w| *w > 0));
        let rank = |index: &usize| columns.get(*index).map_or(0, |spec| spec.rank);
        match shown.max_by_key(rank).filter(|index| rank(index) > 0) {
            Some(index) => widths[index] = 0,
            None => break,
        }
    }
    while total(&widths, &|_, width| width) > width {
        let flexible =
            (0..widths.len()).filter(|index| widths[*index] > least(*index, widths[*index]));
        match flexible.max_by_key(|index| widths[*index]) {
            Some(index) => widths[index] -= 1,
            None => break,
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(title: &'static str, shrinks_to: Option<usize>, rank: u8) -> ColumnSpec {
        ColumnSpec { title, is_right: false, shrinks_to, rank, is_place: false }
    }

    #[test]
    fn columns_shrink_before_they_are_left_out() {
        let columns = [spec("PID", None, 0), spec("PROGRAM", Some(4), 0), spec("AGE", None, 5)];
        let cells = [vec![4, 20, 6]];
        assert_eq!(layout(&columns, &cells, 40), [4, 20, 6]);
        assert_eq!(layout(&columns, &cells, 20), [4, 8, 6]);
        assert_eq!(layout(&columns, &cells, 14), [4, 9, 0]);
        assert_eq!(layout(&columns, &cells, 3), [4, 4, 0]);
    }

    #[test]
    fn selection_follows_its_row() {
        let mut cursor = Cursor::default();
        cursor.follow(&[7, 8, 9], 2);
        cursor.follow(&[9, 7, 8], 2);
        assert_eq!((cursor.index, cursor.id), (0, Some(9)));
        cursor.step(1);
        cursor.follow(&[7, 8, 9], 2);
        assert_eq!((cursor.index, cursor.id), (1, Some(8)));
        cursor.follow(&[9, 7, 8], 2);
        assert_eq!((cursor.index, cursor.offset), (2, 1));
        cursor.follow(&[9], 2);
        assert_eq!((cursor.index, cursor.offset, cursor.id), (0, 0, Some(9)));
        cursor.follow(&[], 2);
        assert_eq!(cursor.id, None);
    }
}
