//! The verb that draws.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::files::{Overlay, Part};

pub(super) const EXAMPLES: &str = "\
EXAMPLES
  vramscope plot run.arrows -o memory.svg            memory over time, by kind
  vramscope plot run.sqlite --by site -o memory.png  by call stack
  vramscope plot before.arrows after.arrows -o both.svg
  vramscope plot run.arrows --smi smi.csv -o memory.svg
  vramscope plot run.arrows -o page.html             the page to look around in

The ending of OUT says what is written: svg, png or html.";

/// The most bands that a picture can show.
const MOST: usize = 50;

#[derive(Args)]
pub(crate) struct Plot {
    /// What to draw; several files stand beside each other, at one scale
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
    /// The picture, by its ending: .svg, .png or .html
    #[arg(short, long, value_name = "OUT")]
    pub(crate) output: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// What the bands are of
    #[arg(long, value_enum, default_value = "kind")]
    pub(crate) by: PlotBy,
    /// Draw this many bands, and the rest as one
    #[arg(long, value_name = "N", default_value = "10", value_parser = bands)]
    pub(crate) top: usize,
    #[command(flatten)]
    pub(crate) overlay: Overlay,
    /// Which times the axis shows
    #[arg(long, value_enum, default_value = "elapsed")]
    pub(crate) time: PlotTime,
    /// What stands above the picture [default: the file's name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// Width and height; a PNG has twice as many pixels [default: 1200x520, wider for more files]
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub(crate) size: Option<(u32, u32)>,
    /// Colours; an SVG can leave it to the reader's system
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) theme: PlotTheme,
    #[command(flatten)]
    pub(crate) part: Part,
}

fn bands(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count),
        _ => Err(format!("expected a number from 1 to {MOST}")),
    }
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let sides = text.split_once('x').and_then(|(width, height)| {
        Some((width.parse::<u32>().ok()?, height.parse::<u32>().ok()?))
    });
    match sides {
        Some(size) if (300..=4000).contains(&size.0) && (200..=4000).contains(&size.1) => Ok(size),
        _ => Err("expected a size such as 1200x520, from 300x200 to 4000x4000".to_owned()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotBy {
    /// The sort of memory
    Kind,
    /// The call stack
    Site,
    /// The process
    Process,
    /// The device
    Device,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotTime {
    /// Seconds since the file's beginning
    Elapsed,
    /// The time of day, UTC, where the file knows it
    Clock,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum PlotTheme {
    /// SVG: what the reader's system prefers; PNG: light
    Auto,
    /// Dark on light
    Light,
    /// Light on dark
    Dark,
}
