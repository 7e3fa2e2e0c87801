//! What each thread of a process allocated and is still live, ordered by size and by age.

use hashbrown::HashMap;

use crate::ids::Tid;
use crate::units::Moment;

use super::allocation::{NIL, Slab, Slot};
use super::sizes::{SizeWalk, Sizes};
use super::totals::{KindSums, Sum};

/// One thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) tid: Tid,
    pub(super) name: Box<str>,
    /// Device memory.
    pub(super) live: Sum,
    /// Allocations of every kind.
    pub(super) count: u64,
    /// The same by kind.
    pub(super) kinds: KindSums,
    /// It is gone; what it allocated need not be.
    ended: bool,
    sizes: Sizes,
    oldest: Slot,
    youngest: Slot,
}

impl Thread {
    fn new(tid: Tid, seed: u64) -> Self {
        Self {
            tid,
            name: Box::default(),
            live: Sum::default(),
            count: 0,
            kinds: KindSums::default(),
            ended: false,
            sizes: Sizes::new(seed),
            oldest: NIL,
            youngest: NIL,
        }
    }

    /// Its allocations, biggest first, the older first among equals.
    pub(super) fn by_size<'a>(&self, slab: &'a Slab) -> SizeWalk<'a> {
        self.sizes.walk(slab)
    }

    /// Its allocations, oldest first: in the order they came, which is the order in which a
    /// thread's calls returned.
    pub(super) fn by_age<'a>(&self, slab: &'a Slab) -> AgeWalk<'a> {
        AgeWalk { slab, next: self.oldest }
    }

    /// When its oldest allocation was made.
    pub(super) fn oldest(&self, slab: &Slab) -> Option<Moment> {
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
        self.live.take(slab[slot].device_bytes());
        self.kinds.take(slab[slot].kind, slab[slot].bytes);
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

    /// Keeps only the allocations for which `stays` holds, by linking those anew.
    fn keep(&mut self, slab: &mut Slab, stays: impl Fn(Slot) -> bool) {
        let mut next = self.oldest;
        self.live = Sum::default();
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
        self.live.take(slab[slot].device_bytes());
        self.kinds.take(slab[slot].kind, slab[slot].bytes);
        self.kinds.add(slab[slot].kind, bytes);
        self.sizes.remove(slab, slot);
        slab[slot].bytes = bytes;
        self.sizes.insert_aged(slab, slot);
        self.live.add(slab[slot].device_bytes());
    }
}

/// See [`Thread::by_age`].
#[derive(Debug)]
pub(super) struct AgeWalk<'a> {
    slab: &'a Slab,
    next: Slot,
}

impl Iterator for AgeWalk<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        let slot = self.next;
        (slot != NIL).then(|| {
            self.next = self.slab[slot].younger;
            slot
        })
    }
}

/// The threads of one process. A thread is forgotten when it has ended and holds nothing.
#[derive(Debug, Default)]
pub(super) struct Threads {
    places: Vec<Option<Thread>>,
    vacant: Vec<u32>,
    by_tid: HashMap<Tid, u32>,
}

impl Threads {
    /// The index of a thread that makes calls. A thread that had ended lives again: its id was
    /// given to a new one.
    pub(super) fn of(&mut self, tid: Tid, seed: u64) -> u32 {
        if let Some(&index) = self.by_tid.get(&tid) {
            if let Some(thread) = &mut self.places[index as usize] {
                thread.ended = false;
            }
            return index;
        }
        let thread = Some(Thread::new(tid, seed));
        let index = if let Some(index) = self.vacant.pop() {
            self.places[index as usize] = thread;
            index
        } else {
            self.places.push(thread);
            self.places.len() as u32 - 1
        };
        self.by_tid.insert(tid, index);
        index
    }

    /// The id of a thread that is there.
    pub(super) fn tid(&self, index: u32) -> Option<Tid> {
        self.places.get(index as usize)?.as_ref().map(|thread| thread.tid)
    }

    /// The name of a thread; none of one that is forgotten.
    pub(super) fn name(&self, tid: Tid) -> Option<&str> {
        let index = *self.by_tid.get(&tid)?;
        self.places.get(index as usize)?.as_ref().map(|thread| &*thread.name)
    }

    pub(super) fn rename(&mut self, tid: Tid, seed: u64, name: &str) {
        let index = self.of(tid, seed);
        if let Some(thread) = &mut self.places[index as usize]
            && *thread.name != *name
        {
            thread.name = name.into();
        }
    }

    pub(super) fn end(&mut self, tid: Tid) {
        if let Some(&index) = self.by_tid.get(&tid) {
            if let Some(thread) = &mut self.places[index as usize] {
                thread.ended = true;
            }
            self.tidy(index);
        }
    }

    /// An allocation of that thread began.
    pub(super) fn link(&mut self, slab: &mut Slab, slot: Slot) {
        if let Some(thread) = &mut self.places[slab[slot].thread as usize] {
            thread.link(slab, slot);
        }
    }

    /// An allocation of that thread ended.
    pub(super) fn unlink(&mut self, slab: &mut Slab, slot: Slot) {
        let index = slab[slot].thread;
        if let Some(thread) = &mut self.places[index as usize] {
            thread.unlink(slab, slot);
            if thread.ended {
                self.tidy(index);
            }
        }
    }

    /// Many allocations ended. Where they are most of a thread's, its orders are made anew of what
    /// stays, which is cheaper than to take each of them out.
    pub(super) fn unlink_all(&mut self, slab: &mut Slab, slots: &[Slot]) {
        let mut ending = vec![0_u64; self.places.len()];
        for slot in slots {
            ending[slab[*slot].thread as usize] += 1;
        }
        let held = |place: &Option<Thread>| place.as_ref().map_or(0, |thread| thread.count);
        let counts = ending.iter().zip(&self.places);
        let anew: Vec<_> = counts.map(|(ending, place)| *ending > held(place) / 2).collect();
        let mut gone = vec![false; slab.end()];
        for slot in slots {
            if anew[slab[*slot].thread as usize] {
                gone[*slot as usize] = true;
            } else {
                self.unlink(slab, *slot);
            }
        }
        for index in (0..).zip(anew).filter(|(_, anew)| *anew).map(|(index, _)| index) {
            if let Some(thread) = &mut self.places[index as usize] {
                thread.keep(slab, |slot| !gone[slot as usize]);
            }
            self.tidy(index);
        }
    }

    /// An allocation has another size than was known.
    pub(super) fn resize(&mut self, slab: &mut Slab, slot: Slot, bytes: u64) {
        if let Some(thread) = &mut self.places[slab[slot].thread as usize] {
            thread.resize(slab, slot, bytes);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Thread> {
        self.places.iter().flatten()
    }

    fn tidy(&mut self, index: u32) {
        let place = &mut self.places[index as usize];
        if let Some(thread) = place.take_if(|thread| thread.ended && thread.count == 0) {
            self.by_tid.remove(&thread.tid);
            self.vacant.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocation::{Allocations, Entry, New};
    use super::*;
    use crate::ids::Key;
    use crate::kind::Kind;

    fn allocate(allocations: &mut Allocations, threads: &mut Threads, tid: u32, at: u64) -> Slot {
        let thread = threads.of(Tid(tid), 1);
        let new = New::plain(Key::address(at), Kind::Device, at);
        let slot = allocations.insert(Entry::new(&new, Moment(at), thread));
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
        assert_eq!(thread.oldest(&allocations.slab), Some(Moment(2)));
    }

    #[test]
    fn both_orders_survive_the_end_of_few_and_of_many_at_once() {
        for ending in [1_usize, 3, 9, 10] {
            let mut allocations = Allocations::default();
            let mut threads = Threads::default();
            let slots: Vec<_> = (1..=20)
                .map(|at| allocate(&mut allocations, &mut threads, 1 + at as u32 % 2, at))
                .collect();
            // All of the first thread's, some of the second one's.
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
    fn an_ended_thread_is_forgotten_with_its_last_allocation() {
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
    fn a_thread_that_holds_nothing_keeps_its_name_until_it_ends() {
        let mut threads = Threads::default();
        threads.rename(Tid(1), 1, "loader");
        assert_eq!(&*threads.iter().next().unwrap().name, "loader");
        threads.end(Tid(1));
        assert_eq!(threads.iter().count(), 0);
    }
}
