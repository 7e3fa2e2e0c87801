//! Allocations that the end of a context may have freed, although they are not known to be in it.
//!
//! The driver frees all memory of a context when the context ends. The ledger frees the allocations
//! that it knows to be in that context. An allocation whose context is unknown may have been in it:
//! from then on it is in doubt, until a call frees it. If it is unknown which context ended, all
//! memory that ends with a context is in doubt.

use crate::model::{AddressType, EndReason, Timestamp};

use super::super::super::memory::allocation::{AllocationEntry, NIL};
use super::super::super::memory::totals::ByteSum;

/// Live allocations, and those of them that are in doubt.
#[derive(Debug, Default)]
struct Doubt {
    live: u64,
    bytes: ByteSum,
    /// Allocations whose call returned up to this time are in doubt.
    until: Timestamp,
    doubtful: u64,
    doubtful_bytes: ByteSum,
}

impl Doubt {
    fn covers(&self, entry: &AllocationEntry) -> bool {
        entry.returned_at <= self.until
    }

    fn begin(&mut self, entry: &AllocationEntry) {
        self.live += 1;
        self.bytes.add(entry.device_bytes());
        if self.covers(entry) {
            self.doubtful += 1;
            self.doubtful_bytes.add(entry.device_bytes());
        }
    }

    /// Returns whether the allocation was in doubt.
    fn end(&mut self, entry: &AllocationEntry) -> bool {
        self.live -= 1;
        self.bytes.subtract(entry.device_bytes());
        if self.covers(entry) {
            self.doubtful -= 1;
            self.doubtful_bytes.subtract(entry.device_bytes());
        }
        self.covers(entry)
    }

    /// Marks all live allocations as in doubt; none is newer than this time.
    fn raise(&mut self, until: Timestamp) {
        self.until = until;
        self.doubtful = self.live;
        self.doubtful_bytes = self.bytes;
    }
}

/// Uncertainty in one process after contexts ended.
#[derive(Debug, Default)]
pub(crate) struct ContextEnds {
    /// Allocations in known contexts.
    known: Doubt,
    /// Allocations in unknown contexts.
    unknown: Doubt,
    /// Allocations in doubt whose address was allocated again: they were freed by a call that was
    /// not seen yet, or with a context.
    open: u64,
    /// Latest return time of an allocating call.
    newest: Timestamp,
}

impl ContextEnds {
    fn of(&mut self, entry: &AllocationEntry) -> Option<&mut Doubt> {
        if !entry.kind.ends_with_context() || entry.key().space == AddressType::Handle {
            return None;
        }
        Some(if entry.context() == NIL { &mut self.unknown } else { &mut self.known })
    }

    /// Adds an allocation.
    pub(crate) fn begin(&mut self, entry: &AllocationEntry) {
        self.newest = self.newest.max(entry.returned_at);
        if let Some(doubt) = self.of(entry) {
            doubt.begin(entry);
        }
    }

    /// Removes an allocation.
    pub(crate) fn end(&mut self, entry: &AllocationEntry, reason: EndReason) {
        let doubtful = self.of(entry).is_some_and(|doubt| doubt.end(entry));
        self.open += u64::from(doubtful && reason == EndReason::Replaced);
    }

    /// Records the end of a known context.
    pub(crate) fn doubt_unknown(&mut self, at: Timestamp) {
        self.unknown.raise(at.max(self.newest));
    }

    /// Records that an unknown context may have ended.
    pub(crate) fn doubt_all(&mut self, at: Timestamp) {
        self.doubt_unknown(at);
        self.known.raise(at.max(self.newest));
    }

    /// Number of allocations that may have ended with a context, or did and are not counted as
    /// released.
    pub(crate) fn doubtful(&self) -> u64 {
        self.known.doubtful + self.unknown.doubtful + self.open
    }

    /// Device memory of live allocations that may have ended with a context.
    pub(crate) fn doubtful_bytes(&self) -> ByteSum {
        self.known.doubtful_bytes.plus(self.unknown.doubtful_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::memory::allocation::NewAllocation;
    use crate::model::ids::AllocationKey;
    use crate::model::memory_kind::MemoryKind;
    use crate::model::units::Bytes;

    fn entry(kind: MemoryKind, context: u32, at: u64) -> AllocationEntry {
        let new = NewAllocation {
            owner: context,
            ..NewAllocation::plain(AllocationKey::address(at), kind, at)
        };
        AllocationEntry::new(&new, Timestamp(at), 0)
    }

    fn doubt(ends: &ContextEnds) -> (u64, Bytes) {
        (ends.doubtful(), ends.doubtful_bytes().bytes())
    }

    #[test]
    fn end_of_context_leaves_unknown_contexts_in_doubt() {
        let mut ends = ContextEnds::default();
        let entries = [
            (MemoryKind::Device, NIL, 10),
            (MemoryKind::Pinned, NIL, 20),
            (MemoryKind::Device, 7, 30),
        ];
        let entries = entries.map(|(kind, context, at)| entry(kind, context, at));
        entries.iter().for_each(|entry| ends.begin(entry));
        assert_eq!(doubt(&ends), (0, Bytes(0)));
        ends.doubt_unknown(Timestamp(40));
        assert_eq!(doubt(&ends), (2, Bytes(10)));
        // A later allocation is not in doubt, an earlier one that arrives late is.
        ends.begin(&entry(MemoryKind::Device, NIL, 50));
        ends.begin(&entry(MemoryKind::Device, NIL, 35));
        assert_eq!(doubt(&ends), (3, Bytes(45)));
        ends.end(&entries[0], EndReason::Freed);
        ends.end(&entries[1], EndReason::Replaced);
        assert_eq!(doubt(&ends), (2, Bytes(35)));
    }

    #[test]
    fn unnamed_end_leaves_all_contexts_in_doubt() {
        let mut ends = ContextEnds::default();
        for kind in [
            MemoryKind::Device,
            MemoryKind::Array,
            MemoryKind::Physical,
            MemoryKind::Async,
            MemoryKind::Graph,
        ] {
            ends.begin(&entry(kind, 7, 10));
        }
        ends.doubt_all(Timestamp(20));
        assert_eq!(doubt(&ends), (2, Bytes(20)));
    }
}
