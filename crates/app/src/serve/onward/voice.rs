//! Whether receivers take what is sent, told when it changes.

use formats::plain::plain;

use crate::output;

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
            (self.say)(&format!("cannot {}: {}; retrying", self.what, plain(why)));
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
            "cannot send: no\\u{1b} route; retrying",
            "can send again, after 2 failures",
            "cannot send: no; retrying",
        ];
        assert_eq!(HEARD.take(), want);
    }
}
