//! Explanations as text: one table per process.

use std::io::{self, Write};

use super::{ExplainReport, ExplainedProcess, LimitJson, ObjectCostJson, PartJson};
use crate::report::live::text::TextStyle;
use crate::report::tables::columns;
use crate::report::text_page::TextPage;
use crate::report::view::compact_size;
use crate::report::view::table;
use crate::sanitize::{sanitize, sanitize_up_to};

/// Maximum number of characters of a text.
const MAX_CELL_CHARS: usize = 200;

/// Writes the report, with at most `top` rows per list of objects. It may come from another host, so
/// every text is sanitized again.
pub fn write(
    out: &mut dyn Write,
    report: &ExplainReport,
    style: TextStyle,
    top: usize,
) -> io::Result<()> {
    let out = &mut TextPage::new(out, style);
    if report.processes.is_empty() {
        return writeln!(out, "The driver reports no memory of these processes.");
    }
    for (number, process) in report.processes.iter().enumerate() {
        if number > 0 {
            writeln!(out)?;
        }
        write_process(out, process, top)?;
    }
    Ok(())
}

fn write_process(out: &mut TextPage<'_>, process: &ExplainedProcess, top: usize) -> io::Result<()> {
    let user = process.user.as_deref().map_or_else(String::new, |user| format!(", {user}"));
    let at = if process.exited { ", exited, at its highest use" } else { "" };
    let head = format!(
        "{} (pid {}{user}{at}): {} reported by the driver",
        process.program,
        process.pid,
        compact_size(process.driver_bytes)
    );
    out.bold(&sanitize(&head))?;
    let all = process.driver_bytes;
    let rows: Vec<_> = process.parts.iter().map(|part| cells(part, all)).collect();
    table::write(out, TextStyle::plain, &PARTS, &rows)?;
    let share = |bytes: u64| percent(bytes, all);
    out.dim(&format!(
        "measured {}, bounded {}, estimated {}, not explained {}",
        share(process.measured_bytes),
        share(process.bounded_bytes),
        share(process.estimated_bytes),
        share(process.unexplained_bytes)
    ))?;
    if !process.limits.is_empty() {
        writeln!(out, "\nLimits set with cuCtxSetLimit")?;
        let rows: Vec<_> = process.limits.iter().map(limit_cells).collect();
        table::write(out, TextStyle::plain, &LIMITS, &rows)?;
    }
    if !process.objects.is_empty() {
        writeln!(out, "\nObjects by site")?;
        let rows: Vec<_> = process.objects.iter().take(top).map(object_cells).collect();
        table::write(out, TextStyle::plain, &OBJECTS, &rows)?;
        out.more(process.objects.len().saturating_sub(top) as u64, "more")?;
    }
    Ok(())
}

columns! {
    const PARTS, fn cells(part: &PartJson, all: u64)
    let {
        let sign = if part.bytes < 0 { "-" } else { "" };
        let size = part.bytes.unsigned_abs();
        let precision = match &*part.precision {
            _ if part.part == "rest" => String::new(),
            "bounded" => range(part.min_bytes, part.max_bytes),
            precision => sanitize_up_to(precision, MAX_CELL_CHARS).into_owned(),
        };
    }
    {
        right("SIZE", 0): format!("{sign}{}", compact_size(size)),
        right("SHARE", 0): format!("{sign}{}", percent(size, all)),
        left("PRECISION", 0): precision,
        flexible("PART", 20, 0): sanitize_up_to(&part.description, MAX_CELL_CHARS).into_owned(),
        flexible("WHAT HELPS", 16, 0): sanitize_up_to(&part.advice, MAX_CELL_CHARS).into_owned(),
    }
}

columns! {
    const LIMITS, fn limit_cells(limit: &LimitJson)
    let {
        let is_number = limit.limit.contains("launch");
        let (low, high) = (signed(limit.min_bytes), signed(limit.max_bytes));
        let bounds = if low == high { low } else { format!("{low} to {high}") };
    }
    {
        left("LIMIT", 0): sanitize_up_to(&limit.limit, MAX_CELL_CHARS).into_owned(),
        right("VALUE", 0): if is_number { limit.value.to_string() } else { compact_size(limit.value) },
        right("CALLS", 0): limit.calls.to_string(),
        right("CHANGED", 0): signed(limit.bytes),
        left("BOUNDS", 0): bounds,
    }
}

/// Returns a change of size: `+64M`.
fn signed(bytes: i64) -> String {
    let sign = match bytes.signum() {
        1 => "+",
        -1 => "-",
        _ => "",
    };
    format!("{sign}{}", compact_size(bytes.unsigned_abs()))
}

columns! {
    const OBJECTS, fn object_cells(cost: &ObjectCostJson)
    {
        right("TOTAL", 0): compact_size(cost.bytes),
        right("EACH", 0): compact_size(cost.bytes_each),
        left("BOUNDS", 0): range(cost.min_bytes_each, cost.max_bytes_each),
        right("IMAGE", 0): cost.image_bytes_each.map_or_else(String::new, compact_size),
        right("LIVE", 0): cost.live.to_string(),
        left("KIND", 0): sanitize_up_to(&cost.kind, MAX_CELL_CHARS).into_owned(),
        flexible("AT", 12, 0): sanitize_up_to(&cost.location, MAX_CELL_CHARS).into_owned(),
    }
}

/// Returns `0B to 12.0M`, or one value if both are the same.
fn range(min: u64, max: u64) -> String {
    let [low, high] = [min, max].map(compact_size);
    if low == high { low } else { format!("{low} to {high}") }
}

fn percent(bytes: u64, all: u64) -> String {
    let share = 100.0 * bytes as f64 / all.max(1) as f64;
    if share > 0.0 && share < 0.1 { "<0.1 %".to_owned() } else { format!("{share:.1} %") }
}
