//! How often something went how.

use std::sync::{Mutex, PoisonError};

/// Counts by what was done and how that went. There are few of both.
#[derive(Default)]
pub(crate) struct Tally {
    counts: Mutex<Vec<((&'static str, &'static str), u64)>>,
}

impl Tally {
    /// Counts some more.
    pub(crate) fn count(&self, what: &'static str, outcome: &'static str, more: u64) {
        if more == 0 {
            return;
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.iter_mut().find(|(key, _)| *key == (what, outcome)) {
            Some((_, count)) => *count = count.saturating_add(more),
            None => counts.push(((what, outcome), more)),
        }
    }

    /// The counts.
    pub(crate) fn counts(&self) -> Vec<((&'static str, &'static str), u64)> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_by_what_was_done_and_its_outcome() {
        let tally = Tally::default();
        tally.count("otlp", "sent", 2);
        tally.count("otlp", "sent", 1);
        tally.count("otlp", "dropped", 0);
        tally.count("parquet", "failed", u64::MAX);
        tally.count("parquet", "failed", 1);
        assert_eq!(tally.counts(), [(("otlp", "sent"), 3), (("parquet", "failed"), u64::MAX)]);
    }
}
