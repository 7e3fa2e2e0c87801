//! PyTorch's cache as text.

use std::io::{self, Write};

use engine::model::{Bytes, TensorsUnavailable, TorchDeviceView, TorchView};

use super::TextStyle;
use crate::report::view::wrap;

/// Writes the lines of one process.
pub(super) fn section(out: &mut dyn Write, view: &TorchView, style: TextStyle) -> io::Result<()> {
    for device in &view.devices {
        for line in wrap(&format!("  PyTorch {}", line(device)), style.width, 4) {
            writeln!(out, "{line}")?;
        }
        if let Some(more) = untracked_note(device) {
            writeln!(out, "    {}", style.dim(&more))?;
        }
    }
    if let Some(reason) = reason(view) {
        let text = format!("  PyTorch: tensors not tracked: {}", reason.reason());
        for line in wrap(&text, style.width, 4) {
            writeln!(out, "{line}")?;
        }
    }
    let missing: Vec<_> = [(view.lost, "events lost"), (view.unlisted, "blocks dropped")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .chain(view.late.then(|| "OOMs before the probes were attached".to_owned()))
        .collect();
    if !missing.is_empty() {
        let text = format!("PyTorch NOT EXACT: {}", missing.join(", "));
        writeln!(out, "  {}", style.alarm(&text))?;
    }
    Ok(())
}

/// Why tensors are not tracked, if that is worth a line.
pub(super) fn reason(view: &TorchView) -> Option<TensorsUnavailable> {
    view.reason.filter(|reason| *reason != TensorsUnavailable::NotGrowing)
}

/// Returns `gpu_0: 3.10 GiB allocated in 412 tensors, 4.00 GiB reserved, 0.90 GiB cached (…)`.
fn line(view: &TorchDeviceView) -> String {
    let tensors = if view.blocks == 1 { "tensor" } else { "tensors" };
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
    format!(
        "{}: {} allocated in {} {tensors}, {} reserved, {} cached{fragmentation}, peak {}{ooms}",
        view.device,
        view.allocated,
        view.blocks,
        view.reserved,
        view.cached(),
        view.peak,
    )
}

/// Returns a note if the bytes that PyTorch reports and those of tracked tensors differ.
fn untracked_note(view: &TorchDeviceView) -> Option<String> {
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
    use engine::model::ids::DeviceId;
    use engine::model::tensor::{CacheFragmentation, FragmentationUnknown};
    use engine::model::units::Timestamp;

    const MIB: u64 = 1 << 20;

    fn device() -> TorchDeviceView {
        TorchDeviceView {
            device: DeviceId(1),
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

    fn lines(view: &TorchView) -> Vec<String> {
        let mut out = Vec::new();
        let style = TextStyle { width: 200, ..TextStyle::default() };
        section(&mut out, view, style).unwrap();
        String::from_utf8(out).unwrap().lines().map(ToOwned::to_owned).collect()
    }

    #[test]
    fn device_is_one_line() {
        let view = TorchView { devices: vec![device()], ..TorchView::default() };
        assert_eq!(
            lines(&view),
            [
                "  PyTorch gpu_1: 300.00 MiB allocated in 12 tensors, 400.00 MiB reserved, 100.00 MiB \
                 cached (40.00 MiB fragmented, largest free block 5.00 MiB), peak 350.00 MiB"
            ]
        );
    }

    #[test]
    fn unknown_fragmentation_is_printed_with_reason() {
        let late = TorchDeviceView {
            tracked_bytes: Bytes(100 * MIB),
            blocks: 1,
            ooms_total: 2,
            fragmentation: Err(FragmentationUnknown::BlocksUnknown),
            ..device()
        };
        let view = TorchView { devices: vec![late], lost: 7, late: true, ..TorchView::default() };
        assert_eq!(
            lines(&view),
            [
                "  PyTorch gpu_1: 300.00 MiB allocated in 1 tensor, 400.00 MiB reserved, 100.00 MiB \
                 cached (fragmentation unknown: some blocks are unknown), peak 350.00 MiB, 2 OOMs",
                "    200.00 MiB of it allocated before the trace",
                "  PyTorch NOT EXACT: 7 events lost, OOMs before the probes were attached",
            ]
        );
        let none = TorchView { reason: Some(TensorsUnavailable::NoSymbol), ..TorchView::default() };
        let [line] = &lines(&none)[..] else { panic!("one line") };
        assert!(line.starts_with("  PyTorch: tensors not tracked: libc10.so"), "{line}");
    }
}
