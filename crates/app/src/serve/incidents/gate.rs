//! Which incidents become folders: a program that is refused memory in a loop must not fill the disk.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use engine::ids::ProcessKey;

/// Processes whose last folder is kept in mind.
const PROCESSES: usize = 4096;

const HOUR: Duration = Duration::from_secs(3600);

/// See the module.
pub(crate) struct Gate {
    pause: Duration,
    per_hour: usize,
    last: HashMap<ProcessKey, (Instant, u64)>,
    written: VecDeque<Instant>,
}

impl Gate {
    pub(crate) fn new(pause: Duration, per_hour: usize) -> Self {
        Self { pause, per_hour, last: HashMap::new(), written: VecDeque::new() }
    }

    /// Whether there may be a folder now; with how many were passed over of that process since its
    /// last one.
    pub(crate) fn admit(&mut self, who: Option<ProcessKey>, now: Instant) -> Result<u64, ()> {
        while self.written.front().is_some_and(|at| now.duration_since(*at) >= HOUR) {
            self.written.pop_front();
        }
        let pause = self.pause;
        if self.last.len() >= PROCESSES {
            self.last.retain(|_, (at, _)| now.duration_since(*at) < pause);
        }
        let crowded = self.last.len() >= PROCESSES;
        let known = who.and_then(|who| self.last.get_mut(&who));
        let waits = known.as_ref().is_some_and(|(at, _)| now.duration_since(*at) < pause);
        if waits || self.written.len() >= self.per_hour || crowded {
            if let Some((_, skipped)) = known {
                *skipped += 1;
            }
            return Err(());
        }
        let skipped = known.map_or(0, |(_, skipped)| *skipped);
        self.written.push_back(now);
        who.map(|who| self.last.insert(who, (now, 0)));
        Ok(skipped)
    }
}

#[cfg(test)]
mod tests {
    use engine::ids::Pid;

    use super::*;

    fn key(pid: u32, start: u64) -> Option<ProcessKey> {
        Some(ProcessKey { pid: Pid(pid), start })
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_process_that_is_refused_again_and_again_makes_a_folder_now_and_then() {
        let mut gate = Gate::new(60 * SECOND, 100);
        let start = Instant::now();
        let admitted: Vec<u64> =
            (0..600).filter_map(|i| gate.admit(key(7, 1), start + i * SECOND).ok()).collect();
        assert_eq!(admitted, [0, 59, 59, 59, 59, 59, 59, 59, 59, 59]);
        assert_eq!(gate.admit(key(8, 1), start + 600 * SECOND), Ok(0), "another one is free to");
        assert_eq!(gate.admit(key(7, 2), start + 601 * SECOND), Ok(0), "so is one of the same pid");
    }

    #[test]
    fn many_processes_share_the_hour() {
        let mut gate = Gate::new(60 * SECOND, 5);
        let start = Instant::now();
        let count = (0..5000).filter(|pid| gate.admit(key(*pid, 1), start).is_ok()).count();
        assert_eq!(count, 5);
        assert_eq!(gate.admit(key(9, 1), start + HOUR), Ok(0));
        assert_eq!(gate.admit(None, start + HOUR), Ok(0), "those of no process count, too");
    }
}
