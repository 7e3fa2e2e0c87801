//! What an observed ledger tells: every allocation that enters or leaves the live set. A ledger that
//! is not observed pays one branch for each.

use hashbrown::HashMap;

use crate::change::{Change, How, Known, Turn};
use crate::ids::{StreamId, Tid};
use crate::units::Moment;

use super::allocation::Slot;
use super::process::Process;

/// What one process has to tell, until the event is over.
#[derive(Debug, Default)]
pub(super) struct Observer {
    changes: Vec<Change>,
    /// The streams of live allocations: entries have no room for them.
    streams: HashMap<Slot, StreamId>,
}

/// What all processes told, in the order of events.
#[derive(Debug, Default)]
pub(super) struct Told {
    changes: Vec<Change>,
    latest: Moment,
}

impl Told {
    /// Takes over what a process has to tell.
    pub(super) fn collect(&mut self, process: &mut Process) {
        let Some(observer) = &mut process.observer else { return };
        for mut change in observer.changes.drain(..) {
            // Calls of threads that overlap arrive in any order; see `Ledger::take_changes`.
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
    /// The same process, observed from its beginning.
    pub(super) fn observed(mut self) -> Self {
        self.observer = Some(Box::default());
        self
    }

    /// An allocation is in every list.
    pub(super) fn tell_begin(&mut self, slot: Slot, stream: Option<StreamId>) {
        if let Some(observer) = &mut self.observer
            && let Some(stream) = stream
        {
            observer.streams.insert(slot, stream);
        }
        self.tell(slot, Turn::Began);
    }

    /// An allocation is about to leave every list.
    pub(super) fn tell_end(&mut self, slot: Slot, how: How) {
        let began = self.allocations.slab[slot].returned_at;
        self.tell(slot, Turn::Ended { began, how });
        if let Some(observer) = &mut self.observer {
            observer.streams.remove(&slot);
        }
    }

    /// The process ended with all that it holds.
    pub(super) fn tell_exit(&mut self, at: Moment) {
        self.call = (at, at);
        for slot in self.allocations.select(|_| true) {
            self.tell_end(slot, How::Exited);
        }
    }

    /// What may become known later of a live allocation, as it is now.
    pub(super) fn known(&self, slot: Slot) -> Known {
        let entry = &self.allocations.slab[slot];
        let pool = self.pools.id(entry.pool());
        Known { device: entry.device(), pool, bytes: entry.bytes }
    }

    /// More may be known than before of a live allocation.
    pub(super) fn tell_learned(&mut self, slot: Slot, before: Known) {
        if self.observer.is_some() && self.known(slot) != before {
            let began = self.allocations.slab[slot].returned_at;
            self.tell(slot, Turn::Learned { began, before });
        }
    }

    fn tell(&mut self, slot: Slot, what: Turn) {
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
