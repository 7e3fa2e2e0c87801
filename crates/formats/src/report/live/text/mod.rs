//! Live report as text.

mod allocators;
mod container;
pub mod groups;
mod objects;
pub mod overview;
mod sharing;
pub mod sites;
mod usage;

pub use allocators::{sampling, unavailable};

use std::io::{self, Write};

use engine::model::{Bytes, DeviceId, MemoryKind, MemoryLayer, Nanos, result_name};
use engine::snapshot::{
    AllocationView, ApiMisuse, DeviceView, PoolView, ProcessView, Snapshot, ThreadView, Uncertainty,
};
use engine::view::View;

use super::super::view::{gpu_facts, leak_sentence, notes, write_last, write_out_of_memory};
use crate::export::{CaptureSource, ReportContext};
use crate::report::text_page::TextPage;
use crate::sanitize::sanitize;

/// Style of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextStyle {
    /// Use terminal colors.
    pub color: bool,
    /// Maximum number of shown frames of a stack; 0: all.
    pub stack_depth: usize,
    /// Whether this is the last report, which ends with all verdicts.
    pub last: bool,
    /// Width that lines should fit in, in characters.
    pub width: usize,
    /// Maximum number of processes in an interim report; all that matter if none.
    pub rows: Option<usize>,
}

/// Width of text that is not written to a terminal.
const DEFAULT_WIDTH: usize = 120;

impl Default for TextStyle {
    fn default() -> Self {
        Self { color: false, stack_depth: 6, last: false, width: DEFAULT_WIDTH, rows: None }
    }
}

impl TextStyle {
    pub(crate) fn plain(self, text: &str) -> String {
        text.to_owned()
    }

    fn paint(self, code: &'static str, text: &str) -> String {
        if self.color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    pub(crate) fn alarm(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub(crate) fn warning(self, text: &str) -> String {
        self.paint("33", text)
    }
}

/// Writes one report that lists allocations by process and thread.
pub fn report(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    let out = &mut TextPage::new(out, style);
    header(out, snapshot, context)?;
    if snapshot.processes.is_empty() {
        writeln!(out, "No GPU memory activity yet.")?;
    }
    for (index, view) in snapshot.processes.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        process(out, view, context)?;
    }
    footer(out, snapshot, context)
}

/// Maximum number of rows per list at the end of a report.
const MAX_LAST_ROWS: usize = 10;

/// Writes the end of every report: verdicts, and what makes values inexact.
fn footer(out: &mut TextPage<'_>, snapshot: &Snapshot, context: &ReportContext) -> io::Result<()> {
    super::super::kernels::text::uncounted(out, snapshot)?;
    let facts = gpu_facts(&context.gpus);
    let view = View::of(snapshot, &facts);
    if out.style.last {
        writeln!(out)?;
        write_last(out, &view, Some(&context.clock), MAX_LAST_ROWS, "")?;
    } else {
        let leaks = view.leaks.iter().take(MAX_INTERIM_LEAKS);
        for leak in leaks {
            out.alarm(&sanitize(&leak_sentence(leak)))?;
        }
        for note in view.notes.iter().filter(|note| note.is_inexact()) {
            out.alarm(&notes::text(note, Some(&context.clock)))?;
        }
    }
    overview::anomalies(out, &snapshot.anomalies, context)
}

/// Maximum number of leaks in an interim report.
const MAX_INTERIM_LEAKS: usize = 3;

/// Writes the start of a report: the time, the source and out-of-memory errors.
fn header(out: &mut TextPage<'_>, snapshot: &Snapshot, context: &ReportContext) -> io::Result<()> {
    title(out, &context.clock.short(snapshot.at))?;
    if context.source == Some(CaptureSource::InProcess) {
        out.dim("Source: in-process library")?;
    }
    write_out_of_memory(out, &snapshot.out_of_memory, &context.gpus, &context.clock)?;
    Ok(())
}

/// Writes the time of a report as its title.
pub(crate) fn title(out: &mut TextPage<'_>, time: &str) -> io::Result<()> {
    let rule = "-".repeat(20);
    out.bold(&format!("{rule} {time} {rule}"))
}

/// Writes pid, user id and name of a process.
pub(crate) fn heading(out: &mut TextPage<'_>, view: &ProcessView) -> io::Result<()> {
    let uid = view.uid.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
    let head = format!("PID: {} / UID: {uid}", view.key.pid);
    let ended = match view.ended {
        None => "",
        Some(engine::snapshot::ProcessEnd::Exited) => "  (exited)",
        Some(engine::snapshot::ProcessEnd::Exec) => "  (exec)",
    };
    writeln!(out, "{}  {}{ended}", out.style.bold(&head), sanitize(&view.name))
}

fn process(out: &mut TextPage<'_>, view: &ProcessView, context: &ReportContext) -> io::Result<()> {
    heading(out, view)?;
    if let Some(container) = &view.container {
        writeln!(out, "  {}", container::line(container, view.key.pid))?;
    }
    if sites::are_known(view) {
        sites::not_freed(out, view)?;
    } else {
        for thread in &view.threads {
            thread_lines(out, thread)?;
        }
    }
    let counts = format!(
        "peak {}, {} allocated, {} freed{}",
        peak(view),
        view.allocations_total,
        view.frees_total,
        released(view)
    );
    let label = if view.ended.is_some() { "NOT FREED AT EXIT" } else { "TOTAL LIVE" };
    let total = format!("{label}: {}", usage::held(view.kinds.iter().copied(), &format_count));
    let total = match view.ended {
        Some(_) if view.live_allocations > 0 => out.style.alarm(&total),
        _ => out.style.bold(&total),
    };
    writeln!(out, "{total}  {}", out.style.dim(&format!("({counts})")))?;
    breakdown(out, view, context)?;
    for allocator in &view.allocators {
        allocators::section(out, allocator, context)?;
    }
    sharing::section(out, view)?;
    failures(out, view, context)?;
    api_misuse(out, &view.api_misuse)?;
    objects::of_process(out, view)?;
    if let Some(activity) = &view.activity {
        super::super::kernels::text::section(out, activity)?;
    }
    if view.before_trace {
        let since = context.clock.short(context.clock.start());
        writeln!(out, "  started before the trace: allocations before {since} are not included")?;
    }
    Ok(())
}

/// Returns the peak, with its bounds if they differ in the printed digits.
fn peak(view: &ProcessView) -> String {
    match view.peak_bounds {
        Some((low, high)) if low.to_string() != high.to_string() => {
            format!("{low} to {high}")
        }
        _ => view.peak_bytes.to_string(),
    }
}

fn released(view: &ProcessView) -> String {
    let mut text = String::new();
    if view.released_total > 0 {
        text += &format!(", {} released with their context", view.released_total);
    }
    if view.unknown_frees > 0 {
        text += &format!(", {} unmatched frees", view.unknown_frees);
    }
    text
}

/// Returns `1 allocation` or `2 allocations`.
pub fn format_count(allocations: u64) -> String {
    match allocations {
        1 => "1 allocation".to_owned(),
        n => format!("{n} allocations"),
    }
}

/// Writes memory by device, kind and pool, if the total alone is ambiguous.
fn breakdown(
    out: &mut TextPage<'_>,
    view: &ProcessView,
    context: &ReportContext,
) -> io::Result<()> {
    if view.devices.iter().filter(|device| device.live_bytes.0 > 0).count() > 1 {
        let parts: Vec<String> = view
            .devices
            .iter()
            .map(|d| format!("{} {}", device_name(d.device), d.live_bytes))
            .collect();
        writeln!(out, "  devices: {}", parts.join(", "))?;
    }
    if view.kinds.iter().any(|kind| kind.kind != MemoryKind::Device) {
        let parts: Vec<_> = view.kinds.iter().copied().map(usage::kind).collect();
        writeln!(out, "  kinds: {}", parts.join(", "))?;
    }
    if view.devices.iter().any(|device| device.device.is_none() && device.live_bytes.0 > 0) {
        writeln!(out, "  gpu_?: {}", crate::export::UNKNOWN_DEVICE_REASON)?;
    }
    for pool in &view.pools {
        pool_line(out, pool, context)?;
    }
    for device in &view.devices {
        driver_line(out, device, view.before_trace, context)?;
    }
    Ok(())
}

fn pool_line(out: &mut TextPage<'_>, pool: &PoolView, context: &ReportContext) -> io::Result<()> {
    let name =
        pool.pool.map_or_else(|| "default pool".to_owned(), |pool| format!("pool {:#x}", pool.0));
    let reserved = pool.reserved.map_or_else(
        || "reserved size unknown".to_owned(),
        |reported| format!("reserved {} at {}", reported.bytes, context.clock.short(reported.at)),
    );
    let destroyed = if pool.destroyed { ", destroyed but still in use" } else { "" };
    let on = pool.device.map_or_else(String::new, |device| format!(" on {device}"));
    writeln!(
        out,
        "  {name}{on}: used {} in {} ({reserved}{destroyed})",
        pool.used,
        format_count(pool.allocations)
    )
}

/// Writes the driver-reported usage, and the part of it that was not traced.
fn driver_line(
    out: &mut TextPage<'_>,
    device: &DeviceView,
    before_trace: bool,
    context: &ReportContext,
) -> io::Result<()> {
    let (Some(gpu), Some(driver), Some(traced), Some(untracked)) =
        (device.gpu, device.driver_bytes, device.driver_traced, device.untracked())
    else {
        return Ok(());
    };
    if driver.0 == 0 {
        return Ok(());
    }
    let model =
        context.gpu(gpu).map_or_else(String::new, |gpu| format!(" ({})", sanitize(&gpu.name)));
    let parts = if before_trace {
        "memory from before the trace, context, code, local memory, pool slack"
    } else {
        "context, code, local memory, pool slack"
    };
    let (untracked, elsewhere) = match device.untracked_max() {
        Some(max) if max > untracked => {
            let unplaced =
                format!("; {} traced on gpu_? may be on this GPU", device.driver_unplaced);
            (format!("{untracked} to {max}"), unplaced)
        }
        _ => (untracked.to_string(), String::new()),
    };
    writeln!(
        out,
        "  GPU {}{model}: driver reports {driver} = {traced} traced + {untracked} untracked ({parts}){elsewhere}",
        gpu.0
    )
}

fn api_misuse(out: &mut TextPage<'_>, counts: &ApiMisuse) -> io::Result<()> {
    for (count, name) in [
        (counts.double_frees, "double frees"),
        (counts.invalid_frees, "frees of invalid pointers"),
        (counts.mismatched_frees, "frees with the wrong function"),
        (counts.released_while_mapped, "handles released while mapped (memory stays allocated)"),
    ] {
        if count > 0 {
            writeln!(out, "  {}", out.style.warning(&format!("API misuse: {count} {name}")))?;
        }
    }
    Ok(())
}

/// Writes the failed calls of a process.
pub(crate) fn failures(
    out: &mut TextPage<'_>,
    view: &ProcessView,
    context: &ReportContext,
) -> io::Result<()> {
    for failure in &view.failures {
        let text = format!(
            "failed: {} returned {} ({}), {}",
            context.function(failure.function),
            result_name(failure.code),
            failure.code,
            if failure.count == 1 { "once".to_owned() } else { format!("{} times", failure.count) }
        );
        writeln!(out, "  {}", out.style.warning(&text))?;
    }
    Ok(())
}

fn thread_lines(out: &mut TextPage<'_>, thread: &ThreadView) -> io::Result<()> {
    writeln!(out, "  {}:{}", sanitize(&thread.name), thread.tid)?;
    for allocation in &thread.allocations {
        writeln!(out, "    {}", allocation_line(allocation, out.style))?;
    }
    let shown = thread.allocations.len() as u64;
    if thread.live_allocations > shown {
        let more = thread.live_allocations - shown;
        let all = usage::sizes(thread.kinds.iter().copied());
        let text = format!("… {more} more, {all} total");
        writeln!(out, "    {}", out.style.dim(&text))?;
    }
    Ok(())
}

fn allocation_line(allocation: &AllocationView, style: TextStyle) -> String {
    let location = match allocation.kind.layer() {
        MemoryLayer::Host => "host".to_owned(),
        _ => device_name(allocation.device),
    };
    let kind = match allocation.kind {
        MemoryKind::Device => String::new(),
        other => format!(" {other}"),
    };
    let age = style.dim(&format!("  {}", format_age(allocation.age)));
    let mark = allocation.baseline.map_or_else(String::new, |baseline| {
        let times = super::super::verdict::ratio_phrase(allocation.bytes, baseline);
        format!("  {}", style.warning(&format!("<- {times} {baseline}")))
    });
    let bytes = match allocation.bytes {
        Bytes(0) => "unknown size".to_owned(),
        bytes => bytes.to_string(),
    };
    format!("{:#x}:{location}: {bytes}{kind}{age}{mark}", allocation.key.value)
}

pub(crate) fn device_name(device: Option<DeviceId>) -> String {
    device.map_or_else(|| "gpu_?".to_owned(), |device| device.to_string())
}

/// Formats an age as `850ms`, `12.3s`, `4m05s`, `3h12m` or `2d04h`.
pub fn format_age(age: Nanos) -> String {
    let ms = age.millis();
    let s = ms / 1000;
    match s {
        0 => format!("{ms}ms"),
        1..60 => format!("{s}.{}s", ms % 1000 / 100),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// Formats a duration as `850ns`, `12.3µs` or `4.1ms`, longer ones like an age.
pub fn format_duration(time: Nanos) -> String {
    match time.0 {
        nanos @ 0..1_000 => format!("{nanos}ns"),
        nanos @ 1_000..1_000_000 => format!("{:.1}µs", nanos as f64 / 1e3),
        nanos @ 1_000_000..1_000_000_000 => format!("{:.1}ms", nanos as f64 / 1e6),
        _ => format_age(time),
    }
}

/// Writes a line if capture ended early.
pub(crate) fn capture_ended(
    out: &mut TextPage<'_>,
    uncertainty: &Uncertainty,
    context: &ReportContext,
) -> io::Result<()> {
    let Some(at) = uncertainty.capture_ended else { return Ok(()) };
    let time = context.clock.short(at);
    let text = format!("NOT EXACT: capture ended at {time}; later events are missing");
    out.alarm(&text)
}
