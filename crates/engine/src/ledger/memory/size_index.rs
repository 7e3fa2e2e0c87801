//! Index of one thread's allocations by size.
//!
//! A treap over the *distinct* sizes, whose nodes are the entries themselves: the oldest allocation
//! of a size is the node, the others of that size are linked to it in a ring, oldest first. Most
//! programs use few sizes, so most allocations only join or leave a ring. The priority of a node is
//! a hash of its size with a seed unknown to the traced program, which therefore cannot choose
//! sizes that unbalance the tree. The shape of the tree never affects a result.

use super::allocation::{NIL, Slab, Slot};

/// Value of `AllocationEntry::smaller` for entries that are in a ring but not a node.
const IN_RING: Slot = NIL - 1;

/// Limit of entries of the same size that are scanned to insert an entry by age.
const MAX_RING_SCAN: usize = 64;

/// Sizes of one thread's allocations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeIndex {
    root: Slot,
    seed: u64,
}

/// A link in the tree that can hold a subtree.
#[derive(Clone, Copy)]
enum TreeLink {
    Root,
    SmallerOf(Slot),
    BiggerOf(Slot),
}

impl SizeIndex {
    pub(crate) fn new(seed: u64) -> Self {
        Self { root: NIL, seed }
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.root = NIL;
    }

    /// Adds an entry as the youngest of its size.
    pub(crate) fn insert(&mut self, slab: &mut Slab, slot: Slot) {
        let size = slab[slot].bytes;
        let (_, node) = self.find(slab, size);
        if node != NIL {
            join_ring(slab, slab[node].same_previous, slot);
            return;
        }
        slab[slot].same_previous = slot;
        slab[slot].same_next = slot;
        let mut link = TreeLink::Root;
        let mut node = self.root;
        while node != NIL && self.priority(slab[node].bytes) >= self.priority(size) {
            link = towards(slab, node, size);
            node = self.get(slab, link);
        }
        self.set(slab, link, slot);
        self.split(slab, node, size, slot);
    }

    /// Adds an entry whose size has changed, ordered by age among entries of the same size. If very
    /// many of them are younger, its position is approximate, which bounds the cost.
    pub(crate) fn insert_aged(&mut self, slab: &mut Slab, slot: Slot) {
        let (link, node) = self.find(slab, slab[slot].bytes);
        if node == NIL {
            self.insert(slab, slot);
            return;
        }
        let age = slab[slot].returned_at;
        let mut before = slab[node].same_previous;
        for _ in 0..MAX_RING_SCAN {
            if slab[before].returned_at <= age {
                break;
            }
            if before == node {
                // Older than all others: it becomes the node.
                join_ring(slab, slab[node].same_previous, slot);
                slab[slot].smaller = slab[node].smaller;
                slab[slot].bigger = slab[node].bigger;
                slab[node].smaller = IN_RING;
                self.set(slab, link, slot);
                return;
            }
            before = slab[before].same_previous;
        }
        join_ring(slab, before, slot);
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, slab: &mut Slab, slot: Slot) {
        let entry = slab[slot];
        slab[entry.same_previous].same_next = entry.same_next;
        slab[entry.same_next].same_previous = entry.same_previous;
        if entry.smaller == IN_RING {
            return;
        }
        let (link, _) = self.find(slab, entry.bytes);
        if entry.same_next == slot {
            self.join(slab, link, entry.smaller, entry.bigger);
        } else {
            let heir = entry.same_next;
            slab[heir].smaller = entry.smaller;
            slab[heir].bigger = entry.bigger;
            self.set(slab, link, heir);
        }
    }

    /// All entries, largest first, then oldest first.
    pub(crate) fn walk<'a>(&self, slab: &'a Slab) -> SizeIter<'a> {
        let sizes = *self;
        SizeIter { slab, sizes, next: sizes.biggest_below(slab, None) }
    }

    /// Node of a size, or [`NIL`], and the link that holds it.
    fn find(&self, slab: &Slab, size: u64) -> (TreeLink, Slot) {
        let mut link = TreeLink::Root;
        let mut node = self.root;
        while node != NIL && slab[node].bytes != size {
            link = towards(slab, node, size);
            node = self.get(slab, link);
        }
        (link, node)
    }

    /// Node of the largest size, below `limit` if there is one.
    fn biggest_below(&self, slab: &Slab, limit: Option<u64>) -> Slot {
        let mut best = NIL;
        let mut node = self.root;
        while node != NIL {
            let entry = &slab[node];
            if limit.is_none_or(|limit| entry.bytes < limit) {
                best = node;
                node = entry.bigger;
            } else {
                node = entry.smaller;
            }
        }
        best
    }

    /// Splits a subtree at `size`, which it does not contain, into the two sides of the node `top`.
    fn split(&mut self, slab: &mut Slab, mut node: Slot, size: u64, top: Slot) {
        let mut smaller = TreeLink::SmallerOf(top);
        let mut bigger = TreeLink::BiggerOf(top);
        while node != NIL {
            if slab[node].bytes < size {
                self.set(slab, smaller, node);
                smaller = TreeLink::BiggerOf(node);
                node = slab[node].bigger;
            } else {
                self.set(slab, bigger, node);
                bigger = TreeLink::SmallerOf(node);
                node = slab[node].smaller;
            }
        }
        self.set(slab, smaller, NIL);
        self.set(slab, bigger, NIL);
    }

    /// Joins two subtrees, all of `smaller` below all of `bigger`, at a link.
    fn join(&mut self, slab: &mut Slab, mut link: TreeLink, mut smaller: Slot, mut bigger: Slot) {
        while smaller != NIL && bigger != NIL {
            if self.priority(slab[smaller].bytes) >= self.priority(slab[bigger].bytes) {
                self.set(slab, link, smaller);
                link = TreeLink::BiggerOf(smaller);
                smaller = slab[smaller].bigger;
            } else {
                self.set(slab, link, bigger);
                link = TreeLink::SmallerOf(bigger);
                bigger = slab[bigger].smaller;
            }
        }
        self.set(slab, link, if smaller == NIL { bigger } else { smaller });
    }

    fn get(&self, slab: &Slab, link: TreeLink) -> Slot {
        match link {
            TreeLink::Root => self.root,
            TreeLink::SmallerOf(node) => slab[node].smaller,
            TreeLink::BiggerOf(node) => slab[node].bigger,
        }
    }

    fn set(&mut self, slab: &mut Slab, link: TreeLink, node: Slot) {
        match link {
            TreeLink::Root => self.root = node,
            TreeLink::SmallerOf(parent) => slab[parent].smaller = node,
            TreeLink::BiggerOf(parent) => slab[parent].bigger = node,
        }
    }

    /// Finalizer of `SplitMix64`: a bijective mix, so two sizes never have the same priority.
    fn priority(&self, size: u64) -> u64 {
        let mut mixed = size ^ self.seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Links an entry into a ring, after another one.
fn join_ring(slab: &mut Slab, before: Slot, slot: Slot) {
    let after = slab[before].same_next;
    slab[before].same_next = slot;
    slab[after].same_previous = slot;
    let entry = &mut slab[slot];
    entry.same_previous = before;
    entry.same_next = after;
    entry.smaller = IN_RING;
}

/// Side of a node on which `size` would be.
fn towards(slab: &Slab, node: Slot, size: u64) -> TreeLink {
    if size < slab[node].bytes { TreeLink::SmallerOf(node) } else { TreeLink::BiggerOf(node) }
}

/// Iterator of [`SizeIndex::walk`]. Uses no memory; a step costs at most one descent.
#[derive(Debug)]
pub(crate) struct SizeIter<'a> {
    slab: &'a Slab,
    sizes: SizeIndex,
    next: Slot,
}

impl Iterator for SizeIter<'_> {
    type Item = Slot;

    fn next(&mut self) -> Option<Slot> {
        let slot = self.next;
        if slot == NIL {
            return None;
        }
        let entry = &self.slab[slot];
        let follower = entry.same_next;
        // The only entry of the ring that is in the tree is its first one.
        self.next = if self.slab[follower].smaller == IN_RING {
            follower
        } else {
            self.sizes.biggest_below(self.slab, Some(entry.bytes))
        };
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocation::{AllocationEntry, Allocations, NewAllocation};
    use super::*;
    use crate::model::ids::AllocationKey;
    use crate::model::memory_kind::MemoryKind;
    use crate::model::units::Timestamp;

    struct Fixture {
        allocations: Allocations,
        sizes: SizeIndex,
        live: Vec<(u64, u64, Slot)>,
        count: u64,
    }

    impl Fixture {
        fn new() -> Self {
            let sizes = SizeIndex::new(42);
            Self { allocations: Allocations::default(), sizes, live: Vec::new(), count: 0 }
        }

        fn insert(&mut self, size: u64) {
            self.count += 1;
            let new =
                NewAllocation::plain(AllocationKey::address(self.count), MemoryKind::Device, size);
            let entry = AllocationEntry::new(&new, Timestamp(self.count), 0);
            let slot = self.allocations.insert(entry);
            self.sizes.insert(&mut self.allocations.slab, slot);
            self.live.push((size, self.count, slot));
        }

        fn remove(&mut self, position: usize) {
            let (_, _, slot) = self.live.swap_remove(position);
            self.sizes.remove(&mut self.allocations.slab, slot);
            self.allocations.remove(slot);
        }

        fn resize(&mut self, position: usize, size: u64) {
            let (_, age, slot) = self.live[position];
            self.sizes.remove(&mut self.allocations.slab, slot);
            self.allocations.slab[slot].bytes = size;
            self.sizes.insert_aged(&mut self.allocations.slab, slot);
            self.live[position] = (size, age, slot);
        }

        fn check(&mut self) {
            self.live.sort_by_key(|&(size, age, _)| (std::cmp::Reverse(size), age));
            let want: Vec<_> = self.live.iter().map(|&(_, _, slot)| slot).collect();
            let got: Vec<_> = self.sizes.walk(&self.allocations.slab).collect();
            assert_eq!(got, want);
        }

        fn depth(&self) -> usize {
            let slab = &self.allocations.slab;
            let mut deepest = 0;
            let mut todo = vec![(self.sizes.root, 1)];
            while let Some((node, depth)) = todo.pop() {
                if node != NIL {
                    deepest = deepest.max(depth);
                    todo.push((slab[node].smaller, depth + 1));
                    todo.push((slab[node].bigger, depth + 1));
                }
            }
            deepest
        }
    }

    #[test]
    fn largest_first_then_oldest() {
        let mut fixture = Fixture::new();
        for size in [4, 9, 4, 1, 9, 4] {
            fixture.insert(size);
        }
        fixture.check();
    }

    #[test]
    fn any_mix_of_inserts_and_removals_keeps_the_order() {
        let mut fixture = Fixture::new();
        let mut random = crate::random::seed();
        for step in 0..4000_u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = random >> 33;
            let position = choice as usize % fixture.live.len().max(1);
            if choice.is_multiple_of(3) && !fixture.live.is_empty() {
                fixture.remove(position);
            } else if choice.is_multiple_of(5) && !fixture.live.is_empty() {
                fixture.resize(position, random % (1 + step / 8));
            } else {
                fixture.insert(choice % (1 + step / 8));
            }
            if step % 50 == 0 {
                fixture.check();
            }
        }
        while !fixture.live.is_empty() {
            fixture.remove(fixture.live.len() / 2);
        }
        fixture.check();
        assert_eq!(fixture.sizes.root, NIL);
    }

    #[test]
    fn resized_entry_keeps_its_age_order() {
        let mut fixture = Fixture::new();
        for size in [4, 1, 4, 2, 4, 3] {
            fixture.insert(size);
        }
        for position in [1, 3, 5] {
            fixture.resize(position, 4);
        }
        fixture.check();
        fixture.resize(0, 9);
        fixture.resize(0, 4);
        fixture.check();
    }

    #[test]
    fn ascending_sizes_do_not_make_a_deep_tree() {
        let mut fixture = Fixture::new();
        for size in 0..20_000 {
            fixture.insert(size);
        }
        assert!(fixture.depth() < 60, "{} levels", fixture.depth());
    }
}
