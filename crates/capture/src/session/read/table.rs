//! Tables that the traced side writes and the session reads, or the other way around.

use std::collections::HashMap;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use engine::model::ids::Pid;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::map_reader::{self, MapEntry};
use crate::decode::ExecGeneration;
use crate::error::Error;
use crate::in_process::SharedTable;
use crate::session::processes::Program;
use crate::wire::{CopyKey, FromWire, LaunchKey, LostKey, ToWire, UnknownKey, parse};

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
counter_keys!(CopyKey, LaunchKey, LostKey, UnknownKey);

/// Counters of all programs.
pub(crate) struct CounterTable<K, V> {
    table: Arc<Table>,
    types: PhantomData<(K, V)>,
}

/// The counters of one program, and their values that were already reported. Dropping it deletes them
/// from the table.
pub(crate) struct Reported<K: CounterKey, V> {
    table: Arc<Table>,
    values: HashMap<K, V>,
}

impl<K: CounterKey, V: Default> CounterTable<K, V> {
    pub(crate) fn new(table: Table) -> Self {
        Self { table: Arc::new(table), types: PhantomData }
    }

    /// Reads every counter.
    pub(crate) fn read(&self) -> Result<Vec<(K, Vec<u8>)>, Error> {
        let entries = self.table.read_all()?.into_iter();
        Ok(entries.filter_map(|(key, value)| Some((parse(&key)?, value))).collect())
    }

    /// Returns the reported value of a counter; `own`: the counters of its program.
    pub(crate) fn reported<'a>(&self, own: &'a mut Option<Reported<K, V>>, key: K) -> &'a mut V {
        let new = || Reported { table: Arc::clone(&self.table), values: HashMap::new() };
        own.get_or_insert_with(new).values.entry(key).or_default()
    }
}

impl<K: CounterKey, V> Drop for Reported<K, V> {
    fn drop(&mut self) {
        self.values.keys().for_each(|key| self.table.delete(&key.bytes()));
    }
}
