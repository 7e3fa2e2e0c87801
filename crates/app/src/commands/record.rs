//! `vramscope record`: a trace that only writes down.

use std::time::Duration;

use anyhow::Result;

use crate::{Outcome, cli};

/// Time between signs of life on a terminal.
const INTERVAL: Duration = Duration::from_secs(1);

/// Runs the verb.
pub(crate) fn run(options: cli::Record) -> Result<Outcome> {
    let trace = cli::Trace {
        target: options.target,
        interval: INTERVAL,
        duration: options.duration,
        top: None,
        min_size: None,
        older: None,
        sort: cli::SortBy::Size,
        json: false,
        output: None,
        record: Some(options.output),
        fail_on_leak: None,
    };
    super::trace::run_as(&trace, None)
}
