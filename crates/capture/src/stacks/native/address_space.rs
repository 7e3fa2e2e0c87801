//! The executable mappings of one process.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::model::ids::Pid;

use super::modules::{MappingTarget, ModuleFinder, ModuleId};
use super::perf_map::GeneratedCode;
use crate::files::{Mapping, MappingKind, mappings};

/// Minimum time between two reads for an unknown address.
const REFRESH_INTERVAL: Duration = Duration::from_millis(50);
/// Minimum time between two reads after an mmap event.
const REFRESH_INTERVAL_AFTER_MMAP: Duration = Duration::from_millis(5);
/// At most one part in this many of the time is spent on reading the mappings of a process.
const MAX_READ_DUTY_CYCLE: u32 = 20;

/// Location of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CodeLocation {
    /// Code of a file, with the offset in the file.
    File { module: ModuleId, offset: u64 },
    /// Code that was generated at run time.
    Anonymous,
    /// Not mapped, or unknown.
    Nothing,
}

struct MappedRange {
    mapping: Mapping,
    /// Resolved on first use: most libraries never appear on a stack.
    target: Option<MappingTarget>,
}

/// The executable mappings of a process.
pub(crate) struct AddressSpace {
    pub(super) pid: Pid,
    pub(crate) generated: Arc<GeneratedCode>,
    entries: Vec<MappedRange>,
    /// Start addresses of the entries, compact because every frame searches them.
    starts: Vec<u64>,
    /// The uprobes pages, where functions with return probes return to.
    probes: Vec<Range<u64>>,
    read_at: Option<Instant>,
    read_duration: Duration,
    /// There were mmap events since the last read.
    changed: bool,
    /// The last read failed: the process has exited, or cannot be read.
    read_failed: bool,
}

impl AddressSpace {
    pub(crate) fn new(pid: Pid) -> Self {
        Self {
            pid,
            generated: Arc::new(GeneratedCode::new(pid)),
            entries: Vec::new(),
            starts: Vec::new(),
            probes: Vec::new(),
            read_at: None,
            read_duration: Duration::ZERO,
            changed: false,
            read_failed: false,
        }
    }

    /// Handles an mmap event of the process.
    pub(crate) fn changed(&mut self) {
        self.changed = true;
    }

    /// Returns whether no mappings are known and none can be read.
    pub(super) fn is_unreadable(&self) -> bool {
        self.read_failed && self.entries.is_empty()
    }

    /// Returns whether the uprobes pages are known. They are mapped at the first probe, and a process
    /// may have exited since its mappings were read.
    pub(super) fn knows_probes(&self) -> bool {
        !self.probes.is_empty()
    }

    #[cfg(test)]
    pub(super) fn forget_probes(&mut self) {
        self.probes.clear();
    }

    /// Reads the mappings again if needed; to be called before a stack is unwound.
    pub(super) fn refresh(&mut self) {
        if self.read_at.is_none() || (self.changed && self.may_read(REFRESH_INTERVAL_AFTER_MMAP)) {
            self.read();
        }
    }

    /// Returns the location of an address.
    pub(super) fn locate(&mut self, address: u64, modules: &mut ModuleFinder) -> CodeLocation {
        let mut index = self.index(address);
        if index.is_none() && self.may_read(REFRESH_INTERVAL) {
            self.read();
            index = self.index(address);
        }
        let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) else {
            return CodeLocation::Nothing;
        };
        match entry.mapping.kind {
            MappingKind::Anonymous => return CodeLocation::Anonymous,
            MappingKind::Probes => return CodeLocation::Nothing,
            MappingKind::File | MappingKind::Vdso => {}
        }
        if entry.target.is_none() {
            entry.target = modules.find(&entry.mapping);
        }
        match entry.target {
            Some(MappingTarget::Module(module)) => {
                let inside = address.saturating_sub(entry.mapping.start);
                CodeLocation::File { module, offset: entry.mapping.offset.saturating_add(inside) }
            }
            Some(MappingTarget::NoModule) => CodeLocation::Anonymous,
            None => CodeLocation::Nothing,
        }
    }

    /// Returns whether a return address is that of a return probe.
    pub(super) fn is_probe(&self, address: u64) -> bool {
        self.probes.iter().any(|range| range.contains(&address))
    }

    fn index(&self, address: u64) -> Option<usize> {
        let index = self.starts.partition_point(|&start| start <= address).checked_sub(1)?;
        (address < self.entries.get(index)?.mapping.end).then_some(index)
    }

    /// Returns whether another read is allowed: a program that keeps mapping must not keep us busy.
    fn may_read(&self, interval: Duration) -> bool {
        let interval = interval.max(self.read_duration.saturating_mul(MAX_READ_DUTY_CYCLE));
        self.read_at.is_none_or(|at| at.elapsed() >= interval)
    }

    fn read(&mut self) {
        let start = Instant::now();
        let mappings = mappings(self.pid, |executable, _| executable).unwrap_or_default();
        // The list of a process that has exited is empty. The known mappings stay.
        self.read_failed = mappings.is_empty();
        if !self.read_failed {
            self.replace(mappings);
        }
        self.changed = false;
        self.read_duration = start.elapsed();
        self.read_at = Some(Instant::now());
    }

    /// Uses the mmap events of a process whose mappings can no longer be read.
    pub(super) fn use_mmap_events<'a>(&mut self, events: impl Iterator<Item = &'a Mapping>) {
        let mut mappings: Vec<Mapping> = Vec::new();
        for mmap in events {
            // Replaces older mappings of the range.
            mappings.retain(|old| old.end <= mmap.start || mmap.end <= old.start);
            mappings.push(mmap.clone());
        }
        self.replace(mappings);
    }

    fn replace(&mut self, mut mappings: Vec<Mapping>) {
        // The kernel sorts them, but a list that was read while the process changed may be unsorted.
        mappings.sort_by_key(|mapping| mapping.start);
        let mut old = std::mem::take(&mut self.entries).into_iter().peekable();
        for mapping in mappings {
            while old.next_if(|entry| entry.mapping.start < mapping.start).is_some() {}
            let same = old.next_if(|entry| entry.mapping == mapping);
            let target = same.and_then(|entry| entry.target);
            self.entries.push(MappedRange { mapping, target });
        }
        let mappings = || self.entries.iter().map(|entry| &entry.mapping);
        self.starts = mappings().map(|mapping| mapping.start).collect();
        let probes = mappings().filter(|mapping| mapping.kind == MappingKind::Probes);
        self.probes = probes.map(|mapping| mapping.start..mapping.end).collect();
    }
}
