//! Launches and copies as text.

use std::io::{self, Write};

use engine::model::{Bytes, LaunchShape};
use engine::snapshot::{ActivityView, KernelView, ProcessView, Snapshot};

use super::super::live::text::{self, TextStyle};
use super::{bandwidth_at, kernel_name, mean_bandwidth, rate, unnamed_reason};
use crate::export::ReportContext;
use crate::report::text_page::TextPage;

/// Maximum width of a name; longer ones are shortened in the middle.
const NAME_WIDTH: usize = 72;

/// Writes one report of `vramscope kernels`.
pub fn report(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    let out = &mut TextPage::new(out, style);
    text::title(out, &context.clock.short(snapshot.at))?;
    let mut is_empty = true;
    for view in &snapshot.processes {
        if let Some(activity) =
            view.activity.as_ref().filter(|activity| has_activity(activity, view))
        {
            if !is_empty {
                writeln!(out)?;
            }
            is_empty = false;
            process(out, view, activity, context)?;
        }
    }
    if is_empty {
        writeln!(out, "No launches or copies yet.")?;
    }
    losses(out, snapshot, context)
}

fn has_activity(activity: &ActivityView, view: &ProcessView) -> bool {
    activity.launches + activity.failed + activity.captured > 0
        || !activity.copies.is_empty()
        || !view.failures.is_empty()
}

fn process(
    out: &mut TextPage<'_>,
    view: &ProcessView,
    activity: &ActivityView,
    context: &ReportContext,
) -> io::Result<()> {
    text::heading(out, view)?;
    section(out, activity)?;
    text::failures(out, view, context)?;
    if view.before_trace {
        writeln!(out, "  started before the trace: earlier launches and copies are not included")?;
    }
    Ok(())
}

/// Writes launches and copies of one process; also part of the report of `trace`.
pub(crate) fn section(out: &mut TextPage<'_>, activity: &ActivityView) -> io::Result<()> {
    let mut total = format!(
        "LAUNCHES: {} ({}/s)",
        grouped(activity.launches),
        decimal(rate(activity.recent_launches, activity.window))
    );
    if activity.captured > 0 {
        total += &format!(", {} captured into graphs", grouped(activity.captured));
    }
    if activity.failed > 0 {
        total += &format!(", {} failed", grouped(activity.failed));
    }
    out.bold(&total)?;
    if !activity.kernels.is_empty() {
        let head = format!(
            "{:>14} {:>7} {:>12}  {:<16} {:<14} KERNEL",
            "LAUNCHES", "SHARE", "RATE/S", "GRID", "BLOCK"
        );
        out.dim(&head)?;
    }
    for kernel in &activity.kernels {
        kernel_line(out, kernel, activity)?;
    }
    let unlisted = activity.kernels_total.saturating_sub(activity.kernels.len() as u64);
    if unlisted > 0 {
        let listed: u64 = activity.kernels.iter().map(|kernel| kernel.launches).sum();
        let rest = grouped(activity.launches.saturating_sub(listed));
        writeln!(out, "{rest:>14} launches of {unlisted} more kernels (raise --top)")?;
    }
    let unnamed = activity.kernels.iter().filter_map(|kernel| kernel.unnamed_reason).max();
    if let Some(reason) = unnamed {
        writeln!(out, "  unnamed kernels: {}", unnamed_reason(reason))?;
    }
    copies(out, activity)
}

fn kernel_line(
    out: &mut TextPage<'_>,
    kernel: &KernelView,
    activity: &ActivityView,
) -> io::Result<()> {
    let share = if activity.launches == 0 {
        0.0
    } else {
        kernel.launches as f64 * 100.0 / activity.launches as f64
    };
    let common = kernel.common.map(|(shape, _)| shape);
    let dimensions = |of: fn(&LaunchShape) -> [u32; 3]| {
        common.map_or_else(|| "-".to_owned(), |shape| dimensions(of(&shape)))
    };
    writeln!(
        out,
        "{:>14} {:>6.1}% {:>12}  {:<16} {:<14} {}",
        grouped(kernel.launches),
        share,
        decimal(rate(kernel.recent, activity.window)),
        dimensions(|shape| shape.grid),
        dimensions(|shape| shape.block),
        shortened(&kernel_name(kernel).short)
    )
}

fn copies(out: &mut TextPage<'_>, activity: &ActivityView) -> io::Result<()> {
    if activity.copies.is_empty() {
        return Ok(());
    }
    let head = format!(
        "{:>14} {:>12} {:>14}  {:<9} {:<6} BANDWIDTH (MEAN; P10, P50, P90)",
        "COPIES", "BYTES", "RATE", "DIRECTION", "MODE"
    );
    out.dim(&head)?;
    for view in &activity.copies {
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
            per_second(rate(view.recent_bytes.0, activity.window)),
            view.direction.name(),
            if view.asynchronous { "async" } else { "sync" },
        )?;
    }
    Ok(())
}

/// Writes the number of launches and copies that were not counted.
pub(crate) fn uncounted(out: &mut TextPage<'_>, snapshot: &Snapshot) -> io::Result<()> {
    let lost = &snapshot.uncertainty.lost;
    if lost.launches > 0 || lost.copies > 0 {
        let line = format!(
            "NOT EXACT: {} launches and {} copies not counted",
            grouped(lost.launches),
            grouped(lost.copies)
        );
        out.alarm(&line)?;
    }
    Ok(())
}

fn losses(out: &mut TextPage<'_>, snapshot: &Snapshot, context: &ReportContext) -> io::Result<()> {
    text::capture_ended(out, &snapshot.uncertainty, context)?;
    let lost = &snapshot.uncertainty.lost;
    uncounted(out, snapshot)?;
    if lost.events() > 0 {
        let line = format!("NOT EXACT: {} events lost", grouped(lost.events()));
        out.alarm(&line)?;
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

/// Formats a number with thousands separators.
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

/// Returns the start and the end of a long name.
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
    fn numbers_are_readable() {
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
