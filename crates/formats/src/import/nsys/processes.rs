//! Processes with memory events, numbered from 0.

use engine::model::Pid;
use hashbrown::HashMap;

use super::metadata;
use super::stacks::calls::CallTable;

/// One process.
#[derive(Debug)]
pub(super) struct Process {
    /// Pid, made unique across hosts.
    pub(super) pid: Pid,
    /// Calls that its allocations refer to.
    pub(super) calls: CallTable,
}

/// All processes with memory events.
#[derive(Debug, Default)]
pub(super) struct Processes {
    numbers: HashMap<i64, u32>,
    list: Vec<Process>,
    /// Number of processes with this pid so far.
    same: HashMap<Pid, u32>,
    /// Recently used processes, by the last bits of their pid.
    recent: [Option<(i64, u32)>; 16],
}

impl Processes {
    /// Maximum number of processes; rows of others are skipped.
    const MAX_PROCESSES: usize = 65_536;

    /// Returns the number of a process by its packed id; a new one gets the next number.
    #[inline]
    pub(super) fn number(&mut self, global: i64) -> Option<u32> {
        if let Some(number) = self.recent(global) {
            return Some(number);
        }
        let number = match self.numbers.get(&global) {
            Some(&number) => number,
            None if self.list.len() < Self::MAX_PROCESSES => {
                let number = u32::try_from(self.list.len()).ok()?;
                // Processes of different hosts can have the same pid, and must stay distinct.
                let pid = metadata::pid(global);
                let before = self.same.entry(pid).or_default();
                let pid = Pid(pid.0 | before.checked_mul(1 << 24)?);
                *before += 1;
                self.list.push(Process { pid, calls: CallTable::default() });
                self.numbers.insert(global, number);
                number
            }
            None => return None,
        };
        self.remember(global, number);
        Some(number)
    }

    #[inline]
    fn recent(&self, global: i64) -> Option<u32> {
        let slot = self.recent.get((global >> 24) as usize % 16)?;
        slot.filter(|&(last, _)| last == global).map(|(_, number)| number)
    }

    fn remember(&mut self, global: i64, number: u32) {
        if let Some(slot) = self.recent.get_mut((global >> 24) as usize % 16) {
            *slot = Some((global, number));
        }
    }

    /// Returns a process by its number.
    #[inline]
    pub(super) fn get(&mut self, number: u32) -> Option<&mut Process> {
        self.list.get_mut(number as usize)
    }

    /// Returns a process by its packed id, if it has memory events.
    #[inline]
    pub(super) fn known(&mut self, global: i64) -> Option<&mut Process> {
        let number = match self.recent(global) {
            Some(number) => number,
            None => {
                let number = *self.numbers.get(&global)?;
                self.remember(global, number);
                number
            }
        };
        self.get(number)
    }

    /// Returns the pid of a process by its packed id, if it has memory events.
    pub(super) fn pid(&self, global: i64) -> Option<Pid> {
        let number = *self.numbers.get(&global)?;
        self.list.get(number as usize).map(|process| process.pid)
    }

    /// Returns the pid of a process by its number.
    pub(super) fn pid_of(&self, number: u32) -> Option<Pid> {
        self.list.get(number as usize).map(|process| process.pid)
    }

    /// Calls `each` with every process.
    pub(super) fn each(&mut self, each: impl FnMut(&mut Process)) {
        self.list.iter_mut().for_each(each);
    }

    /// Returns how many processes got another pid because of a duplicate.
    pub(super) fn same_pids(&self) -> usize {
        self.list.len() - self.same.len()
    }
}
