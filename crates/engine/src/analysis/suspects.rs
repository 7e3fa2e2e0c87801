//! Verdicts on the sites of a file, and its anomalies.
//!
//! [`SuspectAnalysis`] processes the changes of other tools' files with the classifier of live
//! traces: see [`crate::leak`] and [`crate::anomaly`]. A recording contains the events of its
//! trace, so the ledger classifies its sites, and the [`SuspectReport`] is made from the ledger's
//! verdicts.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::{Amount, GroupKey, MemoryScope, RunningSum};
use crate::anomaly::{GrowthAnomalyDetector, SiteBaseline, SizeAnomalyDetector};
use crate::leak;
use crate::leak::{GrowthHistory, LifetimeHistogram, MajorityDevice, SiteObservation};
use crate::model::change::{AllocationChange, ChangeKind, EndReason};
use crate::model::ids::{Pid, SiteId, Tid};
use crate::model::memory_kind::MemoryKind;
use crate::model::units::{Bytes, Nanos, Timestamp};
use crate::verdict::{Anomaly, AnomalyKind, Confidence, Evidence, Resource, SiteVerdict, Verdict};

/// Limit of tracked sites. Beyond it, further sites are classified together with allocations
/// without a stack.
const MAX_SITES: usize = 65_536;

/// Limits of anomalies, per process and in total.
const MAX_ANOMALIES_PER_PROCESS: usize = 64;
const MAX_ANOMALIES: usize = 1024;

/// Verdict on a site of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileSiteVerdict {
    /// The site; its device is that of most of its allocations.
    pub key: GroupKey,
    /// Memory live at the end of the file or of its process.
    pub live: Amount,
    /// The verdict.
    pub verdict: Verdict,
    /// Confidence in the verdict.
    pub confidence: Confidence,
    /// Values that support the verdict.
    pub evidence: Evidence,
}

impl FileSiteVerdict {
    /// Converts a verdict of the ledger. Returns `None` if it is not about the memory of a single
    /// process. `site` is its stack in the table of the file.
    #[must_use]
    pub fn of(site_verdict: SiteVerdict, site: Option<SiteId>) -> Option<Self> {
        let Resource::Memory(kind) = site_verdict.resource else { return None };
        let SiteVerdict { pid, device, verdict, confidence, evidence, .. } = site_verdict;
        let live = Amount { bytes: evidence.live, allocations: evidence.live_count };
        let key = GroupKey { pid: pid?, device, kind, site };
        Some(Self { key, live, verdict, confidence, evidence })
    }
}

/// An anomaly in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileAnomaly {
    /// Time.
    pub at: Timestamp,
    /// Process, device, kind and site.
    pub key: GroupKey,
    /// Thread, if known.
    pub tid: Option<Tid>,
    /// What was anomalous.
    pub details: AnomalyKind,
}

impl FileAnomaly {
    /// Converts an anomaly of the ledger. `site` is its stack in the table of the file.
    #[must_use]
    pub fn of(anomaly: &Anomaly, site: Option<SiteId>) -> Self {
        let Anomaly { at, pid, tid, device, kind, details, .. } = *anomaly;
        Self { at, key: GroupKey { pid, device, kind, site }, tid, details }
    }
}

/// Verdicts and anomalies of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SuspectReport {
    /// Sites that leak, by confidence, then by growth.
    pub suspects: Vec<FileSiteVerdict>,
    /// All other sites, largest first.
    pub others: Vec<FileSiteVerdict>,
    /// Anomalies, in order of time.
    pub anomalies: Vec<FileAnomaly>,
}

impl SuspectReport {
    /// Whether there was enough data for at least one verdict.
    #[must_use]
    pub fn has_enough_data(&self) -> bool {
        let decided = |one: &FileSiteVerdict| one.verdict != Verdict::NotEnoughData;
        !self.suspects.is_empty() || self.others.iter().any(decided)
    }
}

/// Classifies the sites of a file.
#[derive(Clone, Debug, Default)]
pub struct SuspectAnalysis {
    scope: MemoryScope,
    origin: Option<Timestamp>,
    end: Timestamp,
    tracks: Vec<SiteTrack>,
    index: HashMap<(u64, u64), u32>,
    last: Option<((u64, u64), u32)>,
    processes: HashMap<Pid, ProcessBaselines>,
}

/// Running values of one site.
#[derive(Clone, Debug)]
struct SiteTrack {
    key: GroupKey,
    live: RunningSum,
    count: u64,
    allocations: u64,
    freed: u64,
    first: Timestamp,
    last: Timestamp,
    largest: u64,
    /// Sum of the allocation times of live allocations, and sum of the lifetimes of freed ones.
    allocated_at_sum: RunningSum,
    lifetime_sum: RunningSum,
    /// Time its process ended.
    until: Option<Timestamp>,
    devices: MajorityDevice,
    history: GrowthHistory,
    lifetimes: LifetimeHistogram,
}

/// Baselines and anomalies of one process.
#[derive(Clone, Debug, Default)]
struct ProcessBaselines {
    sizes: SizeAnomalyDetector,
    growths: GrowthAnomalyDetector,
    live: RunningSum,
    anomalies: Vec<FileAnomaly>,
}

impl SuspectAnalysis {
    /// Creates an empty analysis; `scope` selects the memory that is classified.
    #[must_use]
    pub fn new(scope: MemoryScope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Adds a change.
    pub fn observe(&mut self, change: &AllocationChange) {
        let origin = *self.origin.get_or_insert(change.at);
        self.end = self.end.max(change.at);
        let is_classified = match self.scope {
            MemoryScope::Torch => change.kind == MemoryKind::Torch,
            MemoryScope::Device => leak::resource(change.kind).is_some(),
        };
        if !is_classified {
            return;
        }
        let counts = self.scope.counts(change.kind);
        let AllocationChange { at, bytes, .. } = *change;
        match change.action {
            ChangeKind::Allocated => {
                let track = self.track(change, true);
                let before = SiteBaseline { count: track.allocations, largest: track.largest };
                track.begin(origin, change);
                self.detect_anomalies(change, counts, before);
            }
            ChangeKind::Ended { reason: EndReason::ProcessExited, .. } => {
                self.track(change, false).until.get_or_insert(at);
                self.update_live(change.pid, counts, |live| live.subtract(bytes));
            }
            ChangeKind::Ended { allocated_at, reason } => {
                self.track(change, false).end(origin, change, allocated_at, reason);
                self.update_live(change.pid, counts, |live| live.subtract(bytes));
                self.mark_freed(change, allocated_at);
            }
            ChangeKind::Updated { allocated_at, before } => {
                let more = bytes.saturating_sub(before.bytes);
                self.track(change, false).resize(origin, at, allocated_at, more);
                self.update_live(change.pid, counts, |live| live.add(more));
            }
        }
    }

    fn update_live(&mut self, pid: Pid, counts: bool, change: impl FnOnce(&mut RunningSum)) {
        if let Some(process) = self.processes.get_mut(&pid).filter(|_| counts) {
            change(&mut process.live);
        }
    }

    /// Marks the anomaly of a freed allocation as no longer live.
    fn mark_freed(&mut self, change: &AllocationChange, allocated_at: Timestamp) {
        let process = self.processes.get_mut(&change.pid);
        for anomaly in process.into_iter().flat_map(|process| &mut process.anomalies) {
            if let AnomalyKind::Size { key, live, .. } = &mut anomaly.details {
                *live &= *key != change.key || anomaly.at != allocated_at;
            }
        }
    }

    /// Checks the new allocation, and the recent growth of its process, for anomalies.
    fn detect_anomalies(&mut self, change: &AllocationChange, counts: bool, before: SiteBaseline) {
        let AllocationChange { at, bytes, tid, .. } = *change;
        let process = self.processes.entry(change.pid).or_default();
        let key = GroupKey::of(change);
        let tid = (tid.0 != 0).then_some(tid);
        let grown = process.growths.observe(at, process.live.value());
        if counts {
            process.live.add(bytes);
        }
        let growth = grown.map(|grown| FileAnomaly {
            at: grown.at,
            key: GroupKey { device: None, site: None, kind: MemoryKind::Device, ..key },
            tid: None,
            details: AnomalyKind::Growth {
                bytes: grown.bytes,
                within: grown.within,
                baseline: grown.baseline,
            },
        });
        let baseline = process.sizes.add(bytes, change.site.map(|_| before));
        let size = baseline.map(|baseline| {
            process.growths.mark_explained(bytes);
            let details = AnomalyKind::Size {
                key: change.key,
                bytes: Bytes(bytes),
                baseline: baseline.bytes,
                of: baseline.of,
                of_site: baseline.of_site,
                live: true,
            };
            FileAnomaly { at, key, tid, details }
        });
        let room = MAX_ANOMALIES_PER_PROCESS.saturating_sub(process.anomalies.len());
        process.anomalies.extend(growth.into_iter().chain(size).take(room));
    }

    /// Track of a site. Allocations after the end of a process belong to another process with the
    /// same pid, and get a new track.
    fn track(&mut self, change: &AllocationChange, is_allocation: bool) -> &mut SiteTrack {
        let key = GroupKey::of(change).on(None);
        let packed = key.packed();
        let found = match self.last {
            Some((last, found)) if last == packed => found,
            _ => self.find(key, change.at),
        };
        let mut found = found;
        let has_ended = self.tracks.get(found as usize).is_some_and(|track| track.until.is_some());
        if is_allocation && has_ended && self.tracks.len() < 2 * MAX_SITES {
            let key = self.tracks.get(found as usize).map_or(key, |track| track.key);
            found = self.open(key, change.at);
        }
        self.last = Some((packed, found));
        &mut self.tracks[found as usize]
    }

    fn find(&mut self, key: GroupKey, at: Timestamp) -> u32 {
        if let Some(&found) = self.index.get(&key.packed()) {
            return found;
        }
        let rest = GroupKey { site: None, ..key };
        let key = if self.tracks.len() < MAX_SITES { key } else { rest };
        let known = self.index.get(&key.packed()).copied();
        known.unwrap_or_else(|| self.open(key, at))
    }

    fn open(&mut self, key: GroupKey, at: Timestamp) -> u32 {
        let number = self.tracks.len() as u32;
        self.tracks.push(SiteTrack::new(key, at));
        self.index.insert(key.packed(), number);
        number
    }

    /// Returns the report.
    #[must_use]
    pub fn finish(self) -> SuspectReport {
        let Self { origin, end, tracks, processes, .. } = self;
        let origin = origin.unwrap_or(end);
        let mut report = SuspectReport::default();
        for track in tracks.iter().filter(|track| track.allocations > 0) {
            let site = track.classify(origin, end);
            if site.verdict == Verdict::Leak {
                report.suspects.push(site);
            } else {
                report.others.push(site);
            }
        }
        report.suspects.sort_by_key(|one| {
            (Reverse((one.confidence, one.evidence.growth_per_hour)), one.key, one.live.bytes)
        });
        report.others.sort_by_key(|one| {
            (Reverse((one.live.bytes, one.evidence.created)), one.key, one.verdict)
        });
        report.anomalies = processes.into_values().flat_map(|process| process.anomalies).collect();
        report.anomalies.sort_by_key(|one| (one.at, one.key));
        report.anomalies.truncate(MAX_ANOMALIES);
        report
    }
}

impl SiteTrack {
    fn new(key: GroupKey, at: Timestamp) -> Self {
        Self {
            key,
            live: RunningSum::default(),
            count: 0,
            allocations: 0,
            freed: 0,
            first: at,
            last: at,
            largest: 0,
            allocated_at_sum: RunningSum::default(),
            lifetime_sum: RunningSum::default(),
            until: None,
            devices: MajorityDevice::default(),
            history: GrowthHistory::default(),
            lifetimes: LifetimeHistogram::default(),
        }
    }

    fn begin(&mut self, origin: Timestamp, change: &AllocationChange) {
        let AllocationChange { at, bytes, device, .. } = *change;
        self.history.allocated(at - origin, self.live.value(), bytes);
        self.live.add(bytes);
        self.count += 1;
        self.allocations += 1;
        self.last = self.last.max(at);
        self.largest = self.largest.max(bytes);
        self.allocated_at_sum.add(at.0);
        self.devices.add(device);
    }

    fn end(
        &mut self,
        origin: Timestamp,
        change: &AllocationChange,
        allocated_at: Timestamp,
        reason: EndReason,
    ) {
        let AllocationChange { at, bytes, .. } = *change;
        self.history.freed(allocated_at - origin, at - origin, self.live.value(), bytes);
        self.live.subtract(bytes);
        self.count = self.count.saturating_sub(1);
        self.allocated_at_sum.subtract(allocated_at.0);
        if matches!(reason, EndReason::Freed | EndReason::Replaced) {
            self.freed += 1;
            self.lifetimes.add(at - allocated_at);
            self.lifetime_sum.add((at - allocated_at).0);
        }
    }

    fn resize(&mut self, origin: Timestamp, at: Timestamp, allocated_at: Timestamp, more: u64) {
        self.history.resized(allocated_at - origin, at - origin, self.live.value(), more);
        self.live.add(more);
    }

    fn classify(&self, origin: Timestamp, end: Timestamp) -> FileSiteVerdict {
        let until = self.until.unwrap_or(end);
        let (verdict, confidence, evidence) = leak::classify(&SiteObservation {
            history: &self.history,
            lifetimes: &self.lifetimes,
            live: self.live.value(),
            live_count: self.count,
            allocated: self.allocations,
            freed: self.freed,
            mean_age: match self.count {
                0 => Nanos(0),
                count => until - Timestamp(self.allocated_at_sum.mean(count)),
            },
            mean_life: (self.freed > 0).then(|| Nanos(self.lifetime_sum.mean(self.freed))),
            first: self.first - origin,
            last: self.last - origin,
            now: until - origin,
            has_ended: true,
            has_stack: self.key.site.is_some(),
        });
        FileSiteVerdict {
            key: self.key.on(self.devices.device()),
            live: Amount { bytes: self.live.value(), allocations: self.count },
            verdict,
            confidence,
            evidence,
        }
    }
}
