//! What `nvidia-smi` saw over time, beside what a file tells.

use anyhow::{Context, Result};
use engine::analysis::usage::Courses;
use engine::units::Moment;
use formats::export::analysis::Overlay;
use formats::import::{check_file, smi};
use formats::plain::plain;

use super::input::Input;
use crate::outfile::shown;
use crate::{cli, output};

/// Each GPU of a log, beside the device whose changes are most like its own.
pub(crate) fn read(asked: &cli::Overlay, courses: &Courses, input: &Input) -> Result<Vec<Overlay>> {
    let Some(path) = &asked.smi_log else { return Ok(Vec::new()) };
    check_file(path)?;
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", shown(path)))?;
    let log = smi::parse(&text).with_context(|| shown(path))?;
    // A given offset is between the clocks; moments have their own zero.
    let offset = asked.smi_offset.map(|ahead| {
        let (moment, utc) = input.facts.clock.unwrap_or_default();
        let zero = i64::try_from(moment.0).unwrap_or(i64::MAX);
        zero.saturating_sub(utc).saturating_sub(ahead)
    });
    let mut found = Vec::new();
    for gpu in &log.gpus {
        let aligned = courses.totals.iter().map(|total| {
            let points: Vec<_> = total.points.iter().map(|point| (point.at, point.bytes)).collect();
            (total.device, smi::align(gpu, &points, offset))
        });
        let aligned: Vec<_> = aligned.collect();
        let best = aligned.iter().filter_map(|(device, fit)| fit.ok().map(|fit| (*device, fit)));
        let best = best.max_by(|one, other| one.1.score.total_cmp(&other.1.score));
        let Some((device, fit)) = best else {
            if let Some((_, Err(why))) = aligned.into_iter().next() {
                output::complain(&format!("{}, GPU {}: {why}", shown(path), plain(&gpu.gpu)));
            }
            continue;
        };
        let name = format!("nvidia-smi, GPU {} (score {:.2})", gpu.gpu, fit.score);
        let moment = |at: i64| Moment(u64::try_from(at.saturating_add(fit.offset)).unwrap_or(0));
        let points = gpu.points.iter().map(|(at, bytes)| (moment(*at), *bytes)).collect();
        found.push(Overlay { name, device, points });
    }
    Ok(found)
}
