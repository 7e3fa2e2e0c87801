//! Deliveries to one receiver: in order, with retries. A full queue drops what is new, so a
//! receiver that hangs never blocks the agent.

pub(crate) mod child_program;
pub(crate) mod http_client;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use formats::sanitize::sanitize;

use crate::delivery::http_client::RequestError;
use crate::process::fault;
use crate::{AgentState, OutcomeCounter, Worker};

/// Initial and maximum delay between two attempts; it doubles with each.
const INITIAL_BACKOFF: Duration =
    if cfg!(test) { Duration::from_millis(5) } else { Duration::from_secs(1) };
const MAX_BACKOFF: Duration = Duration::from_secs(30);

/// Time for queued deliveries at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Poll interval for shutdown.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A receiver and its limits.
pub(crate) struct DeliveryOptions {
    /// Name of the thread.
    pub(crate) thread: &'static str,
    /// Name of the receiver in counts.
    pub(crate) receiver: &'static str,
    /// What is done, for messages: `send metrics to …`.
    pub(crate) operation: String,
    /// Deliveries that may wait.
    pub(crate) capacity: usize,
    /// How long one delivery is retried.
    pub(crate) max_retry_time: Duration,
    /// Returns the counts: `sent`, `failed` and `dropped`.
    pub(crate) counts: fn(&AgentState) -> &OutcomeCounter,
}

/// A queue of deliveries to one receiver.
pub(crate) struct DeliveryQueue<T> {
    queue: SyncSender<T>,
    count_dropped: Box<dyn Fn() + Send>,
}

impl<T: Send + 'static> DeliveryQueue<T> {
    /// Starts the thread that delivers. `send` makes one attempt within a time. The thread ends
    /// after the queue is dropped and the feed is closed.
    pub(crate) fn start(
        shared: &Arc<AgentState>,
        options: DeliveryOptions,
        send: impl FnMut(&T, Duration) -> Result<(), RequestError> + Send + 'static,
    ) -> Result<(Self, Worker)> {
        let (queue, inbox) = sync_channel(options.capacity);
        let (counts, receiver) = (options.counts, options.receiver);
        let state = Arc::clone(shared);
        let count_dropped = Box::new(move || counts(&state).count(receiver, "dropped", 1));
        let thread = Worker::abandonable(options.thread, shared, move |shared| {
            let failures = FailureLog::new(options.operation.clone());
            Delivery { shared, options, failures, send, shutdown: None }.run(&inbox);
            Ok(())
        })?;
        Ok((Self { queue, count_dropped }, thread))
    }

    /// Queues a delivery, or drops and counts it.
    pub(crate) fn push(&self, payload: T) {
        if self.queue.try_send(payload).is_err() {
            (self.count_dropped)();
        }
    }
}

/// The thread of a queue.
struct Delivery<'a, F> {
    shared: &'a Arc<AgentState>,
    options: DeliveryOptions,
    failures: FailureLog,
    send: F,
    /// End of the time for deliveries at shutdown.
    shutdown: Option<Instant>,
}

impl<F> Delivery<'_, F> {
    fn run<T>(mut self, inbox: &Receiver<T>)
    where
        F: FnMut(&T, Duration) -> Result<(), RequestError>,
    {
        loop {
            fault::point();
            match inbox.recv_timeout(POLL_INTERVAL) {
                Ok(payload) => self.handle(&payload),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if self.shared.feed.is_closed() => return,
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn handle<T>(&mut self, payload: &T)
    where
        F: FnMut(&T, Duration) -> Result<(), RequestError>,
    {
        let outcome = match self.deliver(payload) {
            Ok(()) => {
                self.failures.report_success();
                "sent"
            }
            Err(failure) => {
                self.failures.report_failure(&failure.reason);
                let next = Instant::now() + failure.retry_after.unwrap_or_default();
                self.shared.feed.wait_until(next);
                "failed"
            }
        };
        (self.options.counts)(self.shared).count(self.options.receiver, outcome, 1);
    }

    /// Makes attempts until one succeeds, cannot succeed, or takes too long.
    fn deliver<T>(&mut self, payload: &T) -> Result<(), RequestError>
    where
        F: FnMut(&T, Duration) -> Result<(), RequestError>,
    {
        let end = Instant::now() + self.options.max_retry_time;
        let mut backoff = INITIAL_BACKOFF;
        loop {
            let is_last = self.shared.feed.is_closed();
            let timeout = if is_last { self.shutdown_time() } else { Duration::MAX };
            if timeout.is_zero() {
                return Err(RequestError::permanent("the agent exits"));
            }
            let Err(failure) = (self.send)(payload, timeout) else { return Ok(()) };
            let wait = failure.retry_after.unwrap_or_else(|| jitter(backoff));
            if is_last || !failure.is_transient || Instant::now() + wait > end {
                return Err(failure);
            }
            self.shared.feed.wait_until(Instant::now() + wait);
            backoff = backoff.saturating_mul(2).min(MAX_BACKOFF);
        }
    }

    /// Returns the remaining time at shutdown.
    fn shutdown_time(&mut self) -> Duration {
        let end = self.shutdown.get_or_insert_with(|| Instant::now() + SHUTDOWN_TIMEOUT);
        end.saturating_duration_since(Instant::now())
    }
}

/// Returns half of a time to all of it, so that many agents do not send at once.
fn jitter(time: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1000;
    time / 2 + (time / 2000).saturating_mul(u32::try_from(random).unwrap_or(0))
}

/// Logs when something starts to fail and when it works again, not every failure.
pub(crate) struct FailureLog {
    operation: String,
    failures: u64,
}

impl FailureLog {
    /// `operation`: description, such as `send metrics to …`.
    pub(crate) const fn new(operation: String) -> Self {
        Self { operation, failures: 0 }
    }

    /// Reports a failure. The reason may contain foreign text.
    pub(crate) fn report_failure(&mut self, reason: &str) {
        self.failures = self.failures.saturating_add(1);
        if self.failures == 1 {
            tracing::warn!("cannot {}: {}", self.operation, sanitize(reason));
        }
    }

    /// Reports a success.
    pub(crate) fn report_success(&mut self) {
        match std::mem::take(&mut self.failures) {
            0 => {}
            1 => tracing::info!("can {} again", self.operation),
            times => tracing::info!("can {} again, after {times} failures", self.operation),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn transient(retry_after: Option<u64>) -> RequestError {
        let retry_after = retry_after.map(Duration::from_secs);
        RequestError { reason: "busy".into(), status: None, is_transient: true, retry_after }
    }

    /// Returns the outcome of one delivery whose attempts have these results, and their number. The
    /// feed is closed after the last one.
    fn outcome(results: Vec<Result<(), RequestError>>, retry: u64) -> (Vec<String>, usize) {
        let shared = AgentState::new(Config::default());
        let (state, mut results) = (Arc::clone(&shared), results.into_iter());
        let attempts = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&attempts);
        let send = move |(): &(), _| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let result = results.next().unwrap();
            if results.len() == 0 {
                state.feed.close();
            }
            result
        };
        let options = DeliveryOptions {
            thread: "test",
            receiver: "otlp",
            operation: "test".into(),
            capacity: 1,
            max_retry_time: Duration::from_secs(retry),
            counts: |shared| &shared.exports,
        };
        let (queue, thread) = DeliveryQueue::start(&shared, options, send).unwrap();
        queue.push(());
        drop(queue);
        thread.join_until(Instant::now() + Duration::from_mins(1)).unwrap();
        let outcomes = shared.exports.counts().into_iter();
        let outcomes = outcomes.map(|((_, outcome), count)| format!("{outcome} {count}")).collect();
        (outcomes, attempts.load(std::sync::atomic::Ordering::Relaxed))
    }

    #[test]
    fn transient_errors_are_retried() {
        let results = vec![Err(transient(Some(0))), Err(transient(None)), Ok(())];
        assert_eq!(outcome(results, 60), (vec!["sent 1".to_owned()], 3));
    }

    #[test]
    fn permanent_errors_are_not_retried() {
        let results = vec![Err(RequestError::permanent("no"))];
        assert_eq!(outcome(results, 60), (vec!["failed 1".to_owned()], 1));
    }

    #[test]
    fn retry_after_beyond_the_limit_is_a_failure() {
        let results = vec![Err(transient(Some(100)))];
        assert_eq!(outcome(results, 10), (vec!["failed 1".to_owned()], 1));
    }

    #[test]
    fn backoff_is_jittered_within_bounds() {
        let second = Duration::from_secs(1);
        let backoffs: Vec<_> = (0..50).map(|_| jitter(second)).collect();
        assert!(backoffs.iter().all(|backoff| *backoff >= second / 2 && *backoff <= second));
        assert!(backoffs.iter().any(|backoff| *backoff != backoffs[0]));
    }
}
