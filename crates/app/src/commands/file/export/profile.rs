//! Memory by call stack: folded stacks, flame graphs, pprof, speedscope.

use anyhow::{Result, bail};
use engine::analysis::groups::GroupTable;
use engine::analysis::peak::PeakAnalysis;
use formats::export::profile::{
    Profile, ProfileUnit, ProfileValue, at_end, at_peak, flame_graph, folded, pprof, speedscope,
};
use formats::import::SourceFormat;

use crate::cli::{ExportArgs, ExportFormat};
use crate::files::input;
use crate::io::output;

/// Writes the profile.
pub(super) fn run(options: &ExportArgs, format: ExportFormat, source: SourceFormat) -> Result<()> {
    let scope = source.scope();
    let mut out = super::single(options, format)?;
    let mut groups = GroupTable::new(scope);
    let mut peaks = (options.at_peak == Some(true)).then(|| PeakAnalysis::new(scope));
    let input = input::read(&options.file, input::selection(&options.filter), &mut |change| {
        groups.observe(change);
        if let Some(peaks) = &mut peaks {
            peaks.observe(change);
        }
    })?;
    let (samples, in_use) = match peaks {
        Some(peaks) => (at_peak(&groups, &peaks.finish()), "live at the peak"),
        None => (at_end(&groups), "held at the end"),
    };
    let (stacks, processes) = (&input.info.stacks, &input.info.processes);
    let profile = Profile { samples: &samples, stacks, processes, title: &input.name };
    let value = options.value.unwrap_or(ProfileValue::InUse);
    let unit = options.unit.unwrap_or(ProfileUnit::Bytes);
    let writer = &mut *out.writer;
    match format {
        ExportFormat::Flamegraph if !profile.has(value) => {
            bail!("{}: nothing to draw: no memory in use; try --value allocated", input.name)
        }
        ExportFormat::Flamegraph => flame_graph(writer, &profile, value, unit)?,
        ExportFormat::Folded => folded(writer, &profile, value, unit)?,
        ExportFormat::Pprof => pprof(writer, &profile)?,
        ExportFormat::Speedscope => {
            let has_samples = speedscope(writer, &profile, in_use, options.value, unit)?;
            if !has_samples {
                output::log("the file has no device memory: the profile is empty");
            }
        }
        _ => {}
    }
    out.finish()?;
    super::warn(&input.info);
    if samples.iter().all(|sample| sample.key.site.is_none()) && !samples.is_empty() {
        output::log("the file has no call stacks");
    }
    Ok(())
}
