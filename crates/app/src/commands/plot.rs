//! `vramscope plot`: plots memory over time.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use engine::analysis::bands::By;
use formats::export::chart::{self, Chart, Panel, Theme};
use formats::export::page::Opens;
use formats::plain::plain;

use super::input;
use super::picture::{self, Wanted};
use crate::cli::{Plot, PlotBy, PlotTheme, PlotTime};
use crate::outfile::shown;
use crate::{Outcome, output};

/// Maximum points per band.
const POINTS: usize = 2000;

/// Default width and height for one file, and the width of each panel for several.
const SIZE: (u32, u32) = (1200, 520);
const WIDTH_OF_EACH: u32 = 760;

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Svg,
    Png,
    Page,
}

/// Runs the verb.
pub(crate) fn run(options: &Plot) -> Result<Outcome> {
    let format = plot_format(options)?;
    let inputs: Vec<&Path> =
        options.files.iter().chain(options.overlay.smi_log.as_ref()).map(AsRef::as_ref).collect();
    for file in &options.files {
        input::recognise(file)?;
    }
    let mut out = output::results_from(&inputs, Some(&options.output), options.force)?;
    if format == Form::Page {
        if let [file] = &*options.files {
            picture::write_page(&request(options, file), Opens::Sites, &mut *out.writer)?;
        }
        out.finish()?;
        return Ok(Outcome::Fine);
    }
    let chart = chart(options)?;
    match format {
        Form::Png => chart::write_png(&mut *out.writer, &chart)?,
        Form::Svg | Form::Page => chart::write_svg(&mut *out.writer, &chart)?,
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

/// Selects the format by the extension of the output file.
fn plot_format(options: &Plot) -> Result<Form> {
    let extension = options.output.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let format = match &*extension {
        "svg" => Form::Svg,
        "png" => Form::Png,
        "html" | "htm" => Form::Page,
        _ => bail!("{}: unknown extension; use .svg, .png or .html", shown(&options.output)),
    };
    if format == Form::Page && options.files.len() > 1 {
        bail!("an HTML report takes one file; use .svg or .png to compare several");
    }
    Ok(format)
}

fn request<'a>(options: &'a Plot, path: &'a Path) -> Wanted<'a> {
    Wanted { path, only: input::only(&options.part), overlay: &options.overlay }
}

fn chart(options: &Plot) -> Result<Chart> {
    let by = match options.by {
        PlotBy::Kind => By::Kind,
        PlotBy::Site => By::Site,
        PlotBy::Process => By::Process,
        PlotBy::Device => By::Device,
    };
    let mut panels = Vec::new();
    let names = names(&options.files);
    for (file, name) in options.files.iter().zip(&names) {
        let data = picture::chart(&request(options, file), by, options.top, POINTS)?;
        let (subject, overlays) = (data.subject(), &data.overlays);
        let courses = data.courses.iter();
        panels.extend(
            courses.map(|course| Panel::new(name, &subject, &data.drawn, course, overlays)),
        );
    }
    let title = options.title.as_deref().map(|title| plain(title).into_owned());
    let count = u32::try_from(panels.len()).unwrap_or(u32::MAX);
    let width = if count > 1 { WIDTH_OF_EACH.saturating_mul(count).min(4000) } else { SIZE.0 };
    Ok(Chart {
        title: title.unwrap_or_else(|| format!("{}: memory by {}", names.join(", "), by.name())),
        panels,
        size: options.size.unwrap_or((width, SIZE.1)),
        theme: match options.theme {
            PlotTheme::Auto => Theme::Auto,
            PlotTheme::Light => Theme::Light,
            PlotTheme::Dark => Theme::Dark,
        },
        clock: options.time == PlotTime::Utc,
    })
}

/// Returns file names without their directories, unless two of them would be the same.
fn names(files: &[PathBuf]) -> Vec<String> {
    let full_path = |file: &PathBuf| plain(&file.to_string_lossy()).into_owned();
    let base_name = |file: &PathBuf| {
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
        plain(&name).into_owned()
    };
    let names: Vec<String> = files.iter().map(base_name).collect();
    let is_unique = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
    if names.iter().all(is_unique) { names } else { files.iter().map(full_path).collect() }
}
