//! One process: what it holds and what it did, kept up to date call by call.

use hashbrown::HashMap;

use crate::event::{Allocate, ContextChange, Event, Failed, Lost, ProcessFacts};
use crate::ids::{ContextId, DeviceId, FunctionId, Key, Pid, ProcessKey, Tid};
use crate::snapshot::End;
use crate::units::Moment;

use super::allocation::{Allocations, Entry, NIL, Slot};
use super::context::{Contexts, Release};
use super::loss::Losses;
use super::reuse::Superseded;
use super::thread::Threads;
use super::totals::{Sum, Totals};

/// What the process did so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) released: u64,
    pub(super) failed_allocations: u64,
    pub(super) unknown_frees: u64,
}

/// One process; after an exec, one program that it ran.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) key: ProcessKey,
    pub(super) uid: Option<u32>,
    pub(super) name: Box<str>,
    pub(super) before_trace: bool,
    /// It has not called the driver since its exec, so there is nothing to show.
    pub(super) silent: bool,
    pub(super) ended: Option<(End, Moment)>,
    pub(super) allocations: Allocations,
    pub(super) threads: Threads,
    pub(super) totals: Totals,
    pub(super) counts: Counts,
    pub(super) failures: HashMap<(FunctionId, i32), u64>,
    pub(super) superseded: Superseded,
    pub(super) losses: Losses,
    contexts: Contexts,
    /// It was never announced: its beginning was not seen.
    anonymous: bool,
}

impl Process {
    /// A process that makes calls without having been announced.
    pub(super) fn anonymous(pid: Pid, at: Moment) -> Self {
        let facts = ProcessFacts { start: 0, uid: 0, name: Box::default(), before_trace: true };
        Self { uid: None, anonymous: true, ..Self::new(pid, &facts, at) }
    }

    pub(super) fn new(pid: Pid, facts: &ProcessFacts, at: Moment) -> Self {
        Self {
            key: ProcessKey { pid, start: facts.start },
            uid: Some(facts.uid),
            name: facts.name.clone(),
            before_trace: facts.before_trace,
            silent: false,
            ended: None,
            allocations: Allocations::default(),
            threads: Threads::default(),
            totals: Totals::new(at),
            counts: Counts::default(),
            failures: HashMap::new(),
            superseded: Superseded::default(),
            losses: Losses::default(),
            contexts: Contexts::new(!facts.before_trace),
            anonymous: false,
        }
    }

    /// The same process with the program that it runs now: it holds nothing, and everything it
    /// does from here on is seen.
    pub(super) fn replaced(&self, at: Moment) -> Self {
        let facts = ProcessFacts {
            start: self.key.start,
            uid: 0,
            name: self.name.clone(),
            before_trace: false,
        };
        Self { uid: self.uid, silent: true, ..Self::new(self.key.pid, &facts, at) }
    }

    /// Whether an announcement is of this process. One that could not read the start time cannot
    /// tell; then it is taken for the process that is there.
    pub(super) fn is(&self, facts: &ProcessFacts) -> bool {
        self.key.start == facts.start || self.key.start == 0 || facts.start == 0
    }

    /// It was announced again, or at last.
    pub(super) fn refresh(&mut self, facts: &ProcessFacts) {
        self.uid = Some(facts.uid);
        self.name.clone_from(&facts.name);
        if self.key.start == 0 {
            self.key.start = facts.start;
        }
        if self.anonymous {
            self.anonymous = false;
            self.before_trace = facts.before_trace;
        }
    }

    pub(super) fn name_thread(&mut self, tid: Tid, name: &str) {
        self.threads.rename(tid, self.allocations.seed(), name);
    }

    /// A call gave memory.
    pub(super) fn allocate(&mut self, event: &Event, allocate: &Allocate) {
        self.counts.allocations += 1;
        let thread = self.threads.of(event.tid, self.allocations.seed());
        if let Some(older) = self.allocations.find(allocate.key) {
            // The driver gives an address out again only after its free has done its work: the
            // call that freed it is about to return.
            self.end(older);
            self.superseded.add(allocate.key);
        }
        let Allocate { key, kind, bytes, site, .. } = *allocate;
        let mut entry = Entry::new(key, kind, bytes, event.at, thread, site);
        if let Some(context) = allocate.context.filter(|context| context.0 != 0) {
            entry.context = self.contexts.of(context);
        }
        entry.set_device(allocate.device.or_else(|| self.device_of(entry.context)));
        let slot = self.allocations.insert(entry);
        self.threads.link(&mut self.allocations.slab, slot);
        self.contexts.add(&entry);
        self.totals.add(&entry);
        self.losses.begin(&entry);
    }

    /// A call gave memory back.
    pub(super) fn free(&mut self, event: &Event, key: Key) {
        let live = self.allocations.find(key);
        // A call that was entered before the live allocation existed is about an older one.
        let own = live.filter(|&slot| event.entered >= self.allocations.slab[slot].returned_at);
        if let Some(slot) = own {
            self.end(slot);
            self.counts.frees += 1;
        } else if self.superseded.settle(key) {
            self.counts.frees += 1;
        } else {
            self.counts.unknown_frees += 1;
        }
    }

    /// A call failed.
    pub(super) fn fail(&mut self, failed: &Failed) {
        *self.failures.entry((failed.function, failed.code)).or_insert(0) += 1;
        self.counts.failed_allocations += u64::from(failed.asked.is_some());
    }

    /// The device a failed call was about.
    pub(super) fn device_asked(&self, failed: &Failed) -> Option<DeviceId> {
        let context = failed.context.and_then(|context| self.contexts.find(context));
        failed.device.or_else(|| self.device_of(context.unwrap_or(NIL)))
    }

    /// Records of this process were lost, or `shared` ones of no known process.
    pub(super) fn lose(&mut self, lost: &Lost, shared: bool, at: Moment) {
        self.losses.lose(lost, shared, at, self.totals.live);
        if lost.other > 0 {
            self.contexts.lose_count();
        }
    }

    /// A context began or ended.
    pub(super) fn change(&mut self, event: &Event, change: ContextChange) {
        match change {
            ContextChange::Created { context, device } => {
                self.create_context(context, device, event.at);
            }
            ContextChange::Destroyed { context } => {
                if let Some(index) = self.contexts.destroyed(context, event.entered) {
                    self.release(index, event.entered);
                    self.contexts.forget(index);
                }
            }
            ContextChange::PrimaryRetained { context, device } => {
                let index = self.contexts.of(context);
                if let Some(old) = self.contexts.retain(device, index) {
                    self.release(old, event.at);
                }
                self.place(index, device);
            }
            ContextChange::PrimaryReleased { device } => self.release_primary(event, device),
            ContextChange::PrimaryReset { device } => self.reset_primary(event, device),
            ContextChange::Learned { context, device } => {
                let index = self.contexts.of(context);
                self.place(index, device);
            }
        }
    }

    fn create_context(&mut self, context: ContextId, device: DeviceId, at: Moment) {
        let index = self.contexts.of(context);
        // The name is given out again: the older context of that name is gone.
        self.release(index, at);
        self.contexts.create(index, at);
        self.place(index, device);
    }

    fn release_primary(&mut self, event: &Event, device: DeviceId) {
        match self.contexts.release(device) {
            Release::Last(index) => {
                let bytes = self.release(index, event.entered);
                self.losses.conclude(bytes);
            }
            Release::Shared => {}
            Release::Unknown => self.losses.doubt(event.at, self.totals.live),
        }
    }

    fn reset_primary(&mut self, event: &Event, device: DeviceId) {
        if let Some(index) = self.contexts.primary(device) {
            self.release(index, event.entered);
        } else if !self.losses.broken()
            && let Some(index) = self.contexts.guess_primary(device)
        {
            let bytes = self.release(index, event.entered);
            self.losses.conclude(bytes);
        }
        // After a loss, the primary context may be another one than the last one retained.
        self.losses.doubt(event.at, self.totals.live);
    }

    /// Ends what was allocated in a context up to a moment, without calls; gives the device memory
    /// of it. Later allocations are of a newer context of the same name: what holds for frees of
    /// addresses holds for ends of contexts.
    fn release(&mut self, context: u32, until: Moment) -> Sum {
        let before = self.totals.live;
        if self.contexts.live(context) > 0 {
            let gone = |entry: &Entry| entry.context == context && entry.returned_at <= until;
            for slot in self.allocations.select(gone) {
                self.end(slot);
                self.counts.released += 1;
            }
        }
        before.minus(self.totals.live)
    }

    /// The device of a context became known.
    fn place(&mut self, context: u32, device: DeviceId) {
        if !self.contexts.place(context, device) {
            return;
        }
        let waiting = |entry: &Entry| entry.context == context && entry.device().is_none();
        for slot in self.allocations.select(waiting) {
            let entry = &mut self.allocations.slab[slot];
            self.totals.place(entry, device);
            entry.set_device(Some(device));
        }
        self.contexts.placed(context);
    }

    fn device_of(&self, context: u32) -> Option<DeviceId> {
        if context == NIL { None } else { self.contexts.device(context) }
    }

    /// The one way in which a live allocation ends.
    fn end(&mut self, slot: Slot) {
        self.threads.unlink(&mut self.allocations.slab, slot);
        let entry = self.allocations.remove(slot);
        self.contexts.take(&entry);
        self.totals.take(&entry);
        self.losses.end(&entry);
    }
}
