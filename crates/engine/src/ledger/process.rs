//! State of one process, updated with every call.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::change::How;
use crate::container::Container;
use crate::event::{
    Allocate, Event, Failed, Free, FreeBy, INVALID_HANDLE, INVALID_VALUE, Lost, ProcessFacts,
};
use crate::ids::{DeviceId, FunctionId, HandleId, Key, Pid, ProcessKey, Space, Tid};
use crate::kind::Kind;
use crate::snapshot::{End, Mistakes, ReceivedCalls, WorkView};
use crate::units::Moment;
use crate::work;

use super::allocation::{Allocations, Entry, NIL, New, Slot};
use super::context::Contexts;
use super::context_ends::ContextEnds;
use super::device::Devices;
use super::freed::Freed;
use super::graph::{Full, Graphs};
use super::loss::Losses;
use super::objects::Objects;
use super::observer::Observer;
use super::physical::Physical;
use super::pool::Pools;
use super::reuse::{Owed, Superseded};
use super::sites::SiteTable;
use super::thread::Threads;
use super::torch::Torch;
use super::totals::{Sum, Totals};
use super::unusual::Unusuals;
use super::work::Work;

/// From this number of allocations on, they are removed in bulk.
const MANY: usize = 1000;

/// Counts of calls so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) allocations: u64,
    pub(super) frees: u64,
    pub(super) released: u64,
    pub(super) failed_allocations: u64,
    pub(super) unknown_frees: u64,
    pub(super) received: ReceivedCalls,
}

/// Limit of name changes per process: each name creates separate metric series.
const RENAMED: u8 = 8;

/// One process; after an exec, one exec generation of it.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) key: ProcessKey,
    pub(super) uid: Option<u32>,
    pub(super) name: Box<str>,
    /// Number of name changes.
    renamed: u8,
    pub(super) container: Option<Arc<Container>>,
    pub(super) before_trace: bool,
    /// Whether it has not called the driver since its exec, so that it is not shown.
    pub(super) silent: bool,
    pub(super) ended: Option<(End, Moment)>,
    pub(super) allocations: Allocations,
    pub(super) threads: Threads,
    pub(super) totals: Totals,
    pub(super) counts: Counts,
    pub(super) failures: HashMap<(FunctionId, i32), u64>,
    pub(super) superseded: Superseded,
    /// Entry and return time of the current call.
    pub(super) call: (Moment, Moment),
    pub(super) losses: Losses,
    pub(super) contexts: Contexts,
    pub(super) context_ends: ContextEnds,
    pub(super) physical: Physical,
    pub(super) pools: Pools,
    pub(super) graphs: Graphs,
    pub(super) devices: Devices,
    pub(super) mistakes: Mistakes,
    /// Recently freed keys.
    pub(super) freed: Freed,
    /// Whether memory was allocated with neither context nor device known.
    pub(super) unowned: bool,
    /// Imported memory that is opened more than once: number of additional openings.
    opened_again: HashMap<Key, u64>,
    /// Logs allocation changes, if requested.
    pub(super) observer: Option<Box<Observer>>,
    /// Whether it was never announced, so that its start was not seen.
    anonymous: bool,
    /// Launches and copies.
    pub(super) work: Option<Box<Work>>,
    /// Activity view for the snapshot in progress.
    pub(super) shown_work: Option<WorkView>,
    /// When it was first seen.
    began: Moment,
    /// CUDA objects.
    pub(super) objects: Objects,
    /// Sites of its memory and objects.
    pub(super) sites: SiteTable,
    /// Blocks of PyTorch's cache.
    pub(super) torch: Option<Box<Torch>>,
    /// Anomalies.
    pub(super) unusual: Box<Unusuals>,
}

impl Process {
    /// Creates a process that makes calls without having been announced.
    pub(super) fn anonymous(pid: Pid, at: Moment) -> Self {
        let facts = ProcessFacts { start: 0, uid: 0, name: Box::default(), before_trace: true };
        Self { uid: None, anonymous: true, ..Self::new(pid, &facts, at) }
    }

    pub(super) fn new(pid: Pid, facts: &ProcessFacts, at: Moment) -> Self {
        Self {
            key: ProcessKey { pid, start: facts.start },
            uid: Some(facts.uid),
            name: facts.name.clone(),
            renamed: 0,
            container: None,
            before_trace: facts.before_trace,
            silent: false,
            ended: None,
            allocations: Allocations::default(),
            threads: Threads::default(),
            totals: Totals::new(at),
            counts: Counts::default(),
            failures: HashMap::new(),
            superseded: Superseded::default(),
            call: (at, at),
            losses: Losses::default(),
            contexts: Contexts::new(!facts.before_trace),
            context_ends: ContextEnds::default(),
            physical: Physical::default(),
            pools: Pools::default(),
            graphs: Graphs::default(),
            devices: Devices::default(),
            mistakes: Mistakes::default(),
            freed: Freed::default(),
            unowned: false,
            opened_again: HashMap::new(),
            observer: None,
            anonymous: false,
            work: None,
            shown_work: None,
            began: at,
            objects: Objects::default(),
            sites: SiteTable::since(at),
            torch: None,
            unusual: Box::default(),
        }
    }

    /// Sets the site table.
    pub(super) fn with_sites(mut self, table: SiteTable) -> Self {
        self.sites = table;
        self
    }

    /// Creates the state after an exec: no memory, and all calls from now on are seen. The
    /// container stays the same.
    pub(super) fn replaced(&self, at: Moment) -> Self {
        let facts = ProcessFacts {
            start: self.key.start,
            uid: 0,
            name: self.name.clone(),
            before_trace: false,
        };
        let container = self.container.clone();
        Self { uid: self.uid, container, silent: true, ..Self::new(self.key.pid, &facts, at) }
    }

    /// Whether an announcement is about this process. If a start time is unknown, it is assumed to
    /// be.
    pub(super) fn is(&self, facts: &ProcessFacts) -> bool {
        self.key.start == facts.start || self.key.start == 0 || facts.start == 0
    }

    /// Updates the process when it is announced again, or for the first time after a call.
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

    /// Applies launches, copies and kernel names.
    pub(super) fn work(&mut self, work: &work::Work) {
        let complete = !self.before_trace && self.losses.own.allocations == 0;
        self.work.get_or_insert_default().note(work, complete);
    }

    /// Prepares the activity view for a snapshot.
    pub(super) fn show_work(&mut self, at: Moment, top: usize) {
        let at = self.ended.map_or(at, |(_, ended_at)| ended_at);
        self.shown_work = self.work.as_mut().map(|work| work.view(at, self.began, top));
    }

    /// Handles the end of a thread.
    pub(super) fn end_thread(&mut self, tid: Tid) {
        self.threads.end(tid);
        self.graphs.end_thread(tid);
    }

    /// Handles the end of the process: drops state that only further calls would need.
    pub(super) fn finish(&mut self, end: End, at: Moment) {
        if self.observer.is_some() {
            self.tell_exit(at);
        }
        self.ended = Some((end, at));
        self.freed = Freed::default();
        if let Some(work) = &mut self.work {
            work.finish();
        }
    }

    /// Names a thread. A process has the name of its main thread: framework workers rename
    /// themselves once they know their task.
    pub(super) fn name_thread(&mut self, tid: Tid, name: &str) {
        self.threads.rename(tid, self.allocations.seed(), name);
        if tid.0 == self.key.pid.0 && *self.name != *name && self.renamed < RENAMED {
            self.name = name.into();
            self.renamed += 1;
        }
    }

    /// Applies an allocation. Returns an error if it belongs to a capture and its node was dropped.
    pub(super) fn allocate(&mut self, event: &Event, allocate: &Allocate) -> Result<(), Full> {
        let context = allocate.context.filter(|context| context.0 != 0);
        let context = context.map_or(NIL, |context| self.contexts.of(context));
        let Allocate { key, kind, bytes, device, site, stream, .. } = *allocate;
        let mut new = New { key, kind, bytes, site, owner: context, device, stream };
        if kind.is_pooled() {
            let result = self.note_allocation(event, allocate, context);
            if let Some(result) = result {
                return result;
            }
            (new.kind, new.owner, new.device) = self.pooled(allocate, context);
        } else {
            new.device = allocate.device.or_else(|| self.device_of(context));
        }
        self.unowned |= new.device.is_none() && context == NIL;
        if kind != Kind::Imported || !self.open_again(event, allocate) {
            self.begin(event, &new);
        }
        Ok(())
    }

    /// Adds an allocation to all lists and totals.
    pub(super) fn begin(&mut self, event: &Event, new: &New) {
        self.counts.allocations += 1;
        let thread = self.threads.of(event.tid, self.allocations.seed());
        self.make_room(new.key);
        new.device.into_iter().for_each(|device| self.devices.uses(device));
        let entry = Entry::new(new, event.at, thread);
        let slot = self.allocations.insert(entry);
        self.threads.link(&mut self.allocations.slab, slot);
        self.contexts.add(&entry);
        self.pools.add(&entry);
        let live = self.totals.live.bytes();
        self.totals.add(&entry, self.call);
        let site = self.sites.add(&entry, event.tid);
        self.unusual.add(&entry, event.tid, site, live);
        self.losses.begin(&entry);
        self.context_ends.begin(&entry);
        if self.observer.is_some() {
            self.tell_begin(slot, new.stream);
        }
    }

    /// Ends a live allocation with this key before the key is added again. The driver only reuses a
    /// key after its free has taken effect, so the call that freed it has not returned yet.
    pub(super) fn make_room(&mut self, key: Key) {
        if let Some(older) = self.allocations.find(key) {
            let entry = self.allocations.slab[older];
            let openings = self.end(older, How::Replaced);
            let (entered, at) = self.call;
            let bytes = if entry.kind.takes_device_memory() { entry.bytes } else { 0 };
            let context = self.contexts.id(entry.context());
            let (began, device) = (entry.returned_at, entry.device());
            let owed = Owed { context, device, began, at, entered, bytes };
            self.superseded.add(key, openings, owed);
        }
    }

    /// Matches a free with an allocation that was ended by reuse; returns whether there was one.
    pub(super) fn settle(&mut self, key: Key) -> bool {
        let Some(pending) = self.superseded.settle(key, self.call.0) else { return false };
        self.counts.frees += 1;
        self.totals.ended_earlier(pending.device, self.call.0, pending.entered, pending.bytes);
        true
    }

    /// Counts another opening of imported memory at the same address. This cannot be distinguished
    /// from other imported memory that got the address while the last close call is in progress.
    fn open_again(&mut self, event: &Event, allocate: &Allocate) -> bool {
        let Allocate { key, kind, site, .. } = *allocate;
        let live = self.allocations.find(key);
        let open = live.is_some_and(|slot| self.allocations.slab[slot].kind == Kind::Imported);
        if open {
            self.counts.allocations += 1;
            *self.opened_again.entry(key).or_insert(0) += 1;
            self.sites.open_again(site, kind, event.at);
        }
        open
    }

    /// Applies a free. Returns an error if it belongs to a capture and its node was dropped.
    pub(super) fn free(&mut self, event: &Event, free: &Free) -> Result<(), Full> {
        if free.by == FreeBy::FreeAsync
            && self.graphs.capturing()
            && let Some(result) = self.note_free(event, free)
        {
            return result;
        }
        self.give_back(event, free.key, Some(free.by));
        Ok(())
    }

    /// Frees the allocation with this key; `by` is the function family, if it matters.
    pub(super) fn give_back(&mut self, event: &Event, key: Key, by: Option<FreeBy>) {
        self.freed.push(key);
        let live = self.allocations.find(key);
        // A call entered before the live allocation existed refers to an older one.
        let own = live.filter(|&slot| event.entered >= self.allocations.slab[slot].returned_at);
        if let Some(slot) = own {
            self.counts.frees += 1;
            let kind = self.allocations.slab[slot].kind;
            let fits = by.is_none_or(|by| by.fits(kind));
            self.mistakes.mismatched_frees += u64::from(!fits);
            if kind != Kind::Imported || !self.close_one(slot) {
                self.end(slot, How::Freed);
            }
        } else if !self.settle(key) {
            self.counts.unknown_frees += 1;
        }
    }

    /// Closes one of several openings of imported memory; returns whether it stays open.
    fn close_one(&mut self, slot: Slot) -> bool {
        let entry = self.allocations.slab[slot];
        let key = entry.key();
        let Some(count) = self.opened_again.get_mut(&key) else { return false };
        *count -= 1;
        if *count == 0 {
            self.opened_again.remove(&key);
        }
        self.sites.close_one(&entry, self.call.1);
        true
    }

    /// Counts a failed call.
    pub(super) fn fail(&mut self, failed: &Failed) {
        *self.failures.entry((failed.function, failed.code)).or_insert(0) += 1;
        self.counts.failed_allocations += u64::from(failed.asked.is_some());
        let rejected = matches!(failed.code, INVALID_VALUE | INVALID_HANDLE);
        if let Some(key) = failed.freed.filter(|_| rejected)
            && self.allocations.find(key).is_none()
        {
            if self.freed.contains(key) {
                self.mistakes.double_frees += 1;
            } else {
                self.mistakes.invalid_frees += 1;
            }
        }
    }

    /// Device of a failed call.
    pub(super) fn device_asked(&self, failed: &Failed) -> Option<DeviceId> {
        let context = failed.context.and_then(|context| self.contexts.find(context));
        failed.device.or_else(|| self.device_of(context.unwrap_or(NIL)))
    }

    /// Records losses of this process, or `shared` losses of an unknown process.
    pub(super) fn lose(&mut self, lost: &Lost, shared: bool, at: Moment) {
        let ends = self.ends_among(lost.allocations, lost.frees);
        self.losses.lose(lost, shared, at, self.totals.live, ends);
        if lost.other > 0 {
            self.contexts.lose_count();
        }
    }

    /// Device of a context, or the only one that the process can see.
    pub(super) fn device_of(&self, context: u32) -> Option<DeviceId> {
        self.contexts.device(context).or_else(|| self.devices.only())
    }

    /// Ends a live allocation; the only place where this happens. Returns how often it had been
    /// opened.
    pub(super) fn end(&mut self, slot: Slot, how: How) -> u64 {
        if self.observer.is_some() {
            self.tell_end(slot, how);
        }
        self.threads.unlink(&mut self.allocations.slab, slot);
        let entry = self.allocations.remove(slot);
        self.take(&entry, how)
    }

    /// Ends many allocations whose context ended; returns how often they had been opened in total.
    pub(super) fn end_all(&mut self, slots: &[Slot]) -> u64 {
        if slots.len() < MANY {
            return slots.iter().map(|slot| self.end(*slot, How::Released)).sum();
        }
        let mut openings = 0;
        for slot in slots {
            if self.observer.is_some() {
                self.tell_end(*slot, How::Released);
            }
            let entry = self.allocations.slab[*slot];
            openings += self.take(&entry, How::Released);
        }
        self.threads.unlink_all(&mut self.allocations.slab, slots);
        self.allocations.remove_all(slots);
        openings
    }

    /// Updates everything except the lists of live allocations when one ends.
    fn take(&mut self, entry: &Entry, how: How) -> u64 {
        self.contexts.take(entry);
        self.pools.take(entry);
        self.totals.take(entry, self.call);
        self.losses.end(entry);
        self.context_ends.end(entry, how);
        let key = entry.key();
        if key.space == Space::Handle {
            self.physical.forget(HandleId(key.value));
        }
        let again = (entry.kind == Kind::Imported).then(|| self.opened_again.remove(&key));
        let openings = 1 + again.flatten().unwrap_or(0);
        self.sites.take(entry, how, self.call.1, openings);
        openings
    }

    /// Number of lost records that can hide the end of an allocation; see [`super::loss`].
    pub(super) fn ends_among(&self, allocations: u64, frees: u64) -> u64 {
        let allocations = if self.physical.is_used() { allocations } else { 0 };
        frees.saturating_add(allocations)
    }

    /// Device memory that may be live but is not listed; see [`super::loss`].
    pub(super) fn unlisted(&self) -> Sum {
        let listed = |address| {
            let slot = self.allocations.find(Key::address(address));
            slot.map_or(0, |slot| self.allocations.slab[slot].device_bytes())
        };
        let known = self.losses.unlisted(self.before_trace);
        let known = known.plus(self.graphs.ambiguous_bytes(listed));
        if !self.losses.broken() {
            return known;
        }
        let records = self.losses.others();
        let is_live = |address| self.allocations.find(Key::address(address)).is_some();
        known
            .plus(self.physical.ended.at_most(records))
            .plus(self.graphs.dropped.at_most(records))
            .plus(self.graphs.potential(is_live))
            .plus(self.totals.of(Kind::HostAsync))
    }
}
