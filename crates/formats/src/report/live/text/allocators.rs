//! Allocators inside a process as text.

use std::io::{self, Write};

use engine::model::{
    Allocator, AllocatorPoolView, AllocatorView, BlocksUnavailable, Bytes, SamplingView,
};

use super::TextStyle;
use crate::export::ReportContext;
use crate::report::text_page::TextPage;

/// Writes the lines of one allocator of a process.
pub(super) fn section(
    out: &mut TextPage<'_>,
    view: &AllocatorView,
    context: &ReportContext,
) -> io::Result<()> {
    let title = view.allocator.title();
    for pool in &view.pools {
        let text = format!("  {title} {}", line(view.allocator, pool));
        out.wrapped(TextStyle::plain, &text, 4)?;
        if let Some(more) = untracked_note(pool) {
            writeln!(out, "    {}", out.style.dim(&more))?;
        }
    }
    sampling_lines(out, view, context)?;
    if let Some(reason) = shown_reason(view) {
        let text = format!("  {title}: {}", unavailable(view, reason));
        out.wrapped(TextStyle::plain, &text, 4)?;
    }
    let unmatched =
        view.pools.iter().fold(0_u64, |sum, pool| sum.saturating_add(pool.unmatched_frees));
    let late = view.late.then(|| match view.allocator.reports_totals() {
        true => "OOMs before the probes were attached".to_owned(),
        false => {
            format!("{}s from before the probes were attached are missing", view.allocator.noun())
        }
    });
    let counts = [
        (view.lost, "events lost"),
        (view.unlisted, "blocks dropped"),
        (if view.allocator.reports_totals() { 0 } else { unmatched }, "frees of unknown blocks"),
    ];
    let missing: Vec<_> = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .chain(late)
        .collect();
    if !missing.is_empty() {
        let text = format!("{title} NOT EXACT: {}", missing.join(", "));
        writeln!(out, "  {}", out.style.alarm(&text))?;
    }
    Ok(())
}

/// Whether there is something to write about an allocator.
pub(super) fn has_section(view: &AllocatorView) -> bool {
    !view.pools.is_empty() || shown_reason(view).is_some()
}

/// Why blocks are not tracked, if that is worth a line.
fn shown_reason(view: &AllocatorView) -> Option<BlocksUnavailable> {
    view.reason.filter(|reason| *reason != BlocksUnavailable::NotGrowing)
}

/// Returns why the blocks of an allocator are not known, and what it holds.
pub fn unavailable(view: &AllocatorView, reason: BlocksUnavailable) -> String {
    let why = reason.reason(view.allocator);
    match view.opaque {
        Some((1, bytes)) => format!("one block of {bytes} whose inside is not visible: {why}"),
        Some((count, bytes)) => {
            format!("{bytes} in {count} blocks whose inside is not visible: {why}")
        }
        None => format!("{}s not tracked: {why}", view.allocator.noun()),
    }
}

/// Writes how the call stacks of blocks are sampled, if they are.
pub(super) fn sampling_lines(
    out: &mut TextPage<'_>,
    view: &AllocatorView,
    context: &ReportContext,
) -> io::Result<()> {
    let Some(one) = view.sampling else { return Ok(()) };
    let since = context.clock.time_of_day(one.since);
    let text = format!("  since {since} {}", sampling(view.allocator, one));
    out.wrapped(|style, line| style.dim(line), &text, 4)
}

/// Returns how the call stacks of blocks are sampled, without the time.
pub fn sampling(allocator: Allocator, of: SamplingView) -> String {
    format!(
        "values by call stack are estimates: {} {}s were counted without one, sampled every {}",
        of.skipped,
        allocator.noun(),
        of.interval.bytes()
    )
}

/// Returns `gpu_0: 3.10 GiB allocated in 412 tensors, 4.00 GiB reserved, 0.90 GiB cached (…)`.
fn line(allocator: Allocator, view: &AllocatorPoolView) -> String {
    let plural = if view.blocks == 1 { "" } else { "s" };
    let fragmentation = match view.fragmentation {
        Ok(fragmentation) if fragmentation.fragmented == Bytes(0) => String::new(),
        Ok(fragmentation) => {
            let (fragmented, largest) = (fragmentation.fragmented, fragmentation.largest_gap);
            format!(" ({fragmented} fragmented, largest free block {largest})")
        }
        Err(reason) => format!(" (fragmentation unknown: {})", reason.reason()),
    };
    let ooms = match view.ooms_total {
        0 => String::new(),
        1 => ", 1 OOM".to_owned(),
        n => format!(", {n} OOMs"),
    };
    let device = view.device.map_or_else(|| "unknown GPU".to_owned(), |device| device.to_string());
    format!(
        "{device}: {} allocated in {} {}{plural}, {} reserved, {} cached{fragmentation}, peak {}{ooms}",
        view.allocated,
        view.blocks,
        allocator.noun(),
        view.reserved,
        view.cached(),
        view.peak,
    )
}

/// Returns a note if the bytes that the allocator reports and those of tracked tensors differ.
fn untracked_note(view: &AllocatorPoolView) -> Option<String> {
    let (reported, tracked) = (view.allocated.0, view.tracked_bytes.0);
    if reported > tracked {
        let untracked = Bytes(reported - tracked);
        return Some(format!("{untracked} of it allocated before the trace"));
    }
    (tracked > reported).then(|| format!("{} of it already freed", Bytes(tracked - reported)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WallClock;
    use engine::model::blocks::{CacheFragmentation, FragmentationUnknown};
    use engine::model::ids::DeviceId;
    use engine::model::sampling::SamplingInterval;
    use engine::model::units::Timestamp;

    const MIB: u64 = 1 << 20;

    fn device() -> AllocatorPoolView {
        AllocatorPoolView {
            device: Some(DeviceId(1)),
            pool: 0,
            allocated: Bytes(300 * MIB),
            reserved: Bytes(400 * MIB),
            peak: Bytes(350 * MIB),
            peak_at: Timestamp(0),
            blocks: 12,
            tracked_bytes: Bytes(300 * MIB),
            allocations_total: 20,
            frees_total: 8,
            unmatched_frees: 0,
            ooms_total: 0,
            fragmentation: Ok(CacheFragmentation {
                releasable: Bytes(60 * MIB),
                fragmented: Bytes(40 * MIB),
                largest_gap: Bytes(5 * MIB),
            }),
        }
    }

    fn torch() -> AllocatorView {
        AllocatorView::empty(Allocator::PyTorch)
    }

    fn lines(view: &AllocatorView) -> Vec<String> {
        let mut out = Vec::new();
        let style = TextStyle { width: 200, ..TextStyle::default() };
        let context = ReportContext::new(WallClock::fixed(Timestamp(0), 0));
        section(&mut TextPage::new(&mut out, style), view, &context).unwrap();
        String::from_utf8(out).unwrap().lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn device_is_one_line() {
        let view = AllocatorView { pools: vec![device()], ..torch() };
        assert_eq!(
            lines(&view),
            [
                "  PyTorch gpu_1: 300.00 MiB allocated in 12 tensors, 400.00 MiB reserved, 100.00 MiB \
                 cached (40.00 MiB fragmented, largest free block 5.00 MiB), peak 350.00 MiB"
            ]
        );
    }

    #[test]
    fn sampled_stacks_are_announced_with_their_time() {
        let interval = SamplingInterval::from_bytes(8 * MIB).unwrap();
        let sampling = SamplingView { since: Timestamp(5_000_000_000), interval, skipped: 900 };
        let pools = vec![device()];
        let view = AllocatorView { pools, sampling: Some(sampling), ..torch() };
        assert_eq!(
            lines(&view)[1],
            "  since 00:00:05 values by call stack are estimates: 900 tensors were counted without \
             one, sampled every 8.00 MiB"
        );
    }

    #[test]
    fn unknown_fragmentation_is_printed_with_reason() {
        let late = AllocatorPoolView {
            tracked_bytes: Bytes(100 * MIB),
            blocks: 1,
            ooms_total: 2,
            fragmentation: Err(FragmentationUnknown::BlocksUnknown),
            ..device()
        };
        let view = AllocatorView { pools: vec![late], lost: 7, late: true, ..torch() };
        assert_eq!(
            lines(&view),
            [
                "  PyTorch gpu_1: 300.00 MiB allocated in 1 tensor, 400.00 MiB reserved, 100.00 MiB \
                 cached (fragmentation unknown: some blocks are unknown), peak 350.00 MiB, 2 OOMs",
                "    200.00 MiB of it allocated before the trace",
                "  PyTorch NOT EXACT: 7 events lost, OOMs before the probes were attached",
            ]
        );
        let none = AllocatorView { reason: Some(BlocksUnavailable::NoSymbol), ..torch() };
        let [line] = &lines(&none)[..] else { panic!("one line") };
        assert!(line.starts_with("  PyTorch: tensors not tracked: libc10.so"), "{line}");
    }

    #[test]
    fn other_allocators_name_their_blocks() {
        let cupy = |reason: Option<BlocksUnavailable>, opaque, unmatched_frees| AllocatorView {
            pools: reason.map_or_else(
                || vec![AllocatorPoolView { unmatched_frees, ..device() }],
                |_| Vec::new(),
            ),
            reason,
            opaque,
            ..AllocatorView::empty(Allocator::CuPy)
        };
        let text = lines(&cupy(None, None, 2)).join("\n");
        assert!(text.starts_with("  CuPy gpu_1: 300.00 MiB allocated in 12 arrays"), "{text}");
        assert!(text.ends_with("CuPy NOT EXACT: 2 frees of unknown blocks"), "{text}");
        let no_symbol = Some(BlocksUnavailable::NoSymbol);
        let text = lines(&cupy(no_symbol, Some((1, Bytes(300 * MIB))), 0)).join("\n");
        assert_eq!(
            text,
            "  CuPy: one block of 300.00 MiB whose inside is not visible: this build has no symbols \
             of the allocator"
        );
    }
}
