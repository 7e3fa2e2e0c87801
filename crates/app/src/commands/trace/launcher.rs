//! The hidden launcher of `-- CMD`: this process becomes the command once it is traced.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;

use capture::{Error, command};

use super::exit_status;
use crate::io::output;

/// Runs the launcher if this process was started as one. On success it never returns, because the
/// command replaces it; on failure it returns the exit code that shells use.
pub(crate) fn intercept() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_none_or(|argument| argument != command::LAUNCHER_ARG) {
        return None;
    }
    let error = command::run_launcher(&arguments[2..]);
    // The tracer exited before it released the command, and has logged the reason.
    let is_unreleased = matches!(
        &error,
        Error::Command { source, .. } if source.kind() == ErrorKind::UnexpectedEof
    );
    if !is_unreleased {
        output::log(&format!("error: {error}"));
    }
    Some(ExitCode::from(exit_status::start_failure_code(&error)))
}
