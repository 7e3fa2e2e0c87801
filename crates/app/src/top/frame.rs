//! What the view shows at one time, and the last minutes of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use engine::model::{Bytes, Nanos, Pid, ProcessKey, Timestamp};
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

/// Limit of incidents.
const MAX_INCIDENTS: usize = 1000;

/// The last frames, for rewinding, and what must outlive them.
#[derive(Default)]
pub(crate) struct FrameHistory {
    /// Frames with their number, oldest first.
    frames: VecDeque<(u64, Arc<TopFrame>)>,
    next: u64,
    usage: Vec<UsageHistory>,
    /// Seen in snapshots, oldest first.
    incidents: VecDeque<(usize, Timestamp, Incident)>,
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
        let number = self.next;
        self.next += 1;
        self.usage.resize_with(frame.hosts.len().max(self.usage.len()), UsageHistory::default);
        for (index, host) in frame.hosts.iter().enumerate() {
            if let Some(usage) = self.usage.get_mut(index) {
                host.with_view(|view| usage.push(view, number));
            }
            self.add_incidents(index, host);
        }
        self.frames.push_back((number, frame));
        self.thin_out();
    }

    fn add_incidents(&mut self, index: usize, host: &HostFrame) {
        let at = host.snapshot.at;
        let seen = incidents::of_snapshot(&host.snapshot, &host.context);
        for incident in seen.into_iter().chain(host.events.iter().cloned()) {
            // An agent can answer twice with the same snapshot.
            let recent = self.incidents.iter().rev().take(100);
            if !recent.into_iter().any(|(host, _, known)| *host == index && *known == incident) {
                self.incidents.push_back((index, at, incident));
            }
        }
        while self.incidents.len() > MAX_INCIDENTS {
            self.incidents.pop_front();
        }
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

    /// Number of frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns the frame that is `back` frames before the newest one.
    pub(crate) fn get(&self, back: usize) -> Option<(u64, &Arc<TopFrame>)> {
        let index = self.frames.len().checked_sub(back + 1)?;
        self.frames.get(index).map(|(number, frame)| (*number, frame))
    }

    /// Used memory of a host over time.
    pub(crate) fn usage(&self, host: usize) -> Option<&UsageHistory> {
        self.usage.get(host)
    }

    /// What happened up to the time of a frame, newest first, with the index of its host.
    pub(crate) fn incidents(&self, frame: &TopFrame) -> Vec<(usize, &Incident)> {
        let until = |host: usize| frame.hosts.get(host).map(|host| host.snapshot.at);
        let seen = self.incidents.iter().rev();
        let seen = seen.filter(|(host, at, _)| until(*host).is_some_and(|until| *at <= until));
        seen.map(|(host, _, incident)| (*host, incident)).collect()
    }
}
