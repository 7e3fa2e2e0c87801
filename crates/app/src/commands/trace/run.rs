//! `vramscope run`: traces a command without probes, with a library that the CUDA driver loads.

use std::ffi::OsString;
use std::io::{Read, Write, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::{InProcessMode, run_trace, trace_options};
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: cli::RunArgs) -> Result<Outcome> {
    let (is_for_parent, why) = (options.for_parent, options.why);
    let (target, live) = options.into_parts();
    let mut options = trace_options(&target, &live)?;
    options.in_process = Some(InProcessMode::Command);
    options.reports.why = why;
    if is_for_parent {
        options.in_process = Some(InProcessMode::Parent);
        // The parent reads standard output.
        options.format = options.format.filter(|_| options.output.is_some());
    }
    run_trace(&options)
}

/// Prints the environment variables that make the CUDA driver load the library, as one line of
/// JSON. Ends the trace when standard input is closed, as it is when the parent exits.
pub(super) fn announce(environment: &[(OsString, OsString)], stop: &Arc<AtomicBool>) -> Result<()> {
    let text = |value: &OsString| value.to_string_lossy().into_owned();
    let variables: Map<String, Value> =
        environment.iter().map(|(name, value)| (text(name), text(value).into())).collect();
    let mut out = stdout().lock();
    writeln!(out, "{}", json!({ "environment": variables }))?;
    out.flush()?;
    let stop = Arc::clone(stop);
    std::thread::Builder::new().name("parent".into()).spawn(move || {
        let mut byte = [0];
        while stdin().lock().read(&mut byte).is_ok_and(|count| count > 0) {}
        stop.store(true, Ordering::Relaxed);
    })?;
    Ok(())
}
