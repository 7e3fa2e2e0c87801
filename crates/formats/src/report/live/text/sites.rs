//! Allocation sites as text.

use std::io::{self, Write};

use engine::model::{Allocator, Bytes, CallStack, MemoryKind, SiteName};
use engine::snapshot::{ProcessView, SiteKindView, SiteView, Snapshot};

use super::{TextStyle, allocators, format_count, format_duration, objects, usage};
use crate::export::ReportContext;
use crate::report::analysis::frames::{line, truncate_middle};
use crate::report::text_page::TextPage;
use crate::sanitize::sanitize;

/// Writes one report that is ordered by site.
pub fn report(
    out: &mut dyn Write,
    snapshot: &Snapshot,
    context: &ReportContext,
    style: TextStyle,
) -> io::Result<()> {
    let out = &mut TextPage::new(out, style);
    super::header(out, snapshot, context)?;
    if snapshot.sites_total == 0 {
        writeln!(out, "No GPU memory activity yet.")?;
    }
    for (index, site) in snapshot.sites.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        write_site(out, site, snapshot, &format_count)?;
    }
    let more = snapshot.sites_total.saturating_sub(snapshot.sites.len() as u64);
    out.more(more, "more sites")?;
    blocks(out, snapshot, context)?;
    super::footer(out, snapshot, context)
}

/// Writes the sites of blocks that allocators in the process handed out, which are part of that
/// memory.
fn blocks(out: &mut TextPage<'_>, snapshot: &Snapshot, context: &ReportContext) -> io::Result<()> {
    if snapshot.tensor_sites_total == 0 {
        return Ok(());
    }
    let is_torch = |site: &SiteView| allocator(site) == Some(Allocator::PyTorch);
    let name = match snapshot.tensor_sites.iter().all(is_torch) {
        true => "Tensors",
        false => "Blocks of allocators",
    };
    let heading = format!("{name} by site (included in the memory above)");
    writeln!(out, "\n{}", out.style.bold(&heading))?;
    for view in snapshot.processes.iter().flat_map(|process| &process.allocators) {
        allocators::sampling_lines(out, view, context)?;
    }
    for site in &snapshot.tensor_sites {
        writeln!(out)?;
        let noun = allocator(site).map_or("block", Allocator::noun);
        write_site(out, site, snapshot, &|blocks| match blocks {
            1 => format!("1 {noun}"),
            n => format!("{n} {noun}s"),
        })?;
    }
    let more = snapshot.tensor_sites_total.saturating_sub(snapshot.tensor_sites.len() as u64);
    out.more(more, "more sites")
}

/// The allocator of the blocks of a site.
fn allocator(site: &SiteView) -> Option<Allocator> {
    site.kinds.first()?.kind.allocator()
}

fn write_site(
    out: &mut TextPage<'_>,
    site: &SiteView,
    snapshot: &Snapshot,
    count: &dyn Fn(u64) -> String,
) -> io::Result<()> {
    if site.kinds.is_empty() && !site.objects.is_empty() {
        objects::heading(out, site)?;
        holder_line(out, site, snapshot)?;
        writeln!(out, "  site {}", site.name)?;
        return stack(out, site, "    ");
    }
    let is_estimate = site.sampling.is_some() && site.live_allocations > 0;
    let about = if is_estimate { "about " } else { "" };
    let live = format!("LIVE: {about}{}", usage::held(site.kinds.iter().map(Into::into), count));
    let history = History::of(site);
    let counts = format!(
        "{}peak {}; {}, {} in total; {} freed{}",
        delta(site.grown),
        history.peak,
        count(history.allocations),
        history.bytes,
        history.freed,
        site.median_lifetime().map_or_else(String::new, |time| format!(
            ", median lifetime {}",
            format_duration(time)
        )),
    );
    writeln!(out, "{}  {}", out.style.bold(&live), out.style.dim(&format!("({counts})")))?;
    kinds(out, site, "  ")?;
    objects::of_site(out, site, "  ")?;
    holder_line(out, site, snapshot)?;
    writeln!(out, "  site {}", site.name)?;
    stack(out, site, "    ")
}

/// Totals of a site: of its device memory or tensors, or of its first class of memory if it never
/// had any.
struct History {
    /// As text: kinds may have had their peaks at different times.
    peak: String,
    allocations: u64,
    bytes: Bytes,
    freed: u64,
}

impl History {
    fn of(site: &SiteView) -> Self {
        let class = site.kinds.first().and_then(|view| usage::class(view.kind));
        if class.is_none() || site.allocations_total > 0 {
            return Self {
                peak: site.peak_bytes.to_string(),
                allocations: site.allocations_total,
                bytes: site.bytes_total,
                freed: site.freed_total,
            };
        }
        let own = || site.kinds.iter().filter(|view| usage::class(view.kind) == class);
        let sum =
            |of: fn(&SiteKindView) -> u64| own().fold(0_u64, |sum, v| sum.saturating_add(of(v)));
        let at_most = if own().count() > 1 { "at most " } else { "" };
        Self {
            peak: format!("{at_most}{}", Bytes(sum(|view| view.peak_bytes.0))),
            allocations: sum(|view| view.allocations_total),
            bytes: Bytes(sum(|view| view.bytes_total.0)),
            freed: sum(|view| view.freed_total),
        }
    }
}

/// Writes the processes that hold memory of the site, if there are several.
fn holder_line(out: &mut TextPage<'_>, site: &SiteView, snapshot: &Snapshot) -> io::Result<()> {
    if snapshot.processes.len() > 1 || site.processes.len() > 1 {
        let holders = site.processes.iter().take(5).map(|one| {
            let pid = one.pid.map_or_else(|| "exited earlier".to_owned(), |pid| pid.to_string());
            // A process that only holds CUDA objects has no live bytes to print.
            if site.kinds.is_empty() && !site.objects.is_empty() {
                return pid;
            }
            format!("{pid} {}", usage::sizes(one.kinds.iter().copied()))
        });
        let more = if site.processes.len() > 5 { ", …" } else { "" };
        writeln!(out, "  processes: {}{more}", holders.collect::<Vec<_>>().join(", "))?;
    }
    Ok(())
}

fn delta(bytes: i64) -> String {
    match bytes {
        0 => String::new(),
        1.. => format!("+{} since last report; ", Bytes(bytes.unsigned_abs())),
        _ => format!("-{} since last report; ", Bytes(bytes.unsigned_abs())),
    }
}

/// Writes memory by kind, if the total alone is ambiguous.
fn kinds(out: &mut TextPage<'_>, site: &SiteView, indent: &str) -> io::Result<()> {
    // A list of tensors contains nothing else.
    if site
        .kinds
        .iter()
        .all(|view| view.kind == MemoryKind::Device || view.kind.allocator().is_some())
    {
        return Ok(());
    }
    let parts: Vec<_> = site.kinds.iter().map(|view| usage::kind(view.into())).collect();
    writeln!(out, "{indent}kinds: {}", parts.join(", "))
}

pub(super) fn stack(out: &mut TextPage<'_>, site: &SiteView, indent: &str) -> io::Result<()> {
    let placeholder = match site.name {
        SiteName::Unknown => "(no stack)",
        SiteName::Pending(_) => "(resolving symbols)",
        SiteName::Other => "(site limit reached)",
        SiteName::Resolved(_) if site.frames.is_empty() => "(empty stack)",
        SiteName::Resolved(_) => return frames(out, &site.frames, indent),
    };
    writeln!(out, "{indent}{placeholder}")
}

/// Writes the most relevant frames of a stack, in order.
fn frames(out: &mut TextPage<'_>, frames: &CallStack, indent: &str) -> io::Result<()> {
    let mut hidden = 0_usize;
    for (frame, shown) in frames.iter().zip(choose(frames, out.style.stack_depth)) {
        if !shown {
            hidden += 1;
            continue;
        }
        fold(out, &mut hidden, indent)?;
        writeln!(out, "{indent}{}", sanitize(&truncate_middle(line(frame))))?;
    }
    fold(out, &mut hidden, indent)
}

fn fold(out: &mut TextPage<'_>, hidden: &mut usize, indent: &str) -> io::Result<()> {
    let text = match std::mem::take(hidden) {
        0 => return Ok(()),
        1 => "… 1 frame hidden".to_owned(),
        n => format!("… {n} frames hidden"),
    };
    writeln!(out, "{indent}{}", out.style.dim(&text))
}

/// Returns which frames to show within `depth` (0: all): the call itself, then the program's own
/// frames, innermost first, then library frames.
fn choose(frames: &CallStack, depth: usize) -> Vec<bool> {
    if depth == 0 || frames.len() <= depth {
        return vec![true; frames.len()];
    }
    let library = &frames.headline().folded;
    let own = (1..frames.len()).filter(|index| library.get(*index) == Some(&false));
    let others = (1..frames.len()).filter(|index| library.get(*index) == Some(&true));
    let mut shown = vec![false; frames.len()];
    for index in [0].into_iter().chain(own).chain(others).take(depth) {
        if let Some(shown) = shown.get_mut(index) {
            *shown = true;
        }
    }
    shown
}

/// Returns whether memory that an ended process had not freed can be listed by site.
pub(super) fn are_known(view: &ProcessView) -> bool {
    let is_known = |site: &SiteView| site.name != SiteName::Unknown && holds(site);
    view.ended.is_some() && view.sites.iter().any(is_known)
}

fn holds(site: &SiteView) -> bool {
    site.kinds.iter().any(|kind| kind.live_allocations > 0)
}

/// Writes the memory that an ended process had not freed.
pub(super) fn not_freed(out: &mut TextPage<'_>, view: &ProcessView) -> io::Result<()> {
    let mut listed = 0;
    for site in view.sites.iter().filter(|site| holds(site)) {
        let all = |sum: u64, kind: &engine::snapshot::SiteKindView| sum + kind.live_allocations;
        let number = site.kinds.iter().fold(0, all);
        listed += number;
        let own = usage::held(site.kinds.iter().map(Into::into), &format_count);
        writeln!(out, "  {own}, allocated at")?;
        kinds(out, site, "    ")?;
        stack(out, site, "    ")?;
    }
    let more = view.live_allocations.saturating_sub(listed);
    if more > 0 {
        writeln!(out, "  {}", out.style.dim(&format!("… {} at other sites", format_count(more))))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::model::stack::{Frame, Language};
    use std::sync::Arc;

    fn native(function: &str, module: &str) -> Frame {
        Frame { function: function.into(), module: Some(module.into()), ..Frame::default() }
    }

    fn python(function: &str) -> Frame {
        let (function, file) = (function.into(), Some("train.py".into()));
        Frame { function, file, line: 3, language: Language::Python, ..Frame::default() }
    }

    fn lines(all: &[Frame], stack_depth: usize) -> Vec<String> {
        let mut out = Vec::new();
        let stack = CallStack::from(Arc::<[Frame]>::from(all));
        let style = TextStyle { stack_depth, ..TextStyle::default() };
        frames(&mut TextPage::new(&mut out, style), &stack, "").unwrap();
        String::from_utf8(out).unwrap().lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn call_and_program_frames_are_shown_first_and_in_order() {
        let stack = [
            native("cuMemAlloc_v2", "libcuda.so.1"),
            native("cudaMalloc", "libcudart.so.12"),
            native("c10::malloc", "libc10.so"),
            python("forward"),
            native("_PyEval", "libpython3.so"),
            python("step"),
            python("main"),
        ];
        let want = [
            "cuMemAlloc_v2 (libcuda.so.1)",
            "… 2 frames hidden",
            "forward (train.py:3)",
            "… 1 frame hidden",
            "step (train.py:3)",
            "… 1 frame hidden",
        ];
        assert_eq!(lines(&stack, 3), want);
        assert_eq!(lines(&stack, 0).len(), 7);
        assert_eq!(lines(&stack, 5)[1], "cudaMalloc (libcudart.so.12)");
        assert_eq!(lines(&stack, 7), lines(&stack, 0));
    }

    #[test]
    fn names_are_sanitized_for_the_terminal() {
        let hostile = native("a\x1b[31m", "b\nc");
        assert_eq!(lines(&[hostile], 6), ["a\\u{1b}[31m (b\\u{a}c)"]);
    }

    #[test]
    fn durations_are_printed_in_suitable_units() {
        let texts = [999, 1_500, 2_000_000, 3_000_000_000]
            .map(|time| format_duration(engine::model::units::Nanos(time)));
        assert_eq!(texts, ["999ns", "1.5µs", "2.0ms", "3.0s"]);
    }
}
