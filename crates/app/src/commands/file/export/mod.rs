//! `vramscope export`: converts a file to another tool's format.

mod parquet;
mod profile;
mod torch;

use std::fs::create_dir_all;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use engine::model::AllocationChange;
use formats::export::allocations::{AllocationWriter, CsvEncoder, JsonEncoder};
use formats::export::format_writer::FormatWriter;
use formats::export::nsys_tsv::{self, NsysTables};
use formats::export::perfetto::{MAX_SLICES, PerfettoWriter};
use formats::export::profile::ProfileValue;
use formats::import::SourceFormat;
use formats::import::collecting_sink::FileInfo;

use crate::Outcome;
use crate::cli::{ExportArgs, ExportFormat};
use crate::files::input::{self, InputFile};
use crate::io::atomic_file::AtomicFile;
use crate::io::output::ResultOutput;
use crate::io::{output, output_file};

/// Runs the verb.
pub(crate) fn run(options: &ExportArgs) -> Result<Outcome> {
    let format = options.format.map_or_else(|| guess_format(&options.output), Ok)?;
    check(options, format)?;
    let source = input::detect(&options.file)?;
    match format {
        ExportFormat::NsysTsv => tables(options)?,
        ExportFormat::Folded
        | ExportFormat::Flamegraph
        | ExportFormat::Pprof
        | ExportFormat::Speedscope => {
            profile::run(options, format, source)?;
        }
        ExportFormat::Parquet => parquet::run(options, source)?,
        ExportFormat::Torch => torch::run(options, source)?,
        ExportFormat::Csv | ExportFormat::Json | ExportFormat::Perfetto => {
            changes(options, format, source)?;
        }
    }
    Ok(Outcome::Success)
}

/// File name endings and their formats; the first that fits.
const ENDINGS: [(&str, ExportFormat); 14] = [
    (".speedscope.json", ExportFormat::Speedscope),
    (".json", ExportFormat::Json),
    (".pftrace", ExportFormat::Perfetto),
    (".perfetto-trace", ExportFormat::Perfetto),
    (".pb.gz", ExportFormat::Pprof),
    (".pprof", ExportFormat::Pprof),
    (".csv", ExportFormat::Csv),
    (".pickle", ExportFormat::Torch),
    (".pkl", ExportFormat::Torch),
    (".svg", ExportFormat::Flamegraph),
    (".folded", ExportFormat::Folded),
    (".collapsed", ExportFormat::Folded),
    (".parquet", ExportFormat::Parquet),
    (".tsv", ExportFormat::NsysTsv),
];

/// Selects the format by the name of the output file.
fn guess_format(output: &Path) -> Result<ExportFormat> {
    let name = output.to_string_lossy().to_lowercase();
    let found = ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
    match found {
        Some((_, format)) => Ok(*format),
        None if [".html", ".htm", ".png"].iter().any(|ending| name.ends_with(ending)) => bail!(
            "{shown}: pages and pictures are made by `vramscope plot FILE -o {shown}`",
            shown = output_file::shown(output)
        ),
        None => bail!(
            "{}: the format is not clear from the name; use --format, or one of the extensions \
             .pftrace, .pb.gz, .pickle, .speedscope.json, .csv, .json, .svg, .folded, .parquet",
            output_file::shown(output)
        ),
    }
}

/// Rejects options that would be ignored.
fn check(options: &ExportArgs, format: ExportFormat) -> Result<()> {
    let instead = match format {
        ExportFormat::Pprof => {
            if options.value.is_some() || options.unit.is_some() {
                bail!("--value and --unit do not apply to pprof, which contains all four values");
            }
            None
        }
        ExportFormat::Folded | ExportFormat::Flamegraph | ExportFormat::Speedscope => None,
        ExportFormat::Perfetto => Some("perfetto shows memory over time, with the peak in it"),
        ExportFormat::Torch => Some("a PyTorch snapshot describes the end of the file"),
        ExportFormat::Csv | ExportFormat::Json | ExportFormat::Parquet | ExportFormat::NsysTsv => {
            Some(
                "this format has every allocation with its times; `vramscope report FILE peak --format \
             tsv` lists those that were live at the peak",
            )
        }
    };
    let chosen = options.value.is_some() || options.unit.is_some() || options.at_peak.is_some();
    if let Some(instead) = instead.filter(|_| chosen) {
        bail!(
            "--value, --unit and --at apply to folded, flamegraph, pprof and speedscope; {instead}"
        );
    }
    match options.value {
        Some(ProfileValue::Allocated) if options.at_peak.is_some() => {
            bail!("--at does not apply to --value allocated, which covers the whole file")
        }
        _ => Ok(()),
    }
}

/// Writes a format that needs one pass over the changes.
fn changes(options: &ExportArgs, format: ExportFormat, source: SourceFormat) -> Result<()> {
    let mut out = single(options, format)?;
    let info = write(options, format_writer(format, source, &mut out)?)?;
    out.finish()?;
    warn(&info);
    Ok(())
}

/// Passes the selected changes of the file to a writer, and logs its notes.
fn write(options: &ExportArgs, mut writer: Box<dyn FormatWriter + '_>) -> Result<FileInfo> {
    let info = read(options, |change, info| writer.change(change, info))?.info;
    log_notes(&writer.finish(&info)?);
    Ok(info)
}

/// Reads the file and passes each selected change to `write`.
fn read(
    options: &ExportArgs,
    mut write: impl FnMut(&AllocationChange, &FileInfo) -> io::Result<()>,
) -> Result<InputFile> {
    // A reader cannot be stopped, so the first error is kept.
    let mut written = Ok(());
    let selection = input::selection(&options.filter);
    let input = input::read_with_info(&options.file, selection, &mut |change, info| {
        if written.is_ok() {
            written = write(change, info);
        }
    })?;
    written?;
    Ok(input)
}

fn format_writer<'a>(
    format: ExportFormat,
    source: SourceFormat,
    out: &'a mut ResultOutput,
) -> io::Result<Box<dyn FormatWriter + 'a>> {
    let (out, scope): (&mut dyn Write, _) = (&mut out.writer, source.scope());
    Ok(match format {
        ExportFormat::Json => Box::new(AllocationWriter::new(JsonEncoder::new(out)?)),
        ExportFormat::Perfetto => Box::new(PerfettoWriter::new(out, scope, MAX_SLICES)),
        _ => Box::new(AllocationWriter::new(CsvEncoder::new(out)?)),
    })
}

/// Opens the output of a single-file format.
fn single(options: &ExportArgs, format: ExportFormat) -> Result<ResultOutput> {
    let binary =
        matches!(format, ExportFormat::Perfetto | ExportFormat::Torch | ExportFormat::Pprof);
    if binary && output::is_stdout(&options.output) && io::stdout().is_terminal() {
        bail!("refusing to write binary data to a terminal; use -o FILE or a pipe");
    }
    output::results_from(&[&options.file], Some(&options.output), options.force)
}

/// Logs notes about the output.
fn log_notes(notes: &[String]) {
    for note in notes {
        output::log(note);
    }
}

/// Warns if values of the file are not exact.
fn warn(info: &FileInfo) {
    for warning in info.warnings.iter().filter(|warning| warning.inexact) {
        let text = formats::sanitize::sanitize(&warning.text);
        output::log(&format!("not exact: {text} ({})", warning.count));
    }
}

/// Creates the output directory of a multi-file format; standard output is rejected.
fn output_dir(options: &ExportArgs) -> Result<&Path> {
    let dir = &options.output;
    if output::is_stdout(dir) {
        bail!("this format writes several files; -o must be a directory");
    }
    create_dir_all(dir)
        .with_context(|| format!("cannot create directory {}", output_file::shown(dir)))?;
    Ok(dir)
}

fn tables(options: &ExportArgs) -> Result<()> {
    let dir = output_dir(options)?;
    let create = |name: &str| {
        let path = dir.join(name);
        output::check_not_input(&[&options.file], &path)?;
        AtomicFile::create(&path, options.force)
    };
    let [valid, invalid, driver] = nsys_tsv::FILES.map(create);
    let mut files = [valid?, invalid?, driver?];
    let info = write(options, Box::new(NsysTables::new(&mut files)?))?;
    files.into_iter().try_for_each(AtomicFile::commit)?;
    warn(&info);
    Ok(())
}
