//! Memory that processes share.

use std::sync::Arc;

use crate::model::named::named_enum;
use crate::model::{Bytes, Pid};

named_enum! {
    /// Side of a process.
    pub enum ShareRole {
        /// It allocated the memory.
        Exporter => "exporter",
        /// It opened memory of another process.
        Importer => "importer",
    }
}

/// Memory that a process shares with another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedMemoryView {
    /// Side of this process.
    pub role: ShareRole,
    /// The other process and its program (untrusted); `None` if it is not traced.
    pub peer: Option<(Pid, Arc<str>)>,
    /// Size of the allocations whose size is known.
    pub bytes: Bytes,
    /// Number of allocations.
    pub allocations: u64,
    /// Number of allocations of unknown size.
    pub unknown_sizes: u64,
    /// Whether the exporter no longer holds the memory: only the importer keeps it alive.
    pub kept_alive: bool,
}
