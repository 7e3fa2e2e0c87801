//! `vramscope export`: a file in the form of another tool.

use std::fs::{File, create_dir_all};
use std::io::{self, BufWriter};

use anyhow::{Context, Result, bail};
use engine::analysis::groups::Groups;
use engine::analysis::watermark::Watermark;
use formats::export::handoff::Tables;
use formats::export::profile::{Profile, Unit, Value, at_end, at_peak, flame_graph, folded, pprof};

use super::input;
use crate::cli::{self, Export, ExportFormat};
use crate::{Outcome, output};

/// Runs the verb.
pub(crate) fn run(options: &Export) -> Result<Outcome> {
    check(options)?;
    match options.to {
        ExportFormat::Tsv => tables(options),
        ExportFormat::Folded | ExportFormat::Flamegraph | ExportFormat::Pprof => profile(options),
    }
}

/// Options that would be ignored are mistakes.
fn check(options: &Export) -> Result<()> {
    let chosen = options.value.is_some() || options.unit.is_some();
    match options.to {
        ExportFormat::Tsv if chosen || options.at.is_some() => {
            bail!("--value, --unit and --at do not go with tsv, which has every change")
        }
        ExportFormat::Pprof if chosen => {
            bail!("--value and --unit do not go with pprof, which has all four; choose there")
        }
        _ if options.value == Some(cli::Value::Allocated) && options.at.is_some() => {
            bail!("--at does not go with --value allocated, which is of the whole file")
        }
        _ => Ok(()),
    }
}

/// Memory by call stack.
fn profile(options: &Export) -> Result<Outcome> {
    let measure = input::recognise(&options.file)?.measure();
    let mut out = output::results_from(&[&options.file], Some(&options.output))?;
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
        Some(cli::Unit::Objects) => Unit::Objects,
    };
    let writer = &mut *out.writer;
    match options.to {
        ExportFormat::Flamegraph if !profile.has(value) => bail!(
            "{}: nothing to draw, for no device memory is in use; --value allocated draws what \
             ever was",
            input.name
        ),
        ExportFormat::Flamegraph => flame_graph(writer, &profile, value, unit)?,
        ExportFormat::Folded => folded(writer, &profile, value, unit)?,
        ExportFormat::Pprof => pprof(writer, &profile)?,
        ExportFormat::Tsv => {}
    }
    writer.flush()?;
    if samples.iter().all(|sample| sample.place.site.is_none()) && !samples.is_empty() {
        output::complain("the file has no call stacks: everything is in one place");
    }
    Ok(Outcome::Fine)
}

fn tables(options: &Export) -> Result<Outcome> {
    input::recognise(&options.file)?;
    let folder = &options.output;
    create_dir_all(folder).with_context(|| {
        format!("cannot make the folder {}; choose another one", folder.display())
    })?;
    let file = |name: &str| -> Result<BufWriter<File>> {
        Ok(BufWriter::new(output::create(&folder.join(name))?))
    };
    let failed = || format!("cannot write into {}", folder.display());
    let mut tables = Tables::new(file("valid.tsv")?, file("invalid.tsv")?, file("driver.tsv")?)
        .with_context(failed)?;
    // A reader cannot be stopped, so the first failure is kept.
    let mut written: io::Result<()> = Ok(());
    input::read(&options.file, input::only(&options.part), &mut |change, facts| {
        if written.is_ok() {
            written = tables.change(change, &facts.stacks, facts.origin());
        }
    })?;
    written.and_then(|()| tables.finish()).with_context(failed)?;
    if tables.left_out > 0 {
        output::complain(&format!(
            "{} changes of what pools reserve were left out; what is allocated from them is there",
            tables.left_out
        ));
    }
    Ok(Outcome::Fine)
}
