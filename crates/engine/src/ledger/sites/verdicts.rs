//! Verdicts on the sites of a process: see [`crate::leak`].
#![allow(clippy::cast_possible_truncation, reason = "casts from floats saturate")]

use std::cmp::Reverse;

use hashbrown::HashMap;

use crate::leak;
use crate::leak::{MajorityDevice, Track};
use crate::model::{
    Allocator, DeviceId, MemoryLayer, Nanos, ProcessKey, SiteName, SiteRegistry, Tid, Timestamp,
};
use crate::snapshot::Undecided;
use crate::verdict::{
    CacheTensors, Evidence, Resource, SiteVerdict, Verdict, sort_others, sort_suspects,
};

use super::super::driver::gpu_memory::GpuMemory;
use super::super::process::Process;
use super::table::{AllocatingThreads, ResourceKind, SiteRow};
use super::views::name;

/// Limit of sites per process that are checked for leaks, largest first: a verdict costs a few
/// microseconds, and there may be many thousands of sites.
const MAX_CANDIDATES: usize = 512;

/// Limit of rows that are merged into sites. If there are more, the limit is shared between the
/// largest that may leak on their own and the largest of all.
const MAX_ROWS: usize = 4096;

/// Leak suspects, and the largest other sites.
#[derive(Clone, Debug, Default)]
pub(crate) struct SiteVerdicts {
    pub(crate) suspects: Vec<SiteVerdict>,
    pub(crate) others: Vec<SiteVerdict>,
    /// Number of suspects before the list was truncated.
    pub(crate) suspects_total: u64,
    /// Running processes with growth that is too short for a verdict.
    pub(crate) undecided: HashMap<ProcessKey, Undecided>,
}

impl SiteVerdicts {
    /// Adds the verdicts of another process.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.suspects.append(&mut other.suspects);
        self.others.append(&mut other.others);
        self.undecided.extend(other.undecided);
    }

    /// Sorts and truncates both lists.
    pub(crate) fn ranked(mut self, suspects: usize, others: usize) -> Self {
        sort_suspects(&mut self.suspects);
        self.suspects_total = self.suspects.len() as u64;
        self.suspects.truncate(suspects);
        sort_others(&mut self.others);
        self.others.truncate(others);
        self
    }

    /// Adjusts suspects in PyTorch's cache by its tensors, if these are known. `captured` are the
    /// sites most of whose memory was allocated during captures.
    fn explain_cache(&mut self, process: &Process, at: Timestamp, captured: &[SiteName]) {
        let Some(torch) = process.allocators.torch() else { return };
        let (cache, mut suspects): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.suspects).into_iter().partition(is_cache);
        // The device of memory from before the trace can be unknown.
        let rate = |of: &[SiteVerdict], device: Option<DeviceId>, tensors: bool| {
            let wanted = |one: &&SiteVerdict| {
                (device.is_none() || one.device == device) && tensors == (one.resource == TORCH)
            };
            let rates = of.iter().filter(wanted).map(|one| one.evidence.growth_per_hour);
            rates.fold(0, u64::saturating_add)
        };
        let by_device: Vec<_> = cache
            .iter()
            .map(|one| {
                let tensors = torch.tensors(one.device, process, at)?;
                Some(CacheTensors {
                    growth_per_hour: rate(&suspects, one.device, true),
                    cache_growth_per_hour: rate(&cache, one.device, false),
                    during_capture: captured.contains(&one.site),
                    ..tensors
                })
            })
            .collect();
        for (mut one, tensors) in cache.into_iter().zip(by_device) {
            if let Some(tensors) = tensors {
                let own = (one.verdict, one.confidence, std::mem::take(&mut one.evidence));
                (one.verdict, one.confidence, one.evidence) = leak::classify_cache(own, tensors);
            }
            // Growth that leaking tensors explain is listed with them.
            let is_explained = one.evidence.tensors.is_some_and(|tensors| tensors.explain_growth());
            if one.verdict == Verdict::Leak {
                suspects.push(one);
            } else if !is_explained {
                self.others.push(one);
            }
        }
        self.suspects = suspects;
    }

    /// Counts a site whose growth is too short for a verdict.
    fn count_undecided(&mut self, process: &Process, one: &SiteVerdict) {
        let Some(wait) = one.evidence.time_to_verdict else { return };
        // Its tensors are classified instead.
        if process.allocators.torch().is_some() && is_cache(one) {
            return;
        }
        let empty = Undecided { sites: 0, wait };
        let undecided = self.undecided.entry(process.key).or_insert(empty);
        undecided.sites += 1;
        undecided.wait = undecided.wait.max(wait);
    }

    /// Forecasts when devices will be full, where their free memory is known.
    pub(crate) fn forecast(&mut self, process: &Process, gpus: &GpuMemory) {
        for one in &mut self.suspects {
            let on_device = match one.resource {
                Resource::Memory(kind) => kind.takes_device_memory(),
                Resource::Blocks(_) => true,
                Resource::Objects(_) => false,
            };
            let gpu = match one.device {
                Some(device) => process.devices.gpu(device),
                None => gpus.only(),
            };
            let free = gpu.filter(|_| on_device).and_then(|gpu| gpus.free(gpu));
            one.evidence.time_until_full =
                free.map(|free| Nanos::until_used_up(free.0, one.evidence.growth_per_hour));
        }
    }

    /// Updates the names of sites whose stacks have been resolved since.
    pub(crate) fn refresh_names(&mut self, registry: &SiteRegistry) {
        for one in self.suspects.iter_mut().chain(&mut self.others) {
            if let SiteName::Pending(site) = one.site {
                one.site = registry.name(Some(site));
                one.frames = registry.frames_of(one.site);
            }
        }
    }
}

/// Everything of one resource kind from one call stack.
struct SiteTotals<'a> {
    name: SiteName,
    resource: Resource,
    rows: &'a [(SiteName, ResourceKind, &'a SiteRow)],
    live: u64,
    peak: u64,
    may_leak: bool,
}

/// Classifies the sites of a process at a given time: those that may leak, and the largest others
/// up to a number.
pub(crate) fn of(
    process: &Process,
    at: Timestamp,
    others: usize,
    registry: &SiteRegistry,
) -> SiteVerdicts {
    let at = process.ended.map_or(at, |(_, ended_at)| ended_at);
    let rows = largest(process, at).into_iter();
    let mut rows: Vec<_> =
        rows.map(|row| (name(row.source, registry), row.resource, row)).collect();
    rows.sort_unstable_by_key(|(name, kind, row)| (*name, *kind, row.source));
    let sites = rows.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1));
    let mut sites: Vec<_> = sites.filter_map(|rows| SiteTotals::of(rows, process, at)).collect();
    sites.sort_unstable_by_key(|site| {
        let bytes = site.resource.is_bytes();
        (Reverse((bytes, site.live, site.peak)), site.name, site.resource)
    });
    let mut verdicts = SiteVerdicts::default();
    let (mut checked, mut captured) = (0, Vec::new());
    for site in sites {
        let listed = verdicts.others.len() < others;
        checked += usize::from(site.may_leak);
        let suspected = site.may_leak && checked <= MAX_CANDIDATES;
        if !(listed || suspected) {
            continue;
        }
        let one = site.classify(process, at, registry);
        if site.is_captured() {
            captured.push(site.name);
        }
        verdicts.count_undecided(process, &one);
        if one.verdict == Verdict::Leak {
            verdicts.suspects.push(one);
        } else if listed {
            verdicts.others.push(one);
        }
    }
    verdicts.explain_cache(process, at, &captured);
    verdicts
}

/// Tensors of PyTorch.
const TORCH: Resource = Resource::Blocks(Allocator::PyTorch);

/// Whether the memory was allocated by PyTorch's cache.
fn is_cache(one: &SiteVerdict) -> bool {
    matches!(one.resource, Resource::Memory(_)) && leak::is_torch_cache(one.frames.iter())
}

/// Rows to classify; see [`MAX_ROWS`].
fn largest(process: &Process, at: Timestamp) -> Vec<&SiteRow> {
    let rank = |row: &SiteRow| {
        let bytes = matches!(row.resource, ResourceKind::Memory(_));
        let may_leak = row.track.may_leak(at, process.ended.is_some());
        (may_leak, bytes, row.track.quantity(), row.peak)
    };
    let rows = process.sites.rows().iter();
    let rows = rows.filter(|row| row.track.allocations > 0 && resource(row.resource).is_some());
    let mut rows: Vec<_> = rows.map(|row| (Reverse(rank(row)), row)).collect();
    if rows.len() > MAX_ROWS {
        rows.select_nth_unstable_by_key(MAX_ROWS / 2, |(rank, _)| *rank);
        let (_, rest) = rows.split_at_mut(MAX_ROWS / 2);
        let by_size =
            |(Reverse((_, bytes, live, peak)), _): &(_, &SiteRow)| Reverse((*bytes, *live, *peak));
        rest.select_nth_unstable_by_key(MAX_ROWS / 2, by_size);
        rows.truncate(MAX_ROWS);
    }
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Resource that is classified; `None` for memory that the program cannot free or does not own.
const fn resource(kind: ResourceKind) -> Option<Resource> {
    match kind {
        ResourceKind::Object(kind) => Some(Resource::Objects(kind)),
        ResourceKind::Memory(kind) => leak::resource(kind),
    }
}

impl<'a> SiteTotals<'a> {
    fn of(
        rows: &'a [(SiteName, ResourceKind, &'a SiteRow)],
        process: &Process,
        at: Timestamp,
    ) -> Option<Self> {
        let (name, kind, _) = *rows.first()?;
        let all = || rows.iter().map(|(_, _, row)| *row);
        let sum =
            |of: fn(&SiteRow) -> u64| all().fold(0_u64, |sum, row| sum.saturating_add(of(row)));
        let may_leak = match rows {
            [(_, _, row)] => row.track.may_leak(at, process.ended.is_some()),
            // Together they may have enough allocations.
            _ => true,
        };
        Some(Self {
            name,
            resource: resource(kind)?,
            rows,
            live: sum(|row| row.track.quantity()),
            peak: sum(|row| row.peak.bytes().0),
            may_leak,
        })
    }

    /// Replaces numbers of samples by those of the allocations for which they stand.
    fn extrapolate(&self, evidence: &mut Evidence) {
        let rows = || self.rows.iter().map(|(_, _, row)| *row);
        evidence.sampling = rows().map(|row| row.track.sampled).max().flatten();
        if evidence.sampling.is_none() {
            return;
        }
        let sum = |of: fn(&SiteRow) -> u64| rows().map(of).fold(0_u64, u64::saturating_add);
        let (freed, live) = (sum(SiteRow::freed), sum(SiteRow::live_count));
        // Those that were only freed at the end count as live.
        let at_end = sum(|row| row.track.freed).saturating_sub(evidence.freed);
        let share = at_end as f64 / sum(|row| row.track.freed).max(1) as f64;
        let at_end = (freed as f64 * share) as u64;
        evidence.created = sum(SiteRow::allocations);
        evidence.freed = freed.saturating_sub(at_end);
        evidence.live_count = live.saturating_add(at_end);
    }

    /// Whether most allocations were made while a stream was capturing.
    fn is_captured(&self) -> bool {
        let sum = |of: fn(&SiteRow) -> u64| self.rows.iter().map(|(_, _, row)| of(row)).sum();
        let (captured, all): (u64, u64) =
            (sum(|row| row.during_capture), sum(|row| row.track.allocations));
        captured > all / 2
    }

    fn classify(&self, process: &Process, at: Timestamp, registry: &SiteRegistry) -> SiteVerdict {
        let rows: Vec<&SiteRow> = self.rows.iter().map(|(_, _, row)| *row).collect();
        let tracks: Vec<&Track> = rows.iter().map(|row| &row.track).collect();
        let has_stack = !matches!(self.name, SiteName::Unknown | SiteName::Other);
        let (start, has_ended) = (process.sites.start(), process.ended.is_some());
        let (verdict, confidence, mut evidence) =
            Track::classify(&tracks, (start, at), has_ended, has_stack);
        self.extrapolate(&mut evidence);
        evidence.kept_by = process.kept_by.get(&self.name).cloned();
        SiteVerdict {
            pid: Some(process.key.pid),
            process: process.name.clone(),
            site: self.name,
            frames: registry.frames_of(self.name),
            resource: self.resource,
            device: device(&rows, process),
            thread: thread(&rows, process),
            verdict,
            confidence,
            evidence,
        }
    }
}

/// Device of most allocations; if unknown, the only device that the process uses. Host memory has
/// no device, whatever context it was allocated in.
fn device(rows: &[&SiteRow], process: &Process) -> Option<DeviceId> {
    let resource = rows.first()?.resource;
    if resource.kind().is_some_and(|kind| kind.layer() == MemoryLayer::Host) {
        return None;
    }
    let only = match process.totals.devices() {
        [only] if resource.takes_device_memory() => only.device,
        _ => None,
    };
    let devices = rows.iter().map(|row| row.devices).reduce(MajorityDevice::merge)?;
    devices.device().or(only)
}

fn thread(rows: &[&SiteRow], process: &Process) -> Option<(Tid, Box<str>)> {
    let threads = rows.iter().map(|row| row.threads).reduce(AllocatingThreads::and)?;
    let AllocatingThreads::One(tid) = threads else { return None };
    Some((tid, process.threads.name(tid).unwrap_or_default().into()))
}
