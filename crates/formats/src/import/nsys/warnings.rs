//! Collects warnings, and reports each once with a count.

use std::collections::BTreeMap;

use crate::import::{ImportSink, Warning};

/// Warnings about the file, by text.
#[derive(Debug, Default)]
pub(super) struct Warnings(BTreeMap<String, (u64, bool)>);

impl Warnings {
    /// Maximum number of distinct texts: a hostile file could produce any number of them.
    const MAX_WARNINGS: usize = 100;

    /// Adds `count` occurrences of something that makes values inexact.
    pub(super) fn inexact(&mut self, text: impl Into<String>, count: u64) {
        self.add(text.into(), count, true);
    }

    /// Adds `count` occurrences of something that does not affect the values.
    pub(super) fn info(&mut self, text: impl Into<String>, count: u64) {
        self.add(text.into(), count, false);
    }

    fn add(&mut self, text: String, count: u64, inexact: bool) {
        if count == 0 || self.0.len() >= Self::MAX_WARNINGS && !self.0.contains_key(&text) {
            return;
        }
        let entry = self.0.entry(text).or_default();
        entry.0 = entry.0.saturating_add(count);
        entry.1 |= inexact;
    }

    /// Reports all warnings.
    pub(super) fn flush(self, sink: &mut dyn ImportSink) {
        for (text, (count, inexact)) in self.0 {
            sink.warn(Warning { text, count, inexact });
        }
    }
}
