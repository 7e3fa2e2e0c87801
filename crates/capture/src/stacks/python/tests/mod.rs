//! Real interpreters, running, recorded or corrupt.
#![allow(
    clippy::unwrap_used,
    reason = "also compiled for fuzz targets, where a failed check ends the process"
)]

#[cfg(test)]
mod compare;
#[cfg(test)]
mod files;
#[cfg(test)]
mod hostile;
pub(super) mod image;
#[cfg(test)]
mod live;
#[cfg(test)]
mod recorded;
pub(super) mod walker;
