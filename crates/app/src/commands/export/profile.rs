//! Memory by call stack: folded stacks, flame graphs, pprof.

use anyhow::{Result, bail};
use engine::analysis::groups::Groups;
use engine::analysis::watermark::Watermark;
use formats::export::profile::{Profile, Unit, Value, at_end, at_peak, flame_graph, folded, pprof};
use formats::import::Source;

use crate::cli::{self, Export, ExportFormat};
use crate::commands::input;
use crate::output;

/// Writes the profile.
pub(super) fn run(options: &Export, source: Source) -> Result<()> {
    let measure = source.measure();
    let mut out = super::single(options)?;
    let mut groups = Groups::new(measure);
    let mut peaks = (options.at == Some(cli::At::Peak)).then(|| Watermark::new(measure));
    let input = input::read(&options.file, input::only(&options.part), &mut |change, _| {
        groups.change(change);
        if let Some(peaks) = &mut peaks {
            peaks.change(change);
        }
    })?;
    let samples = match peaks {
        Some(peaks) => at_peak(&groups, &peaks.finish()),
        None => at_end(&groups),
    };
    let (stacks, processes) = (&input.facts.stacks, &input.facts.processes);
    let profile = Profile { samples: &samples, stacks, processes, title: &input.name };
    let value = match options.value {
        None | Some(cli::Value::Inuse) => Value::InUse,
        Some(cli::Value::Allocated) => Value::Allocated,
    };
    let unit = match options.unit {
        None | Some(cli::Unit::Bytes) => Unit::Bytes,
        Some(cli::Unit::Count) => Unit::Objects,
    };
    let writer = &mut *out.writer;
    match options.format {
        ExportFormat::Flamegraph if !profile.has(value) => {
            bail!("{}: nothing to draw: no memory in use; try --value allocated", input.name)
        }
        ExportFormat::Flamegraph => flame_graph(writer, &profile, value, unit)?,
        ExportFormat::Folded => folded(writer, &profile, value, unit)?,
        ExportFormat::Pprof => pprof(writer, &profile)?,
        _ => {}
    }
    out.finish()?;
    super::warn(&input.facts);
    if samples.iter().all(|sample| sample.place.site.is_none()) && !samples.is_empty() {
        output::complain("the file has no call stacks");
    }
    Ok(())
}
