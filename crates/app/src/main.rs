//! `vramscope`: results on stdout, messages on stderr, and an exit code for scripts.
#![forbid(unsafe_code)]

mod cli;
mod commands;
mod files;
mod io;
mod live;
mod parse_units;
mod threads;
mod top;

use std::process::ExitCode;

/// How a command ended without an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Success.
    Success,
    /// A threshold set by the user was exceeded.
    Findings,
    /// Part of the request failed, and a message was logged.
    Incomplete,
    /// Another exit code: that of the traced command, or the one of `--leak-exit-code`.
    Code(u8),
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Success => Self::SUCCESS,
            Outcome::Findings => Self::from(1),
            Outcome::Incomplete => Self::from(2),
            Outcome::Code(code) => Self::from(code),
        }
    }
}

fn main() -> ExitCode {
    if let Some(code) = commands::trace::launcher::intercept() {
        return code;
    }
    threads::report_panics();
    match cli::run() {
        Ok(outcome) => outcome.into(),
        Err(error) if io::output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            io::output::fail(&error);
            ExitCode::from(2)
        }
    }
}
