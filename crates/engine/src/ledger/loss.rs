//! What lost records leave open: bounds that always hold the truth.
//!
//! Say a process truly holds `T` bytes of device memory and the ledger says `L`. The driver never
//! gives out an address that is live, and publishes an allocation before anybody can free it.
//!
//! **At most** `L + lost bytes`. A true allocation that the ledger does not list either began with
//! a lost record, then its bytes are among the lost ones; or the ledger ended it wrongly. What ends
//! an entry at address X?
//! - A free of X that was entered after the entry's call had returned. While the entry truly lives,
//!   X is not given out again, so no such free exists but its own. A free of an *older* owner of X,
//!   whose own record may be lost, was entered before X was given out again, and is refused for
//!   that reason, whichever of the two records is seen first.
//! - Another allocation at X: X was given out again, so the entry had truly ended.
//! - The end of its context or process. Those are facts, with two exceptions, where the ledger
//!   *concludes*: it counts the users of a primary context, and it may guess which context a reset
//!   ends. A lost retain makes both conclusions wrong. So after a loss it concludes nothing any
//!   more, and what it had concluded earlier is added to the upper bound ([`Losses::concluded`]).
//!
//! - A call that takes the last reference or mapping of physical memory. That is a count as well: a
//!   lost mapping or reference makes the ledger end it too early. One lost record hides one of them,
//!   so `n` lost records hide at most `n` times the biggest that ended so ([`Tally`]).
//!
//! Memory can also begin without a record that tells bytes: a lost launch of a graph. So after a loss
//! everything is added that known graphs, launchable graphs and captures would allocate and that is
//! not listed; and for those that are not known any more `n` times the biggest, as above. That also
//! holds what was taken for nodes because the end of a capture was lost. And what is listed as host
//! memory of a pool may be device memory, if the pool was made anew by a lost record.
//!
//! **At least** `L − what the lost records could have ended`. An entry that truly ended while the
//! ledger still lists it was ended by a call whose record is lost, for a free that was seen ends the
//! entry: nothing else can be at its address then. `n` lost frees end at most `n` entries: at most
//! the `n` biggest; but one that unmaps can end any number that only mappings keep. Where there are
//! handles, a lost allocation is no better: mappings of the new handle are taken for mappings of an
//! older one of its name, whose end is thought to be still to come. (Where the address was given out again in the meantime and that record was seen, the entry is
//! gone already and the bound is only wider than needed; where that record was lost too, a seen free
//! of the new owner ends the old entry, late, and rightly.) A lost end of a context or process can
//! have ended everything. And either can only have ended what was allocated before the loss was
//! counted, so entries that came later are safe: a [`Mark`] keeps the sum of the others as they go.
//! Where the ledger later meets the release or reset of a primary context that it cannot judge
//! because of a loss, everything of that moment is in doubt again. What the end of a context leaves in
//! doubt without a loss is kept by [`super::context_ends`].
//!
//! Some entries are never safe once a record was lost. Stream-ordered memory that is seen later may
//! be a node of a capture whose beginning was lost, or host memory of a pool whose creation was. What
//! a graph left allocated may be freed by a node that was lost, or by a call that was taken for a
//! node because the end of a capture was lost.
//!
//! A stream-ordered call of a thread that captures another stream may be a node or not ([`graph`]). An
//! allocation of that kind is not listed, and its bytes are added to the upper bound, once for each
//! address. A free counts as a lost one in the lower bound.
//!
//! **Not covered** is what cannot be: what launches allocate of a graph of whose making a record was
//! lost that tells no bytes (an explicit node, the beginning or end of its capture), and that a
//! capture whose beginning was lost only noted a free of graph memory that the ledger took for done.
//!
//! All this is about calls that returned. One that is under way counts from its return on, as it does
//! without losses.
//!
//! Losses of no known process (pid 0) may be any process's: they count in the bounds of each that
//! was there, and once in the global ones.
//!
//! [`graph`]: super::graph

use std::collections::BinaryHeap;

use crate::event::{GraphCall, Lost, VmmCall, What};
use crate::kind::Kind;
use crate::snapshot::{Loss, ReceivedCalls};
use crate::units::Moment;

use super::allocation::{Entry, Slab};
use super::sizes::SizeWalk;
use super::totals::Sum;

/// How many entries are looked at to bound what lost frees can have ended.
const LOOK_AT: usize = 1000;

/// Adds the records of one event to a sum of losses.
pub(super) fn add(sum: &mut Loss, lost: &Lost, at: Moment) {
    sum.allocations = sum.allocations.saturating_add(lost.allocations);
    sum.allocated_bytes = sum.allocated_bytes.saturating_add(lost.allocated_bytes);
    sum.frees = sum.frees.saturating_add(lost.frees);
    sum.failures = sum.failures.saturating_add(lost.failures);
    sum.other = sum.other.saturating_add(lost.other);
    sum.launches = sum.launches.saturating_add(lost.launches);
    sum.copies = sum.copies.saturating_add(lost.copies);
    sum.stacks = sum.stacks.saturating_add(lost.stacks);
    sum.objects = sum.objects.saturating_add(lost.objects);
    sum.tensors = sum.tensors.saturating_add(lost.tensors);
    sum.processes = sum.processes.saturating_add(lost.processes);
    sum.since = sum.since.or(Some(at));
}

/// Counts a call whose record arrived, in the class in which its loss would have been counted.
pub(super) const fn receive(calls: &mut ReceivedCalls, what: &What) {
    match what {
        What::Allocate(_) | What::Vmm(VmmCall::Create { .. } | VmmCall::Import { .. }) => {
            calls.allocations += 1;
        }
        What::Free(_) | What::Vmm(VmmCall::Release { .. } | VmmCall::Unmap { .. }) => {
            calls.frees += 1;
        }
        // The end of a capture that gives no graph is a call that failed.
        What::Failed(_) | What::Graph(GraphCall::CaptureEnded { graph: None, .. }) => {
            calls.failures += 1;
        }
        _ => {}
    }
}

/// Sizes of things of which each lost record can hide one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    sum: Sum,
    biggest: Sum,
}

impl Tally {
    pub(super) fn add(&mut self, bytes: Sum) {
        self.sum = self.sum.plus(bytes);
        self.biggest = self.biggest.max(bytes);
    }

    /// A bound of what `records` lost records can hide.
    pub(super) fn at_most(&self, records: u64) -> Sum {
        self.sum.min(self.biggest.times(records))
    }
}

/// Kinds of which a loss leaves in doubt also what is allocated after it: a bit for each.
type NeverSafe = u32;

const _: () = assert!(Kind::COUNT <= NeverSafe::BITS as usize);

/// A lost free can be a node that would have freed what a graph allocates later.
const AFTER_FREES: NeverSafe = 1 << Kind::Graph.index();

/// See the module.
const AFTER_OTHER: NeverSafe = 1 << Kind::Graph.index() | 1 << Kind::Async.index();

/// The device memory that was allocated up to a moment, or is never safe, and is still listed.
#[derive(Clone, Copy, Debug)]
struct Mark {
    until: Moment,
    never_safe: NeverSafe,
    listed: Sum,
}

impl Mark {
    fn new(never_safe: NeverSafe) -> Self {
        Self { until: Moment(0), never_safe, listed: Sum::default() }
    }

    fn covers(&self, entry: &Entry) -> bool {
        entry.returned_at <= self.until || self.never_safe >> entry.kind.index() & 1 == 1
    }

    /// Nothing that is listed is younger than this moment.
    fn set(&mut self, until: Moment, live: Sum) {
        self.until = until;
        self.listed = live;
    }
}

/// The losses of one process and what they put in doubt.
#[derive(Debug)]
pub(super) struct Losses {
    /// Losses of this process.
    pub(super) own: Loss,
    /// Losses of unknown processes since this one is known.
    pub(super) shared: Loss,
    /// Frees that a capture may have recorded instead: the memory may have ended or not.
    pub(super) ambiguous: Loss,
    /// Device memory whose end the ledger concluded instead of seeing it.
    concluded: Sum,
    /// What lost frees can have ended.
    frees: Mark,
    /// What other lost records can have ended.
    other: Mark,
    /// The latest return of an allocating call.
    newest: Moment,
}

impl Default for Losses {
    fn default() -> Self {
        Self {
            own: Loss::default(),
            shared: Loss::default(),
            ambiguous: Loss::default(),
            concluded: Sum::default(),
            frees: Mark::new(AFTER_FREES),
            other: Mark::new(AFTER_OTHER),
            newest: Moment(0),
        }
    }
}

impl Losses {
    /// An allocation began.
    pub(super) fn begin(&mut self, entry: &Entry) {
        self.newest = self.newest.max(entry.returned_at);
        for mark in [&mut self.frees, &mut self.other] {
            if mark.covers(entry) {
                mark.listed.add(entry.device_bytes());
            }
        }
    }

    /// An allocation ended.
    pub(super) fn end(&mut self, entry: &Entry) {
        for mark in [&mut self.frees, &mut self.other] {
            if mark.covers(entry) {
                mark.listed.take(entry.device_bytes());
            }
        }
    }

    /// Records were lost up to that moment, while `live` bytes were listed; so many of them can hide
    /// the end of one.
    pub(super) fn lose(&mut self, lost: &Lost, shared: bool, at: Moment, live: Sum, ends: u64) {
        add(if shared { &mut self.shared } else { &mut self.own }, lost, at);
        let until = at.max(self.newest);
        if ends > 0 {
            self.frees.set(until, live);
        }
        if lost.other > 0 {
            self.other.set(until, live);
        }
    }

    /// Memory was freed, or a node was made that frees it.
    pub(super) fn doubt_free(&mut self, at: Moment, live: Sum) {
        self.ambiguous.frees = self.ambiguous.frees.saturating_add(1);
        self.frees.set(at.max(self.newest), live);
    }

    /// A context may have ended that the ledger could not name.
    pub(super) fn doubt(&mut self, at: Moment, live: Sum) {
        self.other.set(at.max(self.newest), live);
    }

    /// The ledger concluded that this much device memory ended.
    pub(super) fn conclude(&mut self, bytes: Sum) {
        self.concluded = self.concluded.plus(bytes);
    }

    /// Lost records that could be about anything but allocations and frees.
    pub(super) fn others(&self) -> u64 {
        self.own.other.saturating_add(self.shared.other)
    }

    /// Whether there are such.
    pub(super) fn broken(&self) -> bool {
        self.others() > 0
    }

    /// Bytes of lost allocations of this process, and of ends whose conclusion may be wrong: after a
    /// loss, or in a process that was there before the trace.
    pub(super) fn unlisted(&self, before_trace: bool) -> Sum {
        let lost = Sum::from(self.own.allocated_bytes);
        if self.broken() || before_trace { lost.plus(self.concluded) } else { lost }
    }

    /// Listed bytes that other records than frees can have ended.
    pub(super) fn ended_with_context(&self) -> Sum {
        if self.broken() { self.other.listed } else { Sum::default() }
    }

    /// Listed bytes that lost frees can have ended, however many those are, if there are any.
    pub(super) fn before_lost_frees(&self) -> Sum {
        self.frees.listed
    }
}

/// A bound of the device memory that `count` lost frees can have ended: any of them one allocation,
/// or one of them all that is `mapped_only`.
pub(super) fn ended_by<'a>(
    count: u64,
    mapped_only: Sum,
    slabs_and_walks: impl Fn() -> Vec<(&'a Slab, SizeWalk<'a>)>,
) -> Sum {
    let singly = biggest(count, slabs_and_walks());
    if count == 0 || mapped_only == Sum::default() {
        return singly;
    }
    singly.max(mapped_only.plus(biggest(count - 1, slabs_and_walks())))
}

/// A bound of the device memory in the `count` biggest of the allocations that the walks give.
/// Exact while few have to be looked at.
fn biggest(count: u64, slabs_and_walks: Vec<(&Slab, SizeWalk<'_>)>) -> Sum {
    let mut walks = slabs_and_walks;
    let mut tops = BinaryHeap::new();
    for (number, (slab, walk)) in walks.iter_mut().enumerate() {
        tops.extend(walk.next().map(|slot| (slab[slot].bytes, number, slot)));
    }
    let mut sum = Sum::default();
    let mut missing = count;
    let mut smallest = 0;
    for _ in 0..LOOK_AT {
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
    // None of the others is bigger than the last one seen.
    sum.plus(Sum::product(missing, smallest))
}

#[cfg(test)]
mod tests {
    use super::super::allocation::{Allocations, New};
    use super::super::thread::Threads;
    use super::*;
    use crate::ids::{Key, Tid};
    use crate::kind::Kind;
    use crate::units::Bytes;

    fn hold(sizes: impl IntoIterator<Item = (Kind, u64)>) -> (Allocations, Threads) {
        let mut allocations = Allocations::default();
        let mut threads = Threads::default();
        for (number, (kind, bytes)) in (1..).zip(sizes) {
            let thread = threads.of(Tid(number as u32 % 3), 1);
            let new = New::plain(Key::address(number), kind, bytes);
            let entry = Entry::new(&new, Moment(number), thread);
            let slot = allocations.insert(entry);
            threads.link(&mut allocations.slab, slot);
        }
        (allocations, threads)
    }

    fn entry(kind: Kind, bytes: u64, at: u64) -> Entry {
        Entry::new(&New::plain(Key::address(at), kind, bytes), Moment(at), 0)
    }

    fn biggest_of(count: u64, (allocations, threads): &(Allocations, Threads)) -> Bytes {
        let slab = &allocations.slab;
        let walks = threads.iter().map(|thread| (slab, thread.by_size(slab))).collect();
        biggest(count, walks).bytes()
    }

    #[test]
    fn the_biggest_are_found_over_all_threads() {
        let held = hold([5, 1, 4, 2, 3].map(|bytes| (Kind::Device, bytes)));
        assert_eq!(biggest_of(3, &held), Bytes(12));
        assert_eq!(biggest_of(99, &held), Bytes(15));
    }

    #[test]
    fn host_memory_does_not_count() {
        let held = hold([(Kind::Pinned, 100), (Kind::Device, 7), (Kind::Managed, 50)]);
        assert_eq!(biggest_of(1, &held), Bytes(7));
    }

    #[test]
    fn beyond_the_limit_every_other_one_is_taken_for_as_big_as_the_last() {
        let held = hold((0..3000).map(|_| (Kind::Device, 2)));
        assert_eq!(biggest_of(2000, &held), Bytes(4000));
        let held = hold((0..3000).map(|bytes| (Kind::Device, bytes)));
        let exact: u64 = (1000..3000).sum();
        assert!(biggest_of(2000, &held).0 > exact);
    }

    #[test]
    fn what_comes_after_the_loss_is_not_in_doubt() {
        let mut losses = Losses::default();
        let early = entry(Kind::Device, 10, 5);
        let late = entry(Kind::Device, 20, 15);
        losses.begin(&early);
        losses.lose(&Lost { other: 1, ..Lost::default() }, false, Moment(10), Sum::from(10), 0);
        losses.begin(&late);
        assert_eq!(losses.ended_with_context().bytes(), Bytes(10));
        losses.end(&early);
        assert_eq!(losses.ended_with_context().bytes(), Bytes(0));
    }

    #[test]
    fn a_record_that_is_delivered_after_the_loss_was_counted_is_still_in_doubt() {
        let mut losses = Losses::default();
        losses.lose(&Lost { frees: 1, ..Lost::default() }, false, Moment(10), Sum::default(), 1);
        losses.begin(&entry(Kind::Device, 10, 5));
        assert_eq!(losses.before_lost_frees().bytes(), Bytes(10));
    }

    #[test]
    fn stream_ordered_memory_and_that_of_graphs_is_never_safe_after_a_loss() {
        let mut losses = Losses::default();
        let kinds = [Kind::Device, Kind::Async, Kind::Graph];
        let held = kinds.map(|kind| entry(kind, 1 << kind.index(), 15));
        losses.lose(
            &Lost { frees: 1, other: 1, ..Lost::default() },
            false,
            Moment(10),
            Sum::default(),
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
    fn each_lost_record_hides_one_of_the_biggest_but_no_more_than_there_were() {
        let mut tally = Tally::default();
        for bytes in [1, 8, 2] {
            tally.add(Sum::from(bytes));
        }
        let hidden = [0, 1, 2].map(|records| tally.at_most(records).bytes().0);
        assert_eq!(hidden, [0, 8, 11]);
    }
}
