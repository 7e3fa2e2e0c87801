//! Which incidents become folders: a program that is refused memory in a loop must not fill the disk.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use engine::ids::Pid;

/// Processes whose last folder is kept in mind.
const PROCESSES: usize = 4096;

const HOUR: Duration = Duration::from_secs(3600);

/// See the module.
pub(crate) struct Gate {
    pause: Duration,
    per_hour: usize,
    last: HashMap<Pid, (Instant, u64)>,
    written: VecDeque<Instant>,
}

impl Gate {
    pub(crate) fn new(pause: Duration, per_hour: usize) -> Self {
        Self { pause, per_hour, last: HashMap::new(), written: VecDeque::new() }
    }

    /// Whether there may be a folder now; with how many were passed over of that process since its
    /// last one.
    pub(crate) fn admit(&mut self, pid: Option<Pid>, now: Instant) -> Result<u64, ()> {
        while self.written.front().is_some_and(|at| now.duration_since(*at) >= HOUR) {
            self.written.pop_front();
        }
        let pause = self.pause;
        if self.last.len() >= PROCESSES {
            self.last.retain(|_, (at, _)| now.duration_since(*at) < pause);
        }
        let crowded = self.last.len() >= PROCESSES;
        let known = pid.and_then(|pid| self.last.get_mut(&pid));
        let waits = known.as_ref().is_some_and(|(at, _)| now.duration_since(*at) < pause);
        if waits || self.written.len() >= self.per_hour || crowded {
            if let Some((_, skipped)) = known {
                *skipped += 1;
            }
            return Err(());
        }
        let skipped = known.map_or(0, |(_, skipped)| *skipped);
        self.written.push_back(now);
        pid.map(|pid| self.last.insert(pid, (now, 0)));
        Ok(skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_process_that_is_refused_again_and_again_makes_a_folder_now_and_then() {
        let mut gate = Gate::new(60 * SECOND, 100);
        let start = Instant::now();
        let admitted: Vec<u64> =
            (0..600).filter_map(|i| gate.admit(Some(Pid(7)), start + i * SECOND).ok()).collect();
        assert_eq!(admitted, [0, 59, 59, 59, 59, 59, 59, 59, 59, 59]);
        assert_eq!(gate.admit(Some(Pid(8)), start + 600 * SECOND), Ok(0), "another one is free to");
    }

    #[test]
    fn many_processes_share_the_hour() {
        let mut gate = Gate::new(60 * SECOND, 5);
        let start = Instant::now();
        let count = (0..5000).filter(|pid| gate.admit(Some(Pid(*pid)), start).is_ok()).count();
        assert_eq!(count, 5);
        assert_eq!(gate.admit(Some(Pid(9)), start + HOUR), Ok(0));
        assert_eq!(gate.admit(None, start + HOUR), Ok(0), "those of no process count, too");
    }
}
