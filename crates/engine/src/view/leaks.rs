//! Leak suspects, grouped by program and function.

use std::cmp::Reverse;

use super::Placement;
use crate::leak::{Advice, advise};
use crate::model::{
    Allocator, CallStack, GpuId, MemoryKind, MemoryLayer, Nanos, ObjectKind, Pid, SiteName,
    program_of_stack,
};
use crate::snapshot::{ProcessView, Snapshot};
use crate::verdict::{Confidence, Resource, SiteVerdict};

/// What leaks. Quantities of different resources are never added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeakResource {
    /// Device memory.
    Device,
    /// Blocks of an allocator inside the process, which are in device memory.
    Blocks(Allocator),
    /// Managed memory, on device or host.
    Managed,
    /// Host memory.
    Host,
    /// CUDA objects of one kind.
    Objects(ObjectKind),
}

impl LeakResource {
    /// Resource of a verdict.
    pub const fn of(resource: Resource) -> Self {
        match resource {
            Resource::Objects(kind) => Self::Objects(kind),
            Resource::Blocks(allocator) => Self::Blocks(allocator),
            Resource::Memory(kind) => match kind.layer() {
                MemoryLayer::Host => Self::Host,
                MemoryLayer::Managed => Self::Managed,
                _ => Self::Device,
            },
        }
    }

    /// Rank in lists: what fills a GPU, other memory, objects.
    const fn class(self) -> u8 {
        match self {
            Self::Device | Self::Blocks(_) => 0,
            Self::Managed | Self::Host => 1,
            Self::Objects(_) => 2,
        }
    }

    /// Whether it fills the GPU.
    pub const fn is_device(self) -> bool {
        matches!(self, Self::Device | Self::Blocks(_))
    }

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device_memory",
            Self::Blocks(Allocator::PyTorch) => "tensors",
            Self::Blocks(_) => "blocks",
            Self::Managed => "managed_memory",
            Self::Host => "host_memory",
            Self::Objects(_) => "objects",
        }
    }
}

/// A leak: suspect sites of one program in one function. Quantities are bytes or object counts of its
/// worst resource.
#[derive(Clone, PartialEq, Debug)]
pub struct Leak<'a> {
    /// Program (untrusted).
    pub program: Box<str>,
    /// User, if known (untrusted).
    pub user: Option<&'a str>,
    /// Processes that leak, fastest growing first.
    pub processes: Vec<LeakProcess>,
    /// Call stack of the site that grows fastest; its headline names the leak.
    pub stack: &'a CallStack,
    /// Lines of that function, fastest growing first.
    pub lines: Vec<u32>,
    /// What leaks.
    pub resource: LeakResource,
    /// Memory kind, if all sites have the same.
    pub kind: Option<MemoryKind>,
    /// Highest confidence among the sites.
    pub confidence: Confidence,
    /// Live quantity.
    pub live: u64,
    /// Number of live allocations or objects.
    pub live_count: u64,
    /// Growth per hour.
    pub growth_per_hour: u64,
    /// GPU of the site that grows fastest, if known.
    pub gpu: Option<GpuId>,
    /// Time until that GPU is full at this growth alone, if a process still runs.
    pub time_until_full: Option<Nanos>,
    /// Sites of that resource, fastest growing first, then those of the other ones.
    pub sites: Vec<&'a SiteVerdict>,
    /// Other resources that the same function leaks.
    pub also: Vec<LeakPart>,
    /// Likely cause, and what to do about it.
    pub advice: Advice,
}

/// What a function leaks of one resource. Quantities are bytes or object counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeakPart {
    /// What leaks.
    pub resource: LeakResource,
    /// Live quantity.
    pub live: u64,
    /// Number of live allocations or objects.
    pub live_count: u64,
    /// Growth per hour.
    pub growth_per_hour: u64,
}

/// Share of a process in a leak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeakProcess {
    /// Process; `None` for merged processes that ended earlier.
    pub pid: Option<Pid>,
    /// Live quantity.
    pub live: u64,
    /// Growth per hour.
    pub growth_per_hour: u64,
}

/// A suspect with what it is grouped by.
struct Member<'a> {
    verdict: &'a SiteVerdict,
    program: Box<str>,
    user: Option<&'a str>,
    gpu: Option<GpuId>,
    resource: LeakResource,
    is_running: bool,
}

/// Returns the leaks of a snapshot, in the order of [`super::View::leaks`].
pub(super) fn of<'a>(snapshot: &'a Snapshot, placement: &Placement) -> Vec<Leak<'a>> {
    let mut members: Vec<_> =
        snapshot.suspects.iter().map(|one| Member::of(one, snapshot, placement)).collect();
    let growth = |member: &Member<'_>| Reverse(member.verdict.evidence.growth_per_hour);
    members.sort_by(|a, b| {
        let order = a.group().cmp(&b.group());
        let later = |one: &Member<'_>| {
            (one.resource.class(), growth(one), one.verdict.pid, one.verdict.site)
        };
        order.then_with(|| later(a).cmp(&later(b)))
    });
    let groups = members.chunk_by(|a, b| a.group() == b.group());
    let mut leaks: Vec<_> = groups.filter_map(|group| Leak::of(group, placement)).collect();
    leaks.sort_by_key(Leak::rank);
    leaks
}

/// Module, file and function of the headline of a stack; `None` if it has no frame of a program or
/// a package. Executed operators count as functions.
pub(super) fn function_of(stack: &CallStack) -> Option<(Option<&str>, Option<&str>, &str)> {
    let headline = stack.headline();
    let frame = stack.responsible().filter(|_| headline.is_program)?;
    let function = headline.operator.as_deref().unwrap_or(&frame.function);
    Some((frame.module.as_deref(), frame.file.as_deref(), function))
}

/// Returns the process of a suspect.
fn process_of<'a>(one: &SiteVerdict, snapshot: &'a Snapshot) -> Option<&'a ProcessView> {
    let own = |process: &&ProcessView| Some(process.key.pid) == one.pid;
    let mut all = snapshot.processes.iter().filter(own);
    // An ended process may have had the same pid.
    all.clone().find(|process| process.name == one.process).or_else(|| all.next())
}

impl<'a> Member<'a> {
    fn of(verdict: &'a SiteVerdict, snapshot: &'a Snapshot, placement: &Placement) -> Self {
        let process = process_of(verdict, snapshot);
        let named = process.and_then(|process| process.identity.program.clone());
        let program = named.or_else(|| program_of_stack(&verdict.frames));
        let resource = LeakResource::of(verdict.resource);
        let gpu = placement.gpu(process, verdict.device).filter(|_| resource.is_device());
        Self {
            verdict,
            program: program.unwrap_or_else(|| verdict.process.clone()),
            user: process.and_then(|process| process.identity.user.as_deref()),
            gpu,
            resource,
            is_running: process.is_some_and(|process| process.ended.is_none()),
        }
    }

    /// Program and function; if that is unknown, the resource, the process and the site.
    fn group(&self) -> impl Ord + '_ {
        let place = function_of(&self.verdict.frames);
        let alone: Option<(LeakResource, Option<Pid>, SiteName)> =
            place.is_none().then_some((self.resource, self.verdict.pid, self.verdict.site));
        (&self.program, self.user, place, alone)
    }
}

impl<'a> Leak<'a> {
    /// Merges suspects of one group, the worst resource first.
    fn of(group: &[Member<'a>], placement: &Placement) -> Option<Self> {
        let mut parts = parts(group);
        let main = (!parts.is_empty()).then(|| parts.remove(0))?;
        let (own, others): (Vec<_>, Vec<_>) =
            group.iter().partition(|member| member.resource == main.resource);
        let first = own.first()?;
        let mut lines: Vec<u32> = Vec::new();
        let responsible = own.iter().filter_map(|member| member.verdict.frames.responsible());
        for line in responsible.map(|frame| frame.line) {
            if line > 0 && !lines.contains(&line) {
                lines.push(line);
            }
        }
        let kind = |member: &Member<'_>| match member.verdict.resource {
            Resource::Memory(kind) => Some(kind),
            Resource::Blocks(_) | Resource::Objects(_) => None,
        };
        // Graphs keep the memory of their captures.
        let is_graph = |member: &&&Member<'_>| {
            let kinds = [ObjectKind::Graph, ObjectKind::GraphExec];
            kinds.iter().any(|kind| member.resource == LeakResource::Objects(*kind))
        };
        let causes = own.iter().chain(others.iter().filter(is_graph)).map(|member| {
            let SiteVerdict { resource, evidence, frames, .. } = member.verdict;
            (*resource, evidence, &**frames)
        });
        let confidence = own.iter().map(|member| member.verdict.confidence).max();
        Some(Self {
            program: first.program.clone(),
            user: first.user,
            processes: processes(group, main.resource),
            advice: advise(causes, lines.len()),
            stack: &first.verdict.frames,
            lines,
            resource: main.resource,
            kind: kind(first)
                .filter(|kind_of_all| own.iter().all(|one| kind(one) == Some(*kind_of_all))),
            confidence: confidence.unwrap_or(Confidence::Possible),
            live: main.live,
            live_count: main.live_count,
            growth_per_hour: main.growth_per_hour,
            gpu: first.gpu,
            time_until_full: own
                .iter()
                .any(|member| member.is_running)
                .then(|| placement.time_until_full(first.gpu, main.growth_per_hour))
                .flatten(),
            sites: own.iter().chain(&others).map(|member| member.verdict).collect(),
            also: parts,
        })
    }

    /// Sort key: what fills a GPU first, then memory that is not on a GPU, then objects.
    fn rank(&self) -> impl Ord + use<> {
        let time = self.time_until_full.map_or(u64::MAX, |time| time.0);
        let pid = self.processes.first().and_then(|process| process.pid);
        let site = self.sites.first().map(|site| site.site);
        (
            self.resource.class(),
            time,
            Reverse(self.growth_per_hour),
            self.program.clone(),
            pid,
            site,
        )
    }
}

/// Sums of a group by resource, the worst first.
fn parts(group: &[Member<'_>]) -> Vec<LeakPart> {
    let mut parts: Vec<LeakPart> = Vec::new();
    for member in group {
        let evidence = &member.verdict.evidence;
        let add = |sum: &mut u64, value: u64| *sum = sum.saturating_add(value);
        match parts.iter_mut().find(|part| part.resource == member.resource) {
            Some(part) => {
                add(&mut part.live, evidence.live);
                add(&mut part.live_count, evidence.live_count);
                add(&mut part.growth_per_hour, evidence.growth_per_hour);
            }
            None => parts.push(LeakPart {
                resource: member.resource,
                live: evidence.live,
                live_count: evidence.live_count,
                growth_per_hour: evidence.growth_per_hour,
            }),
        }
    }
    parts.sort_by_key(|part| (part.resource.class(), Reverse(part.growth_per_hour)));
    parts
}

/// Processes of a group; their quantities are those of one resource.
fn processes(group: &[Member<'_>], resource: LeakResource) -> Vec<LeakProcess> {
    let mut all: Vec<LeakProcess> = Vec::new();
    for member in group {
        let counts = member.resource == resource;
        let evidence = &member.verdict.evidence;
        let [live, growth_per_hour] =
            [evidence.live, evidence.growth_per_hour].map(|value| if counts { value } else { 0 });
        let pid = member.verdict.pid;
        match all.iter_mut().find(|process| process.pid == pid) {
            Some(process) => {
                process.live = process.live.saturating_add(live);
                process.growth_per_hour = process.growth_per_hour.saturating_add(growth_per_hour);
            }
            None => all.push(LeakProcess { pid, live, growth_per_hour }),
        }
    }
    all.sort_by_key(|process| (Reverse(process.growth_per_hour), process.pid));
    all
}
