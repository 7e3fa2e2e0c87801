//! What every export of changes is: fed with each change of a file, and finished once.

use std::io;

use engine::change::Change;

use crate::import::gather::Facts;

/// A file in the form of another tool, while it is made.
pub trait Exporter {
    /// Takes note of a change; `facts` is what is known so far.
    fn change(&mut self, change: &Change, facts: &Facts) -> io::Result<()>;

    /// Writes the rest. Tells what a user should know of the result, a sentence each.
    fn finish(self: Box<Self>, facts: &Facts) -> io::Result<Vec<String>>;
}
