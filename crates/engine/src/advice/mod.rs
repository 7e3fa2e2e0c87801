//! Steps that would free GPU memory: one per process, ranked by effect and cost.
//!
//! Nothing is executed. Each step has the bytes it frees, how precise that number is, and its cost.
//! Commands contain only numbers and names without shell metacharacters.

mod commands;

pub use commands::{CommandLanguage, SuggestedCommand};

use std::cmp::Reverse;

use crate::model::named::named_enum;
use crate::model::{Allocator, Bytes, DeviceId, GpuId, MemoryKind, Nanos, Pid, ProcessIdentity};
use crate::oom::OomCause;
use crate::snapshot::{DeviceView, ProcessView, Snapshot};
use crate::verdict::{Confidence, Evidence};
use crate::view::LeakResource;

/// Input for [`advise`].
#[derive(Clone, Copy)]
pub struct AdviceInput<'a> {
    /// State of all processes.
    pub snapshot: &'a Snapshot,
    /// GPU on which memory is needed.
    pub gpu: Option<GpuId>,
    /// Memory of that GPU; 0 if it is unknown.
    pub gpu_memory: Bytes,
    /// Restricts the steps to these processes; empty means all.
    pub only: &'a [Pid],
    /// Process whose allocation failed, if any: stopping it would not help it.
    pub requester: Option<Pid>,
    /// Why the allocation failed, if known: only steps that help against this cause are listed.
    pub cause: Option<OomCause>,
    /// Returns true for processes that must not be stopped: system daemons, and vramscope itself.
    pub protected: &'a dyn Fn(&ProcessView) -> bool,
    /// Time since the last launch of a process, if launches are counted.
    pub idle: &'a dyn Fn(&ProcessView) -> Option<Nanos>,
}

/// A process without a launch for this long counts as idle.
pub const IDLE_AFTER: Nanos = Nanos::from_millis(5 * 60 * 1000);

named_enum! {
    /// Kind of step.
    pub enum AdviceAction {
        /// Free the unused memory of PyTorch's cache.
        EmptyCache => "empty_cache",
        /// Free the unused memory of a memory pool.
        TrimPool => "trim_pool",
        /// Free the unused memory of CUDA graphs.
        TrimGraphs => "trim_graphs",
        /// Stop an idle process.
        StopIdle => "stop_idle",
        /// Restart a process that leaks.
        RestartLeaking => "restart_leaking",
        /// Use segments that can grow in place.
        UseExpandableSegments => "use_expandable_segments",
        /// Change the program so that it needs less memory.
        ReduceMemoryUse => "reduce_memory_use",
        /// Stop a process that is not idle.
        Stop => "stop",
    }
}

impl AdviceAction {
    /// Whether no work is lost.
    pub const fn is_safe(self) -> bool {
        matches!(self, Self::EmptyCache | Self::TrimPool | Self::TrimGraphs)
    }

    /// Cost of the step, as text.
    pub const fn cost(self) -> &'static str {
        match self {
            Self::EmptyCache => {
                "no work is lost; allocations are slower until the cache is warm again"
            }
            Self::TrimPool | Self::TrimGraphs => "no work is lost; the next allocations are slower",
            Self::StopIdle => "unsaved state of the process is lost",
            Self::RestartLeaking => {
                "work since the last checkpoint is lost; it will leak again until fixed"
            }
            Self::UseExpandableSegments => {
                "requires a restart; work since the last checkpoint is lost"
            }
            Self::ReduceMemoryUse => "requires a code or configuration change; may run slower",
            Self::Stop => "work since the last checkpoint is lost",
        }
    }

    /// Sort rank: leaks fill the GPU again, whatever else is freed; then cheaper steps first.
    const fn rank(self) -> u8 {
        match self {
            Self::RestartLeaking => 0,
            Self::EmptyCache | Self::TrimPool | Self::TrimGraphs => 1,
            Self::StopIdle => 2,
            Self::UseExpandableSegments => 3,
            Self::ReduceMemoryUse => 4,
            Self::Stop => 5,
        }
    }
}

named_enum! {
    /// Precision of the bytes that a step frees.
    pub enum Precision {
        /// Exactly this many bytes.
        Exact => "exact",
        /// At most this many bytes.
        UpperBound => "upper_bound",
        /// About this many bytes.
        Estimate => "estimate",
    }
}

/// A step that would free memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdviceStep {
    /// What to do.
    pub action: AdviceAction,
    /// Process it applies to.
    pub pid: Pid,
    /// Name of the process (untrusted).
    pub process: Box<str>,
    /// Its program and user, where known (untrusted).
    pub identity: ProcessIdentity,
    /// User id of the process.
    pub uid: Option<u32>,
    /// Bytes freed on the GPU.
    pub bytes: Bytes,
    /// Precision of `bytes`.
    pub precision: Precision,
    /// Growth of leaks that the step ends until they start again.
    pub growth_per_hour: Bytes,
    /// Reason, one sentence without a full stop.
    pub reason: String,
    /// Commands that carry out the step.
    pub commands: Vec<SuggestedCommand>,
    /// Other steps for the same process.
    pub alternatives: Vec<AdviceStep>,
}

impl AdviceStep {
    /// Whether it has little effect: what it frees, and the hourly growth that it ends, are less
    /// than 1 % of the GPU. What a change of the program frees is unknown.
    fn is_small(&self, gpu_memory: Bytes) -> bool {
        let effect = self.bytes.max(self.growth_per_hour);
        effect.0 > 0 && effect.0 < gpu_memory.0 / 100
    }
}

/// Returns one step per process that would help: fastest growing leaks first, then cheapest first,
/// then by bytes freed; those with little effect last.
pub fn advise(input: &AdviceInput<'_>) -> Vec<AdviceStep> {
    let mut steps = Vec::new();
    let selected = |pid| input.only.is_empty() || input.only.contains(&pid);
    let running = input.snapshot.running();
    for process in running.filter(|process| selected(process.key.pid)) {
        let is_requester = input.requester == Some(process.key.pid);
        if can_help(input.cause, is_requester) {
            reclaim_steps(input, process, &mut steps);
            if !(input.protected)(process) && !is_service(&process.name) {
                termination_steps(input, process, &mut steps);
            }
        }
        if is_requester {
            requester_steps(input, process, &mut steps);
        }
    }
    let changes_program = |action| {
        matches!(action, AdviceAction::UseExpandableSegments | AdviceAction::ReduceMemoryUse)
    };
    steps.retain(|step| step.bytes.0 > 0 || changes_program(step.action));
    steps.sort_by_key(|step| {
        let effect = Reverse((step.growth_per_hour, step.bytes));
        let is_small = step.is_small(input.gpu_memory);
        (is_small, step.action.rank(), effect, step.pid, step.action, step.precision)
    });
    one_per_process(steps)
}

/// Makes the later steps of a process alternatives of its first one.
fn one_per_process(steps: Vec<AdviceStep>) -> Vec<AdviceStep> {
    let mut firsts: Vec<AdviceStep> = Vec::new();
    for step in steps {
        match firsts.iter_mut().find(|first| first.pid == step.pid) {
            Some(first) => first.alternatives.push(step),
            None => firsts.push(step),
        }
    }
    firsts
}

/// Whether device memory freed by a process helps the requester. Memory of other processes only
/// helps if the device is full; the requester's own memory also helps against a quota.
fn can_help(cause: Option<OomCause>, is_requester: bool) -> bool {
    cause.is_none_or(|cause| cause.is_device_memory() || (is_requester && cause == OomCause::Quota))
}

/// Whether this is a system program that serves the GPU or the host. Names are cut to 15
/// characters, as in `/proc/PID/comm`.
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
    NAMES.iter().any(|service| name.starts_with(service))
}

fn is_target(input: &AdviceInput<'_>, view: &DeviceView) -> bool {
    input.gpu.is_none() || view.gpu == input.gpu
}

fn is_on_gpu(input: &AdviceInput<'_>, process: &ProcessView, device: Option<DeviceId>) -> bool {
    input.gpu.is_none()
        || process.devices.iter().any(|view| view.device == device && view.gpu == input.gpu)
}

fn step(
    process: &ProcessView,
    action: AdviceAction,
    bytes: Bytes,
    precision: Precision,
    reason: String,
) -> AdviceStep {
    let commands = commands::commands_for(action, process);
    AdviceStep {
        action,
        pid: process.key.pid,
        process: process.name.clone(),
        identity: process.identity.clone(),
        uid: process.uid,
        bytes,
        precision,
        growth_per_hour: Bytes(0),
        reason,
        commands,
        alternatives: Vec::new(),
    }
}

/// Returns the memory in private pools of graphs that grows: PyTorch keeps it with the graphs.
fn graph_pools(input: &AdviceInput<'_>, process: &ProcessView) -> u64 {
    let own = input.snapshot.suspects.iter().filter(|one| one.pid == Some(process.key.pid));
    let captured = own.filter(|one| one.evidence.tensors.is_some_and(|all| all.during_capture));
    captured.fold(0, |sum, one| sum.saturating_add(one.evidence.live))
}

/// Adds steps that free memory which a process holds but does not use.
fn reclaim_steps(input: &AdviceInput<'_>, process: &ProcessView, steps: &mut Vec<AdviceStep>) {
    let pools = process.torch().flat_map(|torch| &torch.pools);
    for view in pools.filter(|view| is_on_gpu(input, process, view.device)) {
        let (bytes, precision) = match view.fragmentation {
            Ok(fragmentation) => (fragmentation.releasable, Precision::Exact),
            Err(_) => {
                let kept = graph_pools(input, process).saturating_sub(view.allocated.0);
                (Bytes(view.cached().0.saturating_sub(kept)), Precision::UpperBound)
            }
        };
        let reason = format!(
            "PyTorch reserves {} and uses {}; {} is fragmented",
            view.reserved,
            view.allocated,
            view.fragmentation.map_or_else(
                |_| "an unknown part of the rest".to_owned(),
                |fragmentation| fragmentation.fragmented.to_string()
            ),
        );
        steps.push(step(process, AdviceAction::EmptyCache, bytes, precision, reason));
    }
    for pool in process.pools.iter().filter(|pool| pool.device.is_some()) {
        let Some(reported) = pool.reserved.filter(|_| is_on_gpu(input, process, pool.device))
        else {
            continue;
        };
        let bytes = Bytes(reported.bytes.0.saturating_sub(pool.used.0));
        let reason = format!("a memory pool reserves {} and uses {}", reported.bytes, pool.used);
        steps.push(step(process, AdviceAction::TrimPool, bytes, Precision::UpperBound, reason));
    }
    let graph = process.kinds.iter().find(|view| view.kind == MemoryKind::Graph);
    let in_use = graph.map_or(0, |view| view.live_bytes.0);
    for view in process.devices.iter().filter(|view| is_target(input, view)) {
        if let Some(reported) = view.graph_reserved {
            let bytes = Bytes(reported.bytes.0.saturating_sub(in_use));
            let reason = format!("graphs reserve {}", reported.bytes);
            steps.push(step(
                process,
                AdviceAction::TrimGraphs,
                bytes,
                Precision::UpperBound,
                reason,
            ));
        }
    }
}

/// Returns the memory that stopping a process would free: traced memory, plus untracked memory
/// where the driver reports the usage. The latter includes memory from before the trace.
fn total_held(input: &AdviceInput<'_>, process: &ProcessView) -> (Bytes, Precision) {
    let (mut sum, mut reported) = (0_u64, true);
    for view in process.devices.iter().filter(|view| is_target(input, view)) {
        let untracked = view.untracked();
        reported &= untracked.is_some();
        let live = view.live_bytes.0.saturating_add(untracked.unwrap_or_default().0);
        sum = sum.saturating_add(live);
    }
    (Bytes(sum), if reported { Precision::Exact } else { Precision::Estimate })
}

/// Adds the step that ends the process.
fn termination_steps(input: &AdviceInput<'_>, process: &ProcessView, steps: &mut Vec<AdviceStep>) {
    let (held, precision) = total_held(input, process);
    if let Some(Leaked { bytes, growth_per_hour, confidence }) = leaked(input, process) {
        // Tensors and the cache that holds them are two views of the same memory.
        let leaked = if held > Bytes(0) { bytes.min(held) } else { bytes };
        let reason = format!(
            "{leaked} of it is a suspected leak ({}) that grows by {growth_per_hour} per hour; the \
             rest is needed again after a restart",
            confidence.name()
        );
        let action = AdviceAction::RestartLeaking;
        let restart = step(process, action, held.max(leaked), precision, reason);
        steps.push(AdviceStep { growth_per_hour, ..restart });
        return;
    }
    if input.requester == Some(process.key.pid) {
        return;
    }
    let (action, reason) = match (input.idle)(process).filter(|idle| *idle >= IDLE_AFTER) {
        Some(idle) => {
            let minutes = idle.millis() / 60_000;
            (AdviceAction::StopIdle, format!("no launches for {minutes} minutes"))
        }
        None => (AdviceAction::Stop, format!("holds {held}")),
    };
    let reason = reason + &other_leaks(input, process);
    steps.push(step(process, action, held, precision, reason));
}

/// Returns what a process leaks besides device memory, as the end of a sentence.
fn other_leaks(input: &AdviceInput<'_>, process: &ProcessView) -> String {
    let mut names: Vec<String> = Vec::new();
    let own = input.snapshot.suspects.iter().filter(|one| one.pid == Some(process.key.pid));
    for resource in own.map(|suspect| LeakResource::of(suspect.resource)) {
        let name = match resource {
            LeakResource::Objects(kind) => format!("{} objects", kind.name()),
            LeakResource::Host => "host memory".to_owned(),
            LeakResource::Managed => "managed memory".to_owned(),
            LeakResource::Device | LeakResource::Blocks(_) => continue,
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() { String::new() } else { format!("; it leaks {}", names.join(", ")) }
}

/// Device memory in the leak suspects of a process.
struct Leaked {
    bytes: Bytes,
    growth_per_hour: Bytes,
    /// Highest confidence among the suspects.
    confidence: Confidence,
}

/// Returns the device memory in leak suspects of a process: of the driver or in tensors, whichever
/// is more, because tensors are in memory of the driver.
fn leaked(input: &AdviceInput<'_>, process: &ProcessView) -> Option<Leaked> {
    let own = input.snapshot.suspects.iter().filter(|suspect| {
        let on_gpu = suspect.device.is_none() || is_on_gpu(input, process, suspect.device);
        suspect.pid == Some(process.key.pid) && on_gpu
    });
    let sum = |resource: LeakResource| {
        let own = own.clone().filter(|suspect| LeakResource::of(suspect.resource) == resource);
        own.fold((0_u64, 0_u64, None), |(bytes, growth, confidence), suspect| {
            let Evidence { live, growth_per_hour, .. } = suspect.evidence;
            (
                bytes.saturating_add(live),
                growth.saturating_add(growth_per_hour),
                confidence.max(Some(suspect.confidence)),
            )
        })
    };
    let blocks = Allocator::ALL.into_iter().map(|allocator| sum(LeakResource::Blocks(allocator)));
    let driver = sum(LeakResource::Device);
    let (bytes, growth, confidence) = blocks.fold(driver, |most, one| most.max(one));
    let confidence = confidence.filter(|_| bytes > 0)?;
    Some(Leaked { bytes: Bytes(bytes), growth_per_hour: Bytes(growth), confidence })
}

/// Adds steps that the requester itself can take.
fn requester_steps(input: &AdviceInput<'_>, process: &ProcessView, steps: &mut Vec<AdviceStep>) {
    if input.cause == Some(OomCause::CacheFragmentation) {
        let pools = process.torch().flat_map(|torch| &torch.pools);
        let cached = pools.fold(0_u64, |sum, view| sum.saturating_add(view.cached().0));
        let reason = "expandable segments reduce fragmentation".to_owned();
        steps.push(step(
            process,
            AdviceAction::UseExpandableSegments,
            Bytes(cached),
            Precision::UpperBound,
            reason,
        ));
    }
    let reason = reduction_hint(input.cause).to_owned();
    steps.push(step(process, AdviceAction::ReduceMemoryUse, Bytes(0), Precision::Estimate, reason));
}

/// Returns a hint how the requester can use less of the exhausted resource.
const fn reduction_hint(cause: Option<OomCause>) -> &'static str {
    match cause {
        Some(OomCause::RequestExceedsDevice) => {
            "the request exceeds the whole device: use smaller requests or split the model across \
             devices"
        }
        Some(OomCause::Quota) => {
            "a quota limits this process although the device has free memory: raise its share (MPS, \
             container, vGPU) or reduce its use"
        }
        Some(OomCause::HostMemoryExhausted) => {
            "host memory is exhausted, freeing GPU memory does not help: lock less of it (fewer or \
             smaller pinned buffers) or raise the limits (ulimit -l, cgroup memory)"
        }
        Some(OomCause::AddressSpaceExhausted) => {
            "the virtual address space is exhausted: reserve less of it or raise the limit (ulimit -v)"
        }
        _ => "use a smaller batch, shorter sequences, lower precision or activation checkpointing",
    }
}
