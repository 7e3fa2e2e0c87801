//! Exports over HTTP: retried with backoff for a limited time, then dropped.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use super::client::DeliveryError;
use super::failure_log::FailureLog;
use super::ticker;
use super::ticker::{Tick, Ticker};
use crate::serve::AgentState;

/// Initial and maximum delay between two attempts.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Timeout of an attempt at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Exports to one endpoint, one at a time. While one is retried, newer ones are dropped, so nothing
/// queues up.
pub(super) struct Delivery {
    exporter: &'static str,
    max_retry_time: Duration,
    ticker: Ticker,
    failure_log: FailureLog,
}

impl Delivery {
    /// `operation`: description, such as `send metrics to …`.
    pub(super) fn new(
        exporter: &'static str,
        operation: String,
        interval: Duration,
        max_retry_time: Duration,
    ) -> Self {
        Self {
            exporter,
            max_retry_time,
            ticker: Ticker::new(interval),
            failure_log: FailureLog::new(operation),
        }
    }

    /// Exports until the feed is closed. `build` creates the payload, `send` sends it within a
    /// timeout.
    pub(super) fn run<T>(
        mut self,
        shared: &AgentState,
        mut build: impl FnMut(&Tick) -> Result<T, String>,
        send: impl Fn(&T, Duration) -> Result<Option<String>, DeliveryError>,
    ) {
        while let Some(tick) = self.ticker.next(&shared.feed) {
            shared.exports.count(self.exporter, "dropped", tick.missed);
            let payload = build(&tick);
            let outcome = match &payload {
                Ok(payload) => self.deliver(shared, tick.is_last, &|limit| send(payload, limit)),
                Err(reason) => Err(reason.clone()),
            };
            match outcome {
                Ok(()) => {
                    shared.exports.count(self.exporter, "sent", 1);
                    self.failure_log.report_success();
                }
                Err(reason) => {
                    shared.exports.count(self.exporter, "failed", 1);
                    self.failure_log.report_failure(&reason);
                }
            }
        }
    }

    fn deliver(
        &mut self,
        shared: &AgentState,
        is_last: bool,
        send: &dyn Fn(Duration) -> Result<Option<String>, DeliveryError>,
    ) -> Result<(), String> {
        let end = Instant::now() + self.max_retry_time;
        let mut backoff = INITIAL_BACKOFF;
        loop {
            let is_last = is_last || shared.feed.is_closed();
            let failure = match send(if is_last { SHUTDOWN_TIMEOUT } else { Duration::MAX }) {
                Ok(None) => return Ok(()),
                // Accepted in part: sending the rest again would fail again.
                Ok(Some(rejection)) => return Err(rejection),
                Err(failure) => failure,
            };
            if is_last || !failure.is_transient {
                return Err(failure.reason);
            }
            let next = failure.retry_after.unwrap_or_else(|| jitter(backoff));
            if Instant::now() + next > end {
                self.ticker.delay_at_least(failure.retry_after.unwrap_or_default());
                return Err(failure.reason);
            }
            ticker::wait(&shared.feed, Instant::now() + next);
            backoff = backoff.saturating_mul(2).min(MAX_BACKOFF);
        }
    }
}

/// Returns half of a time to all of it, so that many agents do not send at once.
fn jitter(time: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1000;
    time / 2 + (time / 2000).saturating_mul(u32::try_from(random).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use engine::metrics::MetricSet;
    use engine::snapshot::Snapshot;

    use super::super::ticker::tests::published;
    use super::*;
    use crate::serve::config::Config;

    fn transient(retry_after: Option<u64>) -> DeliveryError {
        let retry_after = retry_after.map(Duration::from_secs);
        DeliveryError { reason: "busy".into(), is_transient: true, retry_after }
    }

    /// Returns the counts for one export whose attempts have these results; the feed is closed
    /// after the last one.
    fn counts(
        results: Vec<Result<Option<String>, DeliveryError>>,
        retry: u64,
    ) -> (Vec<String>, usize) {
        let shared = AgentState::new(Config::default());
        shared.feed.publish(published(1, Snapshot::default(), MetricSet::default()));
        let results = RefCell::new(results.into_iter());
        let attempts = RefCell::new(0);
        let retry = Duration::from_secs(retry);
        let delivery = Delivery::new("otlp", "test".into(), Duration::from_secs(1), retry);
        let feed = Arc::clone(&shared);
        delivery.run(
            &shared,
            |_| Ok(()),
            |(), _| {
                *attempts.borrow_mut() += 1;
                let result = results.borrow_mut().next().unwrap();
                if results.borrow().len() == 0 {
                    feed.feed.close();
                }
                result
            },
        );
        let outcomes = shared.exports.counts().into_iter();
        let outcomes = outcomes.map(|((_, outcome), count)| format!("{outcome} {count}")).collect();
        (outcomes, attempts.into_inner())
    }

    #[test]
    fn transient_errors_are_retried() {
        let (outcomes, attempts) =
            counts(vec![Err(transient(Some(0))), Err(transient(None)), Ok(None)], 60);
        assert_eq!((outcomes, attempts), (vec!["sent 1".to_owned()], 3));
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        let permanent = DeliveryError { is_transient: false, ..transient(None) };
        assert_eq!(counts(vec![Err(permanent)], 60), (vec!["failed 1".to_owned()], 1));
        let partial = Ok(Some("2 points were rejected".into()));
        assert_eq!(counts(vec![partial], 60), (vec!["failed 1".to_owned()], 1));
    }

    #[test]
    fn retry_after_beyond_the_limit_drops_the_export() {
        let (outcomes, attempts) = counts(vec![Err(transient(Some(100)))], 10);
        assert_eq!((outcomes, attempts), (vec!["failed 1".to_owned()], 1));
    }

    #[test]
    fn backoff_is_jittered_within_bounds() {
        let second = Duration::from_secs(1);
        let backoffs: Vec<_> = (0..50).map(|_| jitter(second)).collect();
        assert!(backoffs.iter().all(|backoff| *backoff >= second / 2 && *backoff <= second));
        assert!(backoffs.iter().any(|backoff| *backoff != backoffs[0]));
    }
}
