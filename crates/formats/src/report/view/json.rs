//! The view as JSON: `gpus`, `leaks`, `not_freed` and `notes`, the same in all outputs. The names are
//! a contract: fields are added, never renamed.

use std::collections::BTreeMap;

use engine::snapshot::LibraryView;
use engine::view::{
    GpuRow, GroupRow, Grouping, Leak, LeakPart, LeakResource, NotFreedRow, Note, ProcessRow, View,
};
use serde::Serialize;

use super::{leak_location, notes, stack_location};
use crate::WallClock;
use crate::report::analysis::json::{FrameJson, frame};
use crate::report::verdict::json::via;
use crate::report::verdict::kind;
use crate::sanitize::sanitize;

/// Fields that all outputs with a view have.
#[derive(Serialize)]
pub struct ViewJson {
    /// Time since the trace began, in seconds.
    observed_seconds: f64,
    gpus: Vec<GpuRowJson>,
    leaks: Vec<LeakJson>,
    leaks_total: usize,
    leaking_processes: usize,
    not_freed: Vec<NotFreedJson>,
    /// Without memory that caching allocators hold until exit.
    not_freed_without_caches_bytes: u64,
    /// Seconds until all growth can be classified; absent if it can be now.
    #[serde(skip_serializing_if = "Option::is_none")]
    too_early_seconds: Option<f64>,
    undecided_sites: u64,
    notes: Vec<NoteJson>,
    /// Memory by library; the last row is driver-reported memory that was not traced.
    libraries: Vec<LibraryJson>,
}

/// Memory of one library.
#[derive(Serialize)]
pub(crate) struct LibraryJson {
    /// `null` for driver-reported memory that was not traced.
    library: Option<String>,
    live_bytes: u64,
    live_allocations: u64,
    peak_bytes_max: u64,
    bytes_total: u64,
    allocations_total: u64,
    host_bytes: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    objects_by_kind: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pids: Option<Vec<u32>>,
}

#[derive(Serialize)]
struct GpuRowJson {
    index: Option<u16>,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    traced_bytes: u64,
    untracked_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes_per_hour: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_until_full_seconds: Option<u64>,
    processes: u64,
}

/// A leak: suspect sites of one program in one function.
#[derive(Serialize)]
struct LeakJson {
    number: usize,
    program: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    pids: Vec<Option<u32>>,
    location: String,
    frame: Option<FrameJson>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    via: Vec<String>,
    lines: Vec<u32>,
    resource: &'static str,
    kind: Option<&'static str>,
    confidence: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    live_bytes: Option<u64>,
    /// Live allocations, tensors or objects.
    live_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_objects_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time_until_full_seconds: Option<u64>,
    cause: &'static str,
    advice: String,
    /// Other resources that the function leaks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    also: Vec<LeakPartJson>,
    /// Sites, as in `suspects`.
    sites: Vec<String>,
}

#[derive(Serialize)]
struct LeakPartJson {
    resource: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    live_bytes: Option<u64>,
    live_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes_per_hour: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_objects_per_hour: Option<u64>,
}

#[derive(Serialize)]
struct NotFreedJson {
    program: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    pids: Vec<u32>,
    resource: &'static str,
    bytes: u64,
    allocations: u64,
    location: String,
    frame: Option<FrameJson>,
}

#[derive(Serialize)]
struct NoteJson {
    number: usize,
    r#type: &'static str,
    inexact: bool,
    text: String,
}

/// Fields of a process that come from the view.
#[derive(Serialize)]
pub(crate) struct ProcessRowJson {
    program: String,
    user: String,
    used_bytes: u64,
    /// Whether the driver reports `used_bytes`; otherwise it is traced memory.
    used_reported: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_bytes_per_hour: Option<i64>,
    /// Job of a scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<u32>,
    /// Root of its process tree.
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<TreeJson>,
    verdict: &'static str,
    /// Numbers of its leaks.
    leaks: Vec<usize>,
}

/// Root of a process tree.
#[derive(Serialize)]
struct TreeJson {
    pid: u32,
    program: String,
}

impl ViewJson {
    /// Converts a view, with at most `top` leaks.
    #[must_use]
    pub fn new(view: &View<'_>, clock: Option<&WallClock>, top: usize) -> Self {
        let seconds = |nanos: engine::model::units::Nanos| nanos.millis() as f64 / 1e3;
        let leaks = view.leaks.iter().take(top).enumerate();
        let notes = view.notes.iter().enumerate();
        Self {
            observed_seconds: seconds(view.observed),
            gpus: view.gpus.iter().map(GpuRowJson::new).collect(),
            leaks: leaks.map(|(index, leak)| LeakJson::new(index + 1, leak)).collect(),
            leaks_total: view.leaks.len(),
            leaking_processes: view.leaking_processes(),
            not_freed: view.not_freed.iter().take(top).map(NotFreedJson::new).collect(),
            not_freed_without_caches_bytes: view.not_freed_bytes().0,
            too_early_seconds: view.wait.map(seconds),
            undecided_sites: view.undecided_sites(),
            notes: notes.map(|(index, note)| NoteJson::new(index + 1, note, clock)).collect(),
            libraries: view.groups(Grouping::Library).iter().map(LibraryJson::of_group).collect(),
        }
    }
}

impl LibraryJson {
    /// Returns the object of a library of one process.
    pub(crate) fn new(view: &LibraryView) -> Self {
        Self {
            library: Some(sanitize(&view.library).into_owned()),
            live_bytes: view.live_bytes.0,
            live_allocations: view.live_allocations,
            peak_bytes_max: view.peak_max.0,
            bytes_total: view.bytes_total.0,
            allocations_total: view.allocations_total,
            host_bytes: view.host_bytes.0,
            objects_by_kind: view
                .objects
                .iter()
                .map(|(kind, count)| (kind.name(), *count))
                .collect(),
            pids: None,
        }
    }

    fn of_group(row: &GroupRow<'_>) -> Self {
        Self {
            library: row.name.as_ref().map(|name| sanitize(name).into_owned()),
            live_bytes: row.used.0,
            pids: Some(row.pids.iter().map(|pid| pid.0).collect()),
            ..Self::new(&row.traced)
        }
    }
}

impl GpuRowJson {
    fn new(gpu: &GpuRow<'_>) -> Self {
        Self {
            index: gpu.gpu.map(|gpu| gpu.0),
            name: sanitize(gpu.name).into_owned(),
            total_bytes: gpu.total.map(|bytes| bytes.0),
            used_bytes: gpu.used.map(|bytes| bytes.0),
            traced_bytes: gpu.traced.0,
            untracked_bytes: gpu.untracked.0,
            growth_bytes_per_hour: gpu.growth_per_hour,
            time_until_full_seconds: gpu.time_until_full.map(|time| time.0 / 1_000_000_000),
            processes: gpu.processes,
        }
    }
}

impl LeakJson {
    fn new(number: usize, leak: &Leak<'_>) -> Self {
        let is_objects = matches!(leak.resource, LeakResource::Objects(_));
        Self {
            number,
            program: sanitize(&leak.program).into_owned(),
            user: leak.user.map(|user| sanitize(user).into_owned()),
            pids: leak.processes.iter().map(|one| one.pid.map(|pid| pid.0)).collect(),
            location: sanitize(&leak_location(leak)).into_owned(),
            frame: leak.stack.responsible().map(frame),
            via: via(leak.stack),
            lines: leak.lines.clone(),
            resource: leak.resource.name(),
            kind: leak.sites.first().map(|site| kind(site.resource)),
            confidence: leak.confidence.name(),
            live_bytes: (!is_objects).then_some(leak.live),
            live_count: leak.live_count,
            growth_bytes_per_hour: (!is_objects).then_some(leak.growth_per_hour),
            growth_objects_per_hour: is_objects.then_some(leak.growth_per_hour),
            gpu: leak.gpu.map(|gpu| gpu.0),
            time_until_full_seconds: leak.time_until_full.map(|time| time.0 / 1_000_000_000),
            cause: leak.advice.cause,
            advice: leak.advice.text.clone(),
            also: leak.also.iter().map(LeakPartJson::new).collect(),
            sites: leak.sites.iter().map(|site| site.site.to_string()).collect(),
        }
    }
}

impl LeakPartJson {
    fn new(part: &LeakPart) -> Self {
        let is_objects = matches!(part.resource, LeakResource::Objects(_));
        Self {
            resource: part.resource.name(),
            live_bytes: (!is_objects).then_some(part.live),
            live_count: part.live_count,
            growth_bytes_per_hour: (!is_objects).then_some(part.growth_per_hour),
            growth_objects_per_hour: is_objects.then_some(part.growth_per_hour),
        }
    }
}

impl NotFreedJson {
    fn new(row: &NotFreedRow<'_>) -> Self {
        let location = row.stack.map_or_else(|| "(other sites)".to_owned(), stack_location);
        Self {
            program: sanitize(row.program).into_owned(),
            user: row.user.map(|user| sanitize(user).into_owned()),
            pids: row.pids.iter().map(|pid| pid.0).collect(),
            resource: row.resource.name(),
            bytes: row.bytes.0,
            allocations: row.allocations,
            location: sanitize(&location).into_owned(),
            frame: row.stack.and_then(|stack| stack.responsible()).map(frame),
        }
    }
}

impl NoteJson {
    fn new(number: usize, note: &Note, clock: Option<&WallClock>) -> Self {
        let text = notes::text(note, clock);
        Self { number, r#type: note.name(), inexact: note.is_inexact(), text }
    }
}

impl ProcessRowJson {
    pub(crate) fn new(row: &ProcessRow<'_>) -> Self {
        let group = &row.process.identity.group;
        Self {
            program: sanitize(row.program).into_owned(),
            user: sanitize(&row.user).into_owned(),
            used_bytes: row.used.0,
            used_reported: row.is_reported,
            growth_bytes_per_hour: row.growth_per_hour,
            job: group.job.as_deref().map(|job| sanitize(job).into_owned()),
            rank: group.rank,
            tree: group.tree.as_ref().map(|(pid, program)| TreeJson {
                pid: pid.0,
                program: sanitize(program).into_owned(),
            }),
            verdict: row.state.name(),
            leaks: row.leaks.iter().map(|index| index + 1).collect(),
        }
    }
}
