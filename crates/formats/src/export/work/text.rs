//! Launches and copies as a person reads them.

use std::io::{self, Write};

use engine::result::result_name;
use engine::snapshot::{KernelView, ProcessView, Snapshot, WorkView};
use engine::units::Bytes;
use engine::work::Shape;

use super::super::Names;
use super::super::text::{Style, capture_ended};
use super::{bandwidth_at, kernel_name, mean_bandwidth, rate, why_nameless};
use crate::plain::plain;

/// Names longer than this are cut in the middle.
const NAME_WIDTH: usize = 72;

/// Writes one report of `vramscope kernels`.
pub fn report(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    names: &Names,
    style: Style,
) -> io::Result<()> {
    let rule = "-".repeat(20);
    writeln!(out, "{}", style.bold(&format!("{rule} {} {rule}", names.clock.short(snapshot.at))))?;
    let mut none = true;
    for view in &snapshot.processes {
        if let Some(work) = view.work.as_ref().filter(|work| is_worth_showing(work, view)) {
            if !none {
                writeln!(out)?;
            }
            none = false;
            process(out, view, work, names, style)?;
        }
    }
    if none {
        writeln!(out, "No launches or copies yet.")?;
    }
    losses(out, snapshot, names, style)
}

fn is_worth_showing(work: &WorkView, view: &ProcessView) -> bool {
    work.launches + work.failed + work.captured > 0
        || !work.copies.is_empty()
        || !view.failures.is_empty()
}

fn process(
    out: &mut dyn Write,
    view: &ProcessView,
    work: &WorkView,
    names: &Names,
    style: Style,
) -> io::Result<()> {
    let uid = view.uid.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
    let ended = if view.ended.is_some() { "  (exited)" } else { "" };
    let head = format!("PID: {} / UID: {uid}", view.key.pid);
    writeln!(out, "{}  {}{ended}", style.bold(&head), plain(&view.name))?;
    section(out, work, style)?;
    for failure in &view.failures {
        let line = format!(
            "  failed: {} returned {} ({}), {}",
            names.function(failure.function),
            result_name(failure.code),
            failure.code,
            times(failure.count)
        );
        writeln!(out, "{}", style.alarm(&line))?;
    }
    if view.before_trace {
        writeln!(out, "  started before the trace: earlier launches and copies are not included")?;
    }
    Ok(())
}

/// Launches and copies of one process; also a part of the report of `trace`.
pub(crate) fn section(out: &mut dyn Write, work: &WorkView, style: Style) -> io::Result<()> {
    let mut total = format!(
        "LAUNCHES: {} ({}/s)",
        grouped(work.launches),
        decimal(rate(work.recent_launches, work.window))
    );
    if work.captured > 0 {
        total += &format!(", {} captured into graphs", grouped(work.captured));
    }
    if work.failed > 0 {
        total += &format!(", {} failed", grouped(work.failed));
    }
    writeln!(out, "{}", style.bold(&total))?;
    if !work.kernels.is_empty() {
        let head = format!(
            "{:>14} {:>7} {:>12}  {:<16} {:<14} KERNEL",
            "LAUNCHES", "SHARE", "RATE/S", "GRID", "BLOCK"
        );
        writeln!(out, "{}", style.dim(&head))?;
    }
    for kernel in &work.kernels {
        kernel_line(out, kernel, work)?;
    }
    let unlisted = work.kernels_total.saturating_sub(work.kernels.len() as u64);
    if unlisted > 0 {
        let listed: u64 = work.kernels.iter().map(|kernel| kernel.launches).sum();
        let rest = grouped(work.launches.saturating_sub(listed));
        writeln!(out, "{rest:>14} launches of {unlisted} more kernels (raise --top)")?;
    }
    let nameless = work.kernels.iter().filter_map(|kernel| kernel.why).max();
    if let Some(why) = nameless {
        writeln!(out, "  unnamed kernels: {}", why_nameless(why))?;
    }
    copies(out, work, style)
}

fn kernel_line(out: &mut dyn Write, kernel: &KernelView, work: &WorkView) -> io::Result<()> {
    let share = if work.launches == 0 {
        0.0
    } else {
        kernel.launches as f64 * 100.0 / work.launches as f64
    };
    let common = kernel.common.map(|(shape, _)| shape);
    let dimensions = |of: fn(&Shape) -> [u32; 3]| {
        common.map_or_else(|| "-".to_owned(), |shape| dimensions(of(&shape)))
    };
    writeln!(
        out,
        "{:>14} {:>6.1}% {:>12}  {:<16} {:<14} {}",
        grouped(kernel.launches),
        share,
        decimal(rate(kernel.recent, work.window)),
        dimensions(|shape| shape.grid),
        dimensions(|shape| shape.block),
        shortened(&kernel_name(kernel).short)
    )
}

fn copies(out: &mut dyn Write, work: &WorkView, style: Style) -> io::Result<()> {
    if work.copies.is_empty() {
        return Ok(());
    }
    let head = format!(
        "{:>14} {:>12} {:>14}  {:<9} {:<6} BANDWIDTH (MEAN; P10, P50, P90)",
        "COPIES", "BYTES", "RATE", "DIRECTION", "MODE"
    );
    writeln!(out, "{}", style.dim(&head))?;
    for view in &work.copies {
        let bandwidth = match mean_bandwidth(view) {
            Some(mean) => {
                let at = |share| {
                    bandwidth_at(view, share)
                        .map_or_else(|| "-".to_owned(), |rate| per_second(rate as f64))
                };
                format!("{}; {}, {}, {}", per_second(mean), at(0.1), at(0.5), at(0.9))
            }
            None => "-".to_owned(),
        };
        writeln!(
            out,
            "{:>14} {:>12} {:>14}  {:<9} {:<6} {bandwidth}",
            grouped(view.calls),
            view.bytes.to_string(),
            per_second(rate(view.recent_bytes.0, work.window)),
            view.direction.name(),
            if view.asynchronous { "async" } else { "sync" },
        )?;
    }
    Ok(())
}

/// Launches and copies that were not counted.
pub(crate) fn uncounted(out: &mut dyn Write, snapshot: &Snapshot, style: Style) -> io::Result<()> {
    let lost = &snapshot.certainty.lost;
    if lost.launches > 0 || lost.copies > 0 {
        let line = format!(
            "NOT EXACT: {} launches and {} copies not counted",
            grouped(lost.launches),
            grouped(lost.copies)
        );
        writeln!(out, "{}", style.alarm(&line))?;
    }
    Ok(())
}

fn losses(out: &mut dyn Write, snapshot: &Snapshot, names: &Names, style: Style) -> io::Result<()> {
    capture_ended(out, &snapshot.certainty, names, style)?;
    let lost = &snapshot.certainty.lost;
    uncounted(out, snapshot, style)?;
    if lost.events() > 0 {
        let line = format!("NOT EXACT: {} events lost", grouped(lost.events()));
        writeln!(out, "{}", style.alarm(&line))?;
    }
    Ok(())
}

fn dimensions(extent: [u32; 3]) -> String {
    let [x, y, z] = extent;
    match (y, z) {
        (1, 1) => format!("{x}"),
        (_, 1) => format!("{x}x{y}"),
        _ => format!("{x}x{y}x{z}"),
    }
}

fn per_second(rate: f64) -> String {
    format!("{}/s", Bytes(rate as u64))
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        more => format!("{} times", grouped(more)),
    }
}

/// Thousands apart, for figures that are long.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn decimal(rate: f64) -> String {
    if rate >= 100.0 { grouped(rate.round() as u64) } else { format!("{rate:.1}") }
}

/// The beginning and the end of a long name.
fn shortened(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME_WIDTH {
        return name.to_owned();
    }
    let half = NAME_WIDTH / 2;
    let front: String = name.chars().take(half).collect();
    let back: String = name.chars().skip(length - (NAME_WIDTH - half - 1)).collect();
    format!("{front}…{back}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(999), "999");
        assert_eq!(decimal(12.34), "12.3");
        assert_eq!(decimal(12_345.6), "12,346");
        assert_eq!(dimensions([4, 1, 1]), "4");
        assert_eq!(dimensions([4, 2, 1]), "4x2");
        assert_eq!(dimensions([4, 1, 3]), "4x1x3");
    }

    #[test]
    fn long_names_keep_both_ends() {
        let name = format!("begin{}end", "x".repeat(200));
        let short = shortened(&name);
        assert_eq!(short.chars().count(), NAME_WIDTH);
        assert!(short.starts_with("begin") && short.ends_with("end"));
    }
}
