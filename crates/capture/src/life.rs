//! Which processes are known to live, so that a death whose record was lost is noticed all the
//! same.

use std::collections::HashMap;
use std::fs;

use engine::event::{Event, What};
use engine::ids::{Pid, Tid};
use engine::units::{Moment, Nanos};

/// How often processes are checked although nothing was lost.
const INTERVAL: Nanos = Nanos::from_millis(10_000);

/// Processes that were announced and not ended.
#[derive(Debug, Default)]
pub(crate) struct Living {
    processes: HashMap<Pid, u64>,
    /// Found dead, while their last records may still be on their way.
    suspects: Vec<Pid>,
    swept: Moment,
}

impl Living {
    pub(crate) fn began(&mut self, pid: Pid, start: u64) {
        self.processes.insert(pid, start);
    }

    pub(crate) fn ended(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    pub(crate) fn knows(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    pub(crate) fn is_due(&self, now: Moment) -> bool {
        now - self.swept >= INTERVAL
    }

    /// Looks which processes are gone.
    pub(crate) fn sweep(&mut self, now: Moment) {
        self.swept = now;
        let dead = self.processes.iter().filter(|(pid, start)| !is_alive(**pid, **start));
        self.suspects = dead.map(|(pid, _)| *pid).collect();
    }

    /// Exits of those that were found dead before the ring was last emptied, and that told no exit
    /// of their own since.
    pub(crate) fn take_dead(&mut self, now: Moment) -> Vec<Event> {
        let dead = std::mem::take(&mut self.suspects);
        dead.into_iter()
            .filter(|pid| self.processes.remove(pid).is_some())
            .map(|pid| Event { pid, tid: Tid(pid.0), entered: now, at: now, what: What::Exit })
            .collect()
    }
}

/// Whether the very process still runs: `/proc` tells its start in hundredths of a second.
fn is_alive(pid: Pid, start: u64) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name, in parentheses, may hold anything; field 22 counts from before it.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let is_zombie = fields.first().is_some_and(|state| *state == "Z" || *state == "X");
    let ticks: u64 = fields.get(19).and_then(|field| field.parse().ok()).unwrap_or(0);
    !is_zombie && (start == 0 || ticks.abs_diff(start / 10_000_000) <= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_lives_and_a_namesake_does_not() {
        let me = Pid(std::process::id());
        assert!(is_alive(me, 0));
        assert!(!is_alive(me, 1));
        assert!(!is_alive(Pid(u32::MAX), 0));
    }

    #[test]
    fn a_death_is_told_once() {
        let mut living = Living::default();
        living.began(Pid(u32::MAX), 5);
        assert!(living.take_dead(Moment(1)).is_empty());
        living.sweep(Moment(1));
        assert_eq!(living.take_dead(Moment(2)).len(), 1);
        living.sweep(Moment(3));
        assert!(living.take_dead(Moment(4)).is_empty());
    }

    #[test]
    fn a_death_that_tells_itself_is_not_told_again() {
        let mut living = Living::default();
        living.began(Pid(u32::MAX), 5);
        living.sweep(Moment(1));
        living.ended(Pid(u32::MAX));
        assert!(living.take_dead(Moment(2)).is_empty());
    }
}
