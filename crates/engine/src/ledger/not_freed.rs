//! Memory that ended processes had not freed, for the last report. Frames may be resolved after the
//! end of a process, so its sites are named when the report is made.

use std::collections::VecDeque;

use crate::model::{Bytes, MemoryKind, ProcessIdentity, ProcessKey, SiteRegistry};
use crate::snapshot::{NotFreed, NotFreedSite};

use super::process::Process;
use super::sites::table::{SiteRef, SiteRow};
use super::sites::views::name;

/// Limit of kept processes: the oldest are dropped.
const MAX_PROCESSES: usize = 4096;

/// Ended processes with live memory, oldest first.
#[derive(Debug, Default)]
pub(super) struct NotFreedProcesses {
    processes: VecDeque<ProcessRemains>,
}

/// Live memory of a process at its end.
#[derive(Debug)]
struct ProcessRemains {
    key: ProcessKey,
    name: Box<str>,
    identity: ProcessIdentity,
    /// Whether it uses PyTorch: then memory without a call stack is assumed to be its cache.
    has_torch: bool,
    rows: Vec<SiteRemains>,
}

/// Live memory of one site and kind.
#[derive(Clone, Copy, Debug)]
struct SiteRemains {
    source: SiteRef,
    kind: MemoryKind,
    bytes: Bytes,
    allocations: u64,
}

impl NotFreedProcesses {
    /// Keeps the live memory of an ended process.
    pub(super) fn push(&mut self, process: &Process) {
        let rows: Vec<_> = process.sites.rows().iter().filter_map(SiteRemains::of).collect();
        if rows.is_empty() {
            return;
        }
        if self.processes.len() >= MAX_PROCESSES {
            self.processes.pop_front();
        }
        self.processes.push_back(ProcessRemains {
            key: process.key,
            name: process.name.clone(),
            identity: process.identity.clone(),
            has_torch: process.allocators.torch().is_some(),
            rows,
        });
    }

    /// Returns all processes, oldest first.
    pub(super) fn views(&self, registry: &SiteRegistry) -> Vec<NotFreed> {
        self.processes.iter().map(|process| process.view(registry)).collect()
    }
}

impl SiteRemains {
    /// Returns the live memory of a row that the program could have freed.
    fn of(row: &SiteRow) -> Option<Self> {
        let kind =
            row.resource.kind().filter(|kind| row.track.count > 0 && NotFreed::includes(*kind))?;
        let (source, bytes, allocations) = (row.source, row.track.live.bytes(), row.track.count);
        Some(Self { source, kind, bytes, allocations })
    }
}

impl ProcessRemains {
    fn view(&self, registry: &SiteRegistry) -> NotFreed {
        let sites = self.rows.iter().map(|row| {
            let site = name(row.source, registry);
            let SiteRemains { kind, bytes, allocations, .. } = *row;
            NotFreedSite { site, frames: registry.frames_of(site), kind, bytes, allocations }
        });
        let mut view = NotFreed::of(self.key, &self.name, self.has_torch, sites);
        view.identity = self.identity.clone();
        view
    }
}
