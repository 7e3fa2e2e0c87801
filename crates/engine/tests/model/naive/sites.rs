//! Allocation sites, computed by scanning a complete log.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use engine::model::ids::{Pid, SiteId};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{CallStack, Frame, SiteName, site_name};
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::{
    KindView, SiteHistory, SiteKindView, SiteProcess, SiteView, SnapshotOptions, SortOrder,
};

use super::objects::{self, ObjectLine, ObjectOp};
use super::{Naive, Process};

/// A log line about an allocation of a site.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) at: Timestamp,
    pub(super) site: Option<SiteId>,
    pub(super) kind: MemoryKind,
    pub(super) op: SiteOp,
}

#[derive(Clone, Copy)]
pub(super) enum SiteOp {
    Begin(u64),
    OpenAgain,
    Close,
    /// The size grew by `more`, from 0 if `first`.
    Learn {
        more: u64,
        first: bool,
    },
    Free {
        bytes: u64,
        allocated_at: Timestamp,
        openings: u64,
    },
    Release {
        bytes: u64,
    },
}

impl Line {
    fn change(&self) -> i64 {
        match self.op {
            SiteOp::Begin(bytes) | SiteOp::Learn { more: bytes, .. } => bytes as i64,
            SiteOp::Free { bytes, .. } | SiteOp::Release { bytes } => -(bytes as i64),
            SiteOp::OpenAgain | SiteOp::Close => 0,
        }
    }

    fn is_call(&self) -> bool {
        matches!(self.op, SiteOp::Begin(_) | SiteOp::OpenAgain)
    }
}

fn live(log: &[Line]) -> i64 {
    log.iter().map(Line::change).sum()
}

fn count(log: &[Line]) -> u64 {
    let one = |line: &Line| match line.op {
        SiteOp::Begin(_) => 1,
        SiteOp::Free { .. } | SiteOp::Release { .. } => -1,
        _ => 0,
    };
    log.iter().map(one).sum::<i64>() as u64
}

fn unknown_sizes(log: &[Line]) -> u64 {
    let one = |line: &Line| match line.op {
        SiteOp::Begin(0) => 1,
        SiteOp::Learn { first: true, .. }
        | SiteOp::Free { bytes: 0, .. }
        | SiteOp::Release { bytes: 0 } => -1,
        _ => 0,
    };
    log.iter().map(one).sum::<i64>() as u64
}

fn total(log: &[Line]) -> u64 {
    let allocations =
        log.iter().filter(|line| matches!(line.op, SiteOp::Begin(_) | SiteOp::Learn { .. }));
    allocations.map(|line| line.change() as u64).sum()
}

fn freed(log: &[Line]) -> u64 {
    let one = |line: &Line| match line.op {
        SiteOp::Free { openings, .. } => openings,
        SiteOp::Close => 1,
        _ => 0,
    };
    log.iter().map(one).sum()
}

/// Returns the peak and the first time it was reached.
fn peak(log: &[Line]) -> (u64, Option<Timestamp>) {
    let mut best = (0, None);
    for end in 1..=log.len() {
        let now = live(&log[..end]) as u64;
        if now > best.0 {
            best = (now, Some(log[end - 1].at));
        }
    }
    best
}

/// The log of one process, site and kind, and its length at the last snapshot.
struct SiteLog {
    owner: usize,
    pid: Pid,
    kind: MemoryKind,
    log: Vec<Line>,
    shown: i64,
}

impl Naive {
    /// Returns the sites of some processes.
    pub(super) fn sites(
        &self,
        processes: &[(&Process, bool)],
        at: Timestamp,
        options: &SnapshotOptions,
        with_processes: bool,
    ) -> (Vec<SiteView>, u64) {
        let mut groups: BTreeMap<SiteName, Vec<SiteLog>> = BTreeMap::new();
        for (owner, (process, was_shown)) in processes.iter().enumerate() {
            let of: BTreeSet<_> = process.log.iter().map(|line| (line.site, line.kind)).collect();
            for (site, kind) in of {
                let own = |line: &&Line| line.site == site && line.kind == kind;
                let seen = if *was_shown { process.log.len() } else { process.shown };
                let part = SiteLog {
                    owner,
                    pid: process.key.pid,
                    kind,
                    log: process.log.iter().filter(own).copied().collect(),
                    shown: process.log[..seen].iter().filter(own).map(Line::change).sum(),
                };
                groups.entry(self.site_name(site)).or_default().push(part);
            }
        }
        let mut of_objects: BTreeMap<SiteName, Vec<(usize, Pid, ObjectLine)>> = BTreeMap::new();
        for (owner, (process, _)) in processes.iter().enumerate() {
            for line in process.object_lines() {
                let name = self.site_name(line.site);
                groups.entry(name).or_default();
                of_objects.entry(name).or_default().push((owner, process.key.pid, *line));
            }
        }
        let mut sites: Vec<_> = groups
            .into_iter()
            .map(|(name, parts)| {
                let all = parts.iter().map(|part| total(&part.log)).sum::<u64>();
                let objects = of_objects.remove(&name).unwrap_or_default();
                let mut site = self.site(name, &parts, at);
                add_objects(&mut site, &objects, parts.is_empty());
                if with_processes {
                    site.processes = holders(&parts, &objects);
                }
                let first = if parts.is_empty() { u64::MAX } else { site.seen.0.0 };
                (all, first, site)
            })
            .collect();
        let count = sites.len() as u64;
        sites.sort_by_key(|(all, first, site)| {
            let rank = match options.sort {
                SortOrder::Size => (Reverse(site.live_bytes.0), 0),
                SortOrder::Count => (Reverse(site.live_allocations), 0),
                SortOrder::Age => (Reverse(0), *first),
            };
            (rank, Reverse(*all), Reverse(object_counts(site)), site.name)
        });
        let mut sites: Vec<_> = sites.into_iter().map(|(_, _, site)| site).collect();
        let mut more = sites.split_off(options.top_sites.min(sites.len()));
        more.retain(|site| !site.objects.is_empty());
        more.sort_by_key(|site| Reverse(object_counts(site)));
        more.truncate(options.top_sites);
        sites.extend(more);
        (sites, count)
    }

    pub(super) fn site_name(&self, site: Option<SiteId>) -> SiteName {
        let Some(site) = site else { return SiteName::Unknown };
        let frames: Option<&Vec<Frame>> = self.frames.get(&site);
        frames.map_or(SiteName::Pending(site), |frames| SiteName::Resolved(site_name(frames)))
    }

    /// Returns the frames of a site; headlines have their own tests.
    pub(super) fn frames_of(&self, name: SiteName) -> CallStack {
        let mut resolved = self.frames.iter();
        let found = resolved.find(|(site, _)| self.site_name(Some(**site)) == name);
        let frames = found.map(|(_, frames)| &frames[..]).unwrap_or_default();
        self.stacks.clone().call_stack_of(frames)
    }

    fn site(&self, name: SiteName, parts: &[SiteLog], at: Timestamp) -> SiteView {
        let device: Vec<_> = parts.iter().filter(|p| p.kind.takes_device_memory()).collect();
        let sum = |of: fn(&[Line]) -> u64| device.iter().map(|part| of(&part.log)).sum::<u64>();
        let lines = || parts.iter().flat_map(|part| &part.log);
        let calls = || lines().filter(|line| line.is_call()).map(|line| line.at);
        let live_now = |log: &[Line]| live(log) as u64;
        let mut lifetimes: BTreeMap<u8, u64> = BTreeMap::new();
        let mut longest = None;
        for line in lines() {
            if let SiteOp::Free { allocated_at, .. } = line.op {
                let lifetime = line.at - allocated_at;
                longest = longest.max(Some(lifetime));
                let power = (0..64).rev().find(|power| lifetime.0 >> power > 0).unwrap_or(0);
                *lifetimes.entry(power).or_default() += 1;
            }
        }
        SiteView {
            name,
            frames: self.frames_of(name),
            live_bytes: Bytes(sum(live_now)),
            live_allocations: sum(count),
            grown: device.iter().map(|part| live(&part.log) - part.shown).sum(),
            bytes_total: Bytes(sum(total)),
            allocations_total: sum(|log| log.iter().filter(|line| line.is_call()).count() as u64),
            freed_total: sum(freed),
            sampling: None,
            peak_bytes: Bytes(sum(|log| peak(log).0)),
            peak_at: if let [only] = device[..] { peak(&only.log).1 } else { None },
            seen: (calls().min().unwrap_or_default(), calls().max().unwrap_or_default()),
            lifetimes: lifetimes.into_iter().collect(),
            longest_lifetime: longest,
            growth: self.growth(&device, at),
            kinds: MemoryKind::ALL.into_iter().filter_map(|kind| kind_view(kind, parts)).collect(),
            objects: Vec::new(),
            processes: Vec::new(),
        }
    }

    /// Returns live memory at the end of each window; windows double in length until 32 suffice.
    fn growth(&self, parts: &[&SiteLog], at: Timestamp) -> SiteHistory {
        let start = self.start.unwrap_or_default();
        let mut window = 1 << 20;
        while (at - start).0 / window >= 32 {
            window *= 2;
        }
        let last = (at - start).0 / window;
        let end = |number: u64| {
            let before = start.0 + (number + 1) * window;
            let lines = parts.iter().flat_map(|part| &part.log);
            lines.filter(|line| line.at.0 < before).map(Line::change).sum::<i64>()
        };
        let live = (0..=last).map(|number| Bytes(end(number) as u64)).collect();
        SiteHistory { start, window: Nanos(window), live }
    }
}

fn kind_view(kind: MemoryKind, parts: &[SiteLog]) -> Option<SiteKindView> {
    let of: Vec<_> = parts.iter().filter(|part| part.kind == kind).collect();
    let sum = |field: fn(&[Line]) -> u64| of.iter().map(|part| field(&part.log)).sum::<u64>();
    (!of.is_empty()).then(|| SiteKindView {
        kind,
        live_bytes: Bytes(sum(|log| live(log) as u64)),
        live_allocations: sum(count),
        unknown_sizes: sum(unknown_sizes),
        bytes_total: Bytes(sum(total)),
        allocations_total: sum(|log| log.iter().filter(|line| line.is_call()).count() as u64),
        freed_total: sum(freed),
        peak_bytes: Bytes(sum(|log| peak(log).0)),
    })
}

/// Returns live objects of a site, and all that were ever created.
fn object_counts(site: &SiteView) -> (u64, u64) {
    let objects = || site.objects.iter();
    (objects().map(|view| view.live).sum(), objects().map(|view| view.created).sum())
}

/// Adds objects; `alone`: the site has no memory.
fn add_objects(site: &mut SiteView, objects: &[(usize, Pid, ObjectLine)], alone: bool) {
    let lines: Vec<_> = objects.iter().map(|(_, _, line)| *line).collect();
    site.objects = objects::of_site(&lines);
    if alone {
        let created =
            || lines.iter().filter(|line| line.op == ObjectOp::Created).map(|line| line.at);
        site.seen = (created().min().unwrap_or_default(), created().max().unwrap_or_default());
    }
}

/// Returns what one process holds of one kind, if anything.
fn kind_of(parts: &[SiteLog], owner: usize, kind: MemoryKind) -> Option<KindView> {
    let held = || parts.iter().filter(|part| part.owner == owner && part.kind == kind);
    let view = KindView {
        kind,
        live_bytes: Bytes(held().map(|part| live(&part.log) as u64).sum()),
        live_allocations: held().map(|part| count(&part.log)).sum(),
        unknown_sizes: held().map(|part| unknown_sizes(&part.log)).sum(),
    };
    Some(view).filter(|view| view.live_allocations > 0)
}

fn holders(parts: &[SiteLog], objects: &[(usize, Pid, ObjectLine)]) -> Vec<SiteProcess> {
    let mut owners: BTreeSet<_> = parts.iter().map(|part| (part.owner, part.pid)).collect();
    owners.extend(objects.iter().map(|(owner, pid, _)| (*owner, *pid)));
    let of = |(owner, pid): &(usize, Pid)| {
        let held = || parts.iter().filter(|p| p.owner == *owner && p.kind.takes_device_memory());
        SiteProcess {
            pid: Some(*pid),
            live_bytes: Bytes(held().map(|part| live(&part.log) as u64).sum()),
            live_allocations: held().map(|part| count(&part.log)).sum(),
            kinds: MemoryKind::ALL
                .into_iter()
                .filter_map(|kind| kind_of(parts, *owner, kind))
                .collect(),
        }
    };
    let mut holders: Vec<_> = owners.iter().map(of).collect();
    holders.sort_by_key(|one| (Reverse(one.live_bytes), Reverse(one.live_allocations), one.pid));
    holders
}
