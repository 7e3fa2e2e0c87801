//! Processes that have the driver or PyTorch mapped, from `/proc`.

use std::fs;
use std::path::Path;

use engine::model::ids::Pid;

use super::{TorchLibrary, is_driver_name, is_ignored};
use crate::files::{Mapping, mappings};

/// Returns the drivers mapped by any process, except processes that exit or cannot be read.
#[must_use]
pub fn scan_all() -> Vec<Mapping> {
    all_processes().into_iter().flat_map(scan_process).collect()
}

/// Returns all processes.
#[must_use]
pub fn all_processes() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).map(Pid).collect()
}

/// Returns the drivers mapped by one process, each file once.
#[must_use]
pub fn scan_process(pid: Pid) -> Vec<Mapping> {
    scan(pid, is_driver_name)
}

/// PyTorch libraries that a process has mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TorchMappings {
    /// Copies of `libc10.so`.
    pub c10: Vec<Mapping>,
    /// Whether `libc10_cuda.so`, with the caching allocator, is mapped.
    pub cuda: bool,
}

/// Returns the PyTorch libraries that a process has mapped.
#[must_use]
pub fn scan_torch(pid: Pid) -> TorchMappings {
    let mut found = TorchMappings::default();
    for mapping in scan(pid, |path| TorchLibrary::of(path).is_some()) {
        match TorchLibrary::of(&mapping.path) {
            Some(TorchLibrary::C10) => found.c10.push(mapping),
            Some(TorchLibrary::Cuda) => found.cuda = true,
            None => {}
        }
    }
    found
}

/// Returns the mapped files of one process that are wanted, each once.
fn scan(pid: Pid, is_wanted: fn(&Path) -> bool) -> Vec<Mapping> {
    let wanted = mappings(pid, |_, path| is_wanted(path) && !is_ignored(path));
    let mut found: Vec<Mapping> = Vec::new();
    for mapping in wanted.unwrap_or_default() {
        if !found.iter().any(|other| other.file_id() == mapping.file_id()) {
            found.push(mapping);
        }
    }
    found
}
