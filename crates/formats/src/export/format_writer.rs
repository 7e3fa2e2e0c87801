//! Interface of the exports of changes: fed with each change of a file, and finished once.

use std::io;

use engine::model::AllocationChange;

use crate::import::collecting_sink::FileInfo;

/// Writes a file in another tool's format.
pub trait FormatWriter {
    /// Adds a change; `info` is what the file contained so far.
    fn change(&mut self, change: &AllocationChange, info: &FileInfo) -> io::Result<()>;

    /// Writes the rest. Returns notes for the user, one sentence each.
    fn finish(self: Box<Self>, info: &FileInfo) -> io::Result<Vec<String>>;
}
