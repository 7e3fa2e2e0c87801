//! Calls of memory functions that the hook table does not know, by program.

use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;

use super::super::load::bpf_object::LoadedObject;
use super::table::{CounterKey, CounterTable, Table};
use crate::error::Error;
use crate::session::processes::ProcessTable;
use crate::wire::{self, parse};

/// The counters of such calls.
pub(crate) struct UnknownCalls {
    counters: CounterTable<wire::UnknownKey, u64>,
    total: u64,
}

impl UnknownCalls {
    pub(crate) fn new(loaded: &LoadedObject) -> Result<Self, Error> {
        let table = Table::Map(loaded.map("unknown_calls")?);
        Ok(Self { counters: CounterTable::new(table), total: 0 })
    }

    /// Adds the calls since the last poll to the activity of their programs; cheap if there are none.
    /// `total` is the counter of all of them, `names` has the functions by number.
    pub(crate) fn poll(
        &mut self,
        total: u64,
        names: &[Box<str>],
        now: Timestamp,
        processes: &mut ProcessTable,
    ) -> Result<(), Error> {
        if std::mem::replace(&mut self.total, total) == total {
            return Ok(());
        }
        for (key, value) in self.counters.read()? {
            let name = names.get(usize::from(key.function));
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
