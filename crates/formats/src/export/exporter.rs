//! Interface of the exports of changes: fed with each change of a file, and finished once.

use std::io;

use engine::change::Change;

use crate::import::gather::Facts;

/// Writes a file in another tool's format.
pub trait Exporter {
    /// Adds a change; `facts` is what the file contained so far.
    fn change(&mut self, change: &Change, facts: &Facts) -> io::Result<()>;

    /// Writes the rest. Returns notes for the user, one sentence each.
    fn finish(self: Box<Self>, facts: &Facts) -> io::Result<Vec<String>>;
}
