//! Tables that the traced side writes and the session reads, or the other way around.

use std::collections::HashMap;
use std::hash::Hash;

use engine::model::ids::Pid;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::map_reader::{self, MapEntry};
use crate::decode::ExecGeneration;
use crate::error::Error;
use crate::in_process::SharedTable;
use crate::wire::{CopyKey, FromWire, LaunchKey, LostKey, ToWire, parse};

/// A table.
pub(crate) enum Table {
    /// A BPF map.
    Map(MapHandle),
    /// A part of the areas of in-process tracing.
    Shared(SharedTable),
}

impl Table {
    /// Reads every entry.
    pub(crate) fn read_all(&self) -> Result<Vec<MapEntry>, Error> {
        match self {
            Self::Map(map) => map_reader::read_all(map),
            Self::Shared(table) => Ok(table.read_all()),
        }
    }

    /// Sets an entry. Returns false if it does not fit.
    pub(crate) fn update(&self, key: &[u8], value: &[u8]) -> bool {
        match self {
            Self::Map(map) => map.update(key, value, MapFlags::ANY).is_ok(),
            Self::Shared(table) => table.update(key, value),
        }
    }

    /// Deletes an entry, if it exists.
    pub(crate) fn delete(&self, key: &[u8]) {
        match self {
            // An entry that does not exist needs no deletion.
            Self::Map(map) => drop(map.delete(key)),
            Self::Shared(table) => table.delete(key),
        }
    }
}

/// The program that a counter belongs to: an exec generation of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Program {
    pub(crate) pid: Pid,
    pub(crate) start: u64,
    pub(crate) exec_gen: ExecGeneration,
}

/// A key of counters.
pub(crate) trait CounterKey: FromWire + ToWire + Copy + Eq + Hash {
    fn program(&self) -> Program;
}

macro_rules! counter_keys {
    ($($key:ty),*) => {$(
        impl CounterKey for $key {
            fn program(&self) -> Program {
                let (pid, exec_gen) = (Pid(self.pid), ExecGeneration(self.exec_gen));
                Program { pid, start: self.start, exec_gen }
            }
        }
    )*};
}
counter_keys!(CopyKey, LaunchKey, LostKey);

/// Counters of all programs, and the values that were already reported.
pub(crate) struct CounterTable<K, V> {
    table: Table,
    pub(crate) reported: HashMap<K, V>,
}

impl<K: CounterKey, V> CounterTable<K, V> {
    pub(crate) fn new(table: Table) -> Self {
        Self { table, reported: HashMap::new() }
    }

    /// Reads every counter.
    pub(crate) fn read(&self) -> Result<Vec<(K, Vec<u8>)>, Error> {
        let entries = self.table.read_all()?.into_iter();
        Ok(entries.filter_map(|(key, value)| Some((parse(&key)?, value))).collect())
    }

    /// Deletes the counters of programs that have ended.
    pub(crate) fn remove(&mut self, has_ended: impl Fn(Program) -> bool) {
        let ended = self.reported.extract_if(|key, _| has_ended(key.program()));
        ended.for_each(|(key, _)| self.table.delete(&key.bytes()));
    }
}
