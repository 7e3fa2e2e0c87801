//! The end of a trace or file: each leak with what it holds, its rate, its line and what to try.

use std::io::{self, Write};

use engine::view::{GpuRow, Leak, NotFreedRow, Note, ProcessRow, ProcessState, View};

use super::table;
use super::text::{
    forecast, gpu_name, growth, spread, state, too_early, traced, used_gpus, used_of_total,
    used_parts,
};
use super::units::{compact_size, duration_words, mark};
use super::{held, leak_location, notes, rate, stack_location};
use crate::WallClock;
use crate::report::live::text::TextStyle;
use crate::report::tables::{ColumnSpec, columns};
use crate::report::text_page::TextPage;
use crate::sanitize::sanitize;

/// Writes the end of a report: verdict, GPUs, leaks, advice, memory not freed at exit, notes. At
/// most `top` rows per list. `more`: how to see the evidence, if there are leaks.
pub(crate) fn write_last(
    out: &mut TextPage<'_>,
    view: &View<'_>,
    clock: Option<&WallClock>,
    top: usize,
    more: &str,
) -> io::Result<()> {
    let alarm = !view.leaks.is_empty() || !view.not_freed.is_empty();
    let observed = duration_words(view.observed);
    for (index, line) in table::wrap(&headline(view), out.style.width, 0).iter().enumerate() {
        let line = if index == 0 { spread(line, &observed, out.style.width) } else { line.clone() };
        writeln!(out, "{}", if alarm { out.style.alarm(&line) } else { out.style.bold(&line) })?;
    }
    for line in gpu_lines(view, &note_mark(view, "before_trace")) {
        out.wrapped(TextStyle::plain, &line, 2)?;
    }
    if !view.leaks.is_empty() {
        writeln!(out)?;
        leaks(out, view, top)?;
        advice(out, view, top)?;
    }
    not_freed(out, view, top)?;
    not_leaking(out, view)?;
    for (index, note) in view.notes.iter().enumerate() {
        let text = format!("{} {}", mark(index + 1), notes::text(note, clock));
        let paint = if note.is_inexact() { TextStyle::plain } else { TextStyle::dim };
        out.wrapped(paint, &text, 2)?;
    }
    if !view.leaks.is_empty() && !more.is_empty() {
        out.dim(&format!("More: {more}"))?;
    }
    Ok(())
}

/// Returns the verdict on the whole in a sentence or two.
pub(crate) fn headline(view: &View<'_>) -> String {
    let (leaking, all) = (view.leaking_processes(), view.processes.len());
    let processes = |count: usize| match count {
        1 => "1 process".to_owned(),
        n => format!("{n} processes"),
    };
    let mut text = match (view.leaks.len(), leaking, view.wait) {
        (0, _, _) if all == 0 => return "No GPU memory activity.".to_owned(),
        (0, _, Some(wait)) => {
            let site = too_early(view);
            let mut chars = site.chars();
            let first = chars.next().map(|c| c.to_ascii_uppercase());
            let site: String = first.into_iter().chain(chars).collect();
            format!("{site}: a verdict needs {} more.", duration_words(wait))
        }
        (0, _, None) if !view.not_freed.is_empty() => {
            let bytes = view.not_freed_bytes();
            return format!("{bytes} not freed at exit. No other leak in {}.", processes(all));
        }
        (0, _, None) => format!("No leak found in {}{}.", processes(all), hidden(view)),
        // Processes that ended earlier are not listed.
        (1, 0, _) => "1 leak in processes that exited.".to_owned(),
        (n, 0, _) => format!("{n} leaks in processes that exited."),
        (_, 1, _) if all == 1 => "The process LEAKS.".to_owned(),
        (_, 1, _) => format!("1 of {} LEAKS.", processes(all)),
        (_, n, _) => format!("{n} of {} LEAK.", processes(all)),
    };
    if let Some((gpu, time)) = view.first_full().and_then(|gpu| Some((gpu, forecast(gpu)?))) {
        text += &format!(" {} is full in {}.", gpu_name(gpu), duration_words(time));
    }
    if !view.not_freed.is_empty() {
        text += &format!(" {} not freed at exit.", view.not_freed_bytes());
    }
    text
}

/// Returns what a verdict is not about: pools whose inside is not visible.
fn hidden(view: &View<'_>) -> String {
    let pools = view.notes.iter().find_map(|note| match note {
        Note::OpaquePools { bytes, .. } => Some(bytes),
        _ => None,
    });
    pools.map_or_else(String::new, |bytes| {
        format!(", without {bytes} in pools that are not visible")
    })
}

fn note_mark(view: &View<'_>, name: &str) -> String {
    let found = view.notes.iter().position(|note| note.name() == name);
    found.map_or_else(String::new, |index| mark(index + 1))
}

/// Returns the used memory and the growth of each GPU that is used; `before`: the mark of the note
/// on untracked memory.
pub(crate) fn gpu_lines(view: &View<'_>, before: &str) -> Vec<String> {
    used_gpus(view).into_iter().map(|gpu| gpu_line(gpu, before)).collect()
}

fn gpu_line(gpu: &GpuRow<'_>, before: &str) -> String {
    let name = gpu_name(gpu);
    let growth = match &*growth(gpu) {
        "" => String::new(),
        growth => format!("; {growth}"),
    };
    let Some((used, total)) = gpu.used.zip(gpu.total) else {
        return format!("{name}: {}{growth}", traced(gpu));
    };
    format!("{name}: {} used{}{growth}", used_of_total(used, total, 2), used_parts(gpu, before))
}

fn leaks(out: &mut TextPage<'_>, view: &View<'_>, top: usize) -> io::Result<()> {
    let shown = &view.leaks[..view.leaks.len().min(top)];
    // The program is the file of most leaks: then its column says nothing new.
    let with_program = shown.iter().any(|leak| {
        let place = leak_location(leak);
        !place.starts_with(&*leak.program)
    });
    let mut columns = vec![ColumnSpec::right("", 0), ColumnSpec::right("PID", 0)];
    if with_program {
        columns.push(ColumnSpec::flexible("PROGRAM", 8, 0));
    }
    columns.extend([
        ColumnSpec::flexible("LEAKS AT", 16, 0),
        ColumnSpec::right("HOLDS", 0),
        ColumnSpec::left("", 0),
        ColumnSpec::right("GROWS", 0),
        ColumnSpec::left("CONFIDENCE", 0),
    ]);
    let rows: Vec<Vec<String>> = shown
        .iter()
        .enumerate()
        .map(|(index, leak)| {
            let (size, number) = held(leak);
            let mut cells = vec![(index + 1).to_string(), leak_pids(leak)];
            if with_program {
                cells.push(sanitize(&leak.program).into_owned());
            }
            cells.push(sanitize(&leak_location(leak)).into_owned());
            cells.extend([size, number, rate(leak), leak.confidence.name().to_owned()]);
            cells
        })
        .collect();
    table::write(out, TextStyle::bold, &columns, &rows)?;
    omitted(out, view.leaks.len(), shown.len(), "leaks")
}

/// Returns the process of a leak that grows fastest, and the number of others: `1463+2`.
pub(crate) fn leak_pids(leak: &Leak<'_>) -> String {
    let first = leak.processes.first().and_then(|process| process.pid);
    let pid = first.map_or_else(|| "exited".to_owned(), |pid| pid.to_string());
    let more = leak.processes.len().saturating_sub(1);
    if more > 0 { format!("{pid}+{more}") } else { pid }
}

fn omitted(out: &mut TextPage<'_>, all: usize, shown: usize, noun: &str) -> io::Result<()> {
    out.more((all - shown) as u64, &format!("more {noun} (-n {all} shows all)"))
}

/// Writes what to try, once for all leaks that it applies to.
fn advice(out: &mut TextPage<'_>, view: &View<'_>, top: usize) -> io::Result<()> {
    let mut causes: Vec<(&str, Vec<usize>)> = Vec::new();
    for (index, leak) in view.leaks.iter().take(top).enumerate() {
        let text = &*leak.advice.text;
        match causes.iter_mut().find(|(known, _)| *known == text) {
            Some((_, leaks)) => leaks.push(index + 1),
            None => causes.push((text, vec![index + 1])),
        }
    }
    let width = causes.iter().map(|(_, leaks)| ranges(leaks).len()).max().unwrap_or(0);
    for (index, (text, leaks)) in causes.iter().enumerate() {
        let label = if index == 0 { "TRY" } else { "" };
        let head = format!("{label:<3} {:<width$}  ", ranges(leaks));
        out.wrapped(TextStyle::plain, &format!("{head}{text}"), head.len())?;
    }
    Ok(())
}

/// Formats numbers as `1,3,6-8`.
fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<String> = Vec::new();
    for run in numbers.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [one] => parts.push(one.to_string()),
            [first, second] => parts.push(format!("{first},{second}")),
            [first, .., last] => parts.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    parts.join(",")
}

columns! {
    const NOT_FREED_COLUMNS, fn not_freed_cells(row: &NotFreedRow<'_>)
    let {
        let pid = row.pids.first().map(ToString::to_string).unwrap_or_default();
        let more = row.pids.len().saturating_sub(1);
        let count = row.allocations;
        let class = match row.resource {
            engine::view::LeakResource::Host => "host ",
            engine::view::LeakResource::Managed => "managed ",
            _ => "",
        };
        let place = row.stack.map_or_else(|| "(other sites)".to_owned(), stack_location);
    }
    {
        right("PID", 0): if more > 0 { format!("{pid}+{more}") } else { pid },
        flexible("PROGRAM", 8, 0): sanitize(row.program).into_owned(),
        right("NOT FREED", 0): compact_size(row.bytes.0),
        left("", 0): format!("in {count} {class}alloc{}", if count == 1 { "" } else { "s" }),
        flexible("ALLOCATED AT", 16, 0): sanitize(&place).into_owned(),
    }
}

/// Writes memory that ended processes had not freed.
fn not_freed(out: &mut TextPage<'_>, view: &View<'_>, top: usize) -> io::Result<()> {
    if view.not_freed.is_empty() {
        return Ok(());
    }
    let shown = view.not_freed.len().min(top);
    let rows: Vec<_> = view.not_freed.iter().take(shown).map(not_freed_cells).collect();
    writeln!(out)?;
    table::write(out, TextStyle::plain, &NOT_FREED_COLUMNS, &rows)?;
    omitted(out, view.not_freed.len(), shown, "sites")
}

/// Maximum number of processes that are named as not leaking.
const MAX_NOT_LEAKING: usize = 20;

/// Writes the processes that do not leak, with their verdicts.
fn not_leaking(out: &mut TextPage<'_>, view: &View<'_>) -> io::Result<()> {
    let clean: Vec<&ProcessRow<'_>> = view
        .processes
        .iter()
        .filter(|row| row.leaks.is_empty())
        .filter(|row| !view.not_freed.iter().any(|one| one.pids.contains(&row.process.key.pid)))
        .collect();
    if clean.is_empty() {
        return Ok(());
    }
    let one = |row: &&ProcessRow<'_>| {
        let program = sanitize(row.program);
        let verdict = match row.state {
            ProcessState::Ended => Some("exited".to_owned()),
            // Without a trend there is no verdict.
            ProcessState::Steady if row.growth_per_hour.is_none() => None,
            other => Some(state(other)),
        };
        let used = (row.used.0 > 0).then(|| compact_size(row.used.0));
        let details: Vec<String> = verdict.into_iter().chain(used).collect();
        let name = match (&*program, row.process.key.pid.0) {
            ("", 0) => "unnamed process".to_owned(),
            ("", pid) => format!("process {pid}"),
            (program, pid) => format!("{program} {pid}"),
        };
        match details.is_empty() {
            true => name,
            false => format!("{name} ({})", details.join(", ")),
        }
    };
    let names: Vec<_> = clean.iter().take(MAX_NOT_LEAKING).map(one).collect();
    let more = clean.len().saturating_sub(MAX_NOT_LEAKING);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let label = if view.leaks.is_empty() { "Processes" } else { "Not leaking" };
    let text = format!("{label}: {}{more}", names.join(", "));
    table::wrap(&text, out.style.width, 2).iter().try_for_each(|line| out.dim(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_listed_as_ranges() {
        assert_eq!(ranges(&[1, 3, 4, 6, 7, 8]), "1,3,4,6-8");
        assert_eq!(ranges(&[2]), "2");
        assert_eq!(ranges(&[]), "");
    }
}
