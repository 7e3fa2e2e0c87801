//! What would give memory back, ranked: first what costs nothing, then what costs somebody's work.
//!
//! Nothing here does anything. Each step says how many bytes it gives back, how sure that is, and its
//! price; commands are made only of numbers and of names that mean nothing to a shell.

mod commands;

pub use commands::{Command, Tongue};

use std::cmp::Reverse;

use crate::diagnosis::Cause;
use crate::ids::{DeviceId, GpuId, Pid};
use crate::kind::Kind;
use crate::snapshot::{DeviceView, ProcessView, Snapshot};
use crate::units::{Bytes, Nanos};
use crate::verdict::{Subject, Sureness};

/// What is known when advice is wanted.
#[derive(Clone, Copy)]
pub struct Situation<'a> {
    /// Who holds what.
    pub snapshot: &'a Snapshot,
    /// The GPU that has to have room.
    pub gpu: Option<GpuId>,
    /// Only steps of these processes; all where there are none.
    pub only: &'a [Pid],
    /// Who was refused memory, where somebody was: it would not be helped by its own end.
    pub asker: Option<Pid>,
    /// Why, where that was found out: only what helps against it is advised.
    pub cause: Option<Cause>,
    /// Processes that nobody should be told to end: daemons of the system, and who asks.
    pub protected: &'a dyn Fn(&ProcessView) -> bool,
    /// For how long a process has launched nothing, where that is counted.
    pub idle: &'a dyn Fn(&ProcessView) -> Option<Nanos>,
}

/// From then on a process that launches nothing counts as idle.
pub const IDLE: Nanos = Nanos::from_millis(5 * 60 * 1000);

/// What is done in a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Action {
    /// PyTorch's cache gives back what it does not use.
    EmptyCache,
    /// A memory pool gives back what it does not use.
    TrimPool,
    /// Graphs give back what they do not use.
    TrimGraphs,
    /// A process that does nothing ends.
    StopIdle,
    /// A process that leaks begins anew.
    RestartLeaking,
    /// A cache gets segments that can grow in place.
    ExpandSegments,
    /// The program asks for less.
    AskForLess,
    /// A process that works ends.
    Stop,
}

impl Action {
    /// The word for it in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EmptyCache => "empty_cache",
            Self::TrimPool => "trim_pool",
            Self::TrimGraphs => "trim_graphs",
            Self::StopIdle => "stop_idle",
            Self::RestartLeaking => "restart_leaking",
            Self::ExpandSegments => "use_expandable_segments",
            Self::AskForLess => "reduce_memory_use",
            Self::Stop => "stop",
        }
    }

    /// Whether nobody's work is lost.
    #[must_use]
    pub const fn is_safe(self) -> bool {
        matches!(self, Self::EmptyCache | Self::TrimPool | Self::TrimGraphs)
    }

    /// What it costs, in words.
    #[must_use]
    pub const fn price(self) -> &'static str {
        match self {
            Self::EmptyCache => {
                "no work is lost; allocations are slower until the cache is warm again"
            }
            Self::TrimPool | Self::TrimGraphs => "no work is lost; the next allocations are slower",
            Self::StopIdle => "unsaved state of the process is lost",
            Self::RestartLeaking => {
                "work since the last checkpoint is lost; it will leak again until fixed"
            }
            Self::ExpandSegments => "requires a restart; work since the last checkpoint is lost",
            Self::AskForLess => "requires a code or configuration change; may run slower",
            Self::Stop => "work since the last checkpoint is lost",
        }
    }

    /// What is cheaper comes first.
    const fn rank(self) -> u8 {
        match self {
            Self::EmptyCache | Self::TrimPool | Self::TrimGraphs => 0,
            Self::StopIdle => 1,
            Self::RestartLeaking => 2,
            Self::ExpandSegments => 3,
            Self::AskForLess => 4,
            Self::Stop => 5,
        }
    }
}

/// How sure it is how much a step gives back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Known {
    /// Exactly that much.
    Exact,
    /// That much or less.
    AtMost,
    /// About that much.
    Estimate,
}

impl Known {
    /// The word for it in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::AtMost => "upper_bound",
            Self::Estimate => "estimate",
        }
    }
}

/// Something that would help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What to do.
    pub action: Action,
    /// With which process.
    pub pid: Pid,
    /// Its name (hostile text).
    pub process: Box<str>,
    /// Its owner.
    pub uid: Option<u32>,
    /// What it gives back of the GPU.
    pub bytes: Bytes,
    /// How sure that is.
    pub known: Known,
    /// Why, in a sentence without a full stop.
    pub why: String,
    /// What to copy and paste.
    pub commands: Vec<Command>,
}

/// Every step that would help, the cheapest first; among equals the one that gives back most.
#[must_use]
pub fn advise(situation: &Situation<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mentioned = |pid| situation.only.is_empty() || situation.only.contains(&pid);
    let running = situation.snapshot.processes.iter().filter(|process| process.ended.is_none());
    for process in running.filter(|process| mentioned(process.key.pid)) {
        let asks = situation.asker == Some(process.key.pid);
        if helps(situation.cause, asks) {
            unused(situation, process, &mut steps);
            if !(situation.protected)(process) && !is_service(&process.name) {
                ends(situation, process, &mut steps);
            }
        }
        if asks {
            for_asker(situation, process, &mut steps);
        }
    }
    let habit = |action| matches!(action, Action::ExpandSegments | Action::AskForLess);
    steps.retain(|step| step.bytes.0 > 0 || habit(step.action));
    steps.sort_by_key(|step| {
        (step.action.rank(), Reverse(step.bytes), step.pid, step.action, step.known)
    });
    steps
}

/// Whether device memory that a process gives back helps whoever was refused: that of others only where
/// the device has too little, its own also where it has a limit of its own.
fn helps(cause: Option<Cause>, asks: bool) -> bool {
    cause.is_none_or(|cause| cause.is_of_device() || (asks && cause == Cause::Quota))
}

/// Programs that serve the GPU or the host, whoever runs them.
fn is_service(name: &str) -> bool {
    const NAMES: [&str; 12] = [
        "nvidia-persiste",
        "nvidia-cuda-mps",
        "nvidia-fabricma",
        "nv-hostengine",
        "dcgm-exporter",
        "nvidia-smi",
        "Xorg",
        "Xwayland",
        "gnome-shell",
        "systemd",
        "kubelet",
        "containerd",
    ];
    NAMES.iter().any(|known| name.starts_with(known))
}

fn on(situation: &Situation<'_>, view: &DeviceView) -> bool {
    situation.gpu.is_none() || view.gpu == situation.gpu
}

fn lies(situation: &Situation<'_>, process: &ProcessView, device: Option<DeviceId>) -> bool {
    situation.gpu.is_none()
        || process.devices.iter().any(|view| view.device == device && view.gpu == situation.gpu)
}

fn step(process: &ProcessView, action: Action, bytes: Bytes, known: Known, why: String) -> Step {
    let commands = commands::of(action, process);
    Step {
        action,
        pid: process.key.pid,
        process: process.name.clone(),
        uid: process.uid,
        bytes,
        known,
        why,
        commands,
    }
}

/// What a process holds and does not use.
fn unused(situation: &Situation<'_>, process: &ProcessView, steps: &mut Vec<Step>) {
    let devices = process.torch.iter().flat_map(|torch| &torch.devices);
    for view in devices.filter(|view| lies(situation, process, Some(view.device))) {
        let (bytes, known) = match view.fragmentation {
            Ok(fragmentation) => (fragmentation.whole, Known::Exact),
            Err(_) => (view.cached(), Known::AtMost),
        };
        let why = format!(
            "PyTorch reserves {} and uses {}; {} is fragmented",
            view.reserved,
            view.allocated,
            view.fragmentation.map_or_else(
                |_| "an unknown part of the rest".to_owned(),
                |fragmentation| fragmentation.fragmented.to_string()
            ),
        );
        steps.push(step(process, Action::EmptyCache, bytes, known, why));
    }
    for pool in process.pools.iter().filter(|pool| pool.device.is_some()) {
        let Some(told) = pool.reserved.filter(|_| lies(situation, process, pool.device)) else {
            continue;
        };
        let bytes = Bytes(told.bytes.0.saturating_sub(pool.used.0));
        let why = format!("a memory pool reserves {} and uses {}", told.bytes, pool.used);
        steps.push(step(process, Action::TrimPool, bytes, Known::AtMost, why));
    }
    let graph = process.kinds.iter().find(|view| view.kind == Kind::Graph);
    let in_use = graph.map_or(0, |view| view.live_bytes.0);
    for view in process.devices.iter().filter(|view| on(situation, view)) {
        if let Some(told) = view.graph_reserved {
            let bytes = Bytes(told.bytes.0.saturating_sub(in_use));
            let why = format!("graphs reserve {}", told.bytes);
            steps.push(step(process, Action::TrimGraphs, bytes, Known::AtMost, why));
        }
    }
}

/// What the end of a process gives back: what was traced, and what the driver's account has beyond
/// that, where it was asked. That is also what was there before the trace.
fn all_of(situation: &Situation<'_>, process: &ProcessView) -> (Bytes, Known) {
    let (mut sum, mut told) = (0_u64, true);
    for view in process.devices.iter().filter(|view| on(situation, view)) {
        let untracked = view.untracked();
        told &= untracked.is_some();
        let live = view.live_bytes.0.saturating_add(untracked.unwrap_or_default().0);
        sum = sum.saturating_add(live);
    }
    (Bytes(sum), if told { Known::Exact } else { Known::Estimate })
}

fn ends(situation: &Situation<'_>, process: &ProcessView, steps: &mut Vec<Step>) {
    let (bytes, known) = all_of(situation, process);
    let leaked = leaked(situation, process);
    if let Some((leaked, sureness)) = leaked {
        let why = format!(
            "{leaked} of its memory is a suspected leak ({}); the rest is needed again after a restart",
            sureness.name()
        );
        steps.push(step(process, Action::RestartLeaking, leaked, Known::Estimate, why));
    }
    if situation.asker == Some(process.key.pid) {
        return;
    }
    match (situation.idle)(process).filter(|idle| *idle >= IDLE) {
        Some(idle) => {
            let minutes = idle.millis() / 60_000;
            let why = format!("no launches for {minutes} minutes");
            steps.push(step(process, Action::StopIdle, bytes, known, why));
        }
        None => {
            let why = format!("holds {bytes}");
            steps.push(step(process, Action::Stop, bytes, known, why));
        }
    }
}

/// What is suspected to leak of device memory there, and how sure the surest of that is.
fn leaked(situation: &Situation<'_>, process: &ProcessView) -> Option<(Bytes, Sureness)> {
    let own = situation.snapshot.suspects.iter().filter(|judged| {
        let counts = matches!(judged.subject, Subject::Memory(kind) if kind.takes_device_memory());
        let there = judged.device.is_none() || lies(situation, process, judged.device);
        judged.pid == Some(process.key.pid) && counts && there
    });
    let mut all = None;
    for judged in own {
        let (bytes, sureness): (Bytes, Sureness) = all.unwrap_or((Bytes(0), judged.sureness));
        let bytes = Bytes(bytes.0.saturating_add(judged.evidence.live));
        all = Some((bytes, sureness.max(judged.sureness)));
    }
    all.filter(|(bytes, _)| bytes.0 > 0)
}

/// What the one who was refused can do itself.
fn for_asker(situation: &Situation<'_>, process: &ProcessView, steps: &mut Vec<Step>) {
    if situation.cause == Some(Cause::CacheFragmented) {
        let devices = process.torch.iter().flat_map(|torch| &torch.devices);
        let cached = devices.fold(0_u64, |sum, view| sum.saturating_add(view.cached().0));
        let why = "expandable segments reduce fragmentation".to_owned();
        steps.push(step(process, Action::ExpandSegments, Bytes(cached), Known::AtMost, why));
    }
    let why = less(situation.cause).to_owned();
    steps.push(step(process, Action::AskForLess, Bytes(0), Known::Estimate, why));
}

/// How the one who was refused can need less of what it was refused.
const fn less(cause: Option<Cause>) -> &'static str {
    match cause {
        Some(Cause::LargerThanDevice) => {
            "the request exceeds the whole device: use smaller requests or split the model across \
             devices"
        }
        Some(Cause::Quota) => {
            "a quota limits this process although the device has free memory: raise its share (MPS, \
             container, vGPU) or reduce its use"
        }
        Some(Cause::HostMemory) => {
            "host memory is exhausted, freeing GPU memory does not help: lock less of it (fewer or \
             smaller pinned buffers) or raise the limits (ulimit -l, cgroup memory)"
        }
        Some(Cause::AddressSpace) => {
            "the virtual address space is exhausted: reserve less of it or raise the limit (ulimit -v)"
        }
        _ => "use a smaller batch, shorter sequences, lower precision or activation checkpointing",
    }
}
