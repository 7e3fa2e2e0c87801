//! Every foreign byte: what leaves as text, JSON or a file, and what comes in from files.
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
