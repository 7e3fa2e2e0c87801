//! Processes and their verdicts, and memory that ended processes had not freed.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::leaks::{Leak, LeakResource, function_of};
use super::{Placement, rest_of_start};
use crate::model::{Bytes, CallStack, GpuId, Nanos, Pid};
use crate::snapshot::{NotFreed, NotFreedSite, ProcessView, Snapshot};
use crate::verdict::{Confidence, Resource};

/// A process.
#[derive(Clone, PartialEq, Debug)]
pub struct ProcessRow<'a> {
    /// Everything that is known about it.
    pub process: &'a ProcessView,
    /// User: a name, or else the user id; `?` if both are unknown (untrusted).
    pub user: Cow<'a, str>,
    /// Program (untrusted).
    pub program: &'a str,
    /// Used device memory, as the driver reports it; otherwise traced.
    pub used: Bytes,
    /// Whether `used` is reported by the driver.
    pub is_reported: bool,
    /// Growth of the used memory per hour.
    pub growth_per_hour: Option<i64>,
    /// GPUs that it uses, where known, most memory first.
    pub gpus: Vec<GpuId>,
    /// Time until one of them is full at the growth of this process alone.
    pub time_until_full: Option<Nanos>,
    /// Time since it started, if known.
    pub age: Option<Nanos>,
    /// Verdict.
    pub state: ProcessState,
    /// Its leaks, as indices of [`super::View::leaks`], worst first.
    pub leaks: Vec<usize>,
}

/// Verdict on a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessState {
    /// It leaks.
    Leaks(Confidence),
    /// It grows, or was not observed for long; a verdict is possible after this time.
    TooEarly(Nanos),
    /// It grows, but not like a leak.
    Growing,
    /// It does not grow.
    Steady,
    /// It ended.
    Ended,
}

impl ProcessState {
    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leaks(_) => "leak",
            Self::TooEarly(_) => "too_early",
            Self::Growing => "growing",
            Self::Steady => "steady",
            Self::Ended => "ended",
        }
    }
}

/// Memory that ended processes of one program had not freed, from one function. Memory that caching
/// allocators hold until exit is not included.
#[derive(Clone, PartialEq, Debug)]
pub struct NotFreedRow<'a> {
    /// Program (untrusted).
    pub program: &'a str,
    /// User, if known (untrusted).
    pub user: Option<&'a str>,
    /// Processes, in the order in which they ended.
    pub pids: Vec<Pid>,
    /// Call stack of the largest part; `None` if it is not listed.
    pub stack: Option<&'a CallStack>,
    /// Class of the memory.
    pub resource: LeakResource,
    /// Bytes.
    pub bytes: Bytes,
    /// Number of allocations.
    pub allocations: u64,
}

/// Returns the rows of all processes, in the order of [`super::View::processes`].
pub(super) fn of<'a>(
    snapshot: &'a Snapshot,
    leaks: &[Leak<'_>],
    placement: &Placement,
) -> Vec<ProcessRow<'a>> {
    let one = |process| {
        let mut row = row(process, leaks, placement);
        // Nothing is said to be free of leaks before the shortest observation that shows one.
        if let Some(rest) = rest_of_start(snapshot).filter(|_| process.live_allocations > 0)
            && matches!(row.state, ProcessState::Growing | ProcessState::Steady)
        {
            row.state = ProcessState::TooEarly(rest);
        }
        // The start is read from a clock that also counts while the machine sleeps.
        let start = Some(process.key.start).filter(|start| *start > 0);
        let age = start.and_then(|start| snapshot.at.0.checked_sub(start)).map(Nanos);
        ProcessRow { age, ..row }
    };
    let mut rows: Vec<_> = snapshot.processes.iter().map(one).collect();
    rows.sort_by_key(|row| {
        let pid = row.process.key.pid;
        let has_ended = row.process.ended.is_some();
        (row.leaks.first().copied().unwrap_or(usize::MAX), has_ended, Reverse(row.used), pid)
    });
    rows
}

fn row<'a>(process: &'a ProcessView, leaks: &[Leak<'_>], placement: &Placement) -> ProcessRow<'a> {
    let pid = Some(process.key.pid);
    let is_own = |leak: &Leak<'_>| {
        leak.sites.iter().any(|site| site.pid == pid && site.process == process.name)
    };
    let own: Vec<usize> =
        leaks.iter().enumerate().filter(|(_, leak)| is_own(leak)).map(|(index, _)| index).collect();
    let worst = own.first().and_then(|index| leaks.get(*index));
    let reported = process.driver_bytes().filter(|_| process.ended.is_none());
    let gpus = gpus(process, placement);
    let leak_time = own.iter().filter_map(|index| leaks.get(*index)?.time_until_full).min();
    let growth = process.growth_per_hour.and_then(|growth| u64::try_from(growth).ok());
    let own_time =
        growth.and_then(|growth| placement.time_until_full(gpus.first().copied(), growth));
    let identity = &process.identity;
    let by_id = || process.uid.map_or(Cow::Borrowed("?"), |uid| Cow::Owned(uid.to_string()));
    ProcessRow {
        process,
        user: identity.user.as_deref().map_or_else(by_id, Cow::Borrowed),
        program: process.program(),
        used: reported.unwrap_or(process.live_bytes),
        is_reported: reported.is_some(),
        growth_per_hour: process.growth_per_hour,
        gpus,
        time_until_full: own_time.or(leak_time).filter(|_| process.ended.is_none()),
        age: None,
        state: match (worst, process.undecided) {
            (Some(leak), _) => ProcessState::Leaks(leak.confidence),
            _ if process.ended.is_some() => ProcessState::Ended,
            (_, Some(undecided)) => ProcessState::TooEarly(undecided.wait),
            _ if process.growth_per_hour.is_some_and(|growth| growth > 0) => ProcessState::Growing,
            _ => ProcessState::Steady,
        },
        leaks: own,
    }
}

/// Returns the GPUs that a process uses, most memory first.
fn gpus(process: &ProcessView, placement: &Placement) -> Vec<GpuId> {
    let mut used: BTreeMap<GpuId, u64> = BTreeMap::new();
    for row in &process.devices {
        let bytes = row.driver_bytes.unwrap_or(row.live_bytes).max(row.live_bytes).0;
        if let Some(gpu) = row.gpu.or(placement.only).filter(|_| bytes > 0) {
            let sum = used.entry(gpu).or_default();
            *sum = bytes.max(*sum);
        }
    }
    let mut gpus: Vec<_> = used.into_iter().collect();
    gpus.sort_by_key(|(gpu, bytes)| (Reverse(*bytes), *gpu));
    gpus.into_iter().map(|(gpu, _)| gpu).collect()
}

/// Returns memory that ended processes had not freed, by program, class and function.
pub(super) fn not_freed(snapshot: &Snapshot) -> Vec<NotFreedRow<'_>> {
    let mut rows: BTreeMap<_, NotFreedRow<'_>> = BTreeMap::new();
    for process in &snapshot.not_freed {
        let mut rest = (process.bytes.0, process.allocations);
        for site in &process.sites {
            rest.0 = rest.0.saturating_sub(site.bytes.0);
            rest.1 = rest.1.saturating_sub(site.allocations);
            add(&mut rows, process, Some(site), (site.bytes.0, site.allocations));
        }
        if rest.1 > 0 {
            add(&mut rows, process, None, rest);
        }
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by_key(|row| (Reverse(row.bytes), row.pids.first().copied()));
    rows
}

/// Program, user, class, and module, file and function of the frame.
type NotFreedKey<'a> =
    (&'a str, Option<&'a str>, LeakResource, Option<(Option<&'a str>, Option<&'a str>, &'a str)>);

fn add<'a>(
    rows: &mut BTreeMap<NotFreedKey<'a>, NotFreedRow<'a>>,
    process: &'a NotFreed,
    site: Option<&'a NotFreedSite>,
    (bytes, allocations): (u64, u64),
) {
    let kind = site.map(|site| LeakResource::of(Resource::Memory(site.kind)));
    let resource = kind.unwrap_or(LeakResource::Device);
    let program = process.identity.program_or(&process.name);
    let user = process.identity.user.as_deref();
    let place = site.and_then(|site| function_of(&site.frames));
    let row = rows.entry((program, user, resource, place)).or_insert_with(|| NotFreedRow {
        program,
        user,
        pids: Vec::new(),
        stack: site.map(|site| &site.frames),
        resource,
        bytes: Bytes(0),
        allocations: 0,
    });
    let pid = process.key.pid;
    if !row.pids.contains(&pid) {
        row.pids.push(pid);
    }
    row.bytes = Bytes(row.bytes.0.saturating_add(bytes));
    row.allocations = row.allocations.saturating_add(allocations);
}
