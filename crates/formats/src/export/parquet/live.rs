//! Tables of the agent in rolling files, one row per item and time: metrics, processes, devices and
//! sites.

use std::io::{self, Write};
use std::sync::Arc;

use arrow_array::builder::{MapBuilder, StringBuilder};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_schema::{Field, Schema, SchemaRef};
use engine::metrics::MetricSet;
use engine::model::memory_kind::{MemoryKind, MemoryLayer};
use engine::snapshot::{DeviceView, ProcessView, SiteView, Snapshot};
use engine::verdict::{Resource, SiteVerdict};

use super::file::File;
use crate::export::ReportContext;
use crate::export::allocations::joined;
use crate::report::redact::redact_paths;
use crate::report::verdict::short_location;
use crate::sanitize::sanitize;

/// Bytes of rows that are buffered before they are written to the file.
const FLUSH_BYTES: usize = 4 << 20;

/// Tables of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum LiveTable {
    /// All metrics.
    Metrics,
    /// One row per process.
    Processes,
    /// One row per process and device.
    Devices,
    /// One row per process and site.
    Sites,
}

impl LiveTable {
    /// All tables.
    pub const ALL: [Self; 4] = [Self::Metrics, Self::Processes, Self::Devices, Self::Sites];

    /// Returns the name of the table's directory.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Processes => "processes",
            Self::Devices => "devices",
            Self::Sites => "sites",
        }
    }

    fn columns(self, input: &TableSample<'_>) -> io::Result<Vec<Column>> {
        match self {
            Self::Metrics => metrics(input),
            Self::Processes => Ok(processes(input)),
            Self::Devices => Ok(devices(input)),
            Self::Sites => Ok(sites(input)),
        }
    }
}

/// Input for the rows of one time.
#[derive(Clone, Copy, Debug)]
pub struct TableSample<'a> {
    /// Snapshot of the ledger.
    pub snapshot: &'a Snapshot,
    /// Metrics.
    pub metrics: &'a MetricSet,
    /// Names of GPUs, and the clock.
    pub context: &'a ReportContext,
    /// Whether directories of files and libraries are included.
    pub paths: bool,
}

impl<'a> TableSample<'a> {
    /// Returns the processes that have not exited.
    fn running(&self) -> impl Iterator<Item = &'a ProcessView> + use<'a> {
        self.snapshot.processes.iter().filter(|process| process.ended.is_none())
    }
}

/// A file in progress. Its memory use is bounded.
pub struct PartFile<W: Write + Send> {
    table: LiveTable,
    schema: SchemaRef,
    file: File<W>,
    rows: u64,
}

impl<W: Write + Send> PartFile<W> {
    /// Creates a file. Only the columns of `first` are used.
    pub fn new(table: LiveTable, out: W, first: &TableSample<'_>) -> io::Result<Self> {
        let columns = table.columns(first)?;
        let fields: Vec<Field> = columns
            .iter()
            .map(|(name, array)| Field::new(*name, array.data_type().clone(), true))
            .collect();
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let file = File::new(out, &schema)?;
        Ok(Self { table, schema, file, rows: 0 })
    }

    /// Adds the rows of one time.
    pub fn add(&mut self, input: &TableSample<'_>) -> io::Result<()> {
        let columns = self.table.columns(input)?.into_iter().map(|(_, array)| array).collect();
        let batch = RecordBatch::try_new(SchemaRef::clone(&self.schema), columns);
        let batch = batch.map_err(io::Error::other)?;
        self.rows = self.rows.saturating_add(batch.num_rows() as u64);
        self.file.write(&batch)?;
        if self.file.collected() >= FLUSH_BYTES {
            self.file.flush()?;
        }
        Ok(())
    }

    /// Returns the number of rows.
    #[must_use]
    pub const fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the approximate size of the file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.file.written().saturating_add(self.file.collected()) as u64
    }

    /// Writes the rest and completes the file.
    pub fn finish(self) -> io::Result<W> {
        self.file.finish()
    }
}

type Column = (&'static str, ArrayRef);

fn time(input: &TableSample<'_>, rows: usize) -> Column {
    // Not every reader supports nanoseconds.
    let micros = input.context.clock.nanos(input.snapshot.at).div_euclid(1000);
    let times = TimestampMicrosecondArray::from_value(micros, rows).with_timezone("UTC");
    ("time", Arc::new(times))
}

fn metrics(input: &TableSample<'_>) -> io::Result<Vec<Column>> {
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
    Ok(vec![
        time(input, metric.len()),
        ("metric", Arc::new(metric)),
        ("labels", Arc::new(labels.finish())),
        ("value", Arc::new(value)),
    ])
}

/// Returns the columns that identify the process of a row.
fn process_columns<'a>(
    of: impl Fn() -> Box<dyn Iterator<Item = &'a ProcessView> + 'a>,
) -> Vec<Column> {
    let pod = |process: &'a ProcessView| process.container.as_ref()?.pod.as_ref();
    let text = |get: &dyn Fn(&'a ProcessView) -> Option<&'a str>| -> ArrayRef {
        Arc::new(StringArray::from_iter(of().map(|process| get(process).map(sanitize))))
    };
    let start = UInt64Array::from_iter_values(of().map(|process| process.key.start));
    vec![
        ("pid", Arc::new(UInt32Array::from_iter_values(of().map(|process| process.key.pid.0)))),
        ("process_start_ns", Arc::new(start)),
        ("process", text(&|process| Some(&*process.name))),
        ("container", text(&|process| Some(&*process.container.as_ref()?.id))),
        ("pod", text(&|process| pod(process)?.name.as_deref())),
        ("namespace", text(&|process| pod(process)?.namespace.as_deref())),
    ]
}

fn of_layer(process: &ProcessView, layer: MemoryLayer) -> u64 {
    let kinds = process.kinds.iter().filter(|view| view.kind.layer() == layer);
    kinds.fold(0, |sum, view| sum.saturating_add(view.live_bytes.0))
}

fn processes(input: &TableSample<'_>) -> Vec<Column> {
    let all: Vec<&ProcessView> = input.running().collect();
    let all = all.as_slice();
    let count = |get: fn(&ProcessView) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(all.iter().map(|process| get(process))))
    };
    let mut columns = vec![time(input, all.len())];
    columns.extend(process_columns(|| Box::new(all.iter().copied())));
    let uid = UInt32Array::from_iter(all.iter().map(|process| process.uid));
    let exact =
        BooleanArray::from_iter(all.iter().map(|process| Some(process.uncertainty.exact())));
    columns.extend([
        ("uid", Arc::new(uid) as ArrayRef),
        ("live_bytes", count(|process| process.live_bytes.0)),
        ("live_allocations", count(|process| process.live_allocations)),
        ("peak_bytes", count(|process| process.peak_bytes.0)),
        ("host_bytes", count(|process| of_layer(process, MemoryLayer::Host))),
        ("managed_bytes", count(|process| of_layer(process, MemoryLayer::Managed))),
        ("allocations_total", count(|process| process.allocations_total)),
        ("frees_total", count(|process| process.frees_total)),
        ("failed_allocations", count(|process| process.failed_allocations)),
        ("exact", Arc::new(exact) as ArrayRef),
    ]);
    columns
}

fn devices(input: &TableSample<'_>) -> Vec<Column> {
    let rows: Vec<(&ProcessView, &DeviceView)> = input
        .running()
        .flat_map(|process| process.devices.iter().map(move |device| (process, device)))
        .collect();
    let rows = rows.as_slice();
    let maybe = |get: &dyn Fn(&DeviceView) -> Option<u64>| -> ArrayRef {
        Arc::new(UInt64Array::from_iter(rows.iter().map(|(_, device)| get(device))))
    };
    let ids = |get: &dyn Fn(&DeviceView) -> Option<u16>| -> ArrayRef {
        Arc::new(UInt16Array::from_iter(rows.iter().map(|(_, device)| get(device))))
    };
    let uuids = rows
        .iter()
        .map(|(_, device)| input.context.gpu(device.gpu?).map(|gpu| sanitize(&gpu.uuid)));
    let mut columns = vec![time(input, rows.len())];
    columns.extend(process_columns(|| Box::new(rows.iter().map(|(process, _)| *process))));
    columns.extend([
        ("device", ids(&|device| device.device.map(|id| id.0))),
        ("gpu", ids(&|device| device.gpu.map(|id| id.0))),
        ("uuid", Arc::new(StringArray::from_iter(uuids)) as ArrayRef),
        ("live_bytes", maybe(&|device| Some(device.live_bytes.0))),
        ("peak_bytes", maybe(&|device| Some(device.peak_bytes.0))),
        ("used_bytes", maybe(&|device| device.driver_bytes.map(|bytes| bytes.0))),
        ("untracked_bytes", maybe(&|device| device.untracked().map(|bytes| bytes.0))),
    ]);
    columns
}

fn sites(input: &TableSample<'_>) -> Vec<Column> {
    let rows: Vec<(&ProcessView, &SiteView, Option<&SiteVerdict>)> = input
        .running()
        .flat_map(|process| {
            let allocating = process.sites.iter().filter(|site| site.allocations_total > 0);
            allocating
                .map(move |site| (process, site, worst_verdict(input.snapshot, process, site)))
        })
        .collect();
    let rows = rows.as_slice();
    let count = |get: fn(&SiteView) -> u64| -> ArrayRef {
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|(_, site, _)| get(site))))
    };
    let text = |get: &dyn Fn(&SiteView) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(_, site, _)| get(site))))
    };
    let verdict_text = |get: fn(&SiteVerdict) -> &'static str| -> ArrayRef {
        Arc::new(StringArray::from_iter(rows.iter().map(|(_, _, verdict)| verdict.map(get))))
    };
    let growth = rows.iter().map(|(_, _, verdict)| verdict.map(|of| of.evidence.growth_per_hour));
    let mut columns = vec![time(input, rows.len())];
    columns.extend(process_columns(|| Box::new(rows.iter().map(|(process, ..)| *process))));
    columns.extend([
        ("site", text(&|site| site.name.to_string())),
        ("location", text(&|site| sanitize(&short_location(site.name, &site.frames)).into_owned())),
        ("stack", text(&|site| stack(site, input.paths))),
        ("live_bytes", count(|site| site.live_bytes.0)),
        ("live_allocations", count(|site| site.live_allocations)),
        ("peak_bytes", count(|site| site.peak_bytes.0)),
        ("bytes_total", count(|site| site.bytes_total.0)),
        ("allocations_total", count(|site| site.allocations_total)),
        ("frees_total", count(|site| site.freed_total)),
        ("verdict", verdict_text(|verdict| verdict.verdict.name())),
        ("confidence", verdict_text(|verdict| verdict.confidence.name())),
        ("growth_bytes_per_hour", Arc::new(UInt64Array::from_iter(growth)) as ArrayRef),
    ]);
    columns
}

/// Maximum number of frames of a stack, and of characters of a frame.
const MAX_FRAMES: usize = 64;
const MAX_FRAME_CHARS: usize = 256;

/// Returns the frames of a site, innermost first.
fn stack(site: &SiteView, paths: bool) -> String {
    let frames = site.frames.map(|frame| redact_paths(frame, paths));
    joined(&frames, " <- ", MAX_FRAMES, MAX_FRAME_CHARS)
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
