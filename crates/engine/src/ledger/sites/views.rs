//! Site views of a snapshot. Costs O(sites), plus the cost of the listed ones.

use std::cmp::Reverse;

use crate::leak::GrowthHistory;
use crate::model::{Bytes, MemoryKind, ObjectKind, Pid, SiteName, SiteRegistry, Timestamp};
use crate::snapshot::{
    KindView, SiteHistory, SiteKindView, SiteObjectView, SiteProcess, SiteView, SnapshotOptions,
    SortOrder,
};

use super::super::memory::totals::ByteSum;
use super::table::{ResourceKind, SiteRef, SiteRow, SiteTable};

/// A table and its process.
pub(crate) type OwnedTable<'a> = (Option<Pid>, &'a SiteTable);

/// What a list of sites contains. Memory and tensors are never added together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SiteListKind {
    /// Driver memory, with totals of device memory; and CUDA objects.
    Memory,
    /// Blocks of a framework's cache.
    Tensors,
}

impl SiteListKind {
    fn lists(self, resource: ResourceKind) -> bool {
        match self {
            Self::Memory => !resource.is_blocks(),
            Self::Tensors => resource.is_blocks(),
        }
    }

    /// Whether a row is included in the totals of its site.
    fn counts(self, resource: ResourceKind) -> bool {
        match self {
            Self::Memory => resource.takes_device_memory(),
            Self::Tensors => resource.is_blocks(),
        }
    }
}

/// A row with the name of its site and the index of its table.
type NamedRow<'a> = (SiteName, usize, &'a SiteRow);

/// Returns the top sites of some tables at a given time, followed (for memory) by as many others
/// that have objects; and the total number of sites.
pub(crate) fn list(
    tables: &[OwnedTable<'_>],
    list_kind: SiteListKind,
    at: Timestamp,
    options: &SnapshotOptions,
    registry: &SiteRegistry,
) -> (Vec<SiteView>, u64) {
    let rows = tables.iter().enumerate().flat_map(|(table, (_, sites))| {
        let rows = sites.rows().iter().filter(move |row| list_kind.lists(row.resource));
        rows.map(move |row| (name(row.source, registry), table, row))
    });
    let mut rows: Vec<NamedRow<'_>> = rows.collect();
    rows.sort_unstable_by_key(|(name, table, row)| (*name, *table, row.resource, row.source));
    let mut groups: Vec<_> = rows.chunk_by(|(a, ..), (b, ..)| a == b).collect();
    let total = groups.len();
    groups.sort_by_cached_key(|group| rank(group, list_kind, options.sort));
    let mut others = groups.split_off(options.top_sites.min(total));
    others.retain(|group| object_counts(group) != (0, 0));
    others.sort_by_cached_key(|group| Reverse(object_counts(group)));
    others.truncate(options.top_sites);
    groups.extend(others);
    let shown = groups.into_iter().map(|group| site(group, list_kind, tables, at, registry));
    (shown.collect(), total as u64)
}

/// Number of allocations in some tables, and of those without a stack.
pub(crate) fn coverage(tables: &[OwnedTable<'_>]) -> (u64, u64) {
    let rows = tables.iter().flat_map(|(_, table)| table.rows());
    let rows = rows.filter(|row| row.resource.is_memory());
    rows.fold((0, 0), |(all, without), row| {
        let missing = if row.source == SiteRef::Unknown { row.track.allocations } else { 0 };
        (all + row.track.allocations, without + missing)
    })
}

pub(crate) fn name(source: SiteRef, registry: &SiteRegistry) -> SiteName {
    match source {
        SiteRef::Site(site) => registry.name(Some(site)),
        SiteRef::Unknown => SiteName::Unknown,
        SiteRef::Other => SiteName::Other,
    }
}

fn counted<'a>(
    group: &'a [NamedRow<'_>],
    list_kind: SiteListKind,
) -> impl Iterator<Item = &'a SiteRow> {
    group.iter().map(|(_, _, row)| *row).filter(move |row| list_kind.counts(row.resource))
}

fn sum<'a>(rows: impl Iterator<Item = &'a SiteRow>, of: impl Fn(&SiteRow) -> ByteSum) -> ByteSum {
    rows.fold(ByteSum::default(), |sum, row| sum.plus(of(row)))
}

/// Rows of memory of any kind, or of tensors.
fn bytes_of<'a>(group: &'a [NamedRow<'_>]) -> impl Iterator<Item = &'a SiteRow> {
    group.iter().map(|(_, _, row)| *row).filter(|row| row.resource.kind().is_some())
}

/// Number of objects: live, and ever created.
fn object_counts(group: &[NamedRow<'_>]) -> (u64, u64) {
    let rows = group.iter().filter(|(_, _, row)| row.resource.object().is_some());
    rows.fold((0, 0), |(live, all), (_, _, row)| {
        (live + row.track.count, all + row.track.allocations)
    })
}

/// Sort key: by the order of the options, then by total bytes allocated, then by objects.
fn rank(
    group: &[NamedRow<'_>],
    list_kind: SiteListKind,
    sort: SortOrder,
) -> (u64, Reverse<u64>, Reverse<(u64, u64)>) {
    let live = sum(counted(group, list_kind), |row| row.track.live).bytes();
    let count = counted(group, list_kind).map(SiteRow::live_count).sum();
    let first = bytes_of(group).map(|row| row.track.first).min();
    let all = sum(bytes_of(group), |row| row.total);
    let position = super::super::process_view::rank(sort, live, count, first);
    (position, Reverse(all.bytes().0), Reverse(object_counts(group)))
}

fn site(
    group: &[NamedRow<'_>],
    list_kind: SiteListKind,
    tables: &[OwnedTable<'_>],
    at: Timestamp,
    registry: &SiteRegistry,
) -> SiteView {
    let name = group.first().map_or(SiteName::Unknown, |(name, ..)| *name);
    let (kinds, objects) = (by_kind(group), by_object(group));
    let all = merge_rows(kinds.iter());
    let counted = merge_rows(kinds.iter().filter(|row| list_kind.counts(row.resource)));
    // Without memory, the times are those of objects.
    let any = all.clone().or_else(|| merge_rows(objects.iter()));
    let start = tables.first().map(|(_, table)| table.start()).unwrap_or_default();
    let totals = counted.as_ref();
    let count = |field: fn(&SiteRow) -> u64| totals.map_or(0, field);
    let bytes = |field: fn(&SiteRow) -> ByteSum| totals.map_or(Bytes(0), |row| field(row).bytes());
    SiteView {
        name,
        frames: registry.frames_of(name),
        live_bytes: bytes(|row| row.track.live),
        live_allocations: count(SiteRow::live_count),
        grown: totals.map_or(0, |row| row.track.live.signed_difference(row.shown)),
        bytes_total: bytes(|row| row.total),
        allocations_total: count(SiteRow::allocations),
        freed_total: count(SiteRow::freed),
        sampling: totals.and_then(|row| row.track.sampled),
        peak_bytes: bytes(|row| row.peak),
        peak_at: totals.and_then(|row| row.peak_at),
        seen: any.as_ref().map(|row| (row.track.first, row.track.last)).unwrap_or_default(),
        lifetimes: all.as_ref().map(|row| row.track.lifetimes.iter().collect()).unwrap_or_default(),
        longest_lifetime: all.as_ref().and_then(|row| row.track.lifetimes.max()),
        growth: growth(totals, start, at),
        kinds: kinds.iter().filter_map(kind).collect(),
        objects: objects.iter().filter_map(object).collect(),
        processes: processes(group, list_kind, tables),
    }
}

/// Merges rows into one per kind.
fn by_kind(group: &[NamedRow<'_>]) -> Vec<SiteRow> {
    let of = |kind: MemoryKind| {
        merge_rows(
            group
                .iter()
                .map(|(_, _, row)| *row)
                .filter(move |row| row.resource == ResourceKind::Memory(kind)),
        )
    };
    MemoryKind::ALL.into_iter().filter_map(of).collect()
}

/// Merges rows into one per object kind.
fn by_object(group: &[NamedRow<'_>]) -> Vec<SiteRow> {
    let of = |kind: ObjectKind| {
        let rows = group.iter().map(|(_, _, row)| *row);
        merge_rows(rows.filter(move |row| row.resource == ResourceKind::Object(kind)))
    };
    ObjectKind::ALL.into_iter().filter_map(of).collect()
}

fn merge_rows<'a>(mut rows: impl Iterator<Item = &'a SiteRow>) -> Option<SiteRow> {
    let mut all = rows.next()?.clone();
    rows.for_each(|row| all.merge(row));
    Some(all)
}

fn growth(counted: Option<&SiteRow>, start: Timestamp, at: Timestamp) -> SiteHistory {
    match counted {
        Some(row) => row.track.history.history(start, at - start, row.track.live.bytes().0),
        None => GrowthHistory::default().history(start, at - start, 0),
    }
}

fn kind(row: &SiteRow) -> Option<SiteKindView> {
    Some(SiteKindView {
        kind: row.resource.kind()?,
        live_bytes: row.track.live.bytes(),
        live_allocations: row.live_count(),
        unknown_sizes: row.unknown_sizes,
        bytes_total: row.total.bytes(),
        allocations_total: row.allocations(),
        freed_total: row.freed(),
        peak_bytes: row.peak.bytes(),
    })
}

fn object(row: &SiteRow) -> Option<SiteObjectView> {
    Some(SiteObjectView {
        kind: row.resource.object()?,
        live: row.track.count,
        created: row.track.allocations,
        destroyed: row.track.freed,
    })
}

/// Live memory of one process, by kind.
fn live_kinds(rows: &[NamedRow<'_>]) -> Vec<KindView> {
    let live = by_kind(rows).into_iter().filter(|row| row.track.count > 0);
    live.filter_map(|row| Some(KindView::from(&kind(&row)?))).collect()
}

/// Memory of each process, largest first.
fn processes(
    group: &[NamedRow<'_>],
    list_kind: SiteListKind,
    tables: &[OwnedTable<'_>],
) -> Vec<SiteProcess> {
    if tables.len() < 2 && tables.iter().all(|(pid, _)| pid.is_none()) {
        return Vec::new();
    }
    let of_one = |rows: &[NamedRow<'_>]| {
        let (_, table, _) = rows.first()?;
        let (pid, _) = tables.get(*table)?;
        Some(SiteProcess {
            pid: *pid,
            live_bytes: sum(counted(rows, list_kind), |row| row.track.live).bytes(),
            live_allocations: counted(rows, list_kind).map(SiteRow::live_count).sum(),
            kinds: live_kinds(rows),
        })
    };
    let by_table = group.chunk_by(|(_, a, _), (_, b, _)| a == b);
    let mut processes: Vec<_> = by_table.filter_map(of_one).collect();
    processes.sort_by_key(|one| (Reverse(one.live_bytes), Reverse(one.live_allocations), one.pid));
    processes
}
