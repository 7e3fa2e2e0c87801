//! The newest marks of users and programs.

use std::collections::VecDeque;

use crate::model::{Event, Mark};

/// Limit of marks that are kept.
const MAX_MARKS: usize = 256;

/// The newest marks, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct MarkLog {
    marks: VecDeque<Mark>,
    /// Number of the newest marks that no snapshot has reported.
    new: usize,
}

impl MarkLog {
    /// Adds the mark of an event.
    pub(super) fn push(&mut self, event: &Event) {
        self.marks.extend(Mark::of(event));
        let excess = self.marks.len().saturating_sub(MAX_MARKS);
        self.marks.drain(..excess);
        self.new = (self.new + 1).min(self.marks.len());
    }

    /// Returns the marks since the last snapshot, or all that are kept.
    pub(super) fn report(&mut self, all: bool) -> Vec<Mark> {
        let new = std::mem::take(&mut self.new);
        let skipped = if all { 0 } else { self.marks.len() - new };
        self.marks.iter().skip(skipped).cloned().collect()
    }
}
