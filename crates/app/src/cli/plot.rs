//! The command line of `plot`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::files::{FileFilterArgs, SmiArgs};

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope plot run.arrows                          memory over time, in the terminal
  vramscope plot run.arrows -o memory.svg            by call site
  vramscope plot run.sqlite --by kind -o memory.png  by memory kind
  vramscope plot before.arrows after.arrows -o both.svg
  vramscope plot run.arrows --smi-log smi.csv -o memory.svg
  vramscope plot run.arrows -o report.html           an interactive HTML report

The extension of FILE selects the format: svg, png or html.";

/// Maximum number of bands in a chart.
const MAX_BANDS: usize = 50;

#[derive(Args)]
pub(crate) struct PlotArgs {
    /// Files to plot; several share one scale
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
    /// Output file; the extension selects the format: .svg, .png or .html. Without it a curve is
    /// printed as text
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// Stack bands by site, process, kind, device or library
    #[arg(long, value_enum, value_name = "KEY", default_value = "site")]
    pub(crate) by: PlotByArg,
    /// Draw at most N bands; the rest become one
    #[arg(short = 'n', long, value_name = "N", default_value = "10", value_parser = bands)]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) overlay: SmiArgs,
    /// Time axis: elapsed or utc
    #[arg(long, value_enum, default_value = "elapsed")]
    pub(crate) time: PlotTimeArg,
    /// Chart title [default: file name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Chart size; PNG is rendered at twice this size [default: 1200x520, wider for several files]
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub(crate) size: Option<(u32, u32)>,
    /// Color theme
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) theme: PlotThemeArg,
    #[command(flatten)]
    pub(crate) filter: FileFilterArgs,
}

fn bands(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MAX_BANDS).contains(&count) => Ok(count),
        _ => Err(format!("expected a number from 1 to {MAX_BANDS}")),
    }
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let size = text.split_once('x').and_then(|(width, height)| {
        Some((width.parse::<u32>().ok()?, height.parse::<u32>().ok()?))
    });
    match size {
        Some(size) if (300..=4000).contains(&size.0) && (200..=4000).contains(&size.1) => Ok(size),
        _ => Err("expected a size such as 1200x520, from 300x200 to 4000x4000".to_owned()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotByArg {
    /// Memory kind
    Kind,
    /// Call site
    Site,
    /// Process
    Process,
    /// Device
    Device,
    /// Library that allocated the memory
    Library,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotTimeArg {
    /// Seconds since the start
    Elapsed,
    /// UTC wall-clock time
    Utc,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotThemeArg {
    /// Follow the system (SVG) or light (PNG)
    Auto,
    /// Dark on light
    Light,
    /// Light on dark
    Dark,
}
