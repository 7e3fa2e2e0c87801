//! Memory that processes share: which process imported what another one exported.
//!
//! Exports and imports have the same [`ShareId`]. Whether a side still holds its allocation is looked
//! up when a report is made, so the end of an allocation costs nothing here.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::model::{AllocationKey, Bytes, Event, Pid, ProcessKey, ShareCall, ShareId, Timestamp};
use crate::snapshot::{ShareRole, SharedMemoryView};

use super::process::Process;

/// Number of shared allocations from which on those without an importer are dropped.
const MAX_UNUSED: usize = 16_384;

/// Limit of known handles; imports by further ones have no exporter.
const MAX_SHARES: usize = 65_536;

/// An allocation of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Side {
    process: ProcessKey,
    key: AllocationKey,
    /// When it was allocated; `None` if that was before the trace.
    since: Option<Timestamp>,
}

impl Side {
    fn of(process: &Process, key: AllocationKey) -> Self {
        let slot = process.allocations.find(key);
        let since = slot.map(|slot| process.allocations.slab[slot].returned_at);
        Self { process: process.key, key, since }
    }

    /// Returns its process while that runs.
    fn owner<'a>(&self, running: &'a HashMap<Pid, Process>) -> Option<&'a Process> {
        running.get(&self.process.pid).filter(|process| process.key == self.process)
    }

    /// Whether its process still holds it.
    fn is_live(&self, running: &HashMap<Pid, Process>) -> bool {
        self.owner(running).is_some_and(|process| Self::of(process, self.key) == *self)
    }
}

/// The exporting side.
#[derive(Debug)]
struct Exporter {
    side: Side,
    /// Size; `None` if it was allocated before the trace.
    bytes: Option<u64>,
    /// Program, as last known.
    program: Arc<str>,
}

/// An allocation and its importers.
#[derive(Debug, Default)]
struct Shared {
    /// `None` if the exporter is not traced.
    exporter: Option<Exporter>,
    importers: Vec<Side>,
}

/// All shared allocations.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    shared: HashMap<u64, Shared>,
    count: u64,
    by_share: HashMap<ShareId, u64>,
    by_side: HashMap<Side, u64>,
    by_process: HashMap<Pid, HashSet<u64>>,
    /// Number of shared allocations at which unused ones are dropped next.
    drop_at: usize,
}

impl Sharing {
    /// Applies a call.
    pub(super) fn apply(
        &mut self,
        event: &Event,
        call: ShareCall,
        running: &mut HashMap<Pid, Process>,
    ) {
        let Some(process) = running.get(&event.pid) else { return };
        let (ShareCall::Exported { share, .. } | ShareCall::Imported { share, .. }) = call;
        if self.by_share.len() >= MAX_SHARES && !self.by_share.contains_key(&share) {
            return;
        }
        let linked = match call {
            ShareCall::Exported { key, share } => self.export(process, key, share),
            ShareCall::Imported { key, share } => self.import(process, key, share),
        };
        let Some((number, new)) = linked else { return };
        let exporter = self.shared.get(&number).and_then(|one| one.exporter.as_ref());
        let bytes = exporter.and_then(|exporter| exporter.bytes).unwrap_or(0);
        for side in new.iter().filter(|_| bytes > 0) {
            if side.is_live(running)
                && let Some(process) = running.get_mut(&side.process.pid)
            {
                process.grow_import(side.key, bytes, event.time);
            }
        }
        if self.shared.len() > self.drop_at.max(MAX_UNUSED) {
            self.drop_unused(|one| one.importers.is_empty());
            self.drop_at = 2 * self.shared.len();
        }
    }

    /// Returns the allocation, and the imports that were seen before the export.
    fn export(
        &mut self,
        process: &Process,
        key: AllocationKey,
        share: ShareId,
    ) -> Option<(u64, Vec<Side>)> {
        let side = Side::of(process, key);
        // An importer can pass memory on.
        let known = self.by_side.get(&side).copied();
        let number = known.unwrap_or_else(|| self.add());
        let earlier = self.by_share.insert(share, number).filter(|earlier| *earlier != number);
        let is_pending = |one: &Shared| one.exporter.is_none();
        let waiting = earlier.filter(|earlier| self.shared.get(earlier).is_some_and(is_pending));
        let waiting = waiting.and_then(|earlier| self.shared.remove(&earlier));
        let importers = waiting.map_or_else(Vec::new, |one| one.importers);
        for importer in &importers {
            self.link(number, *importer);
        }
        if known.is_none() {
            self.link(number, side);
        }
        let shared = self.shared.get_mut(&number)?;
        shared.importers.extend(&importers);
        if known.is_none() {
            let slot = process.allocations.find(key);
            let bytes = slot.map(|slot| process.allocations.slab[slot].bytes);
            shared.exporter = Some(Exporter { side, bytes, program: process.program().into() });
        }
        Some((number, importers))
    }

    /// Returns the allocation, and the import if it is a new one.
    fn import(
        &mut self,
        process: &Process,
        key: AllocationKey,
        share: ShareId,
    ) -> Option<(u64, Vec<Side>)> {
        let side = Side::of(process, key);
        let number = match self.by_share.get(&share) {
            Some(number) => *number,
            None => self.add(),
        };
        self.by_share.insert(share, number);
        let shared = self.shared.get_mut(&number)?;
        let is_own = shared.exporter.as_ref().is_some_and(|one| one.side.process == process.key);
        if is_own || self.by_side.get(&side) == Some(&number) {
            return None;
        }
        shared.importers.push(side);
        self.link(number, side);
        Some((number, vec![side]))
    }

    fn add(&mut self) -> u64 {
        self.count += 1;
        self.shared.insert(self.count, Shared::default());
        self.count
    }

    fn link(&mut self, number: u64, side: Side) {
        self.by_side.insert(side, number);
        self.by_process.entry(side.process.pid).or_default().insert(number);
    }

    /// Drops allocations and everything that refers to them.
    fn drop_unused(&mut self, is_unused: impl Fn(&Shared) -> bool) {
        let before = self.shared.len();
        self.shared.retain(|_, one| !is_unused(one));
        if self.shared.len() < before {
            let Self { shared, by_share, by_side, by_process, .. } = self;
            by_share.retain(|_, number| shared.contains_key(number));
            by_side.retain(|_, number| shared.contains_key(number));
            by_process
                .values_mut()
                .for_each(|all| all.retain(|number| shared.contains_key(number)));
            by_process.retain(|_, all| !all.is_empty());
        }
    }

    /// Drops what has ended, and sets the views of all running processes.
    pub(super) fn update(&mut self, running: &mut HashMap<Pid, Process>) {
        if self.count == 0 {
            return;
        }
        for shared in self.shared.values_mut() {
            shared.importers.retain(|side| side.is_live(running));
            if let Some(exporter) = &mut shared.exporter
                && let Some(process) = exporter.side.owner(running)
                && *exporter.program != *process.program()
            {
                exporter.program = process.program().into();
            }
        }
        self.drop_unused(|one| {
            // What a running process exported and freed may still be on its way to an importer.
            let exporter = one.exporter.as_ref().and_then(|one| one.side.owner(running));
            one.importers.is_empty() && exporter.is_none()
        });
        let views: Vec<_> =
            running.iter().map(|(pid, process)| (*pid, self.views(process, running))).collect();
        for (pid, views) in views {
            if let Some(process) = running.get_mut(&pid) {
                process.shared_memory = views;
            }
        }
    }

    /// Returns what a process shares with others, largest first. It may have just ended.
    pub(super) fn views(
        &self,
        process: &Process,
        running: &HashMap<Pid, Process>,
    ) -> Vec<SharedMemoryView> {
        let is_held = |side: &Side| {
            if side.process == process.key {
                Side::of(process, side.key) == *side
            } else {
                side.is_live(running)
            }
        };
        let mut rows = BTreeMap::new();
        let numbers = self.by_process.get(&process.key.pid).into_iter().flatten();
        for shared in numbers.filter_map(|number| self.shared.get(number)) {
            let exporter = shared.exporter.as_ref();
            let kept_alive = exporter.is_some_and(|exporter| !is_held(&exporter.side));
            for importer in shared.importers.iter().filter(|side| is_held(side)) {
                let (role, peer) = if importer.process == process.key {
                    let peer = |one: &Exporter| (one.side.process.pid, one.program.clone());
                    (ShareRole::Importer, exporter.map(peer))
                } else if exporter.is_some_and(|one| one.side.process == process.key) {
                    let peer = importer.owner(running);
                    (ShareRole::Exporter, peer.map(|peer| (peer.key.pid, peer.program().into())))
                } else {
                    continue;
                };
                // Mappings have a size even if the exporter is unknown.
                let bytes = exporter.and_then(|exporter| exporter.bytes).or_else(|| {
                    let is_own = importer.process == process.key;
                    let owner = if is_own { Some(process) } else { importer.owner(running) }?;
                    let slot = owner.allocations.find(importer.key)?;
                    Some(owner.allocations.slab[slot].bytes).filter(|bytes| *bytes > 0)
                });
                let pid = peer.as_ref().map(|(pid, _)| *pid);
                let row = rows.entry((role, pid, kept_alive)).or_insert(SharedMemoryView {
                    role,
                    peer,
                    bytes: Bytes(0),
                    allocations: 0,
                    unknown_sizes: 0,
                    kept_alive,
                });
                row.allocations += 1;
                row.bytes = Bytes(row.bytes.0.saturating_add(bytes.unwrap_or(0)));
                row.unknown_sizes += u64::from(bytes.is_none());
            }
        }
        let mut rows: Vec<_> = rows.into_values().collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
        rows
    }
}
