//! The address space of the devices and the live allocations in it.
//!
//! The space is divided into blocks of 2 MiB. Small allocations share a block with others of their
//! size class; large ones start at a block boundary. A freed address is the next one returned for
//! its class, as in a real driver, so tracers see reused addresses early.
//!
//! A live allocation costs 12 bytes here if it is small, and 24 bytes per block if it is large.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Size of a block of addresses.
pub(crate) const BLOCK_BYTES: u64 = 2 << 20;
/// Address space that is reserved from the process at once.
const EXTENT_BYTES: u64 = 256 << 30;
/// Alignment of small allocations.
const SMALL_ALIGNMENT: u64 = 512;
/// Largest allocation that shares its block.
const MAX_SMALL_BYTES: u64 = 1 << 20;
const SIZE_CLASSES: usize = 40;
const NO_CLASS: SizeClass = SizeClass { free: Vec::new(), fresh: 0, fresh_end: 0 };

/// Reserved address space. Kept over a fork: the child's driver returns the same addresses as its
/// parent's, for other memory.
static EXTENTS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// A live allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ArenaAllocation {
    /// Requested size.
    pub(crate) bytes: u64,
    /// Thread that allocated it.
    pub(crate) thread: u32,
    /// Index in the owner table, never 0.
    pub(crate) owner: u32,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    bytes: u32,
    thread: u32,
    owner: u32,
}

/// A block of small allocations of one size class.
struct SmallBlock {
    size: u64,
    slots: Box<[Slot]>,
}

#[derive(Default)]
enum Block {
    #[default]
    Free,
    Small(Box<SmallBlock>),
    Large(ArenaAllocation),
    /// Part of a large allocation that starts this many blocks before.
    Tail(u32),
}

struct Extent {
    base: u64,
    size: u64,
    blocks: Vec<Block>,
}

/// Free addresses of one size class of small allocations.
struct SizeClass {
    free: Vec<u64>,
    fresh: u64,
    fresh_end: u64,
}

/// The address space.
pub(crate) struct Arena {
    extents: Vec<Extent>,
    classes: [SizeClass; SIZE_CLASSES],
    free_ranges: HashMap<u64, Vec<u64>>,
}

/// Returns the size class of a small allocation, and the size of its slots.
fn class_of(bytes: u64) -> (usize, u64) {
    let grains = bytes.div_ceil(SMALL_ALIGNMENT).max(1);
    if grains <= 8 {
        return (usize::try_from(grains - 1).unwrap_or(0), grains * SMALL_ALIGNMENT);
    }
    // Four classes for each doubling: 10, 12, 14, 16, 20, 24, … times the alignment.
    let doubling = (grains - 1).ilog2();
    let step = 1_u64 << (doubling - 2);
    let quarter = (grains - 1) / step - 4;
    let index = 8 + u64::from(doubling - 3) * 4 + quarter;
    (usize::try_from(index).unwrap_or(0), (quarter + 5) * step * SMALL_ALIGNMENT)
}

impl Arena {
    /// Creates an empty address space.
    pub(crate) fn new() -> Self {
        let known = EXTENTS.iter().map(|base| base.load(Ordering::Relaxed)).filter(|b| *b != 0);
        let extents = known.map(|base| Extent { base, size: EXTENT_BYTES, blocks: Vec::new() });
        Self {
            extents: extents.collect(),
            classes: [NO_CLASS; SIZE_CLASSES],
            free_ranges: HashMap::new(),
        }
    }

    /// Chooses an address for an allocation and records it.
    pub(crate) fn insert(&mut self, record: ArenaAllocation) -> Option<u64> {
        if record.bytes > MAX_SMALL_BYTES {
            return self.insert_large(record);
        }
        let (index, size) = class_of(record.bytes);
        let class = self.classes.get_mut(index)?;
        let address = if let Some(address) = class.free.pop() {
            address
        } else {
            if class.fresh == class.fresh_end {
                let block = self.reserve(BLOCK_BYTES)?;
                let count = usize::try_from(BLOCK_BYTES / size).ok()?;
                let slots = vec![Slot::default(); count].into_boxed_slice();
                *self.block_mut(block)? = Block::Small(Box::new(SmallBlock { size, slots }));
                let class = self.classes.get_mut(index)?;
                class.fresh = block;
                class.fresh_end = block + BLOCK_BYTES / size * size;
            }
            let class = self.classes.get_mut(index)?;
            let address = class.fresh;
            class.fresh += size;
            address
        };
        let slot = self.slot_mut(address)?;
        slot.bytes = u32::try_from(record.bytes).ok()?;
        slot.thread = record.thread;
        slot.owner = record.owner;
        Some(address)
    }

    fn insert_large(&mut self, record: ArenaAllocation) -> Option<u64> {
        let address = self.reserve(record.bytes)?;
        let count = u32::try_from(record.bytes.div_ceil(BLOCK_BYTES)).ok()?;
        *self.block_mut(address)? = Block::Large(record);
        for i in 1..count {
            *self.block_mut(address + u64::from(i) * BLOCK_BYTES)? = Block::Tail(i);
        }
        Some(address)
    }

    /// Returns the allocation that starts at an address.
    pub(crate) fn get(&self, address: u64) -> Option<ArenaAllocation> {
        let (base, record) = self.containing(address)?;
        (base == address).then_some(record)
    }

    /// Returns the allocation that contains an address, and its start.
    pub(crate) fn containing(&self, address: u64) -> Option<(u64, ArenaAllocation)> {
        let start = address & !(BLOCK_BYTES - 1);
        let (base, record) = match self.block(start)? {
            Block::Free => return None,
            Block::Small(small) => {
                let index = (address - start) / small.size;
                let slot = small.slots.get(usize::try_from(index).ok()?)?;
                let Slot { bytes, thread, owner } = *slot;
                let record = ArenaAllocation { bytes: u64::from(bytes), thread, owner };
                (start + index * small.size, record)
            }
            Block::Large(record) => (start, *record),
            Block::Tail(back) => {
                let head = start.checked_sub(u64::from(*back) * BLOCK_BYTES)?;
                let Block::Large(record) = self.block(head)? else { return None };
                (head, *record)
            }
        };
        (record.owner != 0 && address - base < record.bytes).then_some((base, record))
    }

    /// Removes an allocation; its address is free again.
    pub(crate) fn remove(&mut self, address: u64) -> Option<ArenaAllocation> {
        let record = self.get(address)?;
        if record.bytes > MAX_SMALL_BYTES {
            self.release(address, record.bytes);
        } else {
            *self.slot_mut(address)? = Slot::default();
            self.classes.get_mut(class_of(record.bytes).0)?.free.push(address);
        }
        Some(record)
    }

    /// Reserves a range of addresses without recording an allocation.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Option<u64> {
        let count = bytes.div_ceil(BLOCK_BYTES);
        if let Some(address) = self.free_ranges.get_mut(&count).and_then(Vec::pop) {
            return Some(address);
        }
        let size = count.checked_mul(BLOCK_BYTES)?;
        let fits = |extent: &Extent| extent.size - extent.blocks.len() as u64 * BLOCK_BYTES >= size;
        if !self.extents.last().is_some_and(fits)
            && let Some(index) = self.extents.iter().position(fits)
        {
            let extent = self.extents.remove(index);
            self.extents.push(extent);
        } else if !self.extents.last().is_some_and(fits) {
            self.extents.push(Extent::reserve(size)?);
        }
        let extent = self.extents.last_mut()?;
        let address = extent.base + extent.blocks.len() as u64 * BLOCK_BYTES;
        let blocks = extent.blocks.len() + usize::try_from(count).ok()?;
        extent.blocks.resize_with(blocks, Block::default);
        Some(address)
    }

    /// Frees a range that [`Arena::reserve`] returned.
    pub(crate) fn release(&mut self, address: u64, bytes: u64) {
        let count = bytes.div_ceil(BLOCK_BYTES);
        for i in 0..count {
            if let Some(block) = self.block_mut(address + i * BLOCK_BYTES) {
                *block = Block::Free;
            }
        }
        self.free_ranges.entry(count).or_default().push(address);
    }

    /// Returns every live allocation, by extent and address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, ArenaAllocation)> {
        self.extents.iter().flat_map(|extent| {
            (0_u64..)
                .zip(&extent.blocks)
                .flat_map(|(i, block)| records(extent.base + i * BLOCK_BYTES, block))
        })
    }

    /// Returns whether an address is in the address space of the devices, used or not.
    pub(crate) fn covers(&self, address: u64) -> bool {
        self.extents.iter().any(|extent| extent.contains(address))
    }

    fn block(&self, address: u64) -> Option<&Block> {
        let extent = self.extents.iter().find(|e| e.contains(address))?;
        extent.blocks.get(usize::try_from((address - extent.base) / BLOCK_BYTES).ok()?)
    }

    fn block_mut(&mut self, address: u64) -> Option<&mut Block> {
        let extent = self.extents.iter_mut().find(|e| e.contains(address))?;
        extent.blocks.get_mut(usize::try_from((address - extent.base) / BLOCK_BYTES).ok()?)
    }

    fn slot_mut(&mut self, address: u64) -> Option<&mut Slot> {
        let start = address & !(BLOCK_BYTES - 1);
        let Block::Small(small) = self.block_mut(start)? else { return None };
        let index = (address - start) / small.size;
        small.slots.get_mut(usize::try_from(index).ok()?)
    }
}

/// Returns the live allocations that start in a block.
fn records(start: u64, block: &Block) -> Box<dyn Iterator<Item = (u64, ArenaAllocation)> + '_> {
    match block {
        Block::Free | Block::Tail(_) => Box::new(std::iter::empty()),
        Block::Large(record) => Box::new(std::iter::once((start, *record))),
        Block::Small(small) => {
            Box::new((0_u64..).zip(&small.slots).filter_map(move |(i, slot)| {
                let Slot { bytes, thread, owner } = *slot;
                let record = ArenaAllocation { bytes: u64::from(bytes), thread, owner };
                (owner != 0).then_some((start + i * small.size, record))
            }))
        }
    }
}

impl Extent {
    /// Reserves address space from the process, so that nothing real is ever mapped there.
    fn reserve(at_least: u64) -> Option<Self> {
        let size = at_least.max(EXTENT_BYTES);
        let length = usize::try_from(size.checked_add(BLOCK_BYTES)?).ok()?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice that cannot be read,
        // written or unmapped by mistake; it touches no memory of the program.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let base = (start as u64).next_multiple_of(BLOCK_BYTES);
        if size == EXTENT_BYTES
            && let Some(slot) = EXTENTS.iter().find(|b| b.load(Ordering::Relaxed) == 0)
        {
            slot.store(base, Ordering::Relaxed);
        }
        Some(Self { base, size, blocks: Vec::new() })
    }

    const fn contains(&self, address: u64) -> bool {
        address >= self.base && address - self.base < self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bytes: u64) -> ArenaAllocation {
        ArenaAllocation { bytes, thread: 7, owner: 1 }
    }

    #[test]
    fn size_classes_are_contiguous_and_fit_their_sizes() {
        let mut sizes = Vec::new();
        for bytes in (1..=MAX_SMALL_BYTES).step_by(7).chain([MAX_SMALL_BYTES]) {
            let (index, size) = class_of(bytes);
            assert!(size >= bytes && size % SMALL_ALIGNMENT == 0, "{bytes} in {size}");
            assert!(size <= bytes.max(4096) * 5 / 4 + SMALL_ALIGNMENT, "{bytes} in {size}");
            if index == sizes.len() {
                sizes.push(size);
            }
            assert_eq!(sizes[index], size, "{bytes}");
        }
        assert_eq!(sizes.len(), SIZE_CLASSES);
        assert!(sizes.is_sorted());
    }

    #[test]
    fn allocations_are_aligned() {
        let mut arena = Arena::new();
        let large = arena.insert(record(3 << 20)).unwrap();
        let small = arena.insert(record(1)).unwrap();
        let next = arena.insert(record(1)).unwrap();
        assert_eq!(large % BLOCK_BYTES, 0);
        assert_eq!(small % SMALL_ALIGNMENT, 0);
        assert_eq!(next - small, SMALL_ALIGNMENT);
        assert_eq!(arena.get(large), Some(record(3 << 20)));
        assert_eq!(arena.get(large + 1), None);
        assert_eq!(arena.containing(large + (3 << 20) - 1), Some((large, record(3 << 20))));
        assert_eq!(arena.containing(large + (3 << 20)), None);
        assert_eq!(arena.iter().count(), 3);
    }

    #[test]
    fn freed_address_is_reused_next() {
        for bytes in [1, 2048, 100_000, MAX_SMALL_BYTES, MAX_SMALL_BYTES + 1, 8 << 20] {
            let mut arena = Arena::new();
            let first = arena.insert(record(bytes)).unwrap();
            let second = arena.insert(record(bytes)).unwrap();
            assert_ne!(first, second);
            assert_eq!(arena.remove(first), Some(record(bytes)));
            assert_eq!(arena.remove(first), None);
            assert_eq!(arena.get(first), None);
            assert_eq!(arena.insert(record(bytes)), Some(first), "{bytes}");
        }
    }

    #[test]
    fn address_space_grows_by_extents() {
        let mut arena = Arena::new();
        let first = arena.insert(record(EXTENT_BYTES)).unwrap();
        let second = arena.insert(record(EXTENT_BYTES + 1)).unwrap();
        assert!(arena.get(first).is_some() && arena.get(second).is_some());
        assert_eq!(arena.containing(second + EXTENT_BYTES).map(|found| found.0), Some(second));
    }
}
