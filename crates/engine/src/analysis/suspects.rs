//! Verdicts on the sites of a file, and its anomalies.
//!
//! [`SuspectAnalysis`] processes the changes of other tools' files with the classifier of live
//! traces: see [`crate::leak`] and [`crate::anomaly`]. A recording contains the events of its
//! trace, so the ledger classifies its sites, and the [`SuspectReport`] is made from the ledger's
//! verdicts.

use std::cmp::Reverse;

use hashbrown::HashMap;

use super::leak::{self, Case, Course, Majority, Spans};
use super::unusual::{AtSite, Growths, Sizes};
use super::{Amount, Measure, Place, Running};
use crate::change::{Change, How, Turn};
use crate::ids::{Pid, SiteId, Tid};
use crate::kind::Kind;
use crate::units::{Bytes, Moment, Nanos};
use crate::verdict::{Anomaly, Evidence, Judgement, Subject, Sureness, Unusual, Verdict};

/// Limit of tracked sites. Beyond it, further sites are classified together with allocations
/// without a stack.
const KEPT: usize = 65_536;

/// Limits of anomalies, per process and in total.
const UNUSUAL: usize = 64;
const UNUSUAL_IN_ALL: usize = 1024;

/// Verdict on a site of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judged {
    /// The site; its device is that of most of its allocations.
    pub place: Place,
    /// Memory live at the end of the file or of its process.
    pub live: Amount,
    /// The verdict.
    pub verdict: Verdict,
    /// Confidence in the verdict.
    pub sureness: Sureness,
    /// Values that support the verdict.
    pub evidence: Evidence,
}

impl Judged {
    /// Converts a verdict of the ledger. Returns `None` if it is not about the memory of a single
    /// process. `site` is its stack in the table of the file.
    #[must_use]
    pub fn of(judgement: Judgement, site: Option<SiteId>) -> Option<Self> {
        let Subject::Memory(kind) = judgement.subject else { return None };
        let Judgement { pid, device, verdict, sureness: confidence, evidence, .. } = judgement;
        let live = Amount { bytes: evidence.live, allocations: evidence.live_count };
        let place = Place { pid: pid?, device, kind, site };
        Some(Self { place, live, verdict, sureness: confidence, evidence })
    }
}

/// An anomaly in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Odd {
    /// Time.
    pub at: Moment,
    /// Process, device, kind and site.
    pub place: Place,
    /// Thread, if known.
    pub tid: Option<Tid>,
    /// What was anomalous.
    pub what: Unusual,
}

impl Odd {
    /// Converts an anomaly of the ledger. `site` is its stack in the table of the file.
    #[must_use]
    pub fn of(anomaly: &Anomaly, site: Option<SiteId>) -> Self {
        let Anomaly { at, pid, tid, device, kind, what, .. } = *anomaly;
        Self { at, place: Place { pid, device, kind, site }, tid, what }
    }
}

/// Verdicts and anomalies of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// Sites that leak, by confidence, then by growth.
    pub suspects: Vec<Judged>,
    /// All other sites, largest first.
    pub others: Vec<Judged>,
    /// Anomalies, in order of time.
    pub unusual: Vec<Odd>,
}

impl Findings {
    /// Whether there was enough data for at least one verdict.
    #[must_use]
    pub fn is_enough(&self) -> bool {
        let decided = |one: &Judged| one.verdict != Verdict::NotEnoughData;
        !self.suspects.is_empty() || self.others.iter().any(decided)
    }
}

/// Classifies the sites of a file.
#[derive(Clone, Debug, Default)]
pub struct Suspects {
    measure: Measure,
    origin: Option<Moment>,
    end: Moment,
    tracks: Vec<Track>,
    index: HashMap<(u64, u64), u32>,
    last: Option<((u64, u64), u32)>,
    processes: HashMap<Pid, OfProcess>,
}

/// Running values of one site.
#[derive(Clone, Debug)]
struct Track {
    place: Place,
    live: Running,
    count: u64,
    allocations: u64,
    freed: u64,
    first: Moment,
    last: Moment,
    largest: u64,
    /// Sum of the allocation times of live allocations, and sum of the lifetimes of freed ones.
    began_sum: Running,
    life_sum: Running,
    /// Time its process ended.
    until: Option<Moment>,
    devices: Majority,
    course: Course,
    spans: Spans,
}

/// Baselines and anomalies of one process.
#[derive(Clone, Debug, Default)]
struct OfProcess {
    sizes: Sizes,
    growths: Growths,
    live: Running,
    unusual: Vec<Odd>,
}

impl Suspects {
    /// Creates an empty analysis; `measure` selects the memory that is classified.
    #[must_use]
    pub fn new(measure: Measure) -> Self {
        Self { measure, ..Self::default() }
    }

    /// Adds a change.
    pub fn change(&mut self, change: &Change) {
        let origin = *self.origin.get_or_insert(change.at);
        self.end = self.end.max(change.at);
        let is_classified = match self.measure {
            Measure::Torch => change.kind == Kind::Torch,
            Measure::Device => leak::subject(change.kind).is_some(),
        };
        if !is_classified {
            return;
        }
        let counts = self.measure.counts(change.kind);
        let Change { at, bytes, .. } = *change;
        match change.what {
            Turn::Began => {
                let track = self.track(change, true);
                let before = AtSite { count: track.allocations, largest: track.largest };
                track.begin(origin, change);
                self.detect_anomalies(change, counts, before);
            }
            Turn::Ended { how: How::Exited, .. } => {
                self.track(change, false).until.get_or_insert(at);
                self.update_live(change.pid, counts, |live| live.take(bytes));
            }
            Turn::Ended { began, how } => {
                self.track(change, false).end(origin, change, began, how);
                self.update_live(change.pid, counts, |live| live.take(bytes));
                self.mark_freed(change, began);
            }
            Turn::Learned { began, before } => {
                let more = bytes.saturating_sub(before.bytes);
                self.track(change, false).resize(origin, at, began, more);
                self.update_live(change.pid, counts, |live| live.add(more));
            }
        }
    }

    fn update_live(&mut self, pid: Pid, counts: bool, change: impl FnOnce(&mut Running)) {
        if let Some(process) = self.processes.get_mut(&pid).filter(|_| counts) {
            change(&mut process.live);
        }
    }

    /// Marks the anomaly of a freed allocation as no longer live.
    fn mark_freed(&mut self, change: &Change, began: Moment) {
        let process = self.processes.get_mut(&change.pid);
        for anomaly in process.into_iter().flat_map(|process| &mut process.unusual) {
            if let Unusual::Size { key, live, .. } = &mut anomaly.what {
                *live &= *key != change.key || anomaly.at != began;
            }
        }
    }

    /// Checks the new allocation, and the recent growth of its process, for anomalies.
    fn detect_anomalies(&mut self, change: &Change, counts: bool, before: AtSite) {
        let Change { at, bytes, tid, .. } = *change;
        let process = self.processes.entry(change.pid).or_default();
        let place = Place::of(change);
        let tid = (tid.0 != 0).then_some(tid);
        let grown = process.growths.pass(at, process.live.shown());
        if counts {
            process.live.add(bytes);
        }
        let growth = grown.map(|grown| Odd {
            at: grown.at,
            place: Place { device: None, site: None, kind: Kind::Device, ..place },
            tid: None,
            what: Unusual::Growth { bytes: grown.bytes, within: grown.within, usual: grown.usual },
        });
        let usual = process.sizes.add(bytes, change.site.map(|_| before));
        let size = usual.map(|usual| {
            process.growths.explain(bytes);
            let what = Unusual::Size {
                key: change.key,
                bytes: Bytes(bytes),
                usual: usual.bytes,
                of: usual.of,
                of_site: usual.of_site,
                live: true,
            };
            Odd { at, place, tid, what }
        });
        let room = UNUSUAL.saturating_sub(process.unusual.len());
        process.unusual.extend(growth.into_iter().chain(size).take(room));
    }

    /// Track of a site. Allocations after the end of a process belong to another process with the
    /// same pid, and get a new track.
    fn track(&mut self, change: &Change, is_allocation: bool) -> &mut Track {
        let place = Place::of(change).on(None);
        let packed = place.packed();
        let found = match self.last {
            Some((last, found)) if last == packed => found,
            _ => self.find(place, change.at),
        };
        let mut found = found;
        let has_ended = self.tracks.get(found as usize).is_some_and(|track| track.until.is_some());
        if is_allocation && has_ended && self.tracks.len() < 2 * KEPT {
            let place = self.tracks.get(found as usize).map_or(place, |track| track.place);
            found = self.open(place, change.at);
        }
        self.last = Some((packed, found));
        &mut self.tracks[found as usize]
    }

    fn find(&mut self, place: Place, at: Moment) -> u32 {
        if let Some(&found) = self.index.get(&place.packed()) {
            return found;
        }
        let rest = Place { site: None, ..place };
        let place = if self.tracks.len() < KEPT { place } else { rest };
        let known = self.index.get(&place.packed()).copied();
        known.unwrap_or_else(|| self.open(place, at))
    }

    fn open(&mut self, place: Place, at: Moment) -> u32 {
        let number = self.tracks.len() as u32;
        self.tracks.push(Track::new(place, at));
        self.index.insert(place.packed(), number);
        number
    }

    /// Returns the report.
    #[must_use]
    pub fn finish(self) -> Findings {
        let Self { origin, end, tracks, processes, .. } = self;
        let origin = origin.unwrap_or(end);
        let mut findings = Findings::default();
        for track in tracks.iter().filter(|track| track.allocations > 0) {
            let site = track.classify(origin, end);
            if site.verdict == Verdict::Leak {
                findings.suspects.push(site);
            } else {
                findings.others.push(site);
            }
        }
        findings.suspects.sort_by_key(|one| {
            (Reverse((one.sureness, one.evidence.per_hour)), one.place, one.live.bytes)
        });
        findings.others.sort_by_key(|one| {
            (Reverse((one.live.bytes, one.evidence.begun)), one.place, one.verdict)
        });
        findings.unusual = processes.into_values().flat_map(|process| process.unusual).collect();
        findings.unusual.sort_by_key(|one| (one.at, one.place));
        findings.unusual.truncate(UNUSUAL_IN_ALL);
        findings
    }
}

impl Track {
    fn new(place: Place, at: Moment) -> Self {
        Self {
            place,
            live: Running::default(),
            count: 0,
            allocations: 0,
            freed: 0,
            first: at,
            last: at,
            largest: 0,
            began_sum: Running::default(),
            life_sum: Running::default(),
            until: None,
            devices: Majority::default(),
            course: Course::default(),
            spans: Spans::default(),
        }
    }

    fn begin(&mut self, origin: Moment, change: &Change) {
        let Change { at, bytes, device, .. } = *change;
        self.course.begin(at - origin, self.live.shown(), bytes);
        self.live.add(bytes);
        self.count += 1;
        self.allocations += 1;
        self.last = self.last.max(at);
        self.largest = self.largest.max(bytes);
        self.began_sum.add(at.0);
        self.devices.add(device);
    }

    fn end(&mut self, origin: Moment, change: &Change, began: Moment, how: How) {
        let Change { at, bytes, .. } = *change;
        self.course.finish(began - origin, at - origin, self.live.shown(), bytes);
        self.live.take(bytes);
        self.count = self.count.saturating_sub(1);
        self.began_sum.take(began.0);
        if matches!(how, How::Freed | How::Replaced) {
            self.freed += 1;
            self.spans.add(at - began);
            self.life_sum.add((at - began).0);
        }
    }

    fn resize(&mut self, origin: Moment, at: Moment, began: Moment, more: u64) {
        self.course.grow(began - origin, at - origin, self.live.shown(), more);
        self.live.add(more);
    }

    fn classify(&self, origin: Moment, end: Moment) -> Judged {
        let until = self.until.unwrap_or(end);
        let (verdict, confidence, evidence) = leak::judge(&Case {
            course: &self.course,
            spans: &self.spans,
            live: self.live.shown(),
            live_count: self.count,
            begun: self.allocations,
            ended: self.freed,
            mean_age: match self.count {
                0 => Nanos(0),
                count => until - Moment(self.began_sum.mean(count)),
            },
            mean_life: (self.freed > 0).then(|| Nanos(self.life_sum.mean(self.freed))),
            first: self.first - origin,
            last: self.last - origin,
            now: until - origin,
            over: true,
            named: self.place.site.is_some(),
        });
        Judged {
            place: self.place.on(self.devices.device()),
            live: Amount { bytes: self.live.shown(), allocations: self.count },
            verdict,
            sureness: confidence,
            evidence,
        }
    }
}
