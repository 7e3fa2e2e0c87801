//! Collects warnings, and reports each once with a count.

use std::collections::BTreeMap;

use crate::import::{Sink, Warning};

/// Warnings about the file, by text.
#[derive(Debug, Default)]
pub(super) struct Notes(BTreeMap<String, (u64, bool)>);

impl Notes {
    /// Maximum number of distinct texts: a hostile file could produce any number of them.
    const MOST: usize = 100;

    /// Adds `count` occurrences of something that makes values inexact.
    pub(super) fn inexact(&mut self, text: impl Into<String>, count: u64) {
        self.add(text.into(), count, true);
    }

    /// Adds `count` occurrences of something that does not affect the values.
    pub(super) fn mention(&mut self, text: impl Into<String>, count: u64) {
        self.add(text.into(), count, false);
    }

    fn add(&mut self, text: String, count: u64, inexact: bool) {
        if count == 0 || self.0.len() >= Self::MOST && !self.0.contains_key(&text) {
            return;
        }
        let entry = self.0.entry(text).or_default();
        entry.0 = entry.0.saturating_add(count);
        entry.1 |= inexact;
    }

    /// Reports all warnings.
    pub(super) fn tell(self, sink: &mut dyn Sink) {
        for (text, (count, inexact)) in self.0 {
            sink.warn(Warning { text, count, inexact });
        }
    }
}
