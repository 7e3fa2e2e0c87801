//! `vramscope demo`: replays a recording that is part of this program, so it needs neither a GPU nor
//! root. With a simulated driver, real processes are traced instead.

mod simulated;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use engine::snapshot::SnapshotOptions;
use formats::report::live::text::overview::LastOptions;

use super::file::replay::{PrintOptions, final_report};
use crate::io::output;
use crate::live::print::LiveView;
use crate::top::source::Source;
use crate::top::source::replay::ReplaySource;
use crate::top::{Theme, TopOptions, run as show_top};
use crate::{Outcome, cli};

/// Three PyTorch programs on an H200: two of them leak, one runs out of memory.
const RECORDING: &[u8] = include_bytes!("../../../tests/fixtures/h200-leaks/pytorch.arrows");

/// Name of the recording.
const NAME: &str = "demo";

/// The recording takes 43 seconds; growth is judged after 30.
const SPEED: f64 = 3.0;

/// Time between two screens.
const INTERVAL: Duration = Duration::from_millis(500);

/// Rows per list of the text.
const MAX_ROWS: usize = 20;

/// Runs the verb.
pub(crate) fn run(options: &cli::DemoArgs) -> Result<Outcome> {
    match &options.simulator {
        Some(dir) => simulated::run(dir, options),
        None if output::is_terminal() => {
            show(Box::new(ReplaySource::embedded(RECORDING, NAME)?), SPEED, options)
        }
        None => print_report(),
    }
}

/// Shows a source on the whole screen.
fn show(source: Box<dyn Source>, speed: f64, options: &cli::DemoArgs) -> Result<Outcome> {
    let view = TopOptions {
        interval: INTERVAL,
        speed,
        theme: Theme::of(None),
        is_ascii: false,
        duration: options.duration,
        filter: String::new(),
        columns: Vec::new(),
    };
    show_top(source, &view)
}

/// Prints the last report of the recording.
fn print_report() -> Result<Outcome> {
    let mut file = tempfile::NamedTempFile::new().context("cannot create a temporary file")?;
    file.write_all(RECORDING)?;
    file.flush()?;
    let mut out = output::results();
    let more = "vramscope demo, on a terminal";
    let print_options = PrintOptions {
        view: LiveView::Overview,
        format: cli::LiveFormat::Text,
        style: out.style,
        last: LastOptions { top: MAX_ROWS, leak: Some(1), more },
        wrappers: &[],
    };
    final_report(file.path(), &print_options, &SnapshotOptions::default(), &mut *out.writer)?;
    out.finish()?;
    Ok(Outcome::Success)
}
