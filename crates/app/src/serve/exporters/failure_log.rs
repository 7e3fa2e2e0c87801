//! Log messages about failing exporters, only when the state changes.

use formats::sanitize::sanitize;

use crate::io::output;

/// Logs when an exporter starts to fail and when it works again, not every failure.
pub(super) struct FailureLog {
    operation: String,
    failures: u64,
    /// Log function.
    log: fn(&str),
}

impl FailureLog {
    /// `operation`: description, such as `send metrics to …`.
    pub(super) const fn new(operation: String) -> Self {
        Self { operation, failures: 0, log: output::log }
    }

    /// Reports a failure. The reason may contain foreign text.
    pub(super) fn report_failure(&mut self, reason: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            (self.log)(&format!("cannot {}: {}; retrying", self.operation, sanitize(reason)));
        }
    }

    /// Reports a success.
    pub(super) fn report_success(&mut self) {
        match std::mem::take(&mut self.failures) {
            0 => {}
            1 => (self.log)(&format!("can {} again", self.operation)),
            times => (self.log)(&format!("can {} again, after {times} failures", self.operation)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static LOG: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    #[test]
    fn failure_and_recovery_are_logged_once() {
        let log = |text: &str| LOG.with_borrow_mut(|lines| lines.push(text.to_owned()));
        let mut failure_log = FailureLog { operation: "send".into(), failures: 0, log };
        failure_log.report_success();
        failure_log.report_failure("no\x1b route");
        failure_log.report_failure("no route");
        failure_log.report_success();
        failure_log.report_success();
        failure_log.report_failure("no");
        let expected = [
            "cannot send: no\\u{1b} route; retrying",
            "can send again, after 2 failures",
            "cannot send: no; retrying",
        ];
        assert_eq!(LOG.take(), expected);
    }
}
