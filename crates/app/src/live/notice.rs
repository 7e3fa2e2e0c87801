//! Notices of the capture thread as messages.

use capture::session::Notice;
use formats::sanitize::sanitize;

use crate::io::output;
use crate::io::output_file::shown;

/// Logs a notice.
pub(crate) fn log_notice(notice: &Notice) {
    let log = if notice.is_warning() { output::warn } else { output::log };
    log(&match notice {
        Notice::Attached { path, functions, stepped } => {
            let suffix = match stepped {
                0 => String::new(),
                n => format!(" ({n} of them single-stepped (slow))"),
            };
            format!("attached to {functions} functions of {}{suffix}", shown(path))
        }
        Notice::UnknownFunctions { path, functions } => format!(
            "{}: exports memory functions that this version of vramscope does not know: their calls \
             are counted, what they allocate is not; use a newer version: {}",
            shown(path),
            sanitize(&functions.join(", "))
        ),
        Notice::Wrapped { pid, functions, missing } if missing.is_empty() => {
            format!("process {pid}: tracing {functions} driver functions in-process")
        }
        Notice::Wrapped { pid, functions, missing } => format!(
            "process {pid}: tracing {functions} driver functions in-process; not traced, because \
             their code is not recognized: {}",
            sanitize(&missing.join(", "))
        ),
        Notice::HiddenCalls { pid, functions } => format!(
            "process {pid}: probes of another tool hide calls of {}; values are not exact",
            sanitize(&functions.join(", "))
        ),
        Notice::NotAttached { reason } => format!("not attached: {}", sanitize(reason)),
        Notice::NoDriver => "no libcuda.so.1 installed or in use yet: waiting for a process that \
             loads it; `--driver PATH` names one"
            .to_owned(),
        Notice::NoMmapEvents { reason } => format!(
            "cannot watch for newly loaded drivers ({reason}); rescanning every few seconds"
        ),
        Notice::PythonUnsupported { pid, reason } => {
            format!("process {pid}: no Python frames: {}", sanitize(reason))
        }
        Notice::NoNames { reason } => format!("function names are missing: {}", sanitize(reason)),
        Notice::UsageUnavailable { reason } => {
            format!("driver-reported memory usage is unavailable: {}; retrying", sanitize(reason))
        }
        Notice::AllocatorAttached { allocator, path } => {
            let (title, noun) = (allocator.title(), allocator.noun());
            format!("tracking {title} {noun}s via {}", shown(path))
        }
        Notice::BlocksUnavailable { pid, allocator, reason } => {
            let (title, noun) = (allocator.title(), allocator.noun());
            format!("process {pid}: {title} {noun}s not tracked: {}", reason.reason(*allocator))
        }
        Notice::Detached { path } => format!("detached from {} (no longer in use)", shown(path)),
    });
}
