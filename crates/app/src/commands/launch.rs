//! The hidden launcher of `-- CMD`: this program becomes the command once it is traced.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::process::ExitCode;

use capture::{Error, command};

use super::status;
use crate::output;

/// Runs the launcher when this process was started as one. It ends in another program; only its
/// failure comes back, with the code shells use for it.
pub(crate) fn intercept() -> Option<ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_none_or(|word| word != command::LAUNCHER) {
        return None;
    }
    let error = command::launch(&arguments[2..]);
    // The tracer ended before it released the command, and has said why.
    let is_unreleased = matches!(
        &error,
        Error::Command { source, .. } if source.kind() == ErrorKind::UnexpectedEof
    );
    if !is_unreleased {
        output::complain(&format!("error: {error}"));
    }
    Some(ExitCode::from(status::of_failed_start(&error)))
}
