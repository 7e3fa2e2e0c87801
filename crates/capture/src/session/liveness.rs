//! Start times of processes, from `/proc`: a pid with a start time identifies a process.

use std::fs;
use std::io::ErrorKind;

use crate::error::Error;
use crate::files::page_size;
use engine::model::Bytes;
use engine::model::ids::Pid;

/// Nanoseconds of a tick, the unit of start times in `/proc`. Fixed for user space on x86-64 and
/// arm64.
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

/// What `/proc` says about a running process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostStatus {
    /// Parent.
    pub parent: Option<Pid>,
    /// Resident memory.
    pub resident: Bytes,
}

/// Returns the parent and the resident memory of a running process.
#[must_use]
pub fn host_status(pid: Pid) -> Option<HostStatus> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let parent = fields.get(1)?.parse().ok()?;
    let pages: u64 = fields.get(21)?.parse().ok()?;
    let resident = Bytes(pages.saturating_mul(page_size() as u64));
    Some(HostStatus { parent: (parent > 0).then_some(Pid(parent)), resident })
}

/// Limit of generations that are searched for an ancestor.
const MAX_GENERATIONS: usize = 64;

/// Returns whether a process is one of others, or descends from one.
pub(crate) fn descends_from(pid: Pid, roots: &[Pid]) -> bool {
    let parent = |pid: &Pid| host_status(*pid)?.parent;
    let mut line = std::iter::successors(Some(pid), parent).take(MAX_GENERATIONS);
    line.any(|pid| roots.contains(&pid))
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

/// Returns whether a process has lost its memory: it does not exist or is exiting. It loses its
/// memory before it becomes a zombie.
pub(crate) fn has_no_memory(pid: Pid) -> bool {
    match fs::read(format!("/proc/{pid}/maps")) {
        Ok(maps) => maps.is_empty(),
        Err(error) => error.kind() != ErrorKind::PermissionDenied,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zombie_has_no_memory() {
        assert!(!has_no_memory(Pid(std::process::id())));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id());
        while start_of(pid).is_some() {
            std::thread::yield_now();
        }
        assert!(has_no_memory(pid));
        child.wait().unwrap();
        assert!(has_no_memory(pid));
    }

    #[test]
    fn liveness_compares_pid_and_start_time() {
        let own_pid = Pid(std::process::id());
        assert!(is_alive(own_pid, 0));
        assert!(!is_alive(own_pid, 1));
        assert!(!is_alive(Pid(u32::MAX), 0));
    }

    #[test]
    fn start_times_of_proc_are_rounded() {
        assert!(is_same_start(5 * TICK, 5 * TICK + 9_999_999));
        assert!(is_same_start(5 * TICK, 0));
        assert!(!is_same_start(5 * TICK, 50 * TICK));
        assert!(is_same_start(5 * TICK + 7, 5 * TICK));
        assert!(!is_same_start(5 * TICK + 7, 5 * TICK + 9));
    }
}
