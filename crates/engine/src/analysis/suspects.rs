//! Verdicts on the sites of a file, and its anomalies.
//!
//! [`SuspectAnalysis`] processes the changes of other tools' files with the classifier of live
//! traces: see [`crate::leak`] and [`crate::anomaly`]. The result is a snapshot, as the ledger makes
//! it for recordings, so reports do not differ.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::{GroupKey, MemoryScope, RunningSum};
use crate::anomaly::{GrowthAnomalyDetector, SiteBaseline, SizeAnomalyDetector};
use crate::leak;
use crate::leak::{MajorityDevice, Track};
use crate::model::change::{AllocationChange, ChangeKind, EndReason};
use crate::model::ids::{Pid, ProcessKey, SiteId, Tid};
use crate::model::memory_kind::MemoryKind;
use crate::model::stack::{CallStack, SiteName, StackTable, site_name};
use crate::model::units::{Bytes, Timestamp};
use crate::snapshot::{NotFreed, NotFreedSite, ProcessEnd, ProcessView, Snapshot};
use crate::verdict::{
    Anomaly, AnomalyKind, Confidence, Evidence, Resource, SiteVerdict, Verdict, sort_others,
    sort_suspects,
};

/// Limit of tracked sites. Beyond it, further sites are classified together with allocations
/// without a stack.
const MAX_SITES: usize = 65_536;

/// Limits of anomalies, per process and in total.
const MAX_ANOMALIES_PER_PROCESS: usize = 64;
const MAX_ANOMALIES: usize = 1024;

/// Limit of verdicts on sites that are not suspects.
const MAX_OTHER_VERDICTS: usize = 4096;

/// An anomaly in a file.
#[derive(Clone, Copy, Debug)]
struct FileAnomaly {
    at: Timestamp,
    key: GroupKey,
    tid: Option<Tid>,
    details: AnomalyKind,
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

/// Verdict, confidence and evidence.
type Classification = (Verdict, Confidence, Evidence);

/// Running values of one site.
#[derive(Clone, Debug)]
struct SiteTrack {
    key: GroupKey,
    track: Track,
    largest: u64,
    /// Time its process ended.
    until: Option<Timestamp>,
    devices: MajorityDevice,
}

/// Baselines and anomalies of one process.
#[derive(Clone, Debug, Default)]
struct ProcessBaselines {
    sizes: SizeAnomalyDetector,
    growths: GrowthAnomalyDetector,
    live: RunningSum,
    has_ended: bool,
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
                let before =
                    SiteBaseline { count: track.track.allocations, largest: track.largest };
                track.track.allocated(origin, at, bytes);
                track.largest = track.largest.max(bytes);
                track.devices.add(change.device);
                self.detect_anomalies(change, counts, before);
            }
            ChangeKind::Ended { reason: EndReason::ProcessExited, .. } => {
                self.track(change, false).until.get_or_insert(at);
                self.processes.entry(change.pid).or_default().has_ended = true;
                self.update_live(change.pid, counts, |live| live.subtract(bytes));
            }
            ChangeKind::Ended { allocated_at, reason } => {
                let freed = matches!(reason, EndReason::Freed | EndReason::Replaced);
                let track = &mut self.track(change, false).track;
                track.ended(origin, allocated_at, at, bytes, freed);
                self.update_live(change.pid, counts, |live| live.subtract(bytes));
                self.mark_freed(change, allocated_at);
            }
            ChangeKind::Updated { allocated_at, before } => {
                let more = bytes.saturating_sub(before.bytes);
                self.track(change, false).track.resized(origin, allocated_at, at, more);
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
        process.has_ended = false;
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

    /// Returns the state at the end of the file: processes, verdicts and anomalies. `stacks` has the
    /// frames of the sites, `names` the names of processes.
    #[must_use]
    pub fn finish(self, stacks: &StackTable, names: &BTreeMap<Pid, String>) -> Snapshot {
        let Self { origin, end, tracks, processes, .. } = self;
        let origin = origin.unwrap_or(end);
        let file = FileTexts { stacks, names };
        let made = tracks.iter().filter(|track| track.track.allocations > 0);
        let verdicts = made.map(|track| file.verdict(track, track.classify(origin, end)));
        let (mut suspects, mut others): (Vec<_>, Vec<_>) =
            verdicts.partition(|one| one.verdict == Verdict::Leak);
        sort_suspects(&mut suspects);
        sort_others(&mut others);
        others.truncate(MAX_OTHER_VERDICTS);
        let mut views: Vec<_> =
            processes.iter().map(|(pid, process)| file.process(*pid, process)).collect();
        views.sort_by_key(|process| (Reverse(process.live_bytes), process.key));
        let ended = views.iter().filter(|process| process.ended.is_some());
        let not_freed = ended.filter_map(|process| file.not_freed(process, &tracks)).collect();
        let anomalies = processes.into_values().flat_map(|process| process.anomalies);
        let mut anomalies: Vec<_> = anomalies.collect();
        anomalies.sort_by_key(|one| (one.at, one.key));
        anomalies.truncate(MAX_ANOMALIES);
        Snapshot {
            at: end,
            observed: end - origin,
            processes: views,
            suspects_total: suspects.len() as u64,
            suspects,
            other_verdicts: others,
            anomalies: anomalies.iter().map(|one| file.anomaly(one)).collect(),
            not_freed,
            ..Snapshot::default()
        }
    }
}

/// Names and frames of a file.
struct FileTexts<'a> {
    stacks: &'a StackTable,
    names: &'a BTreeMap<Pid, String>,
}

impl FileTexts<'_> {
    fn name(&self, pid: Pid) -> Box<str> {
        self.names.get(&pid).map(String::as_str).unwrap_or_default().into()
    }

    fn site(&self, site: Option<SiteId>) -> (SiteName, CallStack) {
        let Some(site) = site else { return (SiteName::Unknown, CallStack::default()) };
        let frames = self.stacks.call_stack(site);
        if frames.is_empty() {
            return (SiteName::Pending(site), frames);
        }
        (SiteName::Resolved(site_name(&frames)), frames)
    }

    fn process(&self, pid: Pid, process: &ProcessBaselines) -> ProcessView {
        let key = ProcessKey { pid, start: 0 };
        let (name, live_bytes) = (self.name(pid), Bytes(process.live.value()));
        let ended = process.has_ended.then_some(ProcessEnd::Exited);
        ProcessView { key, name, live_bytes, ended, ..ProcessView::default() }
    }

    /// Returns the memory that an ended process had not freed.
    fn not_freed(&self, process: &ProcessView, tracks: &[SiteTrack]) -> Option<NotFreed> {
        let own = tracks.iter().filter(|track| track.key.pid == process.key.pid);
        let kept = own.filter(|track| track.until.is_some() && track.track.count > 0);
        let kept = kept.filter(|track| NotFreed::includes(track.key.kind)).map(|track| {
            let (site, frames) = self.site(track.key.site);
            let (kind, bytes) = (track.key.kind, track.track.live.bytes());
            NotFreedSite { site, frames, kind, bytes, allocations: track.track.count }
        });
        let view = NotFreed::of(process.key, &process.name, false, kept);
        (view.allocations > 0 || view.cached.0 > 0).then_some(view)
    }

    fn verdict(&self, track: &SiteTrack, found: Classification) -> SiteVerdict {
        let (verdict, confidence, evidence) = found;
        let (site, frames) = self.site(track.key.site);
        SiteVerdict {
            pid: Some(track.key.pid),
            process: self.name(track.key.pid),
            site,
            frames,
            resource: leak::resource(track.key.kind).unwrap_or(Resource::Memory(track.key.kind)),
            device: track.devices.device(),
            thread: None,
            verdict,
            confidence,
            evidence,
        }
    }

    fn anomaly(&self, one: &FileAnomaly) -> Anomaly {
        let (site, frames) = self.site(one.key.site);
        Anomaly {
            at: one.at,
            pid: one.key.pid,
            process: self.name(one.key.pid),
            tid: one.tid,
            thread: Box::default(),
            site,
            frames,
            device: one.key.device,
            kind: one.key.kind,
            details: one.details,
        }
    }
}

impl SiteTrack {
    fn new(key: GroupKey, at: Timestamp) -> Self {
        let (track, devices) = (Track::new(at), MajorityDevice::default());
        Self { key, track, largest: 0, until: None, devices }
    }

    fn classify(&self, origin: Timestamp, end: Timestamp) -> Classification {
        let until = self.until.unwrap_or(end);
        Track::classify(&[&self.track], (origin, until), true, self.key.site.is_some())
    }
}
