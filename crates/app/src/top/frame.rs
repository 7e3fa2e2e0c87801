//! What the view shows at one time, and the last minutes of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use engine::model::{Bytes, Mark, Nanos, Pid, ProcessKey, Timestamp};
use engine::snapshot::{ProcessView, Snapshot};
use engine::view::{UsageHistory, View};
use formats::export::ReportContext;
use formats::report::tables::incidents::{self, Incident};
use formats::report::view::gpu_facts;

/// State of one host.
#[derive(Clone)]
pub(crate) struct HostFrame {
    /// Name of the host.
    pub(crate) name: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) context: ReportContext,
    /// What an agent has written, newest first.
    pub(crate) incidents: Vec<Incident>,
    /// What happened since the last frame, besides what the snapshot contains.
    pub(crate) events: Vec<Incident>,
    /// Parents of processes, where known.
    pub(crate) parents: BTreeMap<Pid, Pid>,
    /// Resident host memory of processes, where known.
    pub(crate) resident: BTreeMap<Pid, Bytes>,
    /// What is missing, and how to get it.
    pub(crate) missing: Option<String>,
    /// Whether source files can be read here: the processes run on this host.
    pub(crate) is_local: bool,
}

impl HostFrame {
    /// Returns the state of another host.
    pub(crate) fn new(name: String, snapshot: Snapshot, context: ReportContext) -> Self {
        Self {
            name,
            snapshot,
            context,
            incidents: Vec::new(),
            events: Vec::new(),
            parents: BTreeMap::new(),
            resident: BTreeMap::new(),
            missing: None,
            is_local: false,
        }
    }

    /// Returns the state of this host.
    pub(crate) fn local(snapshot: Snapshot, context: ReportContext) -> Self {
        let (parents, resident) = host_facts(&snapshot);
        let frame = Self::new(formats::hostname::name(), snapshot, context);
        Self { parents, resident, is_local: true, ..frame }
    }

    /// Returns a process.
    pub(crate) fn process(&self, key: ProcessKey) -> Option<&ProcessView> {
        self.snapshot.processes.iter().find(|process| process.key == key)
    }

    /// Calls `show` with the view of this host.
    pub(crate) fn with_view<T>(&self, show: impl FnOnce(&View<'_>) -> T) -> T {
        let facts = gpu_facts(&self.context.gpus);
        show(&View::of(&self.snapshot, &facts))
    }
}

/// Limit of ancestors that are looked up.
const MAX_ANCESTORS: usize = 64;

/// Returns the ancestors and the resident memory of all running processes of a snapshot of this host.
fn host_facts(snapshot: &Snapshot) -> (BTreeMap<Pid, Pid>, BTreeMap<Pid, Bytes>) {
    let (mut parents, mut resident) = (BTreeMap::new(), BTreeMap::new());
    for process in snapshot.processes.iter().filter(|process| process.ended.is_none()) {
        let mut pid = process.key.pid;
        for _ in 0..MAX_ANCESTORS {
            if resident.contains_key(&pid) {
                break;
            }
            let Some(status) = capture::session::host_status(pid) else { break };
            resident.insert(pid, status.resident);
            let Some(parent) = status.parent else { break };
            parents.insert(pid, parent);
            pid = parent;
        }
    }
    (parents, resident)
}

/// State of all hosts.
#[derive(Clone, Default)]
pub(crate) struct TopFrame {
    pub(crate) hosts: Vec<HostFrame>,
    /// Of a recording: the time that was replayed.
    pub(crate) replay: Option<ReplayPosition>,
}

/// Position in a recording.
#[derive(Clone, Copy)]
pub(crate) struct ReplayPosition {
    /// Time since its start.
    pub(crate) elapsed: Nanos,
    /// How much faster than recorded.
    pub(crate) speed: f64,
    pub(crate) has_ended: bool,
}

/// Limit of frames, and of processes in all of them: a frame of 500 processes takes about a
/// megabyte.
const MAX_FRAMES: usize = 600;
const MAX_PROCESSES: usize = 60_000;

/// Limit of incidents, and of marks.
const MAX_INCIDENTS: usize = 1000;
const MAX_MARKS: usize = 256;

/// The last frames, for rewinding, and what must outlive them.
#[derive(Default)]
pub(crate) struct FrameHistory {
    /// Frames with their number, oldest first.
    frames: VecDeque<(u64, Arc<TopFrame>)>,
    /// Number of the newest frame; the first one is 1.
    newest: u64,
    usage: Vec<UsageHistory>,
    /// Seen in snapshots, oldest first, with the host and the number of the frame.
    incidents: VecDeque<(usize, u64, Incident)>,
    /// The same of marks. 0: set before the first frame.
    marks: VecDeque<(usize, u64, Mark)>,
}

/// A frame that stays on the screen while others arrive, with the charts that belong to it.
pub(crate) struct HeldFrame {
    pub(crate) number: u64,
    pub(crate) frame: Arc<TopFrame>,
    usage: Vec<UsageHistory>,
    /// An earlier one was chosen.
    pub(crate) is_rewound: bool,
}

impl FrameHistory {
    /// Adds a frame.
    pub(crate) fn push(&mut self, frame: Arc<TopFrame>) {
        let times = |frame: &TopFrame| -> Vec<Timestamp> {
            frame.hosts.iter().map(|host| host.snapshot.at).collect()
        };
        // The same state with other details.
        let is_same = self.frames.back().is_some_and(|(_, last)| times(last) == times(&frame));
        if let Some((_, last)) = self.frames.back_mut().filter(|_| is_same) {
            *last = frame;
            return;
        }
        self.newest += 1;
        let number = self.newest;
        self.usage.resize_with(frame.hosts.len().max(self.usage.len()), UsageHistory::default);
        for (index, host) in frame.hosts.iter().enumerate() {
            if let Some(usage) = self.usage.get_mut(index) {
                host.with_view(|view| usage.push(view, number));
            }
            self.add_incidents(index, host, number);
            self.add_marks(index, host, number);
        }
        self.frames.push_back((number, frame));
        self.thin_out();
    }

    fn add_incidents(&mut self, index: usize, host: &HostFrame, number: u64) {
        let seen = incidents::of_snapshot(&host.snapshot, &host.context);
        for incident in seen.into_iter().chain(host.events.iter().cloned()) {
            // An agent can answer twice with the same snapshot.
            let recent = self.incidents.iter().rev().take(100);
            if !recent.into_iter().any(|(host, _, known)| *host == index && *known == incident) {
                self.incidents.push_back((index, number, incident));
            }
        }
        while self.incidents.len() > MAX_INCIDENTS {
            self.incidents.pop_front();
        }
    }

    /// An agent repeats the marks of the last hour.
    fn add_marks(&mut self, index: usize, host: &HostFrame, number: u64) {
        for mark in &host.snapshot.marks {
            if self.marks.iter().any(|(of, _, known)| *of == index && known == mark) {
                continue;
            }
            let is_before = |(_, frame): &(u64, Arc<TopFrame>)| {
                frame.hosts.get(index).is_some_and(|host| host.snapshot.at < mark.at)
            };
            let place = match self.frames.partition_point(is_before) {
                0 => 0,
                place => self.frames.get(place).map_or(number, |(number, _)| *number),
            };
            self.marks.push_back((index, place, mark.clone()));
        }
        let excess = self.marks.len().saturating_sub(MAX_MARKS);
        self.marks.drain(..excess);
    }

    /// Drops every second frame of the older half while there are too many: the last minute stays
    /// complete.
    fn thin_out(&mut self) {
        let processes = |frame: &TopFrame| {
            frame.hosts.iter().map(|host| host.snapshot.processes.len() + 1).sum::<usize>()
        };
        let total: usize = self.frames.iter().map(|(_, frame)| processes(frame)).sum();
        if self.frames.len() > MAX_FRAMES || (total > MAX_PROCESSES && self.frames.len() > 8) {
            let half = self.frames.len() / 2;
            let mut index = 0;
            self.frames.retain(|_| {
                index += 1;
                index > half || index % 2 == 0
            });
        }
    }

    /// Returns the newest frame.
    pub(crate) fn newest(&self) -> Option<(u64, &Arc<TopFrame>)> {
        self.frames.back().map(|(number, frame)| (*number, frame))
    }

    /// Returns the frame `by` frames before a held one, or before the newest one; `None` if that is
    /// the newest one.
    pub(crate) fn rewind(&self, held: Option<HeldFrame>, by: isize) -> Option<HeldFrame> {
        let now = held.as_ref().map_or(self.newest, |held| held.number);
        // A held frame can be one that was dropped since.
        let index = self.frames.partition_point(|(number, _)| *number < now);
        let (number, frame) = self.frames.get(index.saturating_add_signed(-by))?;
        (*number < self.newest).then(|| self.hold(*number, frame, held, true))
    }

    /// Holds the newest frame.
    pub(crate) fn freeze(&self) -> Option<HeldFrame> {
        self.newest().map(|(number, frame)| self.hold(number, frame, None, false))
    }

    fn hold(
        &self,
        number: u64,
        frame: &Arc<TopFrame>,
        before: Option<HeldFrame>,
        is_rewound: bool,
    ) -> HeldFrame {
        // The charts of a later frame contain those of an earlier one, also of processes that ended.
        let usage = before.filter(|held| held.number >= number).map(|held| held.usage);
        let usage = usage.unwrap_or_else(|| self.usage.clone());
        HeldFrame { number, frame: Arc::clone(frame), usage, is_rewound }
    }

    /// Shows a held frame with other details, if these are newer.
    pub(crate) fn refresh(&self, held: &mut HeldFrame) {
        if let Some((_, frame)) = self.newest().filter(|(number, _)| *number == held.number) {
            held.frame = Arc::clone(frame);
        }
    }

    /// Used memory of a host over time.
    pub(crate) fn usage<'a>(
        &'a self,
        held: Option<&'a HeldFrame>,
        host: usize,
    ) -> Option<&'a UsageHistory> {
        held.map_or(&self.usage, |held| &held.usage).get(host)
    }

    /// What happened up to a frame, newest first.
    pub(crate) fn incidents(&self, until: u64) -> impl Iterator<Item = &(usize, u64, Incident)> {
        self.incidents.iter().rev().filter(move |(_, number, _)| *number <= until)
    }

    /// Marks up to a frame, newest first.
    pub(crate) fn marks(&self, until: u64) -> impl Iterator<Item = &(usize, u64, Mark)> {
        self.marks.iter().rev().filter(move |(_, number, _)| *number <= until)
    }
}
