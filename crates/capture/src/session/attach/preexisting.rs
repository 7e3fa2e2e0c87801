//! Processes that mapped the driver before it was probed, so calls of theirs may have been missed.

use std::collections::HashMap;

use engine::model::ids::Pid;
use engine::model::units::Timestamp;

use crate::session::liveness::{is_alive, is_same_start};

/// Such processes, by pid.
#[derive(Default)]
pub(super) struct Preexisting(HashMap<Pid, Mapped>);

/// When a process started, and when it was found to have mapped the driver.
struct Mapped {
    start: u64,
    found: Timestamp,
}

impl Preexisting {
    pub(super) fn insert(&mut self, pid: Pid, start: u64, found: Timestamp) {
        self.0.insert(pid, Mapped { start, found });
    }

    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.0.contains_key(&pid)
    }

    /// Returns whether the process with this start time is one of them.
    pub(super) fn matches(&self, pid: Pid, start: u64) -> bool {
        self.0.get(&pid).is_some_and(|mapped| is_same_start(mapped.start, start))
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.0.keys().copied()
    }

    /// Removes a process that exited or called exec at that time. An exec before the driver was
    /// found mapped was the start of the program that mapped it: records are read later than `/proc`.
    pub(super) fn remove(&mut self, pid: Pid, start: u64, at: Timestamp) {
        if self.matches(pid, start) && self.0.get(&pid).is_some_and(|mapped| mapped.found <= at) {
            self.0.remove(&pid);
        }
    }

    /// Removes processes that have exited.
    pub(super) fn retain_alive(&mut self) {
        self.0.retain(|pid, mapped| is_alive(*pid, mapped.start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PID: Pid = Pid(7);

    #[test]
    fn exec_before_the_mapping_was_found_keeps_it() {
        let mut known = Preexisting::default();
        known.insert(PID, 5, Timestamp(100));
        known.remove(PID, 5, Timestamp(90));
        assert!(known.matches(PID, 5));
        known.remove(PID, 5, Timestamp(110));
        assert!(!known.contains(PID));
    }

    #[test]
    fn end_of_an_older_process_with_the_pid_keeps_it() {
        let mut known = Preexisting::default();
        known.insert(PID, 50_000_000_000, Timestamp(100));
        known.remove(PID, 5_000_000_000, Timestamp(110));
        assert!(known.contains(PID));
    }
}
