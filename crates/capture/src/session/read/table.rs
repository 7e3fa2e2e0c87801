//! Tables that the traced side writes and the session reads, or the other way around.

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::map_reader::{self, MapEntry};
use crate::error::Error;
use crate::in_process::SharedTable;

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
