//! One leak in full: evidence and call stack.

use std::io::{self, Write};

use engine::model::{Bytes, CallStack, Frame};
use engine::verdict::SiteVerdict;
use engine::view::{Leak, View};

use super::table;
use super::{growth, held_phrase, leak_location, site_location};
use crate::report::analysis::frames;
use crate::report::live::text::TextStyle;
use crate::report::text_page::TextPage;
use crate::report::verdict;
use crate::sanitize::sanitize;

/// Writes the evidence and the stack of leak `number`, from 1. Frames of the program come first;
/// frames of libraries are folded, unless [`TextStyle::stack_depth`] is 0. Returns whether there is
/// such a leak.
pub fn write_leak(
    out: &mut dyn Write,
    view: &View<'_>,
    number: usize,
    style: TextStyle,
) -> io::Result<bool> {
    leak_details(&mut TextPage::new(out, style), view, number)
}

/// The same in a report.
pub(crate) fn leak_details(
    out: &mut TextPage<'_>,
    view: &View<'_>,
    number: usize,
) -> io::Result<bool> {
    let found = number.checked_sub(1).and_then(|index| view.leaks.get(index));
    let Some(leak) = found else { return Ok(false) };
    let title = format!("Leak {number}: {}, {}", leak_location(leak), leak.confidence.name());
    out.alarm(&sanitize(&title))?;
    let gpu = leak.gpu.map_or_else(String::new, |gpu| format!(", GPU {}", gpu.0));
    let program = sanitize(&leak.program);
    let pids: Vec<String> = leak
        .processes
        .iter()
        .filter_map(|process| process.pid)
        .map(|pid| pid.to_string())
        .collect();
    let user = leak.user.map_or_else(String::new, |user| format!(" of {}", sanitize(user)));
    writeln!(out, "  {program}{user}, pid {}{gpu}", pids.join(", "))?;
    let holds = format!("  holds {}, grows {}", held_phrase(leak), growth(leak));
    out.wrapped(TextStyle::plain, &holds, 4)?;
    for site in &leak.sites {
        write_site(out, site, leak)?;
    }
    writeln!(out, "  {}", out.style.bold("try"))?;
    out.wrapped(TextStyle::plain, &format!("    {}", leak.advice.text), 4)?;
    Ok(true)
}

fn write_site(out: &mut TextPage<'_>, site: &SiteVerdict, leak: &Leak<'_>) -> io::Result<()> {
    let pid = site.pid.filter(|_| leak.processes.len() > 1);
    let pid = pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
    let several = if leak.sites.len() > 1 {
        let amount = verdict::live(site.resource, &site.evidence);
        format!(" of {}: {amount}{pid}", site_location(site.site, &site.frames))
    } else {
        String::new()
    };
    out.wrapped(TextStyle::bold, &format!("  evidence{}", sanitize(&several)), 4)?;
    for line in verdict::evidence(site) {
        out.wrapped(TextStyle::plain, &format!("    {line}"), 6)?;
    }
    if let Some(tensors) = site.evidence.tensors {
        let [live, cache] = [tensors.live, tensors.cache].map(Bytes);
        writeln!(out, "    PyTorch's cache holds {cache}, its tensors use {live}")?;
    }
    if let Some((tid, name)) = &site.thread {
        writeln!(out, "    all from thread {} ({tid})", sanitize(name))?;
    }
    writeln!(out, "  {}", out.style.bold("call stack, innermost first"))?;
    if site.frames.is_empty() {
        return writeln!(out, "    {}", verdict::location(site.site, &site.frames));
    }
    write_stack(out, &site.frames)
}

/// Writes frames of the program one by one, and folds runs of other frames.
pub(crate) fn write_stack(out: &mut TextPage<'_>, stack: &CallStack) -> io::Result<()> {
    let unfolded = out.style.stack_depth == 0;
    let mut folded: Vec<&Frame> = Vec::new();
    for (frame, is_folded) in stack.iter().zip(&stack.headline().folded) {
        if *is_folded && !unfolded {
            folded.push(frame);
            continue;
        }
        fold(out, &mut folded)?;
        let line = sanitize(&frames::line(frame)).into_owned();
        writeln!(out, "    {}", table::fit(&line, out.style.width.saturating_sub(4)))?;
    }
    fold(out, &mut folded)
}

/// Writes frames that are not shown as one line.
fn fold(out: &mut TextPage<'_>, folded: &mut Vec<&Frame>) -> io::Result<()> {
    let Some(text) = fold_phrase(folded) else { return Ok(()) };
    folded.clear();
    writeln!(
        out,
        "    {}",
        out.style.dim(&table::shorten(&text, out.style.width.saturating_sub(4)))
    )
}

/// Returns `… 14 frames of libtorch.so, libc10_cuda.so`; `None` if there are none.
pub(crate) fn fold_phrase(folded: &[&Frame]) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for frame in folded {
        let path = frame.module.as_deref().or(frame.file.as_deref()).unwrap_or_default();
        let name = sanitize(frames::base(path)).into_owned();
        if !name.is_empty() && !names.contains(&name) {
            names.push(name);
        }
    }
    let count = folded.len();
    let of = if names.is_empty() { String::new() } else { format!(" of {}", names.join(", ")) };
    (count > 0).then(|| format!("… {count} frame{}{of}", if count == 1 { "" } else { "s" }))
}
