//! `vramscope doctor`: checks whether this host can trace, what is missing and how to get it.

mod bundle;
mod checks;
mod redact;
mod text;

use anyhow::Result;

use crate::Outcome;
use crate::cli::DoctorArgs;
use checks::Checks;

/// Runs the verb.
pub(crate) fn run(options: &DoctorArgs) -> Result<Outcome> {
    let checks = Checks::run();
    options.format.print(&checks, |out, _| Ok(text::write(&checks, out)?))?;
    if let Some(file) = &options.bundle {
        bundle::write(&checks, file.as_deref(), options.force)?;
    }
    Ok(if checks.works { Outcome::Success } else { Outcome::Findings })
}
