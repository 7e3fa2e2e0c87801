//! The command line of `plot`.

use std::path::PathBuf;

use clap::Args;
use engine::analysis::bands::GroupBy;
use formats::report::chart::Theme;

use super::choice::{Choice, choice};
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
    #[arg(long, value_name = "KEY", default_value = "site", value_parser = choice(GROUPINGS))]
    pub(crate) by: GroupBy,
    /// Draw at most N bands; the rest become one
    #[arg(short = 'n', long, value_name = "N", default_value = "10", value_parser = bands)]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) overlay: SmiArgs,
    /// Time axis: elapsed or utc
    #[arg(long = "time", value_name = "TIME", action = clap::ArgAction::Set, default_value = "elapsed", value_parser = choice(TIME_AXES))]
    pub(crate) is_utc: bool,
    /// Chart title [default: file name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Chart size; PNG is rendered at twice this size [default: 1200x520, wider for several files]
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub(crate) size: Option<(u32, u32)>,
    /// Color theme
    #[arg(long, default_value = "auto", value_parser = choice(THEMES))]
    pub(crate) theme: Theme,
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

const GROUPINGS: &[Choice<GroupBy>] = &[
    ("kind", "Memory kind", GroupBy::Kind),
    ("site", "Call site", GroupBy::Site),
    ("process", "Process", GroupBy::Process),
    ("device", "Device", GroupBy::Device),
    ("library", "Library that allocated the memory", GroupBy::Library),
];

/// Whether the time axis has times of day.
const TIME_AXES: &[Choice<bool>] =
    &[("elapsed", "Seconds since the start", false), ("utc", "UTC wall-clock time", true)];

const THEMES: &[Choice<Theme>] = &[
    ("auto", "Follow the system (SVG) or light (PNG)", Theme::Auto),
    ("light", "Dark on light", Theme::Light),
    ("dark", "Light on dark", Theme::Dark),
];
