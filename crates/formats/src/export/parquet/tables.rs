//! Columns of the agent's tables: one list of names and values for each table.

use std::io;
use std::sync::Arc;

use arrow_array::builder::{MapBuilder, StringBuilder};
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray,
    UInt16Array, UInt32Array, UInt64Array,
};
use engine::model::{
    Bytes, CallStack, GpuId, MemoryKind, MemoryLayer, Nanos, SiteName, site_fingerprint,
};
use engine::snapshot::{DeviceView, ProcessView, SiteView, Snapshot};
use engine::verdict::{Resource, SiteVerdict};
use engine::view::{GpuRow, Leak, View};

use super::live::{SCHEMA_VERSION, TableSample};
use crate::export::allocations::joined;
use crate::report::incident::IncidentRow;
use crate::report::redact::redact_paths;
use crate::report::verdict::{kind, short_location};
use crate::report::view::gpu_facts;
use crate::sanitize::sanitized;

/// Name and values of a column.
pub(super) type Column = (&'static str, ArrayRef);

/// Type of a column, and its value in a row.
enum Cell<R> {
    Text(fn(&R) -> Option<String>),
    Number(fn(&R) -> Option<u64>),
    Signed(fn(&R) -> Option<i64>),
    Medium(fn(&R) -> Option<u32>),
    Small(fn(&R) -> Option<u16>),
    Real(fn(&R) -> Option<f64>),
    Flag(fn(&R) -> Option<bool>),
    /// Microseconds since 1970, UTC: not every reader supports nanoseconds.
    Time(fn(&R) -> Option<i64>),
}

use Cell::{Flag, Medium, Number, Real, Signed, Small, Text, Time};

impl<R> Cell<R> {
    fn values(&self, rows: &[R]) -> ArrayRef {
        let rows = rows.iter();
        match self {
            Text(get) => Arc::new(StringArray::from_iter(rows.map(get))),
            Number(get) => Arc::new(UInt64Array::from_iter(rows.map(get))),
            Signed(get) => Arc::new(Int64Array::from_iter(rows.map(get))),
            Medium(get) => Arc::new(UInt32Array::from_iter(rows.map(get))),
            Small(get) => Arc::new(UInt16Array::from_iter(rows.map(get))),
            Real(get) => Arc::new(Float64Array::from_iter(rows.map(get))),
            Flag(get) => Arc::new(BooleanArray::from_iter(rows.map(get))),
            Time(get) => {
                let times = TimestampMicrosecondArray::from_iter(rows.map(get));
                Arc::new(times.with_timezone("UTC"))
            }
        }
    }
}

type Cells<'a, T> = Vec<(&'static str, Cell<Row<'a, T>>)>;

/// A row: its sample, its process, and what else it is about.
struct Row<'a, T> {
    sample: &'a TableSample<'a>,
    process: Option<&'a ProcessView>,
    of: T,
}

impl<T> Row<'_, T> {
    fn uuid(&self, gpu: Option<GpuId>) -> Option<String> {
        self.sample.context.gpu(gpu?).map(|gpu| sanitized(&gpu.uuid))
    }
}

/// Returns the columns that every table but `metrics` begins with, and those of the table.
fn build<'a, T>(rows: &[Row<'a, T>], own: impl IntoIterator<Item = Cells<'a, T>>) -> Vec<Column> {
    let sample: Cells<'a, T> = vec![
        ("time", Time(|row| Some(micros(row.sample)))),
        ("schema_version", Small(|_| Some(SCHEMA_VERSION))),
        ("agent_start", Time(|row| Some(row.sample.agent_start))),
        ("covers_seconds", Real(|row| Some(covered(row.sample)))),
    ];
    let cells = std::iter::once(sample).chain(own).flatten();
    cells.map(|(name, cell)| (name, cell.values(rows))).collect()
}

fn micros(sample: &TableSample<'_>) -> i64 {
    sample.context.clock.nanos(sample.snapshot.at).div_euclid(1000)
}

/// Returns the time since the previous sample, which a row stands for.
fn covered(sample: &TableSample<'_>) -> f64 {
    let since = sample.previous.filter(|_| sample.is_due);
    since.map_or(0.0, |since| (sample.snapshot.at - since).0 as f64 / 1e9)
}

/// Columns of the process of a row.
fn process_cells<'a, T>() -> Cells<'a, T> {
    vec![
        ("pid", Medium(|row| Some(row.process?.key.pid.0))),
        ("process_start_ns", Number(|row| Some(row.process?.key.start))),
        ("process", Text(|row| Some(sanitized(&row.process?.name)))),
        ("program", Text(|row| Some(sanitized(row.process?.program())))),
        ("release", Text(|row| text(row.process?.identity.group.release.as_deref()))),
        ("user", Text(|row| text(row.process?.identity.user.as_deref()))),
        ("job", Text(|row| text(row.process?.identity.group.job.as_deref()))),
        ("container", Text(|row| text(row.process?.container.as_ref().map(|of| &*of.id)))),
        ("pod", Text(|row| text(pod(row.process?)?.name.as_deref()))),
        ("namespace", Text(|row| text(pod(row.process?)?.namespace.as_deref()))),
    ]
}

fn text(text: Option<&str>) -> Option<String> {
    text.map(sanitized)
}

fn pod(process: &ProcessView) -> Option<&engine::model::container::Pod> {
    process.container.as_ref()?.pod.as_ref()
}

pub(super) fn metrics(input: &TableSample<'_>) -> io::Result<Vec<Column>> {
    let families = &input.metrics.families;
    let rows = || {
        families
            .iter()
            .flat_map(|family| family.samples.iter().map(move |sample| (family.metric, sample)))
    };
    let mut labels = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
    for (metric, sample) in rows() {
        let pairs = metric.labels.iter().zip(&sample.labels).filter(|(_, text)| !text.is_empty());
        for (name, text) in pairs {
            labels.keys().append_value(name);
            labels.values().append_value(text);
        }
        labels.append(true).map_err(io::Error::other)?;
    }
    let metric = StringArray::from_iter_values(rows().map(|(metric, _)| metric.name));
    let value = Float64Array::from_iter_values(rows().map(|(_, sample)| sample.value.as_f64()));
    let time = TimestampMicrosecondArray::from_value(micros(input), rows().count());
    Ok(vec![
        ("time", Arc::new(time.with_timezone("UTC"))),
        ("metric", Arc::new(metric)),
        ("labels", Arc::new(labels.finish())),
        ("value", Arc::new(value)),
    ])
}

pub(super) fn gpus(input: &TableSample<'_>) -> Vec<Column> {
    let facts = gpu_facts(&input.context.gpus);
    let rows = View::of(input.snapshot, &facts).gpus;
    let rows: Vec<Row<'_, &GpuRow<'_>>> =
        rows.iter().map(|of| Row { sample: input, process: None, of }).collect();
    let own: Cells<'_, &GpuRow<'_>> = vec![
        ("gpu", Small(|row| row.of.gpu.map(|gpu| gpu.0))),
        ("uuid", Text(|row| row.uuid(row.of.gpu))),
        ("name", Text(|row| row.of.gpu.map(|_| sanitized(row.of.name)))),
        ("total_bytes", Number(|row| row.of.total.map(|bytes| bytes.0))),
        ("used_bytes", Number(|row| row.of.used.map(|bytes| bytes.0))),
        ("live_bytes", Number(|row| Some(row.of.traced.0))),
        ("untracked_bytes", Number(|row| Some(row.of.untracked.0))),
        ("growth_bytes_per_hour", Signed(|row| row.of.growth_per_hour)),
        ("seconds_until_full", Number(|row| row.of.time_until_full.map(seconds))),
        ("processes", Number(|row| Some(row.of.processes))),
    ];
    build(&rows, [own])
}

fn seconds(time: Nanos) -> u64 {
    time.0 / 1_000_000_000
}

fn of_layer(process: &ProcessView, layer: MemoryLayer) -> u64 {
    let kinds = process.kinds.iter().filter(|view| view.kind.layer() == layer);
    kinds.fold(0, |sum, view| sum.saturating_add(view.live_bytes.0))
}

fn sum(sizes: impl Iterator<Item = Bytes>) -> u64 {
    sizes.fold(0, |sum, bytes| sum.saturating_add(bytes.0))
}

/// Returns device memory that pools of the driver hold and nothing uses, as last reported.
fn pool_unused(process: &ProcessView) -> u64 {
    let unused = |pool: &engine::snapshot::PoolView| {
        Some(Bytes(pool.reserved?.bytes.0.saturating_sub(pool.used.0)))
    };
    sum(process.pools.iter().filter_map(unused))
}

pub(super) fn processes(input: &TableSample<'_>) -> Vec<Column> {
    let rows: Vec<_> =
        input.snapshot.running().map(|of| Row { sample: input, process: Some(of), of }).collect();
    let own: Cells<'_, &ProcessView> = vec![
        ("uid", Medium(|row| row.of.uid)),
        ("live_bytes", Number(|row| Some(row.of.live_bytes.0))),
        ("live_allocations", Number(|row| Some(row.of.live_allocations))),
        ("peak_bytes", Number(|row| Some(row.of.peak_bytes.0))),
        ("host_bytes", Number(|row| Some(of_layer(row.of, MemoryLayer::Host)))),
        ("managed_bytes", Number(|row| Some(of_layer(row.of, MemoryLayer::Managed)))),
        ("used_bytes", Number(|row| row.of.driver_bytes().map(|bytes| bytes.0))),
        ("untracked_bytes", Number(|row| row.of.untracked().map(|bytes| bytes.0))),
        ("pool_unused_bytes", Number(|row| Some(pool_unused(row.of)))),
        ("cache_bytes", Number(|row| Some(sum(caches(row.of)?.map(|of| of.reserved))))),
        ("cache_used_bytes", Number(|row| Some(sum(caches(row.of)?.map(|of| of.allocated))))),
        ("allocations_total", Number(|row| Some(row.of.allocations_total))),
        ("frees_total", Number(|row| Some(row.of.frees_total))),
        ("failed_allocations", Number(|row| Some(row.of.failed_allocations))),
        ("launches_total", Number(|row| Some(row.of.activity.as_ref()?.launches))),
        ("exact", Flag(|row| Some(row.of.uncertainty.exact()))),
    ];
    build(&rows, [process_cells(), own])
}

/// Returns the pools of allocators in the process, if they are traced.
fn caches(
    process: &ProcessView,
) -> Option<impl Iterator<Item = &engine::model::blocks::AllocatorPoolView>> {
    let known = || process.allocators.iter().filter(|view| view.reason.is_none());
    known().next()?;
    Some(known().flat_map(|view| &view.pools))
}

pub(super) fn devices(input: &TableSample<'_>) -> Vec<Column> {
    let mut rows: Vec<Row<'_, &DeviceView>> = Vec::new();
    for process in input.snapshot.running() {
        let devices = process.devices.iter();
        rows.extend(devices.map(|of| Row { sample: input, process: Some(process), of }));
    }
    let own: Cells<'_, &DeviceView> = vec![
        ("device", Small(|row| row.of.device.map(|id| id.0))),
        ("gpu", Small(|row| row.of.gpu.map(|id| id.0))),
        ("uuid", Text(|row| row.uuid(row.of.gpu))),
        ("live_bytes", Number(|row| Some(row.of.live_bytes.0))),
        ("peak_bytes", Number(|row| Some(row.of.peak_bytes.0))),
        ("used_bytes", Number(|row| row.of.driver_bytes.map(|bytes| bytes.0))),
        ("untracked_bytes", Number(|row| row.of.untracked().map(|bytes| bytes.0))),
    ];
    build(&rows, [process_cells(), own])
}

/// Columns of the call stack of a row.
fn stack_cells<'a, T: HasStack>() -> Cells<'a, T> {
    vec![
        ("site", Text(|row| Some(row.of.stack().0.to_string()))),
        ("fingerprint", Text(|row| fingerprint(row.of.stack().1))),
        ("location", Text(|row| Some(location(row.of.stack())))),
        ("stack", Text(|row| Some(stack(row.of.stack().1, row.sample.paths)))),
    ]
}

trait HasStack {
    fn stack(&self) -> (SiteName, &CallStack);
}

impl HasStack for SiteRow<'_> {
    fn stack(&self) -> (SiteName, &CallStack) {
        (self.0.name, &self.0.frames)
    }
}

impl HasStack for SuspectRow<'_> {
    fn stack(&self) -> (SiteName, &CallStack) {
        (self.1.site, &self.1.frames)
    }
}

fn fingerprint(stack: &CallStack) -> Option<String> {
    site_fingerprint(stack).map(|hash| format!("{hash:016x}"))
}

fn location((name, stack): (SiteName, &CallStack)) -> String {
    sanitized(&short_location(name, stack))
}

/// Maximum number of frames of a stack, and of characters of a frame.
const MAX_FRAMES: usize = 64;
const MAX_FRAME_CHARS: usize = 256;

/// Returns the frames of a site, innermost first.
fn stack(stack: &CallStack, paths: bool) -> String {
    let frames = stack.map(|frame| redact_paths(frame, paths));
    joined(&frames, " <- ", MAX_FRAMES, MAX_FRAME_CHARS)
}

type SiteRow<'a> = (&'a SiteView, Option<&'a SiteVerdict>);

pub(super) fn sites(input: &TableSample<'_>) -> Vec<Column> {
    let mut rows: Vec<Row<'_, SiteRow<'_>>> = Vec::new();
    for process in input.snapshot.running() {
        let allocating = process.sites.iter().filter(|site| site.allocations_total > 0);
        rows.extend(allocating.map(|site| Row {
            sample: input,
            process: Some(process),
            of: (site, worst_verdict(input.snapshot, process, site)),
        }));
    }
    let own: Cells<'_, SiteRow<'_>> = vec![
        ("live_bytes", Number(|row| Some(row.of.0.live_bytes.0))),
        ("live_allocations", Number(|row| Some(row.of.0.live_allocations))),
        ("peak_bytes", Number(|row| Some(row.of.0.peak_bytes.0))),
        ("bytes_total", Number(|row| Some(row.of.0.bytes_total.0))),
        ("allocations_total", Number(|row| Some(row.of.0.allocations_total))),
        ("frees_total", Number(|row| Some(row.of.0.freed_total))),
        ("verdict", Text(|row| Some(row.of.1?.verdict.name().to_owned()))),
        ("confidence", Text(|row| Some(row.of.1?.confidence.name().to_owned()))),
        ("growth_bytes_per_hour", Number(|row| Some(row.of.1?.evidence.growth_per_hour))),
    ];
    build(&rows, [process_cells(), stack_cells(), own])
}

/// Returns the most severe verdict on device memory of a site.
fn worst_verdict<'a>(
    snapshot: &'a Snapshot,
    process: &ProcessView,
    site: &SiteView,
) -> Option<&'a SiteVerdict> {
    let is_memory = |resource: Resource| matches!(resource, Resource::Memory(kind) if MemoryKind::takes_device_memory(kind));
    snapshot.suspects.iter().chain(&snapshot.other_verdicts).find(|verdict| {
        verdict.pid == Some(process.key.pid)
            && verdict.site == site.name
            && is_memory(verdict.resource)
    })
}

type SuspectRow<'a> = (&'a Leak<'a>, &'a SiteVerdict);

pub(super) fn suspects(input: &TableSample<'_>) -> Vec<Column> {
    let facts = gpu_facts(&input.context.gpus);
    let leaks = View::of(input.snapshot, &facts).leaks;
    let process = |verdict: &SiteVerdict| {
        input.snapshot.running().find(|process| verdict.pid == Some(process.key.pid))
    };
    let mut rows: Vec<Row<'_, SuspectRow<'_>>> = Vec::new();
    for leak in &leaks {
        let sites = leak.sites.iter();
        rows.extend(sites.map(|&verdict| Row {
            sample: input,
            process: process(verdict),
            of: (leak, verdict),
        }));
    }
    // Suspects of processes that ended in this second are in `sites`.
    rows.retain(|row| row.process.is_some());
    let own: Cells<'_, SuspectRow<'_>> = vec![
        ("gpu", Small(|row| row.of.0.gpu.map(|gpu| gpu.0))),
        ("uuid", Text(|row| row.uuid(row.of.0.gpu))),
        ("resource", Text(|row| Some(resource(row.of.1).to_owned()))),
        ("kind", Text(|row| Some(kind(row.of.1.resource).to_owned()))),
        ("confidence", Text(|row| Some(row.of.1.confidence.name().to_owned()))),
        ("cause", Text(|row| Some(row.of.0.advice.cause.to_owned()))),
        ("live", Number(|row| Some(row.of.1.evidence.live))),
        ("live_count", Number(|row| Some(row.of.1.evidence.live_count))),
        ("growth_per_hour", Number(|row| Some(row.of.1.evidence.growth_per_hour))),
        ("seconds_until_full", Number(|row| row.of.1.evidence.time_until_full.map(seconds))),
        ("observed_seconds", Number(|row| Some(seconds(row.of.1.evidence.observed)))),
    ];
    build(&rows, [process_cells(), stack_cells(), own])
}

const fn resource(verdict: &SiteVerdict) -> &'static str {
    engine::view::LeakResource::of(verdict.resource).name()
}

pub(super) fn peaks(input: &TableSample<'_>) -> Vec<Column> {
    let is_new = |process: &&ProcessView| {
        let rose = input.previous.is_none_or(|previous| process.peak_at > previous);
        process.ended.is_some() || (input.is_due && rose)
    };
    let found = input.snapshot.processes.iter().filter(is_new);
    let rows: Vec<_> = found.map(|of| Row { sample: input, process: Some(of), of }).collect();
    let own: Cells<'_, &ProcessView> = vec![
        ("peak_bytes", Number(|row| Some(row.of.peak_bytes.0))),
        ("peak_bytes_min", Number(|row| row.of.peak_bounds.map(|(min, _)| min.0))),
        ("peak_bytes_max", Number(|row| row.of.peak_bounds.map(|(_, max)| max.0))),
        ("peak_time", Time(|row| peak_micros(row))),
        ("ended", Flag(|row| Some(row.of.ended.is_some()))),
        ("not_freed_bytes", Number(|row| row.of.ended.map(|_| row.of.not_freed().0))),
        ("exact", Flag(|row| Some(row.of.uncertainty.exact()))),
    ];
    build(&rows, [process_cells(), own])
}

fn peak_micros(row: &Row<'_, &ProcessView>) -> Option<i64> {
    let at = row.of.peak_at;
    (at.0 > 0).then(|| row.sample.context.clock.nanos(at).div_euclid(1000))
}

pub(super) fn incidents(input: &TableSample<'_>) -> Vec<Column> {
    let row = |of| Row { sample: input, process: None, of };
    let rows: Vec<Row<'_, &IncidentRow>> = input.incidents.iter().map(row).collect();
    let own: Cells<'_, &IncidentRow> = vec![
        ("incident", Text(|row| Some(row.of.id.clone()))),
        ("incident_time", Time(|row| row.of.micros)),
        ("trigger", Text(|row| Some(row.of.trigger.clone()))),
        ("cause", Text(|row| Some(row.of.cause.as_ref()?.0.clone()))),
        ("confidence", Text(|row| Some(row.of.cause.as_ref()?.1.clone()))),
        ("recovered", Flag(|row| Some(row.of.recovered))),
        ("errors", Number(|row| Some(row.of.errors))),
        ("pid", Medium(|row| Some(row.of.requester.as_ref()?.pid))),
        ("process", Text(|row| Some(row.of.requester.as_ref()?.name.clone()))),
        ("program", Text(|row| row.of.requester.as_ref()?.program.clone())),
        ("release", Text(|row| row.of.requester.as_ref()?.release.clone())),
        ("user", Text(|row| row.of.requester.as_ref()?.user.clone())),
        ("job", Text(|row| row.of.requester.as_ref()?.job.clone())),
        ("pod", Text(|row| row.of.requester.as_ref()?.pod.clone())),
        ("namespace", Text(|row| row.of.requester.as_ref()?.namespace.clone())),
        ("gpu", Small(|row| Some(row.of.gpu.as_ref()?.0))),
        ("uuid", Text(|row| row.of.gpu.as_ref()?.1.clone())),
        ("requested_bytes", Number(|row| row.of.requested_bytes)),
        ("summary", Text(|row| Some(row.of.summary.clone()))),
    ];
    build(&rows, [own])
}
