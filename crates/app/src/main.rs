//! `vramscope`: results to stdout, messages to stderr, an exit code that scripts can use.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "capture"),
    allow(dead_code, reason = "verbs that need it are not built")
)]

mod advising;
mod cli;
mod commands;
#[cfg(feature = "capture")]
mod fault;
#[cfg(feature = "capture")]
mod host;
mod newfile;
mod outfile;
mod output;
#[cfg(feature = "capture")]
mod pipeline;
mod quantity;
#[cfg(feature = "capture")]
mod recorder;
#[cfg(feature = "serve")]
mod serve;
mod terminal;
#[cfg(feature = "capture")]
mod threads;

use std::process::ExitCode;

/// How a command ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Nothing to complain about.
    Fine,
    /// Something was found over a limit that was asked for.
    Findings,
    /// A part of what was asked for could not be done, and the user was told.
    Incomplete,
    /// Another exit code: that of the traced command, or the one of `--leak-exit-code`.
    Code(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Fine => Self::SUCCESS,
            Outcome::Findings => Self::from(1),
            Outcome::Incomplete => Self::from(2),
            Outcome::Code(code) => Self::from(code),
        }
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "capture")]
    if let Some(code) = commands::launch::intercept() {
        return code;
    }
    #[cfg(feature = "capture")]
    threads::report_panics();
    match cli::run() {
        Ok(outcome) => outcome.into(),
        Err(error) if output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::fail(&error);
            ExitCode::from(2)
        }
    }
}
