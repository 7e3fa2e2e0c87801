//! Counters by outcome.

use std::sync::{Mutex, PoisonError};

/// Counts by subject and outcome. There are few of both.
#[derive(Default)]
pub(crate) struct OutcomeCounter {
    counts: Mutex<Vec<((&'static str, &'static str), u64)>>,
}

impl OutcomeCounter {
    /// Adds to a count.
    pub(crate) fn count(&self, subject: &'static str, outcome: &'static str, more: u64) {
        if more == 0 {
            return;
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.iter_mut().find(|(key, _)| *key == (subject, outcome)) {
            Some((_, count)) => *count = count.saturating_add(more),
            None => counts.push(((subject, outcome), more)),
        }
    }

    /// Returns all counts.
    pub(crate) fn counts(&self) -> Vec<((&'static str, &'static str), u64)> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_by_subject_and_outcome() {
        let counter = OutcomeCounter::default();
        counter.count("otlp", "sent", 2);
        counter.count("otlp", "sent", 1);
        counter.count("otlp", "dropped", 0);
        counter.count("parquet", "failed", u64::MAX);
        counter.count("parquet", "failed", 1);
        assert_eq!(counter.counts(), [(("otlp", "sent"), 3), (("parquet", "failed"), u64::MAX)]);
    }
}
