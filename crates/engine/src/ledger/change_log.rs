//! Change log: every allocation that enters or leaves the live set. Without a change log, this
//! costs one branch per change.

use hashbrown::HashMap;

use crate::model::{AllocationChange, ChangeKind, EndReason, LateFields, StreamId, Tid, Timestamp};

use super::Ledger;
use super::memory::allocation::Slot;
use super::process::Process;

/// Changes of one process during the current event.
#[derive(Debug, Default)]
pub(super) struct ProcessChangeLog {
    changes: Vec<AllocationChange>,
    /// Streams of live allocations, which entries have no room for.
    streams: HashMap<Slot, StreamId>,
}

/// Changes of all processes, in the order of events.
#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    changes: Vec<AllocationChange>,
    latest: Timestamp,
}

impl ChangeLog {
    /// Moves the changes of a process into this log.
    pub(super) fn collect(&mut self, process: &mut Process) {
        let Some(observer) = &mut process.observer else { return };
        for mut change in observer.changes.drain(..) {
            // Overlapping calls of different threads arrive in any order; see
            // `Ledger::drain_changes`.
            self.latest = self.latest.max(change.at);
            change.at = self.latest;
            self.changes.push(change);
        }
    }

    pub(super) fn drain(&mut self, into: &mut Vec<AllocationChange>) {
        into.append(&mut self.changes);
    }
}

impl Ledger {
    /// Appends all allocation changes since the last call, of all kinds, in the order of events;
    /// nothing if changes are not logged.
    ///
    /// Applied in order to an empty set, the changes yield the live set at any time. Their times
    /// never go backwards: a call whose event arrives after that of a later call gets the time of
    /// the later one. Memory that is live when a process ends or executes another program ends as
    /// [`ProcessExited`](crate::model::change::EndReason::ProcessExited).
    pub fn drain_changes(&mut self, into: &mut Vec<AllocationChange>) {
        if let Some(log) = &mut self.change_log {
            log.drain(into);
        }
    }
}

impl Process {
    /// Enables the change log for a new process.
    pub(super) fn with_change_log(mut self) -> Self {
        self.observer = Some(Box::default());
        self
    }

    /// Logs an allocation that was just added to all lists.
    pub(super) fn log_begin(&mut self, slot: Slot, stream: Option<StreamId>) {
        if let Some(observer) = &mut self.observer
            && let Some(stream) = stream
        {
            observer.streams.insert(slot, stream);
        }
        self.log_change(slot, ChangeKind::Allocated);
    }

    /// Logs the end of an allocation that is about to be removed from all lists.
    pub(super) fn log_end(&mut self, slot: Slot, reason: EndReason) {
        let allocated_at = self.allocations.slab[slot].returned_at;
        self.log_change(slot, ChangeKind::Ended { allocated_at, reason });
        if let Some(observer) = &mut self.observer {
            observer.streams.remove(&slot);
        }
    }

    /// Logs the end of all allocations with their process.
    pub(super) fn log_exit(&mut self, at: Timestamp) {
        self.call = (at, at);
        for slot in self.allocations.select(|_| true) {
            self.log_end(slot, EndReason::ProcessExited);
        }
    }

    /// Current values of the fields of a live allocation that may become known late.
    pub(super) fn late_fields(&self, slot: Slot) -> LateFields {
        let entry = &self.allocations.slab[slot];
        let pool = self.pools.id(entry.pool());
        LateFields { device: entry.device(), pool, bytes: entry.bytes }
    }

    /// Logs an update if the late fields of a live allocation have changed.
    pub(super) fn log_update(&mut self, slot: Slot, before: LateFields) {
        if self.observer.is_some() && self.late_fields(slot) != before {
            let allocated_at = self.allocations.slab[slot].returned_at;
            self.log_change(slot, ChangeKind::Updated { allocated_at, before });
        }
    }

    fn log_change(&mut self, slot: Slot, action: ChangeKind) {
        let LateFields { device, pool, bytes } = self.late_fields(slot);
        let entry = &self.allocations.slab[slot];
        let tid = self.threads.tid(entry.thread).unwrap_or(Tid(0));
        let Some(observer) = &mut self.observer else { return };
        observer.changes.push(AllocationChange {
            at: self.call.1,
            action,
            pid: self.key.pid,
            tid,
            device,
            kind: entry.kind,
            key: entry.key(),
            bytes,
            pool,
            stream: observer.streams.get(&slot).copied(),
            site: entry.site(),
        });
    }
}
