//! The filter of interactive views: words that all must match, as texts or as comparisons.

use engine::view::ProcessRow;

use super::processes::{ProcessCells, ProcessColumn, cell};
use crate::parse_units::{size, time};
use crate::sanitize::sanitize;

/// Whether a process matches each word of a filter: `used>1G`, or a text in any of its cells. Upper
/// and lower case are the same.
pub fn matches(row: &ProcessRow<'_>, of: &ProcessCells<'_>, filter: &str) -> bool {
    let columns = ProcessColumn::ALL.into_iter().filter(|column| {
        !matches!(column, ProcessColumn::History | ProcessColumn::Full | ProcessColumn::Age)
    });
    let mut cells: Vec<String> = columns.map(|column| cell(column, row, of)).collect();
    cells.push(sanitize(&row.process.name).into_owned());
    compares(row, filter) && contains(&cells, filter)
}

/// Whether each text of a filter is in one of the cells.
pub fn contains(cells: &[String], filter: &str) -> bool {
    let cells: Vec<String> = cells.iter().map(|cell| cell.to_lowercase()).collect();
    let texts = filter.split_whitespace().filter(|word| comparison(word).is_none());
    texts.into_iter().all(|text| {
        let text = text.to_lowercase();
        cells.iter().any(|cell| cell.contains(&text))
    })
}

/// Whether a process passes each comparison of a filter.
pub fn compares(row: &ProcessRow<'_>, filter: &str) -> bool {
    filter.split_whitespace().filter_map(comparison).all(|(field, is_more, limit)| {
        // A limit that is still being typed excludes nothing.
        let Some(limit) = limit else { return true };
        let value = value(row, field).unwrap_or(0);
        if is_more { value > limit } else { value < limit }
    })
}

/// Something of a process that a filter compares.
#[derive(Clone, Copy)]
enum Field {
    Used,
    Traced,
    Untracked,
    Peak,
    Growth,
    Allocations,
    Age,
}

/// Parses `FIELD>LIMIT` or `FIELD<LIMIT`.
fn comparison(word: &str) -> Option<(Field, bool, Option<i128>)> {
    let (name, limit) = word.split_once(['>', '<'])?;
    let bytes = || size(limit).ok().map(|bytes| i128::from(bytes.0));
    let (field, limit) = match name.to_lowercase().as_str() {
        "used" => (Field::Used, bytes()),
        "traced" => (Field::Traced, bytes()),
        "untracked" => (Field::Untracked, bytes()),
        "peak" => (Field::Peak, bytes()),
        "growth" => (Field::Growth, bytes()),
        "allocs" => (Field::Allocations, limit.parse().ok()),
        "age" => (Field::Age, time(limit).ok().and_then(|it| i128::try_from(it.as_nanos()).ok())),
        _ => return None,
    };
    Some((field, word.contains('>'), limit))
}

fn value(row: &ProcessRow<'_>, field: Field) -> Option<i128> {
    let process = row.process;
    Some(match field {
        Field::Used => row.used.0.into(),
        Field::Traced => process.live_bytes.0.into(),
        Field::Untracked => process.untracked()?.0.into(),
        Field::Peak => process.peak_bytes.0.into(),
        Field::Growth => row.growth_per_hour?.into(),
        Field::Allocations => process.live_allocations.into(),
        Field::Age => row.age?.0.into(),
    })
}

#[cfg(test)]
mod tests {
    use engine::model::Bytes;
    use engine::snapshot::{ProcessView, Snapshot};
    use engine::view::View;

    use super::*;

    #[test]
    fn words_are_texts_and_comparisons() {
        let live_bytes = Bytes(2 << 30);
        let process = ProcessView {
            name: "Train".into(),
            live_bytes,
            live_allocations: 7,
            ..Default::default()
        };
        let snapshot = Snapshot { processes: vec![process], ..Snapshot::default() };
        let view = View::of(&snapshot, &[]);
        let of =
            ProcessCells { view: &view, host: "", history: &[], baseline: None, resident: None };
        let row = &view.processes[0];
        for filter in
            ["", "train", "used>1G", "used>1.5G train", "allocs<8 USED<3g", "used>", "t in"]
        {
            assert!(matches(row, &of, filter), "{filter}");
        }
        for filter in ["other", "used>2G", "used>1G other", "allocs>7", "growth>1M", "speed>1"] {
            assert!(!matches(row, &of, filter), "{filter}");
        }
    }
}
