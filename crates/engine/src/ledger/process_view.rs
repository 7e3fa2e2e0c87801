//! Process views of a snapshot. The cost is proportional to what is listed.

use std::cmp::Reverse;

use crate::model::{Bytes, SiteRegistry, Timestamp};
use crate::snapshot::{
    AllocationView, FailedCallCount, LostTotals, ProcessView, SnapshotOptions, SortOrder,
    ThreadView, Uncertainty,
};

use super::memory::allocation::{AllocationEntry, Slab, Slot};
use super::memory::loss;
use super::memory::size_index::SizeIter;
use super::memory::thread::Thread;
use super::memory::totals::ByteSum;
use super::process::Process;
use super::sites::libraries;
use super::sites::views;
use super::sites::views::SiteListKind;

/// Returns the view of one process. `unattributed`: losses of unknown processes.
pub(super) fn process(
    process: &Process,
    at: Timestamp,
    options: &SnapshotOptions,
    unattributed: &LostTotals,
    registry: &SiteRegistry,
) -> ProcessView {
    let is_listed = options.lists.includes(process.key.pid);
    let options = &SnapshotOptions { top: if is_listed { options.top } else { 0 }, ..*options };
    let tables = [(None, &process.sites)];
    let (sites, sites_total) = if is_listed {
        views::list(&tables, SiteListKind::Memory, at, options, registry)
    } else {
        Default::default()
    };
    let libraries = if is_listed { libraries::list(&process.sites, registry) } else { Vec::new() };
    // Ages in an ended process are those at its end.
    let at = process.ended.map_or(at, |(_, ended_at)| ended_at);
    ProcessView {
        key: process.key,
        uid: process.uid,
        name: process.name.clone(),
        identity: process.identity.clone(),
        container: process.container.clone(),
        mig: process.mig.clone(),
        ended: process.ended.map(|(end, _)| end),
        before_trace: process.before_trace,
        live_bytes: process.totals.live.bytes(),
        live_allocations: process.totals.count,
        peak_bytes: process.totals.peak.bytes(),
        peak_at: process.totals.peak_at,
        peak_bounds: process.totals.peak_bounds(),
        allocations_total: process.counts.allocations,
        frees_total: process.counts.frees,
        released_total: process.counts.released,
        failed_allocations: process.counts.failed_allocations,
        unknown_frees: process.counts.unknown_frees,
        received_calls: process.counts.received,
        failures: failures(process),
        devices: process.devices.rows(&process.totals),
        kinds: process.totals.kinds(),
        threads: threads(process, at, options, registry),
        pools: process.pools.views(),
        reserved_addresses: process.physical.reserved(),
        shared_memory: process.shared_memory.clone(),
        api_misuse: process.api_misuse,
        activity: process.activity_view.clone(),
        objects: process.objects.views(),
        allocators: process.allocators.views(process, &libraries),
        sites,
        sites_total,
        libraries,
        overhead: process.overhead_view(registry),
        growth_per_hour: process.growth_per_hour(at),
        undecided: None,
        uncertainty: uncertainty(process, unattributed),
    }
}

/// Sort key, smallest first.
pub(super) fn rank(sort: SortOrder, live: Bytes, count: u64, oldest: Option<Timestamp>) -> u64 {
    match sort {
        SortOrder::Size => u64::MAX - live.0,
        SortOrder::Age => oldest.map_or(u64::MAX, |time| time.0),
        SortOrder::Count => u64::MAX - count,
    }
}

/// Time of the oldest live allocation of a process.
pub(super) fn oldest(process: &Process) -> Option<Timestamp> {
    let slab = &process.allocations.slab;
    process.threads.iter().filter_map(|thread| thread.oldest(slab)).min()
}

/// Iterators over all allocations of a process by size, one per thread.
pub(super) fn walks(process: &Process) -> impl Iterator<Item = (&Slab, SizeIter<'_>)> {
    let slab = &process.allocations.slab;
    process.threads.iter().map(move |thread| (slab, thread.by_size(slab)))
}

/// Memory that lost frees of this process can have ended.
pub(super) fn possibly_freed(process: &Process, lost: &[&LostTotals]) -> ByteSum {
    let ends = lost.iter().fold(0_u64, |sum, lost| {
        sum.saturating_add(process.possible_lost_frees(lost.allocations, lost.frees))
    });
    let bound = process.losses.before_lost_frees();
    if ends == 0 || bound == ByteSum::default() {
        return ByteSum::default();
    }
    let mapped_only = process.physical.mapped_only();
    bound.min(loss::ended_by(ends, mapped_only, || walks(process).collect()))
}

pub(super) fn uncertainty(process: &Process, unattributed: &LostTotals) -> Uncertainty {
    let losses = &process.losses;
    let freed = possibly_freed(process, &[&losses.own, &losses.shared, &losses.ambiguous]);
    let ended = losses.ended_with_context().plus(freed).plus(process.context_ends.doubtful_bytes());
    let unlisted = process.unlisted_bytes().plus(ByteSum::from(unattributed.allocated_bytes));
    Uncertainty {
        lost: losses.own,
        live_min: process.totals.live.minus(ended).bytes(),
        live_max: process.totals.live.plus(unlisted).bytes(),
        implied_frees: process.pending_frees.count,
        before_trace: process.before_trace,
        capture_ended: None,
        unknown_context: process.context_ends.doubtful(),
        ambiguous_calls: process.ambiguous_calls(),
        unknown_calls: process.unknown_calls,
    }
}

fn failures(process: &Process) -> Vec<FailedCallCount> {
    let all = process.failures.iter();
    let mut list: Vec<_> =
        all.map(|(&(function, code), &count)| FailedCallCount { function, code, count }).collect();
    list.sort_by_key(|failure| (Reverse(failure.count), failure.function, failure.code));
    list
}

fn threads(
    process: &Process,
    at: Timestamp,
    options: &SnapshotOptions,
    registry: &SiteRegistry,
) -> Vec<ThreadView> {
    let slab = &process.allocations.slab;
    let mut holders: Vec<_> = process.threads.iter().filter(|thread| thread.count > 0).collect();
    holders.sort_by_key(|thread| {
        let oldest = thread.oldest(slab);
        (rank(options.sort, thread.live.bytes(), thread.count, oldest), thread.tid)
    });
    let show = |thread: &Thread| ThreadView {
        tid: thread.tid,
        name: thread.name.clone(),
        live_bytes: thread.live.bytes(),
        live_allocations: thread.count,
        kinds: thread.kinds.views(),
        allocations: list(thread, process, at, options, registry),
    };
    holders.into_iter().map(show).collect()
}

/// Top allocations of a thread.
fn list(
    thread: &Thread,
    process: &Process,
    at: Timestamp,
    options: &SnapshotOptions,
    registry: &SiteRegistry,
) -> Vec<AllocationView> {
    let slab = &process.allocations.slab;
    let big = |slot: &Slot| slab[*slot].bytes >= options.min_size.0;
    let old = |slot: &Slot| at - slab[*slot].returned_at >= options.min_age;
    let by_size = thread.by_size(slab).take_while(big);
    let by_age = thread.by_age(slab).take_while(old);
    let room = options.top.min(usize::try_from(thread.count).unwrap_or(usize::MAX));
    let slots = match options.sort {
        SortOrder::Size | SortOrder::Count => {
            let unfiltered = options.min_age.0 == 0;
            let order = |slot: &Slot| Reverse(slab[*slot].bytes);
            top(by_size, by_age, unfiltered, room, (old, big), order)
        }
        SortOrder::Age => {
            let unfiltered = options.min_size.0 == 0;
            let order = |slot: &Slot| slab[*slot].returned_at;
            top(by_age, by_size, unfiltered, room, (big, old), order)
        }
    };
    slots.into_iter().map(|slot| allocation(&slab[slot], process, at, registry)).collect()
}

/// Returns the first `room` slots of one iterator that are also in the other.
///
/// Both iterators stop at their own filter: the first has the requested order, the second is
/// ordered by the other filter. They advance in lockstep, so the cost is that of the *shorter* one:
/// either enough slots of the first pass the other's filter, or the second ends, and all that pass
/// both have been found. This quickly finds a few old allocations among a million young ones, and
/// the largest of a million old ones. `unfiltered` means that all slots pass the other filter.
fn top<K: Ord>(
    first: impl Iterator<Item = Slot>,
    mut second: impl Iterator<Item = Slot>,
    unfiltered: bool,
    room: usize,
    (passes_second, passes_first): (impl Fn(&Slot) -> bool, impl Fn(&Slot) -> bool),
    order: impl Fn(&Slot) -> K,
) -> Vec<Slot> {
    if unfiltered {
        return first.take(room).collect();
    }
    let mut found = Vec::new();
    let mut candidates = Vec::new();
    for slot in first {
        if passes_second(&slot) {
            found.push(slot);
        }
        if found.len() >= room {
            break;
        }
        let Some(other) = second.next() else {
            candidates.sort_by_key(order);
            candidates.truncate(room);
            return candidates;
        };
        if passes_first(&other) {
            candidates.push(other);
        }
    }
    found.truncate(room);
    found
}

fn allocation(
    entry: &AllocationEntry,
    process: &Process,
    at: Timestamp,
    registry: &SiteRegistry,
) -> AllocationView {
    AllocationView {
        baseline: process.anomaly_log.baseline(entry),
        key: entry.key(),
        device: entry.device(),
        bytes: Bytes(entry.bytes),
        kind: entry.kind,
        age: at - entry.returned_at,
        site: registry.name(entry.site()),
    }
}
