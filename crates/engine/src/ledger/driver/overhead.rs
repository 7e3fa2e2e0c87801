//! Device memory that no allocating call explains: the change of driver-reported minus traced
//! memory between two reports is assigned to the calls in between.
//!
//! With one kind of call in between the change is measured, with several it is only bounded, and
//! divided by what the objects of each kind cost before. A report that a call overlaps is merged
//! with the next one, because it may contain a part of what the call adds. So the sum over all
//! causes is always driver-reported minus traced memory at the last report that could be used.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::model::{
    Bytes, ContextLimit, Event, EventKind, MemoryKind, ObjectKind, OverheadCause, Precision,
    SiteId, SiteName, SiteRegistry, Timestamp,
};
use crate::snapshot::{CauseView, LimitView, ObjectCostView, OverheadView};

use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::super::sites::table::{ResourceKind, SiteRef, SiteRow};

/// Granularity of the driver's allocations: each allocation may be rounded by up to this.
const GRANULARITY: i128 = 2 << 20;

/// Reports that overlap calls, after which one is used nevertheless: its parts are estimates.
const MAX_OVERLAPPED: u32 = 5;

/// Reports for which a change without a cause is kept: launches are counted later than they happen.
const MAX_DEFERRED: u32 = 3;

/// Limit of objects that are searched for those of an interval.
pub(super) const MAX_SEARCHED_OBJECTS: usize = 100_000;

/// Limit of sites with a cost per process, and of those that are listed.
const MAX_COST_SITES: usize = 4096;
const MAX_LISTED_COSTS: usize = 50;

/// Object kinds that take device memory.
const COSTLY: [(ObjectKind, OverheadCause); 4] = [
    (ObjectKind::Module, OverheadCause::Module),
    (ObjectKind::Library, OverheadCause::Module),
    (ObjectKind::GraphExec, OverheadCause::GraphExec),
    (ObjectKind::Stream, OverheadCause::Stream),
];

/// Calls of a process up to a given time, by what they can cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Calls {
    /// Objects that began, and that ended, by cause.
    began: [u64; OverheadCause::ALL.len()],
    ended: [u64; OverheadCause::ALL.len()],
    /// Calls by limit.
    limits: [u64; ContextLimit::ALL.len()],
    /// Allocations and frees of device memory.
    allocations: u64,
}

impl Calls {
    fn since(&self, before: &Self) -> Self {
        fn less<const N: usize>(now: &[u64; N], before: &[u64; N]) -> [u64; N] {
            std::array::from_fn(|index| now[index].saturating_sub(before[index]))
        }
        Self {
            began: less(&self.began, &before.began),
            ended: less(&self.ended, &before.ended),
            limits: less(&self.limits, &before.limits),
            allocations: self.allocations.saturating_sub(before.allocations),
        }
    }
}

/// Memory with one cause.
#[derive(Clone, Copy, Debug, Default)]
struct Account {
    bytes: i128,
    /// How much less, and how much more, it may be.
    less: i128,
    more: i128,
    is_estimated: bool,
    /// Bytes and number of objects of intervals with no other cause.
    alone: (i128, u64),
}

/// A report of the driver, with the change since the last one that was assigned.
#[derive(Clone, Copy, Debug)]
struct Report {
    queried_at: Timestamp,
    /// Driver-reported minus traced memory.
    untracked: i128,
    /// All calls up to it.
    calls: Calls,
}

/// Cost of objects of one kind from one site.
#[derive(Clone, Copy, Debug, Default)]
struct ObjectCost {
    count: u64,
    bytes: i128,
    min: i128,
    max: i128,
    /// Sum and number of the images that are known.
    images: (u64, u64),
}

/// A limit that the process has set, and what its calls changed.
#[derive(Clone, Copy, Debug, Default)]
struct LimitAccount {
    value: Option<u64>,
    calls: u64,
    bytes: i128,
    min: i128,
    max: i128,
    is_estimated: bool,
}

/// Memory of one process beyond its traced allocations.
#[derive(Debug, Default)]
pub(crate) struct Overhead {
    accounts: [Account; OverheadCause::ALL.len()],
    costs: HashMap<(ObjectKind, Option<SiteId>), ObjectCost>,
    /// Limits, and the number of calls that raised and that lowered one.
    limits: [LimitAccount; ContextLimit::ALL.len()],
    raised: u64,
    lowered: u64,
    /// Last report whose change was assigned.
    assigned: Option<Report>,
    /// The newest report: calls that have not returned yet may overlap it.
    newest: Option<Report>,
    /// Entry of the earliest call that returned after the newest report.
    entered: Option<Timestamp>,
    /// When the last call returned.
    returned: Timestamp,
    /// Consecutive reports that overlapped calls, and that had a change without a cause.
    overlapped: u32,
    deferred: u32,
    /// Number of calls that return memory of pools, and of launches of graphs.
    pub(crate) pool_trims: u64,
    pub(crate) graph_launches: u64,
}

impl Overhead {
    /// Records a call that can change the driver's memory.
    pub(crate) fn record_call(&mut self, event: &Event) {
        if matches!(
            event.kind,
            EventKind::Allocate(_)
                | EventKind::Free(_)
                | EventKind::Vmm(_)
                | EventKind::Pool(_)
                | EventKind::Graph(_)
                | EventKind::Context(_)
                | EventKind::Object(_)
                | EventKind::Limit { .. }
        ) {
            let entered = event.entry_time;
            self.entered = Some(self.entered.map_or(entered, |first| first.min(entered)));
            self.returned = self.returned.max(event.time);
        }
    }

    /// Forgets the reports: the next one has no predecessor.
    pub(crate) fn clear(&mut self) {
        let (costs, limits) = (std::mem::take(&mut self.costs), self.limits);
        let (raised, lowered) = (self.raised, self.lowered);
        *self = Self { costs, limits, raised, lowered, ..Self::default() };
    }

    /// Sets a limit.
    pub(crate) fn set_limit(&mut self, limit: ContextLimit, value: u64) {
        let Some(account) = self.limits.get_mut(limit.index()) else { return };
        match account.value.unwrap_or(limit.default_value()) <= value {
            true => self.raised += 1,
            false => self.lowered += 1,
        }
        account.value = Some(value);
        account.calls += 1;
    }

    /// Returns the limits that were set.
    fn limit_views(&self) -> Vec<LimitView> {
        let mut limits = self.limits;
        if let Some(newest) = &self.newest {
            let delta = newest.untracked - self.assigned.map_or(0, |report| report.untracked);
            let before = self.assigned.map(|report| report.calls).unwrap_or_default();
            let calls = newest.calls.since(&before);
            assign_limits(&mut limits, &self.accounts, delta, &calls, !self.is_clean());
        }
        let signed = |bytes: i128| {
            i64::try_from(bytes).unwrap_or(if bytes < 0 { i64::MIN } else { i64::MAX })
        };
        let view = |(limit, account): (ContextLimit, &LimitAccount)| {
            Some(LimitView {
                limit,
                value: account.value?,
                calls: account.calls,
                bytes: signed(account.bytes),
                min: signed(account.min),
                max: signed(account.max),
                precision: match account {
                    LimitAccount { is_estimated: true, .. } => Precision::Estimated,
                    account if account.min == account.max => Precision::Measured,
                    _ => Precision::Bounded,
                },
            })
        };
        ContextLimit::ALL.into_iter().zip(&limits).filter_map(view).collect()
    }

    /// Whether the newest report can be assigned: no call overlapped it.
    fn is_clean(&self) -> bool {
        let newest = self.newest.map(|report| report.queried_at);
        self.entered.is_none_or(|entered| newest.is_some_and(|at| entered >= at))
    }

    /// Whether no call returned around or since the newest report.
    fn is_settled(&self) -> bool {
        self.newest.is_some_and(|newest| self.is_clean() && self.returned <= newest.queried_at)
    }

    /// Adds what is in accounts, and the newest report as if it was the last one.
    fn with_newest(&self) -> [Account; OverheadCause::ALL.len()] {
        let mut accounts = self.accounts;
        if let Some(newest) = &self.newest {
            let delta = newest.untracked - self.assigned.map_or(0, |report| report.untracked);
            let before = self.assigned.map(|report| report.calls).unwrap_or_default();
            assign(&mut accounts, delta, &newest.calls.since(&before), !self.is_clean());
        }
        accounts
    }
}

/// What can have changed the memory in an interval, with the number of objects.
fn candidates(delta: i128, calls: &Calls) -> Vec<(OverheadCause, u64)> {
    let counts = if delta >= 0 { &calls.began } else { &calls.ended };
    let all = OverheadCause::ALL.into_iter().zip(counts);
    all.filter(|(_, count)| **count > 0).map(|(cause, count)| (cause, *count)).collect()
}

/// Assigns a change to causes. What no cause explains is not assigned.
fn assign(
    accounts: &mut [Account; OverheadCause::ALL.len()],
    delta: i128,
    calls: &Calls,
    is_estimated: bool,
) {
    let rounding = i128::from(calls.allocations).saturating_mul(GRANULARITY);
    let found = candidates(delta, calls);
    if found.is_empty() {
        // Rounding of the allocations in between, unless the change is too large for that.
        if calls.allocations > 0 && delta.abs() <= rounding {
            let account = &mut accounts[OverheadCause::Rounding.index()];
            account.bytes += delta;
            account.is_estimated |= is_estimated;
        }
        return;
    }
    let is_mixed =
        calls.began.iter().any(|count| *count > 0) && calls.ended.iter().any(|count| *count > 0);
    for (cause, part, count) in shares(accounts, delta, &found) {
        let account = &mut accounts[cause.index()];
        account.bytes += part;
        account.is_estimated |= is_estimated || is_mixed;
        match found.len() {
            1 => {
                account.less += rounding.min(delta.abs());
                if delta > 0 && count > 0 && rounding == 0 && !is_mixed {
                    account.alone.0 += part;
                    account.alone.1 += count;
                }
            }
            _ if delta >= 0 => {
                account.less += part;
                account.more += delta - part;
            }
            _ => {
                account.less += part - delta;
                account.more -= part;
            }
        }
    }
}

/// Adds a change between two reports to the limits that were set in between.
fn assign_limits(
    limits: &mut [LimitAccount],
    accounts: &[Account; OverheadCause::ALL.len()],
    delta: i128,
    calls: &Calls,
    is_estimated: bool,
) {
    let found = candidates(delta, calls);
    let all = shares(accounts, delta, &found);
    let Some((_, part, _)) = all.iter().find(|(cause, ..)| *cause == OverheadCause::Limit) else {
        return;
    };
    let count = calls.limits.iter().filter(|count| **count > 0).count();
    let rounding = i128::from(calls.allocations).saturating_mul(GRANULARITY).min(delta.abs());
    let is_alone = found.len() == 1 && count == 1;
    for (account, _) in limits.iter_mut().zip(calls.limits).filter(|(_, calls)| *calls > 0) {
        account.bytes += part / count.max(1) as i128;
        account.min += if is_alone { delta - rounding } else { delta.min(0) };
        account.max += if is_alone { delta } else { delta.max(0) };
        account.is_estimated |= is_estimated;
    }
}

/// Divides a change among several causes: first what objects of each cost when they were measured
/// alone, then the rest to the first cause without such a value.
fn shares(
    accounts: &[Account; OverheadCause::ALL.len()],
    delta: i128,
    found: &[(OverheadCause, u64)],
) -> Vec<(OverheadCause, i128, u64)> {
    let unit = |cause: OverheadCause| {
        let (bytes, count) = accounts[cause.index()].alone;
        (count > 0).then(|| bytes / i128::from(count))
    };
    let sign = if delta < 0 { -1 } else { 1 };
    let mut rest = delta.abs();
    let mut shares: Vec<_> = Vec::new();
    for (cause, count) in found {
        let part = unit(*cause).map_or(0, |unit| (unit * i128::from(*count)).min(rest));
        rest -= part;
        shares.push((*cause, sign * part, *count));
    }
    let unknown = found.iter().position(|(cause, _)| unit(*cause).is_none()).unwrap_or(0);
    if let Some(first) = shares.get_mut(unknown) {
        first.1 += sign * rest;
    }
    shares
}

impl Process {
    /// Applies a report of the driver: `queried_at` is the time of the query. Reports on several
    /// GPUs have the same time.
    pub(crate) fn measure_overhead(&mut self, queried_at: Timestamp) {
        let driver = self.devices.driver_bytes().unwrap_or(0);
        let untracked = i128::from(driver) - i128::from(self.totals.live.bytes().0);
        let calls = self.calls_so_far();
        let overhead = &mut self.overhead;
        let is_first = overhead.newest.is_none();
        let is_same = overhead.newest.is_some_and(|newest| newest.queried_at == queried_at);
        if !is_same {
            let is_clean = overhead.is_clean();
            overhead.overlapped = if is_clean { 0 } else { overhead.overlapped + 1 };
            if is_clean || overhead.overlapped > MAX_OVERLAPPED {
                self.assign_newest(!is_clean);
            }
            self.overhead.entered = None;
        }
        let overhead = &mut self.overhead;
        // A call that returned after the query may be in the report or not.
        if overhead.returned > queried_at {
            overhead.entered = Some(Timestamp(0));
        }
        overhead.newest = Some(Report { queried_at, untracked, calls });
        if is_first && self.before_trace {
            overhead.accounts[OverheadCause::BeforeTrace.index()].bytes = untracked.max(0);
            overhead.assigned = overhead.newest;
        }
    }

    /// Assigns the change up to the newest report.
    fn assign_newest(&mut self, is_estimated: bool) {
        let Some(newest) = self.overhead.newest else { return };
        let assigned = self.overhead.assigned;
        let delta = newest.untracked - assigned.map_or(0, |report| report.untracked);
        let calls = newest.calls.since(&assigned.map(|report| report.calls).unwrap_or_default());
        let since = assigned.map_or(Timestamp(0), |report| report.queried_at);
        let rounding = i128::from(calls.allocations).saturating_mul(GRANULARITY);
        let has_cause = delta.abs() <= rounding || !candidates(delta, &calls).is_empty();
        self.overhead.deferred = if has_cause { 0 } else { self.overhead.deferred + 1 };
        if self.overhead.deferred > 0 && self.overhead.deferred <= MAX_DEFERRED {
            return;
        }
        assign(&mut self.overhead.accounts, delta, &calls, is_estimated);
        let Overhead { limits, accounts, .. } = &mut self.overhead;
        assign_limits(limits, accounts, delta, &calls, is_estimated);
        self.record_costs(delta, &calls, (since, newest.queried_at));
        self.overhead.assigned = Some(newest);
    }

    /// Adds the cost of objects that were created between two reports to their sites.
    fn record_costs(&mut self, delta: i128, calls: &Calls, span: (Timestamp, Timestamp)) {
        let found = candidates(delta, calls);
        if delta <= 0 || found.is_empty() {
            return;
        }
        let rounding = i128::from(calls.allocations).saturating_mul(GRANULARITY);
        let shares = shares(&self.overhead.accounts, delta, &found);
        for (kind, cause) in COSTLY {
            let Some((_, part, count)) = shares.iter().find(|(known, ..)| *known == cause) else {
                continue;
            };
            let count = i128::from(*count).max(1);
            let is_alone = found.len() == 1 && count == 1;
            let images = self.images_of(cause, span, count);
            for (site, image) in self.objects.created_in(kind, span) {
                let costs = &mut self.overhead.costs;
                if costs.len() >= MAX_COST_SITES && !costs.contains_key(&(kind, site)) {
                    continue;
                }
                let cost = costs.entry((kind, site)).or_default();
                cost.count += 1;
                // Images say which of several modules is the larger one.
                cost.bytes += images.map_or(part / count, |all| part * i128::from(image) / all);
                if image > 0 {
                    cost.images.0 = cost.images.0.saturating_add(image);
                    cost.images.1 += 1;
                }
                cost.min += if is_alone { (delta - rounding).max(0) } else { 0 };
                cost.max += delta;
            }
        }
    }

    /// Returns the total size of the images of the objects that were created between two reports, if all
    /// of them are known.
    fn images_of(
        &self,
        cause: OverheadCause,
        span: (Timestamp, Timestamp),
        count: i128,
    ) -> Option<i128> {
        let kinds = COSTLY.iter().filter(|(_, own)| *own == cause);
        let new: Vec<_> =
            kinds.flat_map(|(kind, _)| self.objects.created_in(*kind, span)).collect();
        let is_known = new.len() as i128 == count && new.iter().all(|(_, image)| *image > 0);
        is_known.then(|| new.iter().map(|(_, image)| i128::from(*image)).sum())
    }

    fn calls_so_far(&self) -> Calls {
        let mut calls = Calls::default();
        let mut add = |cause: OverheadCause, began: u64, ended: u64| {
            calls.began[cause.index()] += began;
            calls.ended[cause.index()] += ended;
        };
        for (kind, cause) in COSTLY {
            let (began, ended) = self.objects.began_and_ended(kind);
            add(cause, began, ended);
        }
        let (began, ended) = self.contexts.began_and_ended();
        add(OverheadCause::Context, began, ended);
        let kernels = self.activity.as_deref().map_or(0, |activity| activity.kernel_count());
        add(OverheadCause::FirstLaunch, kernels, 0);
        let counts = &self.counts;
        let overhead = &self.overhead;
        if !self.pools.views().is_empty() {
            let freed = counts.frees + counts.released + overhead.pool_trims;
            add(OverheadCause::Pool, counts.allocations, freed);
        }
        if self.totals.of(MemoryKind::Graph) > ByteSum::default() {
            add(OverheadCause::GraphMemory, overhead.graph_launches, overhead.graph_launches);
        }
        add(OverheadCause::Limit, overhead.raised, overhead.lowered);
        add(OverheadCause::BeforeTrace, 0, counts.unknown_frees);
        calls.limits = overhead.limits.map(|limit| limit.calls);
        calls.allocations = counts.allocations + counts.frees + counts.released;
        calls
    }

    /// Returns the memory beyond traced allocations, by cause.
    pub(crate) fn overhead_view(&self, registry: &SiteRegistry) -> OverheadView {
        let accounts = self.overhead.with_newest();
        let positive = |bytes: i128| Bytes(u64::try_from(bytes.max(0)).unwrap_or(u64::MAX));
        let view = |(cause, account): (OverheadCause, &Account)| CauseView {
            cause,
            bytes: positive(account.bytes),
            min: positive(account.bytes - account.less),
            max: positive(account.bytes + account.more),
            precision: match account {
                account if account.is_estimated => Precision::Estimated,
                Account { less: 0, more: 0, .. } => Precision::Measured,
                _ => Precision::Bounded,
            },
            count: self.live_count(cause),
        };
        let all = OverheadCause::ALL.into_iter().zip(&accounts);
        let causes = all.filter(|(_, account)| account.bytes > 0).map(view).collect();
        OverheadView {
            causes,
            is_settled: self.overhead.is_settled(),
            limits: self.overhead.limit_views(),
            objects: self.object_costs(registry),
        }
    }

    /// Number of live objects or kernels of a cause.
    fn live_count(&self, cause: OverheadCause) -> u64 {
        let calls = self.calls_so_far();
        let index = cause.index();
        match cause {
            OverheadCause::Context
            | OverheadCause::Module
            | OverheadCause::FirstLaunch
            | OverheadCause::GraphExec
            | OverheadCause::Stream => calls.began[index].saturating_sub(calls.ended[index]),
            _ => 0,
        }
    }

    fn object_costs(&self, registry: &SiteRegistry) -> Vec<ObjectCostView> {
        // Several ids may have the same frames: they are one site.
        let mut sums: BTreeMap<(ObjectKind, SiteName), (ObjectCost, u64)> = BTreeMap::new();
        for ((kind, site), cost) in &self.overhead.costs {
            let (sum, live) = sums.entry((*kind, registry.name(*site))).or_default();
            sum.count += cost.count;
            sum.bytes += cost.bytes;
            sum.min += cost.min;
            sum.max += cost.max;
            sum.images.0 = sum.images.0.saturating_add(cost.images.0);
            sum.images.1 += cost.images.1;
            let source = site.map_or(SiteRef::Unknown, SiteRef::Site);
            let is_own = |row: &&SiteRow| {
                row.source == source && row.resource == ResourceKind::Object(*kind)
            };
            *live += self.sites.rows().iter().find(is_own).map_or(0, |row| row.track.count);
        }
        let mean = |bytes: i128, count: u64| {
            Bytes(u64::try_from(bytes / i128::from(count.max(1))).unwrap_or(0))
        };
        let view = |((kind, site), (cost, live))| {
            let ObjectCost { count, bytes, min, max, images } = cost;
            ObjectCostView {
                kind,
                site,
                frames: registry.frames_of(site),
                live,
                measured: count,
                bytes: mean(bytes, count),
                min: mean(min, count),
                max: mean(max, count),
                image: images.0.checked_div(images.1).map(Bytes),
            }
        };
        let costly = sums.into_iter().filter(|(_, (cost, _))| cost.bytes > 0);
        let mut views: Vec<_> = costly.map(view).collect();
        views.sort_by_key(|cost| Reverse(cost.total()));
        views.truncate(MAX_LISTED_COSTS);
        views
    }
}
