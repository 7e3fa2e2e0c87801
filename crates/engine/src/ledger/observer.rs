//! Change log: every allocation that enters or leaves the live set. Without a change log, this
//! costs one branch per change.

use hashbrown::HashMap;

use crate::change::{Change, How, Known, Turn};
use crate::ids::{StreamId, Tid};
use crate::units::Moment;

use super::allocation::Slot;
use super::process::Process;

/// Changes of one process during the current event.
#[derive(Debug, Default)]
pub(super) struct Observer {
    changes: Vec<Change>,
    /// Streams of live allocations, which entries have no room for.
    streams: HashMap<Slot, StreamId>,
}

/// Changes of all processes, in the order of events.
#[derive(Debug, Default)]
pub(super) struct Told {
    changes: Vec<Change>,
    latest: Moment,
}

impl Told {
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

    pub(super) fn take(&mut self, into: &mut Vec<Change>) {
        into.append(&mut self.changes);
    }
}

impl Process {
    /// Enables the change log for a new process.
    pub(super) fn observed(mut self) -> Self {
        self.observer = Some(Box::default());
        self
    }

    /// Logs an allocation that was just added to all lists.
    pub(super) fn tell_begin(&mut self, slot: Slot, stream: Option<StreamId>) {
        if let Some(observer) = &mut self.observer
            && let Some(stream) = stream
        {
            observer.streams.insert(slot, stream);
        }
        self.log_change(slot, Turn::Began);
    }

    /// Logs the end of an allocation that is about to be removed from all lists.
    pub(super) fn tell_end(&mut self, slot: Slot, how: How) {
        let began = self.allocations.slab[slot].returned_at;
        self.log_change(slot, Turn::Ended { began, how });
        if let Some(observer) = &mut self.observer {
            observer.streams.remove(&slot);
        }
    }

    /// Logs the end of all allocations with their process.
    pub(super) fn tell_exit(&mut self, at: Moment) {
        self.call = (at, at);
        for slot in self.allocations.select(|_| true) {
            self.tell_end(slot, How::Exited);
        }
    }

    /// Current values of the fields of a live allocation that may become known late.
    pub(super) fn known(&self, slot: Slot) -> Known {
        let entry = &self.allocations.slab[slot];
        let pool = self.pools.id(entry.pool());
        Known { device: entry.device(), pool, bytes: entry.bytes }
    }

    /// Logs an update if the late fields of a live allocation have changed.
    pub(super) fn tell_learned(&mut self, slot: Slot, before: Known) {
        if self.observer.is_some() && self.known(slot) != before {
            let began = self.allocations.slab[slot].returned_at;
            self.log_change(slot, Turn::Learned { began, before });
        }
    }

    fn log_change(&mut self, slot: Slot, what: Turn) {
        let Known { device, pool, bytes } = self.known(slot);
        let entry = &self.allocations.slab[slot];
        let tid = self.threads.tid(entry.thread).unwrap_or(Tid(0));
        let Some(observer) = &mut self.observer else { return };
        observer.changes.push(Change {
            at: self.call.1,
            what,
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
