//! Exit codes of verbs that start a command: the command's own, unless a check or vramscope itself
//! fails.
//! | Failures around the command use the codes of `env` and `timeout`: 125, 126 and 127.

use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::Result;
use capture::Error;

use crate::Outcome;
use crate::io::output;

/// vramscope itself failed.
const OWN_FAILURE: u8 = 125;
/// The command was found but cannot be run.
const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the command.
const SIGNALED: i32 = 128;

/// Passes on the status of the command.
pub(super) fn command_outcome(status: ExitStatus) -> Outcome {
    let code = status.code().or_else(|| status.signal().map(|signal| SIGNALED + signal));
    match code.and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Outcome::Success,
        Some(code) => Outcome::Code(code),
        None => Outcome::Code(OWN_FAILURE),
    }
}

/// Returns the code for a command that could not be started.
pub(super) fn start_failure_code(error: &Error) -> u8 {
    match error {
        Error::Command { source, .. } if source.kind() == ErrorKind::NotFound => NOT_FOUND,
        Error::Command { .. } => NOT_EXECUTABLE,
        _ => OWN_FAILURE,
    }
}

/// Logs a failure of vramscope itself and maps it to a code that commands rarely use.
pub(crate) fn own_failure_outcome(outcome: Result<Outcome>) -> Result<Outcome> {
    match outcome {
        Err(error) if !output::is_broken_pipe(&error) => {
            output::fail(&error);
            let code = error.downcast_ref().map_or(OWN_FAILURE, start_failure_code);
            Ok(Outcome::Code(code))
        }
        Ok(Outcome::Incomplete) => Ok(Outcome::Code(OWN_FAILURE)),
        outcome => outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_status_is_passed_on() {
        let outcome = |raw| command_outcome(ExitStatus::from_raw(raw));
        assert_eq!(outcome(0), Outcome::Success);
        assert_eq!(outcome(3 << 8), Outcome::Code(3));
        assert_eq!(outcome(255 << 8), Outcome::Code(255));
        assert_eq!(
            (outcome(9), outcome(15), outcome(11 | 0x80)),
            (Outcome::Code(137), Outcome::Code(143), Outcome::Code(139))
        );
    }
}
