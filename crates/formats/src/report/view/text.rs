//! The view as a block of lines that fit the terminal: GPUs first, then one line per process that
//! matters.

use std::io::{self, Write};

use engine::model::{Bytes, Nanos, Timestamp};
use engine::view::{GpuRow, ProcessRow, ProcessState, View};

use super::table;
use super::units::{compact_size, duration_words, signed_size};
use crate::WallClock;
use crate::report::live::text::TextStyle;
use crate::report::tables::processes::{self, ProcessCells, ProcessColumn};
use crate::report::text_page::TextPage;
use crate::sanitize::sanitize;

/// Processes that are listed even if they neither leak nor grow.
const MIN_LISTED: usize = 5;

/// Longest forecast that is printed.
const MAX_FORECAST: Nanos = Nanos::from_millis(30 * 86_400_000);

/// Widths of the bar of a GPU.
const BAR_WIDTH: (usize, usize) = (10, 30);

/// Writes the block of an interim report.
pub(crate) fn write_block(
    out: &mut TextPage<'_>,
    view: &View<'_>,
    clock: &WallClock,
) -> io::Result<()> {
    let seen =
        format!("{}  {} observed", clock.time_of_day(view.at), duration_words(view.observed));
    let inexact = view.notes.iter().any(engine::view::Note::is_inexact);
    let head = spread(&seen, if inexact { "not exact" } else { "" }, out.style.width);
    out.bold(&head)?;
    if view.processes.is_empty() {
        return writeln!(out, "No GPU memory activity yet.");
    }
    for gpu in used_gpus(view) {
        writeln!(out, "{}", gpu_line(gpu, out.style.width))?;
    }
    let (text, alarm) = verdict_line(view, clock);
    out.wrapped(if alarm { TextStyle::alarm } else { TextStyle::plain }, &text, 0)?;
    write_processes(out, view)
}

/// Returns the GPUs that running processes use or leaks have filled; on a host with one GPU, that.
pub(super) fn used_gpus<'v, 'a>(view: &'v View<'a>) -> Vec<&'v GpuRow<'a>> {
    let leaks =
        |gpu: &GpuRow<'_>| gpu.gpu.is_some() && view.leaks.iter().any(|leak| leak.gpu == gpu.gpu);
    let is_only = view.gpus.len() == 1;
    view.gpus.iter().filter(|gpu| is_only || gpu.processes > 0 || leaks(gpu)).collect()
}

/// Returns `left`, blanks and `right`, `width` characters in all.
pub(super) fn spread(left: &str, right: &str, width: usize) -> String {
    let gap = width.saturating_sub(table::length(left) + table::length(right)).max(2);
    format!("{left}{}{right}", " ".repeat(gap)).trim_end().to_owned()
}

/// Returns `GPU 0 H200`.
pub(crate) fn gpu_name(gpu: &GpuRow<'_>) -> String {
    let number = gpu.gpu.map_or_else(|| "?".to_owned(), |gpu| gpu.0.to_string());
    // The vendor is the same for all.
    let model = sanitize(gpu.name.trim_start_matches("NVIDIA ")).into_owned();
    format!("GPU {number} {model}").trim_end().to_owned()
}

/// Formats used and total memory in the unit of the total: `18.0 of 140.4 GiB`.
pub(crate) fn used_of_total(used: Bytes, total: Bytes, digits: usize) -> String {
    let (unit, name) = match total.0 {
        0..0x4000_0000 => (1_u64 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    let [used, total] = [used, total].map(|bytes| bytes.0 as f64 / unit as f64);
    format!("{used:.digits$} of {total:.digits$} {name}")
}

/// Returns used and total memory, or what was traced.
pub(crate) fn usage(gpu: &GpuRow<'_>) -> String {
    match (gpu.used, gpu.total) {
        (Some(used), Some(total)) => used_of_total(used, total, 1),
        (_, Some(total)) => format!("{} of {total} traced", gpu.traced),
        (_, None) => traced(gpu),
    }
}

/// Returns the traced memory of a GPU whose total is unknown.
pub(crate) fn traced(gpu: &GpuRow<'_>) -> String {
    let unreported = gpu.is_memory_unreported();
    let unreported = if unreported { " (device memory not reported)" } else { "" };
    format!("{} traced{unreported}", gpu.traced)
}

/// Returns used memory that neither traced programs nor their contexts hold.
pub(crate) fn other(gpu: &GpuRow<'_>) -> u64 {
    let used = gpu.used.map_or(0, |used| used.0);
    used.saturating_sub(gpu.traced.0).saturating_sub(gpu.untracked.0)
}

/// Returns `: 8.77G traced, 9.46G untracked¹, 208M other`: the parts of the used memory, without
/// those that are zero.
pub(crate) fn used_parts(gpu: &GpuRow<'_>, before: &str) -> String {
    let untracked = format!("untracked{before}");
    let parts = [(gpu.traced.0, "traced"), (gpu.untracked.0, &untracked), (other(gpu), "other")];
    let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
    let parts: Vec<_> =
        parts.map(|(bytes, name)| format!("{} {name}", compact_size(bytes))).collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

/// Returns `12 min (22:30)`: when a GPU is full, unless that is far away.
pub(crate) fn full_at(gpu: &GpuRow<'_>, view: &View<'_>, clock: &WallClock) -> Option<String> {
    let time = forecast(gpu)?;
    let at = Timestamp(view.at.0.saturating_add(time.0));
    Some(format!("{} ({})", duration_words(time), clock.minute(at)))
}

/// Returns the growth of a GPU: `+4.87G/h`, `steady`; empty if it is unknown.
pub(crate) fn growth(gpu: &GpuRow<'_>) -> String {
    match gpu.growth_per_hour {
        Some(0) => "steady".to_owned(),
        Some(growth) => format!("{}/h", signed_size(growth)),
        None => String::new(),
    }
}

fn gpu_line(gpu: &GpuRow<'_>, width: usize) -> String {
    let (name, growth) = (gpu_name(gpu), growth(gpu));
    let Some((used, total)) = gpu.used.zip(gpu.total) else {
        return spread(&format!("{name}  {}", usage(gpu)), &growth, width);
    };
    let left = format!("{name}  {}  ", used_of_total(used, total, 1));
    let room = width.saturating_sub(table::length(&left) + table::length(&growth) + 4);
    let bar = room.min(BAR_WIDTH.1);
    if bar < BAR_WIDTH.0 {
        return spread(&left, &growth, width);
    }
    let filled = (bar as f64 * used.0 as f64 / total.0.max(1) as f64).round() as usize;
    let filled = filled.clamp(usize::from(used.0 > 0), bar);
    let bar = format!("[{}{}]", "#".repeat(filled), "·".repeat(bar - filled));
    spread(&format!("{left}{bar}"), &growth, width)
}

/// Returns the verdict on the whole, and whether it is an alarm.
pub fn verdict_line(view: &View<'_>, clock: &WallClock) -> (String, bool) {
    let full = view.first_full().and_then(|gpu| Some((gpu, full_at(gpu, view, clock)?)));
    let full = full.map(|(gpu, at)| {
        let name = match used_gpus(view).len() {
            1 => String::new(),
            _ => format!("{} is ", gpu_name(gpu)),
        };
        format!("{name}FULL IN {at} if growth continues")
    });
    let (leaking, all) = (view.leaking_processes(), view.processes.len());
    let state = match (leaking, view.wait) {
        (0, Some(wait)) => format!("{}, {} to go", too_early(view), duration_words(wait)),
        (0, None) => "no leak in running processes".to_owned(),
        (1, _) if all == 1 => "it leaks".to_owned(),
        (n, _) => format!("{n} of {all} processes leak"),
    };
    let alarm = leaking > 0 || full.is_some();
    (full.map_or_else(|| state.clone(), |full| format!("{full}; {state}")), alarm)
}

/// Returns `too early to tell: 8 sites grow`.
pub(super) fn too_early(view: &View<'_>) -> String {
    match view.undecided_sites() {
        0 => "too early to tell".to_owned(),
        1 => "1 site grows, too early to tell if it leaks".to_owned(),
        n => format!("{n} sites grow, too early to tell if they leak"),
    }
}

/// Returns the time until a GPU is full, unless that is far away.
pub(crate) fn forecast(gpu: &GpuRow<'_>) -> Option<Nanos> {
    gpu.time_until_full.filter(|time| *time <= MAX_FORECAST)
}

/// Columns of an interim report.
pub(super) const SHOWN: [ProcessColumn; 7] = [
    ProcessColumn::Pid,
    ProcessColumn::User,
    ProcessColumn::Program,
    ProcessColumn::Used,
    ProcessColumn::Growth,
    ProcessColumn::Verdict,
    ProcessColumn::At,
];

fn write_processes(out: &mut TextPage<'_>, view: &View<'_>) -> io::Result<()> {
    let matters =
        |row: &&ProcessRow<'_>| !matches!(row.state, ProcessState::Steady | ProcessState::Ended);
    let important = view.processes.iter().filter(matters).count();
    let room = out.style.rows.unwrap_or(usize::MAX).max(1);
    let count = important.max(MIN_LISTED).min(room);
    let (mut listed, mut rest): (Vec<_>, Vec<_>) = view.processes.iter().partition(matters);
    rest.reverse();
    while listed.len() < count
        && let Some(next) = rest.pop()
    {
        listed.push(next);
    }
    rest.reverse();
    let hidden: Vec<_> = listed.drain(count.min(listed.len())..).collect();
    let rest: Vec<_> = hidden.into_iter().chain(rest).collect();
    let rows: Vec<_> = listed.iter().map(|row| cells(row, view)).collect();
    let columns = SHOWN.map(ProcessColumn::spec);
    let mut lines = table::lines(&columns, &rows, out.style.width).into_iter();
    for title in lines.by_ref().take(1) {
        out.dim(&title)?;
    }
    for (line, row) in lines.zip(&listed) {
        let is_leak = matches!(row.state, ProcessState::Leaks(_));
        writeln!(out, "{}", if is_leak { out.style.bold(&line) } else { line })?;
    }
    match folded(&rest) {
        Some(text) => out.dim(&table::shorten(&text, out.style.width)),
        None => Ok(()),
    }
}

/// Returns the line for processes that are not listed.
fn folded(rest: &[&ProcessRow<'_>]) -> Option<String> {
    let used = rest.iter().fold(0_u64, |sum, row| sum.saturating_add(row.used.0));
    let mut names: Vec<String> = Vec::new();
    for row in rest {
        let name = sanitize(row.program).into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let all = |state: ProcessState| rest.iter().all(|row| row.state == state);
    let word = match () {
        () if all(ProcessState::Steady) => "steady",
        () if all(ProcessState::Ended) => "exited",
        () => "more",
    };
    (!rest.is_empty())
        .then(|| format!("  + {} {word}, {}: {}", rest.len(), compact_size(used), names.join(" ")))
}

/// Returns the cells of a process.
pub(super) fn cells(row: &ProcessRow<'_>, view: &View<'_>) -> Vec<String> {
    let of = ProcessCells { view, host: "", history: &[], baseline: None, resident: None };
    SHOWN.iter().map(|column| processes::cell(*column, row, &of)).collect()
}

/// Returns the verdict on a process in a few words.
pub(crate) fn state(state: ProcessState) -> String {
    match state {
        ProcessState::Leaks(confidence) => format!("leak, {}", confidence.name()),
        ProcessState::TooEarly(wait) => format!("too early, {}", duration_words(wait)),
        ProcessState::Growing => "growing".to_owned(),
        ProcessState::Steady => "steady".to_owned(),
        ProcessState::Ended => "exited".to_owned(),
    }
}
