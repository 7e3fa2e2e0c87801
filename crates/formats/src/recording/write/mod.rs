//! Writes recordings.

pub(super) mod batch_builder;
pub(super) mod encode;
pub(super) mod writer;
