//! Live allocations of each thread of a process, ordered by size and by age.

use hashbrown::HashMap;

use crate::model::{Tid, Timestamp};

use super::super::driver::slots::Slots;
use super::allocation::{NIL, Slab, Slot};
use super::size_index::{SizeIndex, SizeIter};
use super::totals::{ByteSum, KindSums};

/// One thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) tid: Tid,
    pub(crate) name: Box<str>,
    /// Live device memory.
    pub(crate) live: ByteSum,
    /// Number of live allocations of all kinds.
    pub(crate) count: u64,
    /// The same by kind.
    pub(crate) kinds: KindSums,
    /// Whether it has ended; its allocations may still be live.
    ended: bool,
    sizes: SizeIndex,
    oldest: Slot,
    youngest: Slot,
}

impl Thread {
    fn new(tid: Tid, seed: u64) -> Self {
        Self {
            tid,
            name: Box::default(),
            live: ByteSum::default(),
            count: 0,
            kinds: KindSums::default(),
            ended: false,
            sizes: SizeIndex::new(seed),
            oldest: NIL,
            youngest: NIL,
        }
    }

    /// Its allocations, largest first, then oldest first.
    pub(crate) fn by_size<'a>(&self, slab: &'a Slab) -> SizeIter<'a> {
        self.sizes.walk(slab)
    }

    /// Its allocations, oldest first: in order of arrival, which is the order in which the calls of
    /// a thread returned.
    pub(crate) fn by_age<'a>(&self, slab: &'a Slab) -> AgeIter<'a> {
        AgeIter { slab, next: self.oldest }
    }

    /// Time of its oldest live allocation.
    pub(crate) fn oldest(&self, slab: &Slab) -> Option<Timestamp> {
        (self.oldest != NIL).then(|| slab[self.oldest].returned_at)
    }

    fn link(&mut self, slab: &mut Slab, slot: Slot) {
        self.count += 1;
        self.live.add(slab[slot].device_bytes());
        self.kinds.add(slab[slot].kind, slab[slot].bytes);
        slab[slot].older = self.youngest;
        slab[slot].younger = NIL;
        if self.youngest == NIL {
            self.oldest = slot;
        } else {
            slab[self.youngest].younger = slot;
        }
        self.youngest = slot;
        self.sizes.insert(slab, slot);
    }

    fn unlink(&mut self, slab: &mut Slab, slot: Slot) {
        self.count = self.count.saturating_sub(1);
        self.live.subtract(slab[slot].device_bytes());
        self.kinds.subtract(slab[slot].kind, slab[slot].bytes);
        self.sizes.remove(slab, slot);
        let (older, younger) = (slab[slot].older, slab[slot].younger);
        if older == NIL {
            self.oldest = younger;
        } else {
            slab[older].younger = younger;
        }
        if younger == NIL {
            self.youngest = older;
        } else {
            slab[younger].older = older;
        }
    }

    /// Keeps only the allocations that match `stays`, by linking them again.
    fn keep(&mut self, slab: &mut Slab, stays: impl Fn(Slot) -> bool) {
        let mut next = self.oldest;
        self.live = ByteSum::default();
        self.count = 0;
        self.kinds.clear();
        self.sizes.clear();
        self.oldest = NIL;
        self.youngest = NIL;
        while next != NIL {
            let slot = next;
            next = slab[slot].younger;
            if stays(slot) {
                self.link(slab, slot);
            }
        }
    }

    fn resize(&mut self, slab: &mut Slab, slot: Slot, bytes: u64) {
        self.live.subtract(slab[slot].device_bytes());
        self.kinds.subtract(slab[slot].kind, slab[slot].bytes);
        self.kinds.add(slab[slot].kind, bytes);
        self.sizes.remove(slab, slot);
        slab[slot].bytes = bytes;
        self.sizes.insert_aged(slab, slot);
        self.live.add(slab[slot].device_bytes());
    }
}

/// Iterator of [`Thread::by_age`].
#[derive(Debug)]
pub(crate) struct AgeIter<'a> {
    slab: &'a Slab,
    next: Slot,
}

impl Iterator for AgeIter<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        let slot = self.next;
        (slot != NIL).then(|| {
            self.next = self.slab[slot].younger;
            slot
        })
    }
}

/// Threads of one process. A thread is removed when it has ended and has no live allocations.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    slots: Slots<Thread>,
    by_tid: HashMap<Tid, u32>,
}

impl Threads {
    /// Index of a thread that makes calls. A call of an ended thread means that its id was reused.
    pub(crate) fn of(&mut self, tid: Tid, seed: u64) -> u32 {
        if let Some(&index) = self.by_tid.get(&tid) {
            if let Some(thread) = self.slots.get_mut(index) {
                thread.ended = false;
            }
            return index;
        }
        let index = self.slots.insert(Thread::new(tid, seed));
        self.by_tid.insert(tid, index);
        index
    }

    /// Id of a thread.
    pub(crate) fn tid(&self, index: u32) -> Option<Tid> {
        self.slots.get(index).map(|thread| thread.tid)
    }

    /// Name of a thread; `None` if it was removed.
    pub(crate) fn name(&self, tid: Tid) -> Option<&str> {
        let index = *self.by_tid.get(&tid)?;
        self.slots.get(index).map(|thread| &*thread.name)
    }

    pub(crate) fn rename(&mut self, tid: Tid, seed: u64, name: &str) {
        let index = self.of(tid, seed);
        if let Some(thread) = self.slots.get_mut(index)
            && *thread.name != *name
        {
            thread.name = name.into();
        }
    }

    pub(crate) fn end(&mut self, tid: Tid) {
        if let Some(&index) = self.by_tid.get(&tid) {
            if let Some(thread) = self.slots.get_mut(index) {
                thread.ended = true;
            }
            self.remove_if_unused(index);
        }
    }

    /// Links a new allocation of its thread.
    pub(crate) fn link(&mut self, slab: &mut Slab, slot: Slot) {
        if let Some(thread) = self.slots.get_mut(slab[slot].thread) {
            thread.link(slab, slot);
        }
    }

    /// Unlinks an ended allocation of its thread.
    pub(crate) fn unlink(&mut self, slab: &mut Slab, slot: Slot) {
        let index = slab[slot].thread;
        if let Some(thread) = self.slots.get_mut(index) {
            thread.unlink(slab, slot);
            if thread.ended {
                self.remove_if_unused(index);
            }
        }
    }

    /// Unlinks many allocations. If they are most of a thread's, its lists are rebuilt from the
    /// rest, which is cheaper than unlinking each.
    pub(crate) fn unlink_all(&mut self, slab: &mut Slab, slots: &[Slot]) {
        let mut ending = vec![0_u64; self.slots.indices()];
        for slot in slots {
            ending[slab[*slot].thread as usize] += 1;
        }
        let count = |index| self.slots.get(index).map_or(0, |thread| thread.count);
        let counts = ending.iter().zip(0..);
        let rebuild: Vec<_> = counts.map(|(ending, index)| *ending > count(index) / 2).collect();
        let mut gone = vec![false; slab.end()];
        for slot in slots {
            if rebuild[slab[*slot].thread as usize] {
                gone[*slot as usize] = true;
            } else {
                self.unlink(slab, *slot);
            }
        }
        for index in (0..).zip(rebuild).filter(|(_, rebuild)| *rebuild).map(|(index, _)| index) {
            if let Some(thread) = self.slots.get_mut(index) {
                thread.keep(slab, |slot| !gone[slot as usize]);
            }
            self.remove_if_unused(index);
        }
    }

    /// Updates the size of an allocation.
    pub(crate) fn resize(&mut self, slab: &mut Slab, slot: Slot, bytes: u64) {
        if let Some(thread) = self.slots.get_mut(slab[slot].thread) {
            thread.resize(slab, slot, bytes);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Thread> {
        self.slots.iter()
    }

    fn remove_if_unused(&mut self, index: u32) {
        let is_unused = |thread: &mut Thread| thread.ended && thread.count == 0;
        if let Some(thread) = self.slots.remove_if(index, is_unused) {
            self.by_tid.remove(&thread.tid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocation::{AllocationEntry, Allocations, NewAllocation};
    use super::*;
    use crate::model::ids::AllocationKey;
    use crate::model::memory_kind::MemoryKind;

    fn allocate(allocations: &mut Allocations, threads: &mut Threads, tid: u32, at: u64) -> Slot {
        let thread = threads.of(Tid(tid), 1);
        let new = NewAllocation::plain(AllocationKey::address(at), MemoryKind::Device, at);
        let slot = allocations.insert(AllocationEntry::new(&new, Timestamp(at), thread));
        threads.link(&mut allocations.slab, slot);
        slot
    }

    fn free(allocations: &mut Allocations, threads: &mut Threads, slot: Slot) {
        threads.unlink(&mut allocations.slab, slot);
        allocations.remove(slot);
    }

    #[test]
    fn age_order_survives_removal_at_both_ends_and_in_the_middle() {
        let mut allocations = Allocations::default();
        let mut threads = Threads::default();
        let slots: Vec<_> =
            (1..=5).map(|at| allocate(&mut allocations, &mut threads, 1, at)).collect();
        for gone in [0, 2, 4] {
            free(&mut allocations, &mut threads, slots[gone]);
        }
        let thread = threads.iter().next().unwrap();
        assert_eq!(thread.by_age(&allocations.slab).collect::<Vec<_>>(), [slots[1], slots[3]]);
        assert_eq!(thread.oldest(&allocations.slab), Some(Timestamp(2)));
    }

    #[test]
    fn both_orders_survive_bulk_removal() {
        for ending in [1_usize, 3, 9, 10] {
            let mut allocations = Allocations::default();
            let mut threads = Threads::default();
            let slots: Vec<_> = (1..=20)
                .map(|at| allocate(&mut allocations, &mut threads, 1 + at as u32 % 2, at))
                .collect();
            // All of the first thread's, some of the second's.
            let (first, second): (Vec<_>, Vec<_>) = (0..20).partition(|at| at % 2 == 1);
            let gone: Vec<_> = first.iter().chain(&second[..ending]).map(|at| slots[*at]).collect();
            threads.end(Tid(1));
            threads.unlink_all(&mut allocations.slab, &gone);
            allocations.remove_all(&gone);
            let stays: Vec<_> = second[ending..].iter().map(|at| slots[*at]).collect();
            let thread = threads.iter().next().unwrap();
            assert_eq!((threads.iter().count(), thread.count), (1, stays.len() as u64));
            assert_eq!(thread.by_age(&allocations.slab).collect::<Vec<_>>(), stays);
            let by_size: Vec<_> = stays.into_iter().rev().collect();
            assert_eq!(thread.by_size(&allocations.slab).collect::<Vec<_>>(), by_size);
        }
    }

    #[test]
    fn ended_thread_is_removed_with_its_last_allocation() {
        let mut allocations = Allocations::default();
        let mut threads = Threads::default();
        let slot = allocate(&mut allocations, &mut threads, 1, 1);
        threads.end(Tid(1));
        assert_eq!(threads.iter().count(), 1);
        free(&mut allocations, &mut threads, slot);
        assert_eq!(threads.iter().count(), 0);
        assert_eq!(threads.of(Tid(2), 1), 0);
    }

    #[test]
    fn thread_without_memory_keeps_its_name_until_it_ends() {
        let mut threads = Threads::default();
        threads.rename(Tid(1), 1, "loader");
        assert_eq!(&*threads.iter().next().unwrap().name, "loader");
        threads.end(Tid(1));
        assert_eq!(threads.iter().count(), 0);
    }
}
