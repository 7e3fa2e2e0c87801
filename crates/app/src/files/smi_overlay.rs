//! Overlay of an `nvidia-smi` log over the series of a file.

use anyhow::{Context, Result};
use engine::analysis::usage::UsageReport;
use engine::model::Timestamp;
use formats::import::{check_file, nvidia_smi};
use formats::report::analysis::OverlaySeries;
use formats::sanitize::sanitize;

use super::input::InputFile;
use crate::cli;
use crate::io::output;
use crate::io::output_file::shown;

/// Returns each GPU of a log, matched with the device whose changes are most similar.
pub(crate) fn read(
    options: &cli::SmiArgs,
    usage: &UsageReport,
    input: &InputFile,
) -> Result<Vec<OverlaySeries>> {
    let Some(path) = &options.smi_log else { return Ok(Vec::new()) };
    check_file(path)?;
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", shown(path)))?;
    let log = nvidia_smi::parse(&text).with_context(|| shown(path))?;
    // The option is the offset between the clocks; timestamps have their own zero.
    let offset = options.smi_offset.map(|ahead| {
        let (time, utc) = input.info.clock.unwrap_or_default();
        let zero = i64::try_from(time.0).unwrap_or(i64::MAX);
        zero.saturating_sub(utc).saturating_sub(ahead)
    });
    let mut overlays = Vec::new();
    for gpu in &log.gpus {
        let aligned = usage.totals.iter().map(|total| {
            let points: Vec<_> = total.points.iter().map(|point| (point.at, point.bytes)).collect();
            (total.device, nvidia_smi::align(gpu, &points, offset))
        });
        let aligned: Vec<_> = aligned.collect();
        let best = aligned.iter().filter_map(|(device, fit)| fit.ok().map(|fit| (*device, fit)));
        let best = best.max_by(|one, other| one.1.score.total_cmp(&other.1.score));
        let Some((device, fit)) = best else {
            if let Some((_, Err(reason))) = aligned.into_iter().next() {
                output::log(&format!("{}, GPU {}: {reason}", shown(path), sanitize(&gpu.gpu)));
            }
            continue;
        };
        let name = format!("nvidia-smi, GPU {} (score {:.2})", gpu.gpu, fit.score);
        let time = |at: i64| Timestamp(u64::try_from(at.saturating_add(fit.offset)).unwrap_or(0));
        let points = gpu.points.iter().map(|(at, bytes)| (time(*at), *bytes)).collect();
        overlays.push(OverlaySeries { name, device, points });
    }
    Ok(overlays)
}
