//! Results of attaching to files, and when a failure is retried.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::files::FileId;

/// Minimum and maximum time until a failure is retried. A shortage can pass, and the content of a
/// file or the file of an inode can change.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(5);
const MAX_RETRY_INTERVAL: Duration = Duration::from_mins(10);

/// The last attempt for one file.
struct Attempt<T, E> {
    outcome: Result<T, E>,
    at: Instant,
    /// Time until a failure is retried.
    retry_after: Duration,
}

/// Attempts by mapped file.
pub(in crate::session) struct AttachAttempts<T, E>(HashMap<FileId, Attempt<T, E>>);

impl<T, E: Clone> AttachAttempts<T, E> {
    pub(in crate::session) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Returns the outcome for a file; `None` if it has to be tried, for the first time or again.
    pub(in crate::session) fn outcome(&self, file: &FileId, now: Instant) -> Option<Result<&T, E>> {
        let Attempt { outcome, at, retry_after } = self.0.get(file)?;
        match outcome {
            Ok(value) => Some(Ok(value)),
            Err(error) if now.duration_since(*at) < *retry_after => Some(Err(error.clone())),
            Err(_) => None,
        }
    }

    /// Stores the outcome for a file.
    pub(in crate::session) fn insert(
        &mut self,
        file: &FileId,
        outcome: Result<T, E>,
        now: Instant,
    ) {
        let failed = self.0.get(file).filter(|attempt| attempt.outcome.is_err());
        let retry_after = failed.map_or(MIN_RETRY_INTERVAL, |attempt| {
            (attempt.retry_after * 2).min(MAX_RETRY_INTERVAL)
        });
        self.0.insert(*file, Attempt { outcome, at: now, retry_after });
    }

    /// Drops all files but the mapped ones.
    pub(in crate::session) fn keep(&mut self, mapped: &HashSet<FileId>) {
        self.0.retain(|file, _| mapped.contains(file));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> FileId {
        ((0xfe, 0), inode)
    }

    #[test]
    fn failures_are_retried_at_growing_intervals() {
        let (mut attempts, start) = (AttachAttempts::<u8, &str>::new(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(attempts.outcome(&file(1), start), None);
        attempts.insert(&file(1), Err("no memory"), start);
        assert_eq!(attempts.outcome(&file(1), after(4)), Some(Err("no memory")));
        assert_eq!(attempts.outcome(&file(1), after(5)), None);
        attempts.insert(&file(1), Err("no memory"), after(5));
        assert_eq!(attempts.outcome(&file(1), after(14)), Some(Err("no memory")));
        assert_eq!(attempts.outcome(&file(1), after(15)), None);
        attempts.insert(&file(1), Ok(7), after(15));
        assert_eq!(attempts.outcome(&file(1), after(100_000)), Some(Ok(&7)));
    }

    #[test]
    fn unmapped_files_are_dropped() {
        let (mut attempts, now) = (AttachAttempts::<u8, &str>::new(), Instant::now());
        attempts.insert(&file(1), Ok(1), now);
        attempts.insert(&file(2), Err("no memory"), now);
        attempts.keep(&HashSet::from([file(1)]));
        assert_eq!(attempts.outcome(&file(1), now), Some(Ok(&1)));
        assert_eq!(attempts.outcome(&file(2), now), None);
        assert_eq!(attempts.0.len(), 1);
    }
}
