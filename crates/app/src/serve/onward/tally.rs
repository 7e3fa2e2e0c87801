//! What was sent onward, and how that went: counted always, told when it changes.

use std::sync::{Mutex, PoisonError};

use formats::plain::plain;

use crate::output;

/// How often something went how, by receiver: `otlp`, `pyroscope`, `profiles` or `parquet`.
#[derive(Default)]
pub(crate) struct Tally {
    counts: Mutex<Vec<((&'static str, &'static str), u64)>>,
}

impl Tally {
    /// Counts something that was `sent`, that `failed`, or that was `dropped` for an older one.
    pub(super) fn count(&self, receiver: &'static str, outcome: &'static str, more: u64) {
        if more == 0 {
            return;
        }
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.iter_mut().find(|(key, _)| *key == (receiver, outcome)) {
            Some((_, count)) => *count = count.saturating_add(more),
            None => counts.push(((receiver, outcome), more)),
        }
    }

    /// The counts by receiver and outcome.
    pub(crate) fn counts(&self) -> Vec<((&'static str, &'static str), u64)> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Tells people when a receiver begins to fail, and when it works again; never each time.
pub(super) struct Voice {
    what: String,
    failures: u64,
    /// Who hears it.
    say: fn(&str),
}

impl Voice {
    /// `what` is done, in words: `send metrics to …`.
    pub(super) const fn new(what: String) -> Self {
        Self { what, failures: 0, say: output::complain }
    }

    /// It failed, again or for the first time. The reason may hold foreign text.
    pub(super) fn failed(&mut self, why: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            (self.say)(&format!("cannot {}: {}; it is tried again", self.what, plain(why)));
        }
    }

    /// It works.
    pub(super) fn works(&mut self) {
        match std::mem::take(&mut self.failures) {
            0 => {}
            1 => (self.say)(&format!("can {} again", self.what)),
            times => (self.say)(&format!("can {} again, after {times} failures", self.what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static HEARD: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_failure_is_told_once_and_its_end_too() {
        let say = |text: &str| HEARD.with_borrow_mut(|heard| heard.push(text.to_owned()));
        let mut voice = Voice { what: "send".into(), failures: 0, say };
        voice.works();
        voice.failed("no\x1b route");
        voice.failed("no route");
        voice.works();
        voice.works();
        voice.failed("no");
        let want = [
            "cannot send: no\\u{1b} route; it is tried again",
            "can send again, after 2 failures",
            "cannot send: no; it is tried again",
        ];
        assert_eq!(HEARD.take(), want);
    }

    #[test]
    fn counts_are_by_receiver_and_outcome() {
        let tally = Tally::default();
        tally.count("otlp", "sent", 2);
        tally.count("otlp", "sent", 1);
        tally.count("otlp", "dropped", 0);
        tally.count("parquet", "failed", u64::MAX);
        tally.count("parquet", "failed", 1);
        assert_eq!(tally.counts(), [(("otlp", "sent"), 3), (("parquet", "failed"), u64::MAX)]);
    }
}
