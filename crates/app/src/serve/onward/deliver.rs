//! Deliveries: tried again for a while, with growing pauses, and given up then.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use super::beat::{self, Beat, Turn};
use super::client::Failure;
use super::voice::Voice;
use crate::serve::Shared;

/// The first and the longest pause between two attempts.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// The longest attempt when the agent ends.
const AT_THE_END: Duration = Duration::from_secs(3);

/// Somebody to whom things are delivered, one at a time: while one is tried again, newer ones are
/// dropped, so that nothing piles up.
pub(super) struct Delivery {
    receiver: &'static str,
    retry: Duration,
    beat: Beat,
    voice: Voice,
}

impl Delivery {
    /// `what` is done, in words.
    pub(super) fn new(
        receiver: &'static str,
        what: String,
        interval: Duration,
        retry: Duration,
    ) -> Self {
        Self { receiver, retry, beat: Beat::new(interval), voice: Voice::new(what) }
    }

    /// Delivers until the agent ends. `make` makes what is to be sent, `send` tries to within a time.
    pub(super) fn run<T>(
        mut self,
        shared: &Shared,
        mut make: impl FnMut(&Turn) -> Result<T, String>,
        send: impl Fn(&T, Duration) -> Result<Option<String>, Failure>,
    ) {
        while let Some(turn) = self.beat.next(&shared.feed) {
            shared.onward.count(self.receiver, "dropped", turn.missed);
            let made = make(&turn);
            let done = match &made {
                Ok(made) => self.deliver(shared, turn.is_last, &|at_most| send(made, at_most)),
                Err(why) => Err(why.clone()),
            };
            match done {
                Ok(()) => {
                    shared.onward.count(self.receiver, "sent", 1);
                    self.voice.works();
                }
                Err(why) => {
                    shared.onward.count(self.receiver, "failed", 1);
                    self.voice.failed(&why);
                }
            }
        }
    }

    fn deliver(
        &mut self,
        shared: &Shared,
        is_last: bool,
        send: &dyn Fn(Duration) -> Result<Option<String>, Failure>,
    ) -> Result<(), String> {
        let end = Instant::now() + self.retry;
        let mut pause = FIRST;
        loop {
            let is_last = is_last || shared.feed.is_closed();
            let failure = match send(if is_last { AT_THE_END } else { Duration::MAX }) {
                Ok(None) => return Ok(()),
                // Taken, but not all of it: the same again would be refused again.
                Ok(Some(remark)) => return Err(remark),
                Err(failure) => failure,
            };
            if is_last || !failure.is_passing {
                return Err(failure.why);
            }
            let next = failure.after.unwrap_or_else(|| random(pause));
            if Instant::now() + next > end {
                self.beat.rest(failure.after.unwrap_or_default());
                return Err(failure.why);
            }
            beat::wait(&shared.feed, Instant::now() + next);
            pause = pause.saturating_mul(2).min(LONGEST);
        }
    }
}

/// From half of a time to all of it, so that many agents do not come at once.
fn random(time: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 1000;
    time / 2 + (time / 2000).saturating_mul(u32::try_from(random).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::sync::Arc;

    use engine::metrics::Figures;
    use engine::snapshot::Snapshot;

    use super::super::beat::tests::published;
    use super::*;
    use crate::serve::config::Config;

    fn passing(after: Option<u64>) -> Failure {
        let after = after.map(Duration::from_secs);
        Failure { why: "busy".into(), is_passing: true, after }
    }

    /// What came of one thing whose attempts end as told; the feed is closed after the last of them.
    fn counts(answers: Vec<Result<Option<String>, Failure>>, retry: u64) -> (Vec<String>, usize) {
        let shared = Shared::new(Config::default());
        shared.feed.publish(published(1, Snapshot::default(), Figures::default()));
        let answers = RefCell::new(answers.into_iter());
        let attempts = RefCell::new(0);
        let retry = Duration::from_secs(retry);
        let delivery = Delivery::new("otlp", "test".into(), Duration::from_secs(1), retry);
        let feed = Arc::clone(&shared);
        delivery.run(
            &shared,
            |_| Ok(()),
            |(), _| {
                *attempts.borrow_mut() += 1;
                let answer = answers.borrow_mut().next().unwrap();
                if answers.borrow().len() == 0 {
                    feed.feed.close();
                }
                answer
            },
        );
        let told = shared.onward.counts().into_iter();
        let told = told.map(|((_, outcome), count)| format!("{outcome} {count}")).collect();
        (told, attempts.into_inner())
    }

    #[test]
    fn a_receiver_that_is_busy_gets_the_same_again() {
        let (told, attempts) =
            counts(vec![Err(passing(Some(0))), Err(passing(None)), Ok(None)], 60);
        assert_eq!((told, attempts), (vec!["sent 1".to_owned()], 3));
    }

    #[test]
    fn what_is_refused_is_not_sent_again() {
        let refused = Failure { is_passing: false, ..passing(None) };
        assert_eq!(counts(vec![Err(refused)], 60), (vec!["failed 1".to_owned()], 1));
        let partial = Ok(Some("2 points were rejected".into()));
        assert_eq!(counts(vec![partial], 60), (vec!["failed 1".to_owned()], 1));
    }

    #[test]
    fn who_asks_for_more_time_than_there_is_gets_the_next_one() {
        let (told, attempts) = counts(vec![Err(passing(Some(100)))], 10);
        assert_eq!((told, attempts), (vec!["failed 1".to_owned()], 1));
    }

    #[test]
    fn pauses_differ_and_stay_within_bounds() {
        let second = Duration::from_secs(1);
        let pauses: Vec<_> = (0..50).map(|_| random(second)).collect();
        assert!(pauses.iter().all(|pause| *pause >= second / 2 && *pause <= second));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
