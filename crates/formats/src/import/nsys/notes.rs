//! Warnings are collected and told once, with a count.

use std::collections::BTreeMap;

use crate::import::{Sink, Warning};

/// What a user should know of the file, by text.
#[derive(Debug, Default)]
pub(super) struct Notes(BTreeMap<String, (u64, bool)>);

impl Notes {
    /// Different texts that are kept: a hostile file could make up any number of them.
    const MOST: usize = 100;

    /// `count` more of something that makes figures inexact.
    pub(super) fn inexact(&mut self, text: impl Into<String>, count: u64) {
        self.add(text.into(), count, true);
    }

    /// `count` more of something that leaves the figures as they are.
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

    /// Tells all of them.
    pub(super) fn tell(self, sink: &mut dyn Sink) {
        for (text, (count, inexact)) in self.0 {
            sink.warn(Warning { text, count, inexact });
        }
    }
}
