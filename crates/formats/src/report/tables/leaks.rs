//! Leak suspects.

use engine::view::Leak;

use super::ColumnSpec;
use crate::report::live::text::format_age;
use crate::report::view::{held, leak_location, leak_pids, place_in, rate};
use crate::sanitize::sanitize;

/// Columns.
pub const COLUMNS: [ColumnSpec; 9] = [
    ColumnSpec::right("", 5),
    ColumnSpec::right("PID", 1),
    ColumnSpec::flexible("PROGRAM", 8, 3),
    ColumnSpec::place("LEAKS AT", 12, 0),
    ColumnSpec::right("HOLDS", 0),
    ColumnSpec::left("IN", 4),
    ColumnSpec::right("GROWS", 0),
    ColumnSpec::right("FULL IN", 2),
    ColumnSpec::left("CONFIDENCE", 2),
];

/// Returns the cells of leak `number`.
pub fn cells(number: usize, leak: &Leak<'_>) -> Vec<String> {
    let (size, count) = held(leak);
    vec![
        number.to_string(),
        leak_pids(leak),
        sanitize(&leak.program).into_owned(),
        sanitize(place_in(&leak.program, &leak_location(leak))).into_owned(),
        size,
        count,
        rate(leak),
        leak.time_until_full.map_or_else(String::new, format_age),
        leak.confidence.name().to_owned(),
    ]
}
