//! Rate limit of incidents: a program with repeated out-of-memory errors must not fill the disk.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use engine::model::ProcessKey;

/// Maximum number of processes whose last incident is remembered.
const MAX_PROCESSES: usize = 4096;

const HOUR: Duration = Duration::from_hours(1);

/// Limits incidents per process and per hour.
pub(crate) struct IncidentRateLimiter {
    cooldown: Duration,
    per_hour: usize,
    last: HashMap<ProcessKey, (Instant, u64)>,
    written: VecDeque<Instant>,
}

impl IncidentRateLimiter {
    pub(crate) fn new(cooldown: Duration, per_hour: usize) -> Self {
        Self { cooldown, per_hour, last: HashMap::new(), written: VecDeque::new() }
    }

    /// Whether an incident may be written now; returns how many of that process were suppressed
    /// since its last one.
    pub(crate) fn allow(&mut self, process: Option<ProcessKey>, now: Instant) -> Result<u64, ()> {
        while self.written.front().is_some_and(|at| now.duration_since(*at) >= HOUR) {
            self.written.pop_front();
        }
        let cooldown = self.cooldown;
        if self.last.len() >= MAX_PROCESSES {
            self.last.retain(|_, (at, _)| now.duration_since(*at) < cooldown);
        }
        let is_full = self.last.len() >= MAX_PROCESSES;
        let known = process.and_then(|process| self.last.get_mut(&process));
        let is_waiting = known.as_ref().is_some_and(|(at, _)| now.duration_since(*at) < cooldown);
        if is_waiting || self.written.len() >= self.per_hour || is_full {
            if let Some((_, skipped)) = known {
                *skipped += 1;
            }
            return Err(());
        }
        let skipped = known.map_or(0, |(_, skipped)| *skipped);
        self.written.push_back(now);
        process.map(|process| self.last.insert(process, (now, 0)));
        Ok(skipped)
    }
}

#[cfg(test)]
mod tests {
    use engine::model::Pid;

    use super::*;

    fn key(pid: u32, start: u64) -> Option<ProcessKey> {
        Some(ProcessKey { pid: Pid(pid), start })
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn repeated_errors_are_limited_by_the_cooldown() {
        let mut limiter = IncidentRateLimiter::new(60 * SECOND, 100);
        let start = Instant::now();
        let allowed: Vec<u64> =
            (0..600).filter_map(|i| limiter.allow(key(7, 1), start + i * SECOND).ok()).collect();
        assert_eq!(allowed, [0, 59, 59, 59, 59, 59, 59, 59, 59, 59]);
        assert_eq!(limiter.allow(key(8, 1), start + 600 * SECOND), Ok(0), "another process");
        assert_eq!(limiter.allow(key(7, 2), start + 601 * SECOND), Ok(0), "a reused pid");
    }

    #[test]
    fn hourly_limit_is_shared() {
        let mut limiter = IncidentRateLimiter::new(60 * SECOND, 5);
        let start = Instant::now();
        let count = (0..5000).filter(|pid| limiter.allow(key(*pid, 1), start).is_ok()).count();
        assert_eq!(count, 5);
        assert_eq!(limiter.allow(key(9, 1), start + HOUR), Ok(0));
        assert_eq!(limiter.allow(None, start + HOUR), Ok(0), "without a process");
    }
}
