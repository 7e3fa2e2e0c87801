//! Memory and objects of each site of a process, by kind: live now, and since the start. All values
//! are updated with every event, at the cost of one lookup.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::analysis::leak::{Course, Majority, Spans};
use crate::analysis::unusual::AtSite;
use crate::change::How;
use crate::ids::{DeviceId, SiteId, Tid};
use crate::kind::Kind;
use crate::object::ObjectKind;
use crate::units::{Moment, Nanos};

use super::allocation::Entry;
use super::totals::Sum;

/// Limit of rows (site and kind) per process. Further sites share one row.
const KEPT: usize = 65_536;

/// Size of the cache of recently used rows: programs allocate and free in loops.
const RECENT: usize = 256;

/// Origin of allocations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Source {
    Site(SiteId),
    /// The call stack is unknown.
    Unknown,
    /// Sites beyond the limit.
    Other,
}

/// What a row counts: memory in bytes, or objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Held {
    Memory(Kind),
    Object(ObjectKind),
}

impl Held {
    /// Unique number below 256.
    const fn number(self) -> u64 {
        match self {
            Self::Memory(kind) => kind.index() as u64,
            Self::Object(kind) => 128 + kind.index() as u64,
        }
    }

    pub(super) const fn takes_device_memory(self) -> bool {
        matches!(self, Self::Memory(kind) if kind.takes_device_memory())
    }

    /// Whether these are blocks of a framework's cache: an annotation of memory that is counted
    /// elsewhere.
    pub(super) const fn is_tensors(self) -> bool {
        matches!(self, Self::Memory(Kind::Torch))
    }

    /// Whether this is driver memory.
    pub(super) const fn is_memory(self) -> bool {
        matches!(self, Self::Memory(_)) && !self.is_tensors()
    }

    /// Memory kind, if this is memory.
    pub(super) const fn kind(self) -> Option<Kind> {
        match self {
            Self::Memory(kind) => Some(kind),
            Self::Object(_) => None,
        }
    }

    /// Object kind, if this is an object.
    pub(super) const fn object(self) -> Option<ObjectKind> {
        match self {
            Self::Memory(_) => None,
            Self::Object(kind) => Some(kind),
        }
    }
}

impl Source {
    /// Unique number of a source and resource kind.
    fn number(self, held: Held) -> u64 {
        let source = match self {
            Self::Site(site) => u64::from(site.0),
            Self::Unknown => 1 << 32,
            Self::Other => 2 << 32,
        };
        source << 8 | held.number()
    }
}

/// Values of one site and kind.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) source: Source,
    pub(super) held: Held,
    pub(super) live: Sum,
    pub(super) count: u64,
    /// Total of all allocations.
    pub(super) total: Sum,
    pub(super) allocations: u64,
    /// Peak, and when it was reached; no time for merged rows, whose peaks may have been at
    /// different times.
    pub(super) peak: Sum,
    pub(super) peak_at: Option<Moment>,
    /// Number freed by calls, or implied by another allocation with the same key.
    pub(super) freed: u64,
    pub(super) first: Moment,
    pub(super) last: Moment,
    /// Sum of the allocation times of live allocations, and sum of the lifetimes of freed ones.
    began_sum: Sum,
    life_sum: Sum,
    /// Lifetimes of freed allocations.
    pub(super) spans: Spans,
    pub(super) course: Course,
    pub(super) threads: Threads,
    pub(super) devices: Majority,
    /// Number of live allocations of unknown size.
    pub(super) unknown_sizes: u64,
    /// Size of the largest allocation so far.
    largest: u64,
    /// Live bytes at the last snapshot.
    pub(super) shown: Sum,
}

impl Row {
    pub(super) fn new(source: Source, held: Held, at: Moment) -> Self {
        Self {
            source,
            held,
            live: Sum::default(),
            count: 0,
            total: Sum::default(),
            allocations: 0,
            peak: Sum::default(),
            peak_at: None,
            freed: 0,
            first: at,
            last: at,
            began_sum: Sum::default(),
            life_sum: Sum::default(),
            spans: Spans::default(),
            course: Course::default(),
            threads: Threads::Unset,
            devices: Majority::default(),
            unknown_sizes: 0,
            largest: 0,
            shown: Sum::default(),
        }
    }

    fn grow(&mut self, bytes: u64, at: Moment) {
        self.live.add(bytes);
        self.total.add(bytes);
        if self.live > self.peak {
            self.peak = self.live;
            self.peak_at = Some(at);
        }
    }

    /// Live quantity, as the classifier uses it.
    pub(super) fn quantity(&self) -> u64 {
        match self.held {
            Held::Memory(_) => self.live.bytes().0,
            Held::Object(_) => self.count,
        }
    }

    /// Mean age of live allocations.
    pub(super) fn mean_age(&self, at: Moment) -> Nanos {
        if self.count == 0 { Nanos(0) } else { at - Moment(self.began_sum.mean(self.count)) }
    }

    /// Mean lifetime of freed allocations, if any.
    pub(super) fn mean_life(&self) -> Option<Nanos> {
        (self.freed > 0).then(|| Nanos(self.life_sum.mean(self.freed)))
    }

    /// Contribution of one allocation to the quantity.
    const fn size(&self, bytes: u64) -> u64 {
        match self.held {
            Held::Memory(_) => bytes,
            Held::Object(_) => 1,
        }
    }

    /// Merges another row into this one.
    pub(super) fn absorb(&mut self, other: &Self) {
        self.course.absorb(self.quantity(), &other.course, other.quantity());
        self.live = self.live.plus(other.live);
        self.count = self.count.saturating_add(other.count);
        self.total = self.total.plus(other.total);
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.peak = self.peak.plus(other.peak);
        self.peak_at = None;
        self.freed = self.freed.saturating_add(other.freed);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.began_sum = self.began_sum.plus(other.began_sum);
        self.life_sum = self.life_sum.plus(other.life_sum);
        self.spans.absorb(&other.spans);
        self.threads = self.threads.and(other.threads);
        self.devices = self.devices.and(other.devices);
        self.unknown_sizes = self.unknown_sizes.saturating_add(other.unknown_sizes);
        self.largest = self.largest.max(other.largest);
        self.shown = self.shown.plus(other.shown);
    }
}

/// Allocating threads: none yet, one, or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Threads {
    Unset,
    One(Tid),
    Several,
}

impl Threads {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unset, threads) | (threads, Self::Unset) => threads,
            (Self::One(one), Self::One(other)) if one == other => self,
            _ => Self::Several,
        }
    }
}

/// Sites of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct SiteTable {
    rows: Vec<Row>,
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// Recently used rows, with the numbers of their sources.
    recent: Vec<(u64, u32)>,
    /// Start of the trace.
    start: Moment,
    /// Number of site rows, limited by [`MAX_SITE_ROWS`].
    sites: usize,
    /// The same for a framework's blocks, which have a separate limit.
    tensor_sites: usize,
    /// Whether sites are merged.
    merged: bool,
}

impl SiteTable {
    /// Creates a table whose windows begin with the trace.
    pub(super) fn since(start: Moment) -> Self {
        Self { start, ..Self::default() }
    }

    /// The same; `merged`: all sites share one row.
    pub(super) fn new(start: Moment, merged: bool) -> Self {
        Self { start, merged, ..Self::default() }
    }

    /// Records an allocation by a thread; returns the previous values of the site, if it is known.
    pub(super) fn add(&mut self, entry: &Entry, tid: Tid) -> Option<AtSite> {
        let held = Held::Memory(entry.kind);
        let row = self.record(entry.site(), held, entry.bytes, entry.returned_at);
        row.threads = row.threads.and(Threads::One(tid));
        row.devices.add(entry.device());
        let before = AtSite { count: row.allocations - 1, largest: row.largest };
        row.largest = row.largest.max(entry.bytes);
        matches!(row.source, Source::Site(_)).then_some(before)
    }

    /// Records an allocation or a created object.
    pub(super) fn begin(&mut self, site: Option<SiteId>, held: Held, bytes: u64, at: Moment) {
        self.record(site, held, bytes, at);
    }

    /// The same, on a device.
    pub(super) fn begin_on(
        &mut self,
        device: DeviceId,
        (site, held): (Option<SiteId>, Held),
        bytes: u64,
        at: Moment,
    ) {
        self.record(site, held, bytes, at).devices.add(Some(device));
    }

    fn record(&mut self, site: Option<SiteId>, held: Held, bytes: u64, at: Moment) -> &mut Row {
        let start = self.start;
        let row = self.row(site, held, at);
        row.course.begin(at - start, row.quantity(), row.size(bytes));
        row.allocations += 1;
        row.count += 1;
        row.began_sum.add(at.0);
        row.unknown_sizes += u64::from(bytes == 0);
        row.last = row.last.max(at);
        row.grow(bytes, at);
        row
    }

    /// Records the end of an allocation or object that was created at `began`.
    pub(super) fn finish(
        &mut self,
        (site, held): (Option<SiteId>, Held),
        bytes: u64,
        began: Moment,
        how: How,
        at: Moment,
    ) {
        let start = self.start;
        let row = self.row(site, held, at);
        row.course.finish(began - start, at - start, row.quantity(), row.size(bytes));
        row.count = row.count.saturating_sub(1);
        row.live.take(bytes);
        row.began_sum.take(began.0);
        row.unknown_sizes = row.unknown_sizes.saturating_sub(u64::from(bytes == 0));
        if matches!(how, How::Freed | How::Replaced) {
            row.freed += 1;
            row.life_sum.add((at - began).0);
            row.spans.add(at - began);
        }
    }

    /// Counts another opening of memory that is already open.
    pub(super) fn open_again(&mut self, site: Option<SiteId>, kind: Kind, at: Moment) {
        let row = self.row(site, Held::Memory(kind), at);
        row.allocations += 1;
        row.last = row.last.max(at);
    }

    /// Records the end of an allocation that had been opened `openings` times.
    pub(super) fn take(&mut self, entry: &Entry, how: How, at: Moment, openings: u64) {
        let held = Held::Memory(entry.kind);
        self.finish((entry.site(), held), entry.bytes, entry.returned_at, how, at);
        if openings != 1 && matches!(how, How::Freed | How::Replaced) {
            let row = self.row(entry.site(), held, at);
            row.freed = row.freed.saturating_add(openings).saturating_sub(1);
        }
    }

    /// Counts the close of one of several openings.
    pub(super) fn close_one(&mut self, entry: &Entry, at: Moment) {
        self.row(entry.site(), Held::Memory(entry.kind), at).freed += 1;
    }

    /// Updates the size of a live allocation when it becomes known.
    pub(super) fn resize(&mut self, entry: &Entry, bytes: u64, at: Moment) {
        let (start, more) = (self.start, bytes.saturating_sub(entry.bytes));
        let row = self.row(entry.site(), Held::Memory(entry.kind), at);
        let learned = u64::from(entry.bytes == 0 && bytes > 0);
        row.unknown_sizes = row.unknown_sizes.saturating_sub(learned);
        row.course.grow(entry.returned_at - start, at - start, row.quantity(), more);
        row.grow(more, at);
    }

    /// Updates the device of a live allocation when it becomes known.
    pub(super) fn learn_device(&mut self, entry: &Entry, device: DeviceId) {
        let row = self.row(entry.site(), Held::Memory(entry.kind), entry.returned_at);
        row.devices.replace(entry.device(), Some(device));
    }

    /// Row of a site. A site that was first seen beyond the limit never gets its own row, so that
    /// its frees are counted in the same row as its allocations.
    fn row(&mut self, site: Option<SiteId>, held: Held, at: Moment) -> &mut Row {
        let source = match site {
            Some(_) if self.merged => Source::Other,
            Some(site) => Source::Site(site),
            None => Source::Unknown,
        };
        let number = source.number(held);
        let hint = (number >> 8 ^ number) as usize % RECENT;
        let slot = match self.recent.get(hint) {
            Some(&(known, slot)) if known == number => slot,
            _ => self.look_up(source, held, at, hint),
        };
        &mut self.rows[slot as usize]
    }

    fn look_up(&mut self, source: Source, held: Held, at: Moment, hint: usize) -> u32 {
        let slot = self.find(source, held).unwrap_or_else(|| self.open(source, held, at));
        if self.recent.is_empty() {
            self.recent = vec![(u64::MAX, 0); RECENT];
        }
        if let Some(recent) = self.recent.get_mut(hint) {
            *recent = (source.number(held), slot);
        }
        slot
    }

    fn find(&self, source: Source, held: Held) -> Option<u32> {
        let number = source.number(held);
        let is = |slot: &u32| {
            let row = &self.rows[*slot as usize];
            row.source.number(row.held) == number
        };
        self.index.find(self.hasher.hash_one(number), is).copied()
    }

    #[cold]
    fn open(&mut self, source: Source, held: Held, at: Moment) -> u32 {
        let is_site = matches!(source, Source::Site(_));
        let sites = if held.is_tensors() { &mut self.tensor_sites } else { &mut self.sites };
        if is_site && *sites >= KEPT {
            let other = self.find(Source::Other, held);
            return other.unwrap_or_else(|| self.insert(Row::new(Source::Other, held, at)));
        }
        *sites += usize::from(is_site);
        self.insert(Row::new(source, held, at))
    }

    fn insert(&mut self, row: Row) -> u32 {
        let slot = self.rows.len() as u32;
        let number = row.source.number(row.held);
        self.rows.push(row);
        let Self { rows, index, hasher, .. } = self;
        index.insert_unique(hasher.hash_one(number), slot, |slot| {
            let row = &rows[*slot as usize];
            hasher.hash_one(row.source.number(row.held))
        });
        slot
    }

    /// Number of rows.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(super) fn start(&self) -> Moment {
        self.start
    }

    /// Called after a snapshot: deltas are counted from here on.
    pub(super) fn mark_shown(&mut self) {
        self.rows.iter_mut().for_each(|row| row.shown = row.live);
    }

    /// Merges all sites of a kind into one row; totals are unaffected.
    pub(super) fn put_together(&mut self) {
        if std::mem::replace(&mut self.merged, true) {
            return;
        }
        let rows = std::mem::take(&mut self.rows);
        self.index = HashTable::new();
        self.recent = Vec::new();
        (self.sites, self.tensor_sites) = (0, 0);
        for mut row in rows {
            if matches!(row.source, Source::Site(_)) {
                row.source = Source::Other;
            }
            match self.find(row.source, row.held) {
                Some(slot) => self.rows[slot as usize].absorb(&row),
                None => drop(self.insert(row)),
            }
        }
    }

    /// Frees memory that is only needed while rows change.
    pub(super) fn close(&mut self) {
        self.recent = Vec::new();
        self.rows.iter_mut().for_each(|row| row.course.close());
        self.rows.shrink_to_fit();
    }

    /// Merges the rows of a frozen table.
    pub(super) fn absorb(&mut self, other: Self) {
        for row in other.rows {
            let (source, held, first) = (row.source, row.held, row.first);
            let slot = self.find(source, held).unwrap_or_else(|| self.open(source, held, first));
            let own = &mut self.rows[slot as usize];
            if own.allocations == 0 {
                *own = Row { source: own.source, ..row };
            } else {
                own.absorb(&row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocation::New;
    use super::*;
    use crate::ids::Key;

    fn entry(site: u32, bytes: u64) -> Entry {
        let new = New::plain(Key::address(1), Kind::Device, bytes);
        Entry::new(&New { site: Some(SiteId(site)), ..new }, Moment(10), 0)
    }

    #[test]
    fn sites_beyond_the_limit_share_a_row() {
        let mut table = SiteTable::since(Moment(0));
        let count = KEPT as u32 + 100;
        for site in 0..count {
            table.add(&entry(site, 8), Tid(1));
        }
        assert_eq!(table.len(), KEPT + 1);
        let other = table.rows().iter().find(|row| row.source == Source::Other).unwrap();
        assert_eq!((other.count, other.live.bytes().0), (100, 800));
        for site in 0..count {
            table.take(&entry(site, 8), How::Freed, Moment(20), 1);
        }
        assert!(table.rows().iter().all(|row| row.count == 0 && row.live == Sum::default()));
    }

    #[test]
    fn merged_sites_keep_their_totals() {
        let mut table = SiteTable::since(Moment(0));
        for site in 0..3 {
            table.add(&entry(site, 8), Tid(1));
        }
        table.put_together();
        table.add(&entry(7, 100), Tid(2));
        assert_eq!(table.len(), 1);
        assert_eq!((table.rows()[0].live.bytes().0, table.rows()[0].count), (124, 4));
        for site in 0..3 {
            table.take(&entry(site, 8), How::Freed, Moment(20), 1);
        }
        table.put_together();
        let row = &table.rows()[0];
        assert_eq!((row.source, row.live.bytes().0, row.count), (Source::Other, 100, 1));
        assert_eq!((row.allocations, row.freed), (4, 3));
    }

    #[test]
    fn lifetimes_are_counted_by_power_of_two() {
        let mut table = SiteTable::since(Moment(0));
        for (lived, how) in [(0, How::Freed), (3, How::Freed), (1024, How::Replaced)] {
            table.add(&entry(1, 8), Tid(1));
            table.take(&entry(1, 8), how, Moment(10 + lived), 1);
        }
        table.add(&entry(1, 8), Tid(1));
        table.take(&entry(1, 8), How::Released, Moment(1 << 30), 1);
        let row = &table.rows()[0];
        assert_eq!(row.spans.iter().collect::<Vec<_>>(), [(0, 1), (1, 1), (10, 1)]);
        assert_eq!((row.freed, row.spans.longest()), (3, Some(Nanos(1024))));
    }

    #[test]
    fn site_row_tracks_majority_device_and_thread() {
        let row = |entries: &[(u32, Option<u16>)]| {
            let mut table = SiteTable::since(Moment(0));
            for &(thread, device) in entries {
                let mut entry = entry(1, 8);
                device.into_iter().for_each(|device| entry.set_device(DeviceId(device)));
                table.add(&entry, Tid(thread));
            }
            let row = &table.rows()[0];
            (row.threads, row.devices.device())
        };
        let most = row(&[(5, Some(1)), (5, Some(2)), (5, None), (5, Some(2)), (5, Some(2))]);
        assert_eq!(most, (Threads::One(Tid(5)), Some(DeviceId(2))));
        assert_eq!(row(&[(5, None), (6, None)]), (Threads::Several, None));
    }
}
