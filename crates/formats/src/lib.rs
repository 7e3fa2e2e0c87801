//! All external bytes: reports and exports, imported files, and recordings.
#![forbid(unsafe_code)]

mod clock;
pub mod export;
pub mod import;
pub mod kernel;
pub mod plain;
pub mod recording;

#[cfg(test)]
#[path = "../../engine/tests/random/mod.rs"]
mod random;

pub use clock::WallClock;
