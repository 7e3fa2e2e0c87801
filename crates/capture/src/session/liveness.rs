//! Tracks live processes, so that an exit is noticed even if its record was lost.

use std::collections::HashMap;
use std::fs;

use crate::decode::ExecGeneration;
use crate::error::Error;
use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::units::{Nanos, Timestamp};

/// How often processes are checked although nothing was lost.
const SWEEP_INTERVAL: Nanos = Nanos::from_millis(10_000);

/// What is known of a process.
#[derive(Clone, Copy, Debug)]
struct Announced {
    start: u64,
    /// `None` if it made no traced call yet.
    exec_gen: Option<ExecGeneration>,
}

/// Announced processes that have not exited.
#[derive(Debug, Default)]
pub(crate) struct LivenessTracker {
    processes: HashMap<Pid, Announced>,
    /// Processes found to have exited; their last records may still be in the ring.
    exited: Vec<(Pid, u64)>,
    last_sweep: Timestamp,
}

impl LivenessTracker {
    pub(crate) fn insert(&mut self, pid: Pid, start: u64, exec_gen: Option<ExecGeneration>) {
        self.processes.insert(pid, Announced { start, exec_gen });
    }

    pub(crate) fn remove(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    pub(crate) fn contains(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Returns the start time of a known process.
    pub(crate) fn start(&self, pid: Pid) -> Option<u64> {
        self.processes.get(&pid).map(|process| process.start)
    }

    /// Returns the exec generation of a known process that made traced calls.
    pub(crate) fn exec_gen(&self, pid: Pid) -> Option<ExecGeneration> {
        self.processes.get(&pid)?.exec_gen
    }

    /// Returns whether the known process with this pid is another one, whose exit was not reported.
    pub(crate) fn is_reused(&self, pid: Pid, start: u64) -> bool {
        self.start(pid).is_some_and(|known| !is_same_start(known, start))
    }

    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        now - self.last_sweep >= SWEEP_INTERVAL
    }

    /// Checks which processes have exited.
    pub(crate) fn sweep(&mut self, now: Timestamp) {
        self.last_sweep = now;
        let starts = self.processes.iter().map(|(pid, process)| (*pid, process.start));
        self.exited = starts.filter(|(pid, start)| !is_alive(*pid, *start)).collect();
    }

    /// Returns the exits of processes that had exited before the ring was last emptied and whose
    /// exit record has not come since. Each has to be passed to [`LivenessTracker::remove`].
    pub(crate) fn drain_dead(&mut self, now: Timestamp) -> Vec<Event> {
        let dead = std::mem::take(&mut self.exited);
        dead.into_iter()
            .filter(|(pid, start)| self.start(*pid) == Some(*start))
            .map(|(pid, _)| Event {
                pid,
                tid: Tid(pid.0),
                entry_time: now,
                time: now,
                kind: EventKind::Exit,
            })
            .collect()
    }
}

/// Nanoseconds of a tick, the unit of start times in `/proc`. Fixed for user space on x86-64.
const TICK: u64 = 10_000_000;

/// Returns the start time of a running process in nanoseconds since boot, rounded down to a tick;
/// `None` if it does not exist or is a zombie.
pub(crate) fn start_of(pid: Pid) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything, so fields are counted after it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let is_zombie = fields.first().is_some_and(|state| *state == "Z" || *state == "X");
    let ticks: u64 = fields.get(19).and_then(|field| field.parse().ok())?;
    (!is_zombie).then(|| ticks.saturating_mul(TICK))
}

/// Returns the parent of a running process.
#[must_use]
pub fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    (parent > 0).then_some(Pid(parent))
}

/// Returns whether two start times can be of one process: one may be unknown (0), or rounded to a
/// tick because it is of `/proc`. Those of probes are not rounded, and pids are reused within a tick.
pub(crate) fn is_same_start(one: u64, other: u64) -> bool {
    let is_rounded = one.is_multiple_of(TICK) || other.is_multiple_of(TICK);
    let is_near = || (one / TICK).abs_diff(other / TICK) <= 1;
    one == 0 || other == 0 || if is_rounded { is_near() } else { one == other }
}

/// Fails if the process does not exist.
pub(crate) fn require(pid: Pid) -> Result<(), Error> {
    let exists = fs::exists(format!("/proc/{pid}")).unwrap_or(false);
    if exists { Ok(()) } else { Err(Error::NoProcess(pid)) }
}

/// Returns whether this process still runs, not another one with its pid.
pub(crate) fn is_alive(pid: Pid, start: u64) -> bool {
    start_of(pid).is_some_and(|now| is_same_start(now, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn liveness_compares_pid_and_start_time() {
        let own_pid = Pid(std::process::id());
        assert!(is_alive(own_pid, 0));
        assert!(!is_alive(own_pid, 1));
        assert!(!is_alive(Pid(u32::MAX), 0));
    }

    #[test]
    fn missed_exit_is_reported_once() {
        let mut liveness = LivenessTracker::default();
        liveness.insert(Pid(u32::MAX), 5, None);
        assert!(liveness.drain_dead(Timestamp(1)).is_empty());
        liveness.sweep(Timestamp(1));
        let dead = liveness.drain_dead(Timestamp(2));
        assert_eq!(dead.len(), 1);
        // As the session does with every exit.
        liveness.remove(dead[0].pid);
        liveness.sweep(Timestamp(3));
        assert!(liveness.drain_dead(Timestamp(4)).is_empty());
    }

    #[test]
    fn recorded_exit_is_not_reported_again() {
        let mut liveness = LivenessTracker::default();
        liveness.insert(Pid(u32::MAX), 5, None);
        liveness.sweep(Timestamp(1));
        liveness.remove(Pid(u32::MAX));
        assert!(liveness.drain_dead(Timestamp(2)).is_empty());
    }

    #[test]
    fn missed_exit_does_not_end_the_process_that_reuses_the_pid() {
        let pid = Pid(u32::MAX);
        let mut liveness = LivenessTracker::default();
        liveness.insert(pid, 5, None);
        liveness.sweep(Timestamp(1));
        liveness.insert(pid, 50_000_000_000, None);
        assert!(liveness.drain_dead(Timestamp(2)).is_empty());
        assert_eq!(liveness.start(pid), Some(50_000_000_000));
    }

    #[test]
    fn pid_reuse_is_detected_by_start_time() {
        let mut liveness = LivenessTracker::default();
        liveness.insert(Pid(7), 5 * TICK, None);
        assert!(!liveness.is_reused(Pid(7), 5 * TICK + 9_999_999));
        assert!(!liveness.is_reused(Pid(7), 0));
        assert!(!liveness.is_reused(Pid(8), 5));
        assert!(liveness.is_reused(Pid(7), 50 * TICK));
        liveness.insert(Pid(7), 5 * TICK + 7, None);
        assert!(!liveness.is_reused(Pid(7), 5 * TICK));
        assert!(liveness.is_reused(Pid(7), 5 * TICK + 9));
    }
}
