//! `vramscope plot`: plots memory over time.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use formats::report::chart::{self, Chart, Panel};
use formats::report::html::InitialView;
use formats::sanitize::sanitize;

use super::report;
use crate::Outcome;
use crate::cli::PlotArgs;
use crate::files::input;
use crate::files::plot_data::{self, PlotRequest};
use crate::io::output;
use crate::io::output_file::shown;

/// Maximum points per band.
const MAX_BAND_POINTS: usize = 2000;

/// Default width and height for one file, and the width of each panel for several.
const DEFAULT_SIZE: (u32, u32) = (1200, 520);
const PANEL_WIDTH: u32 = 760;

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PlotFormat {
    Svg,
    Png,
    Page,
}

/// Runs the verb.
pub(crate) fn run(options: &PlotArgs) -> Result<Outcome> {
    let Some(output) = &options.output else { return print(options) };
    let format = plot_format(options, output)?;
    let inputs: Vec<&Path> =
        options.files.iter().chain(options.overlay.smi_log.as_ref()).map(AsRef::as_ref).collect();
    for file in &options.files {
        input::detect(file)?;
    }
    let mut out = output::results_from(&inputs, Some(output), options.force)?;
    if format == PlotFormat::Page {
        if let [file] = &*options.files {
            plot_data::write_page(&request(options, file), InitialView::Sites, &mut *out.writer)?;
        }
        out.finish()?;
        return Ok(Outcome::Success);
    }
    let chart = chart(options)?;
    match format {
        PlotFormat::Png => chart::write_png(&mut *out.writer, &chart)?,
        PlotFormat::Svg | PlotFormat::Page => chart::write_svg(&mut *out.writer, &chart)?,
    }
    out.finish()?;
    Ok(Outcome::Success)
}

/// Prints the curve of each file as text.
fn print(options: &PlotArgs) -> Result<Outcome> {
    for file in &options.files {
        report::print_usage(file, input::selection(&options.filter), &options.overlay)?;
    }
    Ok(Outcome::Success)
}

/// Selects the format by the extension of the output file.
fn plot_format(options: &PlotArgs, output: &Path) -> Result<PlotFormat> {
    let extension = output.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let format = match &*extension {
        "svg" => PlotFormat::Svg,
        "png" => PlotFormat::Png,
        "html" | "htm" => PlotFormat::Page,
        _ => bail!("{}: unknown extension; use .svg, .png or .html", shown(output)),
    };
    if format == PlotFormat::Page && options.files.len() > 1 {
        bail!("an HTML report takes one file; use .svg or .png to compare several");
    }
    Ok(format)
}

fn request<'a>(options: &'a PlotArgs, path: &'a Path) -> PlotRequest<'a> {
    PlotRequest { path, selection: input::selection(&options.filter), overlay: &options.overlay }
}

fn chart(options: &PlotArgs) -> Result<Chart> {
    let by = options.by;
    let mut panels = Vec::new();
    let names = names(&options.files);
    for (file, name) in options.files.iter().zip(&names) {
        let data = plot_data::chart(&request(options, file), by, options.top, MAX_BAND_POINTS)?;
        let (file, overlays) = (data.analyzed_file(), &data.overlays);
        let series = data.series.iter();
        panels.extend(series.map(|series| Panel::new(name, &file, &data.scan, series, overlays)));
    }
    let title = options.title.as_deref().map(|title| sanitize(title).into_owned());
    let count = u32::try_from(panels.len()).unwrap_or(u32::MAX);
    let width =
        if count > 1 { PANEL_WIDTH.saturating_mul(count).min(4000) } else { DEFAULT_SIZE.0 };
    Ok(Chart {
        title: title.unwrap_or_else(|| format!("{}: memory by {}", names.join(", "), by.name())),
        panels,
        size: options.size.unwrap_or((width, DEFAULT_SIZE.1)),
        theme: options.theme,
        clock: options.is_utc,
    })
}

/// Returns file names without their directories, unless two of them would be the same.
fn names(files: &[PathBuf]) -> Vec<String> {
    let full_path = |file: &PathBuf| sanitize(&file.to_string_lossy()).into_owned();
    let base_name = |file: &PathBuf| {
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
        sanitize(&name).into_owned()
    };
    let names: Vec<String> = files.iter().map(base_name).collect();
    let is_unique = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    if names.iter().all(is_unique) { names } else { files.iter().map(full_path).collect() }
}
