//! Leak suspects.

use engine::view::Leak;

use super::columns;
use crate::report::live::text::format_age;
use crate::report::view::{held, leak_location, leak_pids, place_in, rate};
use crate::sanitize::sanitize;

columns! {
    /// Returns the cells of leak `number`.
    pub const COLUMNS, pub fn cells(number: usize, leak: &Leak<'_>)
    let {
        let (size, count) = held(leak);
    }
    {
        right("", 5): number.to_string(),
        right("PID", 1): leak_pids(leak),
        flexible("PROGRAM", 8, 3): sanitize(&leak.program).into_owned(),
        place("LEAKS AT", 12, 0): sanitize(place_in(&leak.program, &leak_location(leak))).into_owned(),
        right("HOLDS", 0): size,
        left("IN", 4): count,
        right("GROWS", 0): rate(leak),
        right("FULL IN", 2): leak.time_until_full.map_or_else(String::new, format_age),
        left("CONFIDENCE", 2): leak.confidence.name().to_owned(),
    }
}
