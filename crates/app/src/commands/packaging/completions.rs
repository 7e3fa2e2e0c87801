//! `vramscope completions`: prints the completion script of a shell.

use std::io::Write;

use anyhow::Result;
use clap::Command;
use clap_complete::generate;

use crate::Outcome;
use crate::cli::CompletionsArgs;
use crate::io::output;

/// Runs the verb.
pub(crate) fn run(mut command: Command, options: &CompletionsArgs) -> Result<Outcome> {
    // Written at once: the generator panics if a write fails, such as into a closed pipe.
    let mut script = Vec::new();
    generate(options.shell, &mut command, "vramscope", &mut script);
    let mut results = output::results();
    results.writer.write_all(&script)?;
    results.finish()?;
    Ok(Outcome::Success)
}
