//! Physical memory of one process (virtual memory management API): references, mappings and
//! reserved addresses.
//!
//! A handle is live while it has a reference *or* a mapping. Handles and addresses are used again:
//! see [`super::reuse`].

use std::collections::BTreeMap;

use crate::model::{
    AddressType, AllocationKey, Bytes, EndReason, Event, MemoryKind, MemoryLocation,
    PhysicalHandleId, SiteId, Timestamp, VmmCall,
};

use super::super::memory::allocation::NewAllocation;
use super::super::memory::loss::AtRiskSizes;
use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::reuse::{Owners, existed};

/// A live handle.
#[derive(Clone, Copy, Debug)]
struct PhysicalHandle {
    /// Distinguishes it from other handles with the same value at other times.
    number: u64,
    references: u64,
    mappings: u64,
    /// Device memory that it uses; 0 for multicast objects, host memory and imports.
    device_bytes: u64,
    /// Whether it is memory, rather than a multicast object.
    memory: bool,
}

impl PhysicalHandle {
    /// Whether only mappings keep it alive.
    fn is_mapped_only(&self) -> bool {
        self.references == 0 && self.mappings > 0
    }
}

/// A mapping of a handle that was live when the mapping was created.
#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: u64,
    handle: PhysicalHandleId,
    number: u64,
    since: Timestamp,
}

/// Effect of releasing a handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HandleRelease {
    /// No such handle.
    Unknown,
    /// The release was for an older handle with the same value.
    Older,
    /// All known references had already been released.
    TooMany,
    /// There are other references, or it is not memory.
    Quiet,
    /// Only mappings keep it alive now.
    StillMapped,
    /// The memory ends.
    Last,
}

/// Effect of removing a mapping on its handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnmapEffect {
    /// The memory ends.
    Last(PhysicalHandleId),
    /// It was a mapping of memory that was replaced by another one with the same handle.
    OfOlder(PhysicalHandleId),
}

/// Handles, mappings and reservations of one process.
#[derive(Debug, Default)]
pub(crate) struct PhysicalMemory {
    handles: Owners<PhysicalHandleId, PhysicalHandle>,
    /// By start address. Mappings do not overlap.
    mappings: BTreeMap<u64, Mapping>,
    /// Sizes of reserved address ranges by start address.
    reservations: Owners<u64, u64>,
    reserved: ByteSum,
    mapped_only: ByteSum,
    count: u64,
    /// Device memory that ended when its count of references and mappings reached zero.
    pub(crate) ended: AtRiskSizes,
}

impl PhysicalMemory {
    /// Size of the reserved address space.
    pub(crate) fn reserved(&self) -> Bytes {
        self.reserved.bytes()
    }

    /// Start, end and time of all mappings.
    pub(crate) fn mapped(&self) -> impl Iterator<Item = (u64, u64, Timestamp)> {
        self.mappings.iter().map(|(start, mapping)| (*start, mapping.end, mapping.since))
    }

    /// The time of the mapping that begins at an address.
    pub(crate) fn mapped_at(&self, start: u64) -> Option<Timestamp> {
        self.mappings.get(&start).map(|mapping| mapping.since)
    }

    /// Whether there has ever been a handle.
    pub(crate) fn is_used(&self) -> bool {
        self.count > 0
    }

    /// Device memory that a single `cuMemUnmap` could end, over any number of handles.
    pub(crate) fn mapped_only(&self) -> ByteSum {
        self.mapped_only
    }

    /// Removes a handle that has ended.
    pub(crate) fn clear(&mut self, id: PhysicalHandleId) {
        let Some((_, handle)) = self.handles.remove(id) else { return };
        if handle.is_mapped_only() {
            self.mapped_only.subtract(handle.device_bytes);
        }
        // Release calls of its other references have not returned yet.
        self.handles.expect_end(id, handle.references);
    }

    /// Adds a handle with one reference.
    fn open(
        &mut self,
        handle: PhysicalHandleId,
        since: Timestamp,
        device_bytes: u64,
        memory: bool,
    ) {
        self.clear(handle);
        self.count += 1;
        let number = self.count;
        let new = PhysicalHandle { number, references: 1, mappings: 0, device_bytes, memory };
        self.handles.insert(handle, since, new);
    }

    /// Changes a handle, and updates the values that depend on it.
    fn change(
        &mut self,
        handle: PhysicalHandleId,
        change: impl FnOnce(&mut PhysicalHandle),
    ) -> Option<PhysicalHandle> {
        let handle = self.handles.get_mut(handle)?;
        let before = handle.is_mapped_only();
        change(handle);
        match (before, handle.is_mapped_only()) {
            (false, true) => self.mapped_only.add(handle.device_bytes),
            (true, false) => self.mapped_only.subtract(handle.device_bytes),
            _ => {}
        }
        Some(*handle)
    }

    fn release(&mut self, id: PhysicalHandleId, entered: Timestamp) -> HandleRelease {
        let handle = self.handles.get(id).copied();
        let Some(handle) = handle.filter(|_| self.handles.is_about(id, entered)) else {
            let is_older = self.handles.match_pending(id) || handle.is_some();
            return if is_older { HandleRelease::Older } else { HandleRelease::Unknown };
        };
        if handle.references == 0 {
            return HandleRelease::TooMany;
        }
        let Some(now) = self.change(id, |handle| handle.references -= 1) else {
            return HandleRelease::Unknown;
        };
        match (now.references, now.mappings, now.memory) {
            (0, 0, false) => {
                self.clear(id);
                HandleRelease::Quiet
            }
            (0, 0, true) => HandleRelease::Last,
            (0, _, true) => HandleRelease::StillMapped,
            _ => HandleRelease::Quiet,
        }
    }

    /// Adds a mapping if its handle is known.
    fn map(&mut self, address: u64, bytes: u64, id: PhysicalHandleId, since: Timestamp) {
        if let Some(handle) = self.change(id, |handle| handle.mappings += 1) {
            let end = address.saturating_add(bytes);
            self.mappings
                .insert(address, Mapping { end, handle: id, number: handle.number, since });
        }
    }

    /// Start addresses of the mappings that overlap the range.
    fn overlapping(&self, address: u64, bytes: u64) -> Vec<u64> {
        let before_end = self.mappings.range(..address.saturating_add(bytes)).rev();
        let inside = before_end.take_while(|(_, mapping)| mapping.end > address);
        inside.map(|(first, _)| *first).collect()
    }

    /// Removes the mappings in a range that existed when the unmap call was entered.
    fn unmap(&mut self, address: u64, bytes: u64, entered: Timestamp) -> Vec<UnmapEffect> {
        let end = address.saturating_add(bytes);
        let mut gone = self.overlapping(address, bytes);
        gone.retain(|first| {
            let mapping = self.mappings.get(first);
            *first >= address && mapping.is_some_and(|m| m.end <= end && existed(m.since, entered))
        });
        gone.into_iter().filter_map(|first| self.remove(first)).collect()
    }

    /// Removes all mappings that overlap a new one.
    fn displace(&mut self, address: u64, bytes: u64) -> Vec<UnmapEffect> {
        let gone = self.overlapping(address, bytes);
        gone.into_iter().filter_map(|first| self.remove(first)).collect()
    }

    fn remove(&mut self, first: u64) -> Option<UnmapEffect> {
        let mapping = self.mappings.remove(&first)?;
        let id = mapping.handle;
        if self.handles.get(id).is_none_or(|handle| handle.number != mapping.number) {
            return Some(UnmapEffect::OfOlder(id));
        }
        let now = self.change(id, |handle| handle.mappings -= 1)?;
        if now.references > 0 || now.mappings > 0 {
            return None;
        }
        if !now.memory {
            self.clear(id);
            return None;
        }
        Some(UnmapEffect::Last(id))
    }

    fn reserve(&mut self, address: u64, bytes: u64, since: Timestamp) {
        if let Some(older) = self.reservations.insert(address, since, bytes) {
            self.reserved.subtract(older);
        }
        self.reserved.add(bytes);
    }

    fn unreserve(&mut self, address: u64, entered: Timestamp) {
        if let Some(bytes) = self.reservations.end(address, entered) {
            self.reserved.subtract(bytes);
        }
    }
}

fn key(handle: PhysicalHandleId) -> AllocationKey {
    AllocationKey { space: AddressType::Handle, value: handle.0 }
}

impl Process {
    /// Applies a call on physical memory.
    pub(crate) fn vmm(&mut self, event: &Event, call: VmmCall) {
        match call {
            VmmCall::Create { handle, bytes, location, site } => {
                self.create(event, handle, bytes, location, site);
            }
            VmmCall::Import { handle } => {
                self.insert_allocation(
                    event,
                    &NewAllocation::plain(key(handle), MemoryKind::Imported, 0),
                );
                self.physical.open(handle, event.time, 0, true);
            }
            VmmCall::Multicast { handle } => {
                self.evict_stale(key(handle));
                self.physical.open(handle, event.time, 0, false);
            }
            VmmCall::Retain { handle } => {
                self.physical.change(handle, |handle| handle.references += 1);
            }
            VmmCall::Release { handle } => self.release_handle(event, handle),
            VmmCall::Map { address, bytes, handle } => {
                self.map(event, address, bytes, handle);
            }
            VmmCall::Unmap { address, bytes } => {
                for unmapped in self.physical.unmap(address, bytes, event.entry_time) {
                    self.unmapped(unmapped);
                }
            }
            VmmCall::Reserve { address, bytes } => {
                self.physical.reserve(address, bytes, event.time);
            }
            VmmCall::Unreserve { address, .. } => {
                self.physical.unreserve(address, event.entry_time);
            }
        }
    }

    fn create(
        &mut self,
        event: &Event,
        handle: PhysicalHandleId,
        bytes: u64,
        location: MemoryLocation,
        site: Option<SiteId>,
    ) {
        let (kind, device) = match location {
            MemoryLocation::Device(device) => (MemoryKind::Physical, Some(device)),
            MemoryLocation::Host => (MemoryKind::HostPhysical, None),
        };
        self.insert_allocation(
            event,
            &NewAllocation { device, site, ..NewAllocation::plain(key(handle), kind, bytes) },
        );
        let device_bytes = if kind.takes_device_memory() { bytes } else { 0 };
        self.physical.open(handle, event.time, device_bytes, true);
    }

    fn release_handle(&mut self, event: &Event, handle: PhysicalHandleId) {
        match self.physical.release(handle, event.entry_time) {
            HandleRelease::Unknown => self.free_key(event, key(handle), None),
            HandleRelease::Older => {
                // If no release is pending, the older handle ended with its last mapping.
                self.match_pending_free(key(handle));
            }
            HandleRelease::TooMany => self.counts.unknown_frees += 1,
            HandleRelease::Quiet => {}
            HandleRelease::StillMapped => self.api_misuse.released_while_mapped += 1,
            HandleRelease::Last => self.end_physical(handle),
        }
    }

    fn map(&mut self, event: &Event, address: u64, bytes: u64, handle: PhysicalHandleId) {
        if bytes == 0 {
            return;
        }
        // The driver only maps unmapped addresses, so the previous mapping has been removed by a
        // call that has not returned yet. If that ended the memory, it has ended now.
        for unmapped in self.physical.displace(address, bytes) {
            self.unmapped(unmapped);
        }
        self.physical.map(address, bytes, handle, event.time);
        self.grow_import(key(handle), bytes, event.time);
    }

    fn unmapped(&mut self, unmapped: UnmapEffect) {
        match unmapped {
            UnmapEffect::Last(handle) => self.end_physical(handle),
            UnmapEffect::OfOlder(handle) => {
                self.match_pending_free(key(handle));
            }
        }
    }

    /// Ends memory without a reference or mapping.
    fn end_physical(&mut self, handle: PhysicalHandleId) {
        self.counts.frees += 1;
        self.freed.push(key(handle));
        if let Some(slot) = self.allocations.find(key(handle)) {
            let bytes = self.allocations.slab[slot].device_bytes();
            self.physical.ended.add(ByteSum::from(bytes));
            self.remove_allocation(slot, EndReason::Freed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PhysicalHandleId = PhysicalHandleId(1);
    const B: PhysicalHandleId = PhysicalHandleId(2);

    fn physical() -> PhysicalMemory {
        let mut physical = PhysicalMemory::default();
        physical.open(A, Timestamp(10), 8, true);
        physical.open(B, Timestamp(10), 4, true);
        physical
    }

    #[test]
    fn memory_ends_with_last_reference_and_mapping() {
        let mut physical = physical();
        physical.map(0x100, 0x10, A, Timestamp(20));
        physical.change(A, |handle| handle.references += 1);
        assert_eq!(physical.release(A, Timestamp(30)), HandleRelease::Quiet);
        assert_eq!(physical.release(A, Timestamp(30)), HandleRelease::StillMapped);
        assert_eq!(physical.release(A, Timestamp(30)), HandleRelease::TooMany);
        assert_eq!(physical.mapped_only(), ByteSum::from(8));
        assert_eq!(physical.unmap(0x100, 0x10, Timestamp(40)), [UnmapEffect::Last(A)]);
        physical.clear(A);
        assert_eq!(physical.mapped_only(), ByteSum::default());
        assert_eq!(physical.release(A, Timestamp(50)), HandleRelease::Unknown);
        assert_eq!(physical.release(B, Timestamp(50)), HandleRelease::Last);
    }

    #[test]
    fn unmap_removes_whole_mappings_only() {
        let mut physical = physical();
        physical.map(0x100, 0x10, A, Timestamp(20));
        physical.map(0x110, 0x10, B, Timestamp(20));
        physical.map(0x130, 0x10, B, Timestamp(20));
        physical.release(A, Timestamp(30));
        physical.release(B, Timestamp(30));
        assert_eq!(physical.unmap(0x108, 0x20, Timestamp(40)), []);
        assert_eq!(physical.mappings.keys().collect::<Vec<_>>(), [&0x100, &0x130]);
        assert_eq!(
            physical.unmap(0, u64::MAX, Timestamp(40)),
            [UnmapEffect::Last(B), UnmapEffect::Last(A)]
        );
    }

    #[test]
    fn late_unmap_keeps_newer_mapping() {
        let mut physical = physical();
        physical.map(0x100, 0x10, A, Timestamp(60));
        assert_eq!(physical.unmap(0x100, 0x10, Timestamp(50)), []);
        assert_eq!(physical.mappings.len(), 1);
    }

    #[test]
    fn new_mapping_displaces_overlapping_ones() {
        let mut physical = physical();
        physical.map(0x100, 0x10, A, Timestamp(20));
        physical.map(0x110, 0x10, A, Timestamp(20));
        physical.release(A, Timestamp(30));
        assert_eq!(physical.displace(0x108, 0x10), [UnmapEffect::Last(A)]);
        physical.clear(A);
        assert!(physical.mappings.is_empty());
    }

    #[test]
    fn unmap_reports_mapping_of_older_handle() {
        let mut physical = physical();
        physical.map(0x100, 0x10, A, Timestamp(20));
        physical.open(A, Timestamp(30), 8, true);
        assert_eq!(physical.release(A, Timestamp(25)), HandleRelease::Older);
        assert_eq!(physical.unmap(0x100, 0x10, Timestamp(40)), [UnmapEffect::OfOlder(A)]);
        assert_eq!(physical.release(A, Timestamp(50)), HandleRelease::Last);
    }

    #[test]
    fn releases_of_replaced_handle_are_matched() {
        let mut physical = physical();
        physical.change(A, |handle| handle.references += 1);
        physical.open(A, Timestamp(30), 8, true);
        assert_eq!(physical.release(A, Timestamp(40)), HandleRelease::Last);
        physical.clear(A);
        assert_eq!(physical.release(A, Timestamp(25)), HandleRelease::Older);
        assert_eq!(physical.release(A, Timestamp(25)), HandleRelease::Older);
        assert_eq!(physical.release(A, Timestamp(25)), HandleRelease::Unknown);
    }

    #[test]
    fn multicast_object_ends_with_last_reference_or_mapping() {
        let mut physical = PhysicalMemory::default();
        physical.open(A, Timestamp(10), 0, false);
        physical.map(0x100, 0x10, A, Timestamp(20));
        assert_eq!(physical.release(A, Timestamp(30)), HandleRelease::Quiet);
        assert_eq!(physical.unmap(0x100, 0x10, Timestamp(40)), []);
        assert_eq!(physical.handles.len(), 0);
        physical.open(A, Timestamp(50), 0, false);
        assert_eq!(physical.release(A, Timestamp(60)), HandleRelease::Quiet);
        assert_eq!(physical.handles.len(), 0);
    }

    #[test]
    fn reservations_are_counted_by_their_first_address() {
        let mut physical = PhysicalMemory::default();
        physical.reserve(0x100, 10, Timestamp(10));
        physical.reserve(0x200, 20, Timestamp(10));
        physical.unreserve(0x300, Timestamp(20));
        physical.unreserve(0x100, Timestamp(20));
        assert_eq!(physical.reserved(), Bytes(20));
        // Reserved again before the return of the call that freed it is seen.
        physical.reserve(0x200, 5, Timestamp(40));
        physical.unreserve(0x200, Timestamp(30));
        assert_eq!(physical.reserved(), Bytes(5));
    }
}
