//! Processes that have the driver or a library with an allocator mapped, from `/proc`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use engine::model::blocks::Allocator;
use engine::model::ids::Pid;

use super::{AllocatorFile, is_driver_name, is_ignored};
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

/// Libraries with allocators that a process has mapped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AllocatorMappings {
    /// Libraries that can be probed.
    pub probed: Vec<(Allocator, Mapping)>,
    /// Whether `libc10_cuda.so`, with the caching allocator of PyTorch, is mapped.
    pub torch_cuda: bool,
}

impl AllocatorMappings {
    /// The allocators that the process uses.
    #[must_use]
    pub fn allocators(&self) -> BTreeSet<Allocator> {
        // `libc10.so` is common to all devices.
        let is_used = |one: &Allocator| *one != Allocator::PyTorch;
        let probed = self.probed.iter().map(|(allocator, _)| *allocator).filter(is_used);
        probed.chain(self.torch_cuda.then_some(Allocator::PyTorch)).collect()
    }
}

/// Returns the libraries with allocators that a process has mapped.
#[must_use]
pub fn scan_allocators(pid: Pid) -> AllocatorMappings {
    let mut found = AllocatorMappings::default();
    for mapping in scan(pid, |path| AllocatorFile::of(path).is_some()) {
        match AllocatorFile::of(&mapping.path) {
            Some(AllocatorFile::Probed(allocator)) => found.probed.push((allocator, mapping)),
            Some(AllocatorFile::TorchCuda) => found.torch_cuda = true,
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
