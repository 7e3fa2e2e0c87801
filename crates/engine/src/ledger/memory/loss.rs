//! Uncertainty after lost records: bounds that always contain the true value.
//!
//! Let `T` be the device memory that a process truly holds and `L` the value of the ledger. The
//! driver never returns an address that is live, and an allocation exists before any thread can
//! free it.
//!
//! **Upper bound**: `L + lost bytes`. If the ledger does not list a live allocation, either its
//! record was lost, and its bytes are among the lost ones, or the ledger ended it wrongly. An entry
//! at address X is ended by:
//! - A free of X that was entered after the call of the entry had returned. While the allocation is
//!   live, X is not reused, so this can only be its own free. A free of an *older* allocation at X,
//!   whose record may be lost, was entered before X was reused, and is rejected for that reason,
//!   whichever of the two records is seen first.
//! - Another allocation at X: X was reused, so the entry had truly ended.
//! - The end of its context or process. These are facts, with two exceptions in which the ledger
//!   *infers* them: it counts the users of a primary context, and it may guess which context a
//!   reset ends. A lost retain makes both wrong. So after a loss the ledger infers nothing, and
//!   what it inferred earlier is added to the upper bound ([`Losses::implied_free_bytes`]).
//! - A call that drops the last reference or mapping of physical memory. That is a count as well: a
//!   lost mapping or reference makes the ledger end the memory too early. Each lost record hides
//!   one of them, so `n` lost records hide at most `n` times the largest that ended this way
//!   ([`AtRiskSizes`]).
//!
//! Memory can also be allocated without a record that contains its size: by a lost launch of a
//! graph. So after a loss, the upper bound includes everything that known graphs, graph execs and
//! captures could allocate and that is not listed; for those that are no longer known, `n` times
//! the largest, as above. This also covers allocations taken for nodes because the end of a capture
//! was lost. Memory listed as host memory of a pool may be device memory, if the record of a new
//! pool with the same handle was lost.
//!
//! **Lower bound**: `L − what the lost records could have ended`. If an allocation has truly ended
//! while the ledger still lists it, the record of the call that ended it was lost: a seen free
//! would have ended the entry, because nothing else can be at its address. `n` lost frees end at
//! most `n` entries, so at most the `n` largest; but a lost unmap can end any number of allocations
//! that only mappings keep alive. With handles, a lost allocation has the same effect: mappings of
//! the new handle are taken for mappings of an older one with the same value, whose end seems to be
//! still outstanding. (If the address was reused and that record was seen, the entry is already
//! gone and the bound is merely wider than needed. If that record was lost as well, a seen free of
//! the new allocation ends the old entry, late but correctly.) A lost end of a context or process
//! can have ended everything. All of them can only have ended memory allocated before the loss was
//! counted, so later entries are safe: a [`LossMark`] maintains the sum of the others. If the
//! ledger later sees a release or reset of a primary context that it cannot interpret because of a
//! loss, all memory of that time is in doubt again. Doubt after the end of a context without a loss
//! is tracked by [`super::super::driver::context::ends`].
//!
//! Some entries are never safe after a loss. Stream-ordered memory that is seen later may be a node
//! of a capture whose start was lost, or host memory of a pool whose creation was lost. Memory that
//! a graph left allocated may be freed by a lost node, or by a call that was taken for a node
//! because the end of a capture was lost.
//!
//! **Not covered**: memory allocated by launches of a graph if a record without a size was lost
//! while it was built (an explicit node, the start or end of its capture); and a free of graph
//! memory that a capture with a lost start only recorded as a node, while the ledger took it for
//! executed.
//!
//! A stream-ordered call of a thread that captures another stream may or may not be a node
//! ([`graph`]). Such an allocation is not listed, and its bytes are added to the upper bound, once
//! per address. Such a free counts as a lost one in the lower bound.
//!
//! All of this is about calls that have returned. A call in progress counts from its return on, as
//! it does without losses.
//!
//! Losses of an unknown process (pid 0) may belong to any process: they count in the bounds of each
//! process that existed, and once in the global bounds.
//!
//! [`graph`]: super::super::driver::graph

use std::collections::BinaryHeap;

use crate::model::{EventKind, LostDelta, MemoryKind, Timestamp, VmmCall};
use crate::snapshot::{LostTotals, ReceivedCalls};

use super::allocation::{AllocationEntry, Slab};
use super::size_index::SizeIter;
use super::totals::ByteSum;

/// Limit of entries that are scanned to bound what lost frees can have ended.
const MAX_SCANNED_ENTRIES: usize = 1000;

/// Counts a received call in the class in which its loss would have been counted.
pub(crate) const fn receive(calls: &mut ReceivedCalls, kind: &EventKind) {
    match kind {
        EventKind::Allocate(_)
        | EventKind::Vmm(VmmCall::Create { .. } | VmmCall::Import { .. }) => {
            calls.allocations += 1;
        }
        EventKind::Free(_) | EventKind::Vmm(VmmCall::Release { .. } | VmmCall::Unmap { .. }) => {
            calls.frees += 1;
        }
        EventKind::Failed(_) => calls.failures += 1,
        _ => {}
    }
}

/// Sizes of allocations of which each lost record can hide one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AtRiskSizes {
    sum: ByteSum,
    largest: ByteSum,
}

impl AtRiskSizes {
    pub(crate) fn add(&mut self, bytes: ByteSum) {
        self.sum = self.sum.plus(bytes);
        self.largest = self.largest.max(bytes);
    }

    /// Upper bound of the bytes that `records` lost records can hide.
    pub(crate) fn at_most(&self, records: u64) -> ByteSum {
        self.sum.min(self.largest.times(records))
    }
}

/// Kinds for which a loss also puts later allocations in doubt: one bit each.
type KindMask = u32;

const _: () = assert!(MemoryKind::COUNT <= KindMask::BITS as usize);

/// A lost free can be a node that would have freed memory that a graph allocates later.
const AFTER_FREES: KindMask = 1 << MemoryKind::Graph.index();

/// Lost context, pool and graph records: see the section on entries that are never safe.
const AFTER_OTHER: KindMask = 1 << MemoryKind::Graph.index() | 1 << MemoryKind::Async.index();

/// Listed device memory that was allocated up to a given time, or is never safe.
#[derive(Clone, Copy, Debug)]
struct LossMark {
    until: Timestamp,
    never_safe: KindMask,
    listed: ByteSum,
}

impl LossMark {
    fn new(never_safe: KindMask) -> Self {
        Self { until: Timestamp(0), never_safe, listed: ByteSum::default() }
    }

    fn covers(&self, entry: &AllocationEntry) -> bool {
        entry.returned_at <= self.until || self.never_safe >> entry.kind.index() & 1 == 1
    }

    /// Sets the mark; no listed allocation is newer than `until`.
    fn set(&mut self, until: Timestamp, live: ByteSum) {
        self.until = until;
        self.listed = live;
    }
}

/// Losses of one process and the memory that they put in doubt.
#[derive(Debug)]
pub(crate) struct Losses {
    /// Losses of this process.
    pub(crate) own: LostTotals,
    /// Losses of unknown processes since this one is known.
    pub(crate) shared: LostTotals,
    /// Frees that a capture may have recorded instead: the memory may or may not be freed.
    pub(crate) ambiguous: LostTotals,
    /// Device memory whose end the ledger inferred.
    implied_free_bytes: ByteSum,
    /// Memory that lost frees can have ended.
    frees: LossMark,
    /// Memory that other lost records can have ended.
    other: LossMark,
    /// Latest return time of an allocating call.
    newest: Timestamp,
}

impl Default for Losses {
    fn default() -> Self {
        Self {
            own: LostTotals::default(),
            shared: LostTotals::default(),
            ambiguous: LostTotals::default(),
            implied_free_bytes: ByteSum::default(),
            frees: LossMark::new(AFTER_FREES),
            other: LossMark::new(AFTER_OTHER),
            newest: Timestamp(0),
        }
    }
}

impl Losses {
    /// Adds an allocation.
    pub(crate) fn begin(&mut self, entry: &AllocationEntry) {
        self.newest = self.newest.max(entry.returned_at);
        for mark in [&mut self.frees, &mut self.other] {
            if mark.covers(entry) {
                mark.listed.add(entry.device_bytes());
            }
        }
    }

    /// Removes an allocation.
    pub(crate) fn end(&mut self, entry: &AllocationEntry) {
        for mark in [&mut self.frees, &mut self.other] {
            if mark.covers(entry) {
                mark.listed.subtract(entry.device_bytes());
            }
        }
    }

    /// Records losses up to that time, while `live` bytes were listed; `ends` of the lost records
    /// can hide the end of an allocation.
    pub(crate) fn record_loss(
        &mut self,
        lost: &LostDelta,
        shared: bool,
        at: Timestamp,
        live: ByteSum,
        ends: u64,
    ) {
        if shared { &mut self.shared } else { &mut self.own }.add(lost, at);
        let until = at.max(self.newest);
        if ends > 0 {
            self.frees.set(until, live);
        }
        if lost.other > 0 {
            self.other.set(until, live);
        }
    }

    /// Records a free that may be a node of a capture instead.
    pub(crate) fn doubt_free(&mut self, at: Timestamp, live: ByteSum) {
        self.ambiguous.counts.frees = self.ambiguous.frees.saturating_add(1);
        self.frees.set(at.max(self.newest), live);
    }

    /// Records that an unknown context may have ended.
    pub(crate) fn mark_possible_context_end(&mut self, at: Timestamp, live: ByteSum) {
        self.other.set(at.max(self.newest), live);
    }

    /// Records device memory whose end the ledger inferred.
    pub(crate) fn record_implied_free(&mut self, bytes: ByteSum) {
        self.implied_free_bytes = self.implied_free_bytes.plus(bytes);
    }

    /// Number of lost records other than allocations and frees.
    pub(crate) fn other_lost(&self) -> u64 {
        self.own.other.saturating_add(self.shared.other)
    }

    /// Whether there are such losses.
    pub(crate) fn has_other_lost(&self) -> bool {
        self.other_lost() > 0
    }

    /// Bytes of lost allocations of this process, and of inferred ends that may be wrong: after a
    /// loss, or in a process that is older than the trace.
    pub(crate) fn unlisted_bytes(&self, before_trace: bool) -> ByteSum {
        let lost = ByteSum::from(self.own.allocated_bytes);
        if self.has_other_lost() || before_trace {
            lost.plus(self.implied_free_bytes)
        } else {
            lost
        }
    }

    /// Listed bytes that lost records other than frees can have ended.
    pub(crate) fn ended_with_context(&self) -> ByteSum {
        if self.has_other_lost() { self.other.listed } else { ByteSum::default() }
    }

    /// Listed bytes that lost frees can have ended, whatever their number, if there are any.
    pub(crate) fn before_lost_frees(&self) -> ByteSum {
        self.frees.listed
    }
}

/// Upper bound of the device memory that `count` lost frees can have ended: each of them one
/// allocation, or one of them all of `mapped_only`.
pub(crate) fn ended_by<'a>(
    count: u64,
    mapped_only: ByteSum,
    slabs_and_walks: impl Fn() -> Vec<(&'a Slab, SizeIter<'a>)>,
) -> ByteSum {
    let singly = largest(count, slabs_and_walks());
    if count == 0 || mapped_only == ByteSum::default() {
        return singly;
    }
    singly.max(mapped_only.plus(largest(count - 1, slabs_and_walks())))
}

/// Upper bound of the device memory in the `count` largest allocations of the iterators. Exact if
/// few entries have to be scanned.
fn largest(count: u64, slabs_and_walks: Vec<(&Slab, SizeIter<'_>)>) -> ByteSum {
    let mut walks = slabs_and_walks;
    let mut tops = BinaryHeap::new();
    for (number, (slab, walk)) in walks.iter_mut().enumerate() {
        tops.extend(walk.next().map(|slot| (slab[slot].bytes, number, slot)));
    }
    let mut sum = ByteSum::default();
    let mut missing = count;
    let mut smallest = 0;
    for _ in 0..MAX_SCANNED_ENTRIES {
        if missing == 0 {
            return sum;
        }
        let Some((bytes, number, slot)) = tops.pop() else {
            return sum;
        };
        let (slab, walk) = &mut walks[number];
        if slab[slot].kind.takes_device_memory() {
            sum.add(bytes);
            missing -= 1;
        }
        smallest = bytes;
        tops.extend(walk.next().map(|slot| (slab[slot].bytes, number, slot)));
    }
    // No other entry is larger than the last one seen.
    sum.plus(ByteSum::product(missing, smallest))
}

#[cfg(test)]
mod tests {
    use super::super::allocation::{Allocations, NewAllocation};
    use super::super::thread::Threads;
    use super::*;
    use crate::model::ids::{AllocationKey, Tid};
    use crate::model::memory_kind::MemoryKind;
    use crate::model::units::Bytes;

    fn hold(sizes: impl IntoIterator<Item = (MemoryKind, u64)>) -> (Allocations, Threads) {
        let mut allocations = Allocations::default();
        let mut threads = Threads::default();
        for (number, (kind, bytes)) in (1..).zip(sizes) {
            let thread = threads.of(Tid(number as u32 % 3), 1);
            let new = NewAllocation::plain(AllocationKey::address(number), kind, bytes);
            let entry = AllocationEntry::new(&new, Timestamp(number), thread);
            let slot = allocations.insert(entry);
            threads.link(&mut allocations.slab, slot);
        }
        (allocations, threads)
    }

    fn entry(kind: MemoryKind, bytes: u64, at: u64) -> AllocationEntry {
        AllocationEntry::new(
            &NewAllocation::plain(AllocationKey::address(at), kind, bytes),
            Timestamp(at),
            0,
        )
    }

    fn largest_of(count: u64, (allocations, threads): &(Allocations, Threads)) -> Bytes {
        let slab = &allocations.slab;
        let walks = threads.iter().map(|thread| (slab, thread.by_size(slab))).collect();
        largest(count, walks).bytes()
    }

    #[test]
    fn largest_are_found_over_all_threads() {
        let held = hold([5, 1, 4, 2, 3].map(|bytes| (MemoryKind::Device, bytes)));
        assert_eq!(largest_of(3, &held), Bytes(12));
        assert_eq!(largest_of(99, &held), Bytes(15));
    }

    #[test]
    fn host_memory_does_not_count() {
        let held =
            hold([(MemoryKind::Pinned, 100), (MemoryKind::Device, 7), (MemoryKind::Managed, 50)]);
        assert_eq!(largest_of(1, &held), Bytes(7));
    }

    #[test]
    fn bound_beyond_the_scan_limit_uses_the_last_size() {
        let held = hold((0..3000).map(|_| (MemoryKind::Device, 2)));
        assert_eq!(largest_of(2000, &held), Bytes(4000));
        let held = hold((0..3000).map(|bytes| (MemoryKind::Device, bytes)));
        let exact: u64 = (1000..3000).sum();
        assert!(largest_of(2000, &held).0 > exact);
    }

    #[test]
    fn allocations_after_the_loss_are_not_in_doubt() {
        let mut losses = Losses::default();
        let early = entry(MemoryKind::Device, 10, 5);
        let late = entry(MemoryKind::Device, 20, 15);
        losses.begin(&early);
        losses.record_loss(
            &LostDelta { other: 1, ..LostDelta::default() },
            false,
            Timestamp(10),
            ByteSum::from(10),
            0,
        );
        losses.begin(&late);
        assert_eq!(losses.ended_with_context().bytes(), Bytes(10));
        losses.end(&early);
        assert_eq!(losses.ended_with_context().bytes(), Bytes(0));
    }

    #[test]
    fn record_delivered_after_the_loss_is_in_doubt() {
        let mut losses = Losses::default();
        losses.record_loss(
            &LostDelta { frees: 1, ..LostDelta::default() },
            false,
            Timestamp(10),
            ByteSum::default(),
            1,
        );
        losses.begin(&entry(MemoryKind::Device, 10, 5));
        assert_eq!(losses.before_lost_frees().bytes(), Bytes(10));
    }

    #[test]
    fn async_and_graph_memory_stays_in_doubt_after_a_loss() {
        let mut losses = Losses::default();
        let kinds = [MemoryKind::Device, MemoryKind::Async, MemoryKind::Graph];
        let held = kinds.map(|kind| entry(kind, 1 << kind.index(), 15));
        losses.record_loss(
            &LostDelta { frees: 1, other: 1, ..LostDelta::default() },
            false,
            Timestamp(10),
            ByteSum::default(),
            1,
        );
        for entry in &held {
            losses.begin(entry);
        }
        assert_eq!(losses.ended_with_context().bytes(), Bytes((1 << 5) + (1 << 3)));
        assert_eq!(losses.before_lost_frees().bytes(), Bytes(1 << 3));
        for entry in &held {
            losses.end(entry);
        }
        assert_eq!(losses.ended_with_context().bytes(), Bytes(0));
    }

    #[test]
    fn each_lost_record_hides_at_most_one_allocation() {
        let mut sizes = AtRiskSizes::default();
        for bytes in [1, 8, 2] {
            sizes.add(ByteSum::from(bytes));
        }
        let hidden = [0, 1, 2].map(|records| sizes.at_most(records).bytes().0);
        assert_eq!(hidden, [0, 8, 11]);
    }
}
