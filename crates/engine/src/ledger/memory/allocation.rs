//! Storage of live allocations: a slab of fixed-size entries in small chunks, and an index by
//! allocation key.
//!
//! An entry is one cache line. It contains the links of every list and tree that it is part of, so
//! these need no memory of their own: a live allocation costs its entry and a few bytes of index,
//! whatever its size. Empty chunks are freed, so memory use falls after a peak.
#![allow(clippy::cast_possible_truncation, reason = "fewer slots than 2^32")]

use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::model::{AddressType, AllocationKey, DeviceId, MemoryKind, SiteId, StreamId, Timestamp};

/// Index of an entry; stable while the allocation is live.
pub(crate) type Slot = u32;

/// Marks a missing slot, owner, thread or site.
pub(crate) const NIL: u32 = u32::MAX;

/// Unknown device: an ordinal that no device has.
pub(crate) const NO_DEVICE: DeviceId = DeviceId(u16::MAX);

/// Entries per chunk.
const CHUNK: usize = 256;

/// One live allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationEntry {
    value: u64,
    pub(crate) bytes: u64,
    /// Return time of the allocating call.
    pub(crate) returned_at: Timestamp,
    /// Index of the allocating thread; [`NIL`] marks a vacant entry.
    pub(crate) thread: u32,
    /// Index of the owner, or [`NIL`]: the pool for stream-ordered memory, which outlives contexts,
    /// else the context.
    owner: u32,
    site: u32,
    /// Ring of the thread's allocations of the same size, oldest first.
    pub(crate) same_previous: Slot,
    pub(crate) same_next: Slot,
    /// The thread's allocations in order of arrival.
    pub(crate) older: Slot,
    pub(crate) younger: Slot,
    /// The thread's tree of sizes; contains only the oldest allocation of each size.
    pub(crate) smaller: Slot,
    pub(crate) bigger: Slot,
    device: DeviceId,
    pub(crate) kind: MemoryKind,
    space: AddressType,
}

impl AllocationEntry {
    const VACANT: Self = Self {
        value: 0,
        bytes: 0,
        returned_at: Timestamp(0),
        thread: NIL,
        owner: NIL,
        site: NIL,
        same_previous: NIL,
        same_next: NIL,
        older: NIL,
        younger: NIL,
        smaller: NIL,
        bigger: NIL,
        device: NO_DEVICE,
        kind: MemoryKind::Device,
        space: AddressType::Pointer,
    };

    /// Creates an entry that is not linked yet.
    pub(crate) fn new(new: &NewAllocation, returned_at: Timestamp, thread: u32) -> Self {
        let NewAllocation {
            key: AllocationKey { space, value },
            kind,
            bytes,
            owner,
            device,
            site,
            ..
        } = *new;
        let site = site.map_or(NIL, |site| site.0);
        let device = device.unwrap_or(NO_DEVICE);
        Self { value, bytes, returned_at, thread, owner, site, device, kind, space, ..Self::VACANT }
    }

    pub(crate) fn key(&self) -> AllocationKey {
        AllocationKey { space: self.space, value: self.value }
    }

    pub(crate) fn device(&self) -> Option<DeviceId> {
        (self.device != NO_DEVICE).then_some(self.device)
    }

    pub(crate) fn set_device(&mut self, device: DeviceId) {
        self.device = device;
    }

    /// Index of its context, or [`NIL`].
    pub(crate) fn context(&self) -> u32 {
        if self.kind.is_pooled() { NIL } else { self.owner }
    }

    /// Index of its pool, or [`NIL`].
    pub(crate) fn pool(&self) -> u32 {
        if self.kind.is_pooled() { self.owner } else { NIL }
    }

    pub(crate) fn set_pool(&mut self, pool: u32) {
        self.owner = pool;
    }

    pub(crate) fn site(&self) -> Option<SiteId> {
        (self.site != NIL).then_some(SiteId(self.site))
    }

    /// Device memory that it uses.
    pub(crate) fn device_bytes(&self) -> u64 {
        if self.kind.takes_device_memory() { self.bytes } else { 0 }
    }
}

/// Properties of a new allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewAllocation {
    pub(crate) key: AllocationKey,
    pub(crate) kind: MemoryKind,
    pub(crate) bytes: u64,
    /// Index of its pool for stream-ordered memory, else of its context; or [`NIL`].
    pub(crate) owner: u32,
    pub(crate) device: Option<DeviceId>,
    pub(crate) site: Option<SiteId>,
    /// Written to the change log only; the ledger does not keep it.
    pub(crate) stream: Option<StreamId>,
}

impl NewAllocation {
    /// An allocation without owner, device or site.
    pub(crate) fn plain(key: AllocationKey, kind: MemoryKind, bytes: u64) -> Self {
        Self { key, kind, bytes, owner: NIL, device: None, site: None, stream: None }
    }
}

/// A block of entries with a free list (linked by `younger`).
#[derive(Debug, Default)]
struct Chunk {
    /// [`CHUNK`] entries; empty while the memory is freed.
    entries: Box<[AllocationEntry]>,
    vacant: u32,
    used: usize,
}

impl Chunk {
    fn fill(&mut self) {
        self.entries = vec![AllocationEntry::VACANT; CHUNK].into_boxed_slice();
        for (entry, next) in self.entries.iter_mut().zip(1..) {
            entry.younger = next;
        }
        self.vacant = 0;
    }
}

/// Entries by slot.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    chunks: Vec<Chunk>,
    /// Chunks with a vacant entry.
    roomy: Vec<u32>,
    /// Number of empty chunks that keep their memory: at most one, so that a program at the edge of
    /// a chunk does not free and allocate it with every call.
    spare: u32,
}

impl Slab {
    fn insert(&mut self, entry: AllocationEntry) -> Slot {
        let number = self.roomy.last().copied().unwrap_or_else(|| {
            let number = self.chunks.len() as u32;
            self.chunks.push(Chunk::default());
            self.roomy.push(number);
            number
        });
        let chunk = &mut self.chunks[number as usize];
        if chunk.entries.is_empty() {
            chunk.fill();
        } else if chunk.used == 0 {
            self.spare -= 1;
        }
        let offset = chunk.vacant;
        let target = &mut chunk.entries[offset as usize];
        chunk.vacant = target.younger;
        *target = entry;
        chunk.used += 1;
        if chunk.used == CHUNK {
            self.roomy.pop();
        }
        number * CHUNK as u32 + offset
    }

    fn remove(&mut self, slot: Slot) -> AllocationEntry {
        let number = slot as usize / CHUNK;
        let offset = slot as usize % CHUNK;
        let chunk = &mut self.chunks[number];
        if chunk.used == CHUNK {
            self.roomy.push(number as u32);
        }
        let entry = chunk.entries[offset];
        chunk.entries[offset] =
            AllocationEntry { younger: chunk.vacant, ..AllocationEntry::VACANT };
        chunk.vacant = offset as u32;
        chunk.used -= 1;
        if chunk.used == 0 {
            if self.spare == 0 {
                self.spare = 1;
            } else {
                chunk.entries = Box::default();
            }
        }
        entry
    }

    /// Whether the slot has a live entry.
    fn holds(&self, slot: Slot) -> bool {
        let entries = &self.chunks[slot as usize / CHUNK].entries;
        entries.get(slot as usize % CHUNK).is_some_and(|entry| entry.thread != NIL)
    }

    /// One more than the highest slot ever used.
    pub(crate) fn end(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// All live entries, in arbitrary order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &AllocationEntry)> {
        self.chunks.iter().enumerate().flat_map(|(number, chunk)| {
            let first = (number * CHUNK) as u32;
            (first..).zip(&chunk.entries).filter(|(_, entry)| entry.thread != NIL)
        })
    }
}

impl Index<Slot> for Slab {
    type Output = AllocationEntry;

    fn index(&self, slot: Slot) -> &AllocationEntry {
        &self.chunks[slot as usize / CHUNK].entries[slot as usize % CHUNK]
    }
}

impl IndexMut<Slot> for Slab {
    fn index_mut(&mut self, slot: Slot) -> &mut AllocationEntry {
        &mut self.chunks[slot as usize / CHUNK].entries[slot as usize % CHUNK]
    }
}

/// The live allocations of one process.
#[derive(Debug, Default)]
pub(crate) struct Allocations {
    pub(crate) slab: Slab,
    index: HashTable<Slot>,
    hasher: DefaultHashBuilder,
}

impl Allocations {
    /// Live allocation with this key.
    pub(crate) fn find(&self, key: AllocationKey) -> Option<Slot> {
        let hash = hash(&self.hasher, key);
        self.index.find(hash, |&slot| self.slab[slot].key() == key).copied()
    }

    /// Adds an allocation; its key must not be live.
    pub(crate) fn insert(&mut self, entry: AllocationEntry) -> Slot {
        let slot = self.slab.insert(entry);
        let Self { slab, index, hasher } = self;
        index
            .insert_unique(hash(hasher, entry.key()), slot, |&slot| hash(hasher, slab[slot].key()));
        slot
    }

    /// Removes an allocation that is no longer linked.
    pub(crate) fn remove(&mut self, slot: Slot) -> AllocationEntry {
        let Self { slab, index, hasher } = self;
        let hash_of = |slot: &Slot| hash(hasher, slab[*slot].key());
        if let Ok(found) = index.find_entry(hash_of(&slot), |&other| other == slot) {
            found.remove();
        }
        if index.capacity() > 1024 && index.len() < index.capacity() / 8 {
            index.shrink_to(index.len() * 2, hash_of);
        }
        slab.remove(slot)
    }

    /// Removes many allocations that are no longer linked.
    pub(crate) fn remove_all(&mut self, slots: &[Slot]) {
        if slots.len() < self.index.len() / 4 {
            for slot in slots {
                self.remove(*slot);
            }
            return;
        }
        // One pass over the index is cheaper than looking up each of them.
        let Self { slab, index, hasher } = self;
        for slot in slots {
            slab.remove(*slot);
        }
        index.retain(|slot| slab.holds(*slot));
        index.shrink_to(index.len() * 2, |slot| hash(hasher, slab[*slot].key()));
    }

    /// Slots of the allocations that match `wanted`. Visits all live allocations.
    pub(crate) fn select(&self, wanted: impl Fn(&AllocationEntry) -> bool) -> Vec<Slot> {
        self.slab.iter().filter(|(_, entry)| wanted(entry)).map(|(slot, _)| slot).collect()
    }

    /// A number that traced programs cannot know, see [`super::size_index`].
    pub(crate) fn seed(&self) -> u64 {
        self.hasher.hash_one(0_u64)
    }
}

fn hash(hasher: &DefaultHashBuilder, key: AllocationKey) -> u64 {
    hasher.hash_one((key.space as u8, key.value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(value: u64) -> AllocationEntry {
        AllocationEntry::new(
            &NewAllocation::plain(AllocationKey::address(value), MemoryKind::Device, 1),
            Timestamp(1),
            0,
        )
    }

    #[test]
    fn entry_is_one_cache_line() {
        assert_eq!(size_of::<AllocationEntry>(), 64);
    }

    #[test]
    fn slot_is_stable_while_others_change() {
        let mut slab = Slab::default();
        let slots: Vec<_> = (0..1000).map(|value| slab.insert(entry(value))).collect();
        for slot in slots.iter().step_by(2) {
            slab.remove(*slot);
        }
        for value in 1000..1700 {
            slab.insert(entry(value));
        }
        for (value, slot) in slots.iter().enumerate().skip(1).step_by(2) {
            assert_eq!(slab[*slot].value, value as u64);
        }
        assert_eq!(slab.iter().count(), 1200);
    }

    #[test]
    fn empty_chunks_are_freed_except_one() {
        let mut slab = Slab::default();
        let slots: Vec<_> = (0..10 * CHUNK as u64).map(|value| slab.insert(entry(value))).collect();
        assert_eq!(slab.chunks.len(), 10);
        for slot in slots {
            slab.remove(slot);
        }
        assert_eq!(slab.chunks.iter().filter(|chunk| !chunk.entries.is_empty()).count(), 1);
        for value in 0..10 * CHUNK as u64 {
            slab.insert(entry(value));
        }
        assert_eq!(slab.chunks.len(), 10);
        assert_eq!(slab.spare, 0);
    }

    #[test]
    fn few_or_many_are_removed_at_once() {
        for removed in [10_u64, 900, 1000] {
            let mut allocations = Allocations::default();
            let slots: Vec<_> = (0..1000).map(|value| allocations.insert(entry(value))).collect();
            allocations.remove_all(&slots[..removed as usize]);
            for value in 0..1000 {
                assert_eq!(
                    allocations.find(AllocationKey::address(value)).is_some(),
                    value >= removed
                );
            }
            assert_eq!(allocations.select(|_| true).len() as u64, 1000 - removed);
        }
    }

    #[test]
    fn equal_values_of_two_address_types_are_distinct() {
        let mut allocations = Allocations::default();
        let handle = AllocationKey { space: AddressType::Handle, value: 7 };
        let slot = allocations.insert(entry(7));
        assert_eq!(allocations.find(AllocationKey::address(7)), Some(slot));
        assert_eq!(allocations.find(handle), None);
    }

    #[test]
    fn index_shrinks_after_a_peak() {
        let mut allocations = Allocations::default();
        let slots: Vec<_> = (0..20_000).map(|value| allocations.insert(entry(value))).collect();
        let peak = allocations.index.capacity();
        for slot in &slots[10..] {
            allocations.remove(*slot);
        }
        assert!(allocations.index.capacity() < peak / 10);
        assert_eq!(allocations.find(AllocationKey::address(3)), Some(slots[3]));
    }
}
