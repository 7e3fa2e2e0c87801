//! All external bytes: reports and exports, imported files, and recordings.
#![forbid(unsafe_code)]

pub mod export;
pub mod hostname;
pub mod import;
pub mod kernel_name;
pub mod parse_units;
pub mod recording;
pub mod report;
pub mod sanitize;
mod wall_clock;

#[cfg(test)]
#[path = "../../engine/tests/random/mod.rs"]
mod random;

pub use wall_clock::WallClock;
