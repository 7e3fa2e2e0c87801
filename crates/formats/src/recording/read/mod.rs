//! Reads recordings.

pub(super) mod decode;
pub(super) mod message;
pub(super) mod reader;
pub(super) mod row_cells;
