//! Calls of memory functions that the hook table does not know, by program.

use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;

use super::super::load::bpf_object::LoadedObject;
use super::table::{CounterKey, CounterTable, Table};
use crate::error::Error;
use crate::session::processes::ProcessTable;
use crate::wire::{self, parse};

/// Maximum number of functions that are counted. Their numbers have 16 bits.
const MAX_FUNCTIONS: usize = 4096;

/// The functions of all drivers, by number.
#[derive(Default)]
pub(crate) struct UnknownFunctions(Vec<Box<str>>);

impl UnknownFunctions {
    /// Returns the number of a function; `None` if there are too many.
    pub(crate) fn number(&mut self, name: &str) -> Option<u16> {
        let known = self.0.iter().position(|known| **known == *name);
        let number = known.unwrap_or(self.0.len());
        if number == MAX_FUNCTIONS {
            return None;
        }
        if known.is_none() {
            self.0.push(name.into());
        }
        u16::try_from(number).ok()
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }
}

/// The counters of such calls.
pub(crate) struct UnknownCalls {
    counters: CounterTable<wire::UnknownKey, u64>,
    total: u64,
}

impl UnknownCalls {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, Error> {
        Ok(Self::with_table(Table::Map(loaded.map("unknown_calls")?)))
    }

    /// Reads the counters in a table.
    pub(crate) fn with_table(table: Table) -> Self {
        Self { counters: CounterTable::new(table), total: 0 }
    }

    /// Adds the calls since the last poll to the activity of their programs; cheap if there are none.
    /// `total` is the counter of all of them.
    pub(crate) fn poll(
        &mut self,
        total: u64,
        functions: &UnknownFunctions,
        now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Result<(), Error> {
        if std::mem::replace(&mut self.total, total) == total {
            return Ok(());
        }
        for (key, value) in self.counters.read()? {
            let name = functions.0.get(usize::from(key.function));
            let (Some(function), Some(calls)) = (name, parse::<u64>(&value)) else { continue };
            let own = &mut processes.program(key.program()).activity;
            let reported = self.counters.reported(&mut own.unknown, key);
            let new = calls.saturating_sub(std::mem::replace(reported, calls));
            if new > 0 {
                let (pid, tid) = (Pid(key.pid), Tid(key.pid));
                let kind = EventKind::UnknownCalls { function: function.clone(), calls: new };
                own.pending.push(Event { pid, tid, entry_time: now, time: now, kind });
            }
        }
        Ok(())
    }
}
