//! `vramscope doctor`: checks whether this host can trace, what is missing and how to get it.

mod bundle;
mod checks;
mod redact;
mod text;

use std::io::Write;

use anyhow::Result;

use crate::Outcome;
use crate::cli::DoctorArgs;
use crate::io::output;
use checks::Checks;

/// Runs the verb.
pub(crate) fn run(options: &DoctorArgs) -> Result<Outcome> {
    let checks = Checks::run();
    let mut results = output::results();
    if options.format.is_json() {
        serde_json::to_writer(&mut *results.writer, &checks)?;
        writeln!(results.writer)?;
    } else {
        text::write(&checks, &mut *results.writer)?;
    }
    results.finish()?;
    if let Some(file) = &options.bundle {
        bundle::write(&checks, file.as_deref(), options.force)?;
    }
    Ok(if checks.works { Outcome::Success } else { Outcome::Findings })
}
