//! The view as JSON: `gpus`, `leaks`, `not_freed` and `notes`, the same in all outputs. The names are
//! a contract: fields are added, never renamed.

use std::collections::BTreeMap;

use engine::model::{Nanos, Pid};
use engine::snapshot::LibraryView;
use engine::view::{
    GpuRow, GroupRow, Grouping, Leak, LeakPart, LeakResource, NotFreedRow, Note, ProcessRow, View,
};

use super::{leak_location, notes, stack_location};
use crate::WallClock;
use crate::report::frame_json::FrameJson;
use crate::report::json_objects::{Word, json_objects};
use crate::report::verdict::json::via;
use crate::report::verdict::kind;
use crate::sanitize::sanitized;

json_objects! {
    /// Fields that all outputs with a view have; at most `top` leaks.
    pub struct ViewJson(view: &View<'_>, clock: Option<&WallClock>, top: usize): Deserialize
    let {
        let seconds = |nanos: Nanos| nanos.millis() as f64 / 1e3;
        let numbered = |(index, leak)| LeakJson::new(index + 1, leak);
        let note = |(index, note)| NoteJson::new(index + 1, note, clock);
    }
    {
        /// Time since the trace began, in seconds.
        observed_seconds: f64 = seconds(view.observed),
        gpus: Vec<GpuRowJson> = view.gpus.iter().map(GpuRowJson::new).collect(),
        #[serde(skip_deserializing)]
        leaks: Vec<LeakJson> = view.leaks.iter().take(top).enumerate().map(numbered).collect(),
        leaks_total: usize = view.leaks.len(),
        leaking_processes: usize = view.leaking_processes(),
        #[serde(skip_deserializing)]
        not_freed: Vec<NotFreedJson> =
            view.not_freed.iter().take(top).map(NotFreedJson::new).collect(),
        /// Without memory that caching allocators hold until exit.
        not_freed_without_caches_bytes: u64 = view.not_freed_bytes().0,
        /// Seconds until all growth can be classified; absent if it can be now.
        too_early_seconds?: Option<f64> = view.wait.map(seconds),
        undecided_sites: u64 = view.undecided_sites(),
        #[serde(skip_deserializing)]
        notes: Vec<NoteJson> = view.notes.iter().enumerate().map(note).collect(),
        /// Memory by library; the last row is driver-reported memory that was not traced.
        #[serde(skip_deserializing)]
        libraries: Vec<LibraryJson> =
            view.groups(Grouping::Library).iter().map(LibraryJson::of_group).collect(),
    }

    /// Memory of one library, of one process.
    pub(crate) struct LibraryJson(view: &LibraryView)
    let { let objects = view.objects.iter(); }
    {
        /// `null` for driver-reported memory that was not traced.
        library: Option<String> = Some(sanitized(&view.library)),
        live_bytes: u64 = view.live_bytes.0,
        live_allocations: u64 = view.live_allocations,
        peak_bytes_max: u64 = view.peak_max.0,
        bytes_total: u64 = view.bytes_total.0,
        allocations_total: u64 = view.allocations_total,
        host_bytes: u64 = view.host_bytes.0,
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        objects_by_kind: BTreeMap<&'static str, u64> =
            objects.map(|(kind, count)| (kind.name(), *count)).collect(),
        pids?: Option<Vec<u32>> = None,
    }

    pub(crate) struct GpuRowJson(gpu: &GpuRow<'_>): Deserialize {
        index: Option<u16> = gpu.gpu.map(|gpu| gpu.0),
        #[serde(skip_serializing_if = "String::is_empty")]
        name: String = sanitized(gpu.name),
        total_bytes?: Option<u64> = gpu.total.map(|bytes| bytes.0),
        used_bytes?: Option<u64> = gpu.used.map(|bytes| bytes.0),
        traced_bytes: u64 = gpu.traced.0,
        untracked_bytes: u64 = gpu.untracked.0,
        growth_bytes_per_hour?: Option<i64> = gpu.growth_per_hour,
        time_until_full_seconds?: Option<u64> =
            gpu.time_until_full.map(|time| time.0 / 1_000_000_000),
        processes: u64 = gpu.processes,
    }

    /// A leak: suspect sites of one program in one function.
    pub(crate) struct LeakJson(position: usize, leak: &Leak<'_>)
    let { let is_objects = matches!(leak.resource, LeakResource::Objects(_)); }
    {
        number: usize = position,
        program: String = sanitized(&leak.program),
        user?: Option<String> = leak.user.map(sanitized),
        pids: Vec<Option<u32>> =
            leak.processes.iter().map(|one| one.pid.map(|pid| pid.0)).collect(),
        location: String = sanitized(&leak_location(leak)),
        frame: Option<FrameJson> = leak.stack.responsible().map(FrameJson::new),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        via: Vec<String> = via(leak.stack),
        lines: Vec<u32> = leak.lines.clone(),
        resource: &'static str = leak.resource.name(),
        kind: Option<&'static str> = leak.sites.first().map(|site| kind(site.resource)),
        confidence: &'static str = leak.confidence.name(),
        live_bytes?: Option<u64> = (!is_objects).then_some(leak.live),
        /// Live allocations, tensors or objects.
        live_count: u64 = leak.live_count,
        growth_bytes_per_hour?: Option<u64> = (!is_objects).then_some(leak.growth_per_hour),
        growth_objects_per_hour?: Option<u64> = is_objects.then_some(leak.growth_per_hour),
        gpu?: Option<u16> = leak.gpu.map(|gpu| gpu.0),
        time_until_full_seconds?: Option<u64> =
            leak.time_until_full.map(|time| time.0 / 1_000_000_000),
        cause: &'static str = leak.advice.cause,
        advice: String = leak.advice.text.clone(),
        /// Other resources that the function leaks.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        also: Vec<LeakPartJson> = leak.also.iter().map(LeakPartJson::new).collect(),
        /// Sites, as in `suspects`.
        sites: Vec<String> = leak.sites.iter().map(|site| site.site.to_string()).collect(),
    }

    pub(crate) struct LeakPartJson(part: &LeakPart)
    let { let is_objects = matches!(part.resource, LeakResource::Objects(_)); }
    {
        resource: &'static str = part.resource.name(),
        live_bytes?: Option<u64> = (!is_objects).then_some(part.live),
        live_count: u64 = part.live_count,
        growth_bytes_per_hour?: Option<u64> = (!is_objects).then_some(part.growth_per_hour),
        growth_objects_per_hour?: Option<u64> = is_objects.then_some(part.growth_per_hour),
    }

    pub(crate) struct NotFreedJson(row: &NotFreedRow<'_>)
    let { let place = row.stack.map_or_else(|| "(other sites)".to_owned(), stack_location); }
    {
        program: String = sanitized(row.program),
        user?: Option<String> = row.user.map(sanitized),
        pids: Vec<u32> = row.pids.iter().map(|pid| pid.0).collect(),
        resource: &'static str = row.resource.name(),
        bytes: u64 = row.bytes.0,
        allocations: u64 = row.allocations,
        location: String = sanitized(&place),
        frame: Option<FrameJson> =
            row.stack.and_then(|stack| stack.responsible()).map(FrameJson::new),
    }

    pub(crate) struct NoteJson(position: usize, note: &Note, clock: Option<&WallClock>) {
        number: usize = position,
        r#type: &'static str = note.name(),
        inexact: bool = note.is_inexact(),
        text: String = notes::text(note, clock),
    }

    /// Fields of a process that come from the view.
    pub(crate) struct ProcessRowJson(row: &ProcessRow<'_>): Deserialize
    let { let group = &row.process.identity.group; }
    {
        program: String = sanitized(row.program),
        user: String = sanitized(&row.user),
        used_bytes: u64 = row.used.0,
        /// Whether the driver reports `used_bytes`; otherwise it is traced memory.
        used_reported: bool = row.is_reported,
        growth_bytes_per_hour?: Option<i64> = row.growth_per_hour,
        /// Job of a scheduler.
        job?: Option<String> = group.job.as_deref().map(sanitized),
        rank?: Option<u32> = group.rank,
        /// Root of its process tree.
        tree?: Option<TreeJson> = group.tree.as_ref().map(TreeJson::new),
        verdict: Word = row.state.name().into(),
        /// Numbers of its leaks.
        leaks: Vec<usize> = row.leaks.iter().map(|index| index + 1).collect(),
    }

    /// Root of a process tree.
    pub(crate) struct TreeJson(tree: &(Pid, Box<str>)): Deserialize {
        pid: u32 = tree.0.0,
        program: String = sanitized(&tree.1),
    }
}

impl LibraryJson {
    fn of_group(row: &GroupRow<'_>) -> Self {
        Self {
            library: row.name.as_ref().map(|name| sanitized(name)),
            live_bytes: row.used.0,
            pids: Some(row.pids.iter().map(|pid| pid.0).collect()),
            ..Self::new(&row.traced)
        }
    }
}
