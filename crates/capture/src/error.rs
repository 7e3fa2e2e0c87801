//! Errors of a trace, each with the next step.

use std::fmt;
use std::io;
use std::path::PathBuf;

use engine::model::ids::Pid;

use crate::libraries::DriverLibraryError;
use crate::plan::host_info::Limits;
use crate::plan::{AttachMode, PlanError};

/// An error of libbpf or the kernel, with its chain of causes and the next step.
#[derive(Debug)]
pub struct Cause(libbpf_rs::Error);

impl Cause {
    /// Returns whether something does not exist.
    pub(crate) fn is_not_found(&self) -> bool {
        self.0.kind() == libbpf_rs::ErrorKind::NotFound
    }

    /// Returns the causes, without the next step.
    pub(crate) fn reason(&self) -> String {
        format!("{:#}", self.0)
    }
}

impl From<libbpf_rs::Error> for Cause {
    fn from(error: libbpf_rs::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason();
        let remedy = shortage(os_error(&reason))
            .unwrap_or_else(|| "run `vramscope doctor` for details".into());
        write!(f, "{reason}; {remedy}")
    }
}

/// Returns the number in `Too many open files (os error 24)`; libbpf passes some with a minus sign.
/// Its error type does not give access to the number.
fn os_error(reason: &str) -> Option<i32> {
    let number = reason.rsplit_once("(os error ")?.1.split(')').next()?;
    number.parse::<i32>().ok().map(i32::abs)
}

/// Returns the remedy for a system error that means that a resource is exhausted.
pub(crate) fn shortage(os_error: Option<i32>) -> Option<String> {
    remedy(os_error?, &Limits::gather())
}

fn remedy(os_error: i32, limits: &Limits) -> Option<String> {
    let remedy = match (os_error, limits.open_files, limits.address_space) {
        (libc::EMFILE, Some(files), _) => {
            format!("this process may have {files} files open: raise the limit with `ulimit -n`")
        }
        (libc::ENFILE, ..) => "the host has too many files open: raise `fs.file-max`".into(),
        (libc::ENOMEM, _, Some(bytes)) => format!(
            "the address space of this process is limited to {} MiB: raise the limit with \
             `ulimit -v unlimited`",
            bytes >> 20
        ),
        (libc::ENOMEM, _, None) => {
            "free some memory, or raise the memory limit of the container".into()
        }
        _ => return None,
    };
    Some(remedy)
}

/// Reason why tracing did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This host cannot trace.
    #[error(transparent)]
    Impossible(#[from] PlanError),
    /// A library given by option cannot be probed.
    #[error(transparent)]
    Library(#[from] DriverLibraryError),
    /// The BPF object could not be opened or configured, before loading.
    #[error("cannot prepare the probes: {0}")]
    Prepare(Cause),
    /// The kernel rejected the programs or their maps.
    #[error("cannot load the probes{}: {cause}", crate::session::verifier_error())]
    Load {
        /// The cause, and the next step.
        cause: Cause,
    },
    /// The kernel rejected a tracepoint.
    #[error("cannot attach `{program}` to its tracepoint: {cause}")]
    Tracepoint {
        /// The program.
        program: &'static str,
        /// The cause, and the next step.
        cause: Cause,
    },
    /// The kernel rejected a link to a library.
    #[error("cannot attach to {path} ({attach_mode}): {cause}")]
    Attach {
        /// The library.
        path: PathBuf,
        /// The attach mode.
        attach_mode: AttachMode,
        /// The cause, and the next step.
        cause: Cause,
    },
    /// A BPF map could not be read or written.
    #[error("cannot access the BPF map `{map}`: {cause}")]
    Map {
        /// The map.
        map: String,
        /// The cause, and the next step.
        cause: Cause,
    },
    /// A ring buffer could not be mapped.
    #[error("cannot map the ring buffer `{ring}`: {cause}")]
    Ring {
        /// The ring.
        ring: &'static str,
        /// The cause, and the next step.
        cause: Cause,
    },
    /// The BPF object lacks a symbol: the build is broken.
    #[error("the probes have no {0}: this build of vramscope is broken, build it again")]
    Broken(&'static str),
    /// The symbolizer thread did not start.
    #[error("cannot start the symbolizer thread: {0}; `--stacks off` works without it")]
    Names(io::Error),
    /// The control file of in-process tracing could not be mapped.
    #[error("cannot map the control file of in-process tracing: {0}")]
    SharedMemory(io::Error),
    /// A target process does not exist.
    #[error("no such process: {0}")]
    NoProcess(Pid),
    /// A target process has exited.
    #[error("process {0} exited while the probes were being attached")]
    ProcessGone(Pid),
    /// A command cannot be started.
    #[error("cannot start `{command}`: {source}")]
    Command {
        /// The program.
        command: String,
        /// The cause.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_limits_have_a_remedy() {
        let limits = Limits { open_files: Some(64), address_space: Some(100 << 20) };
        for (code, words) in [
            (libc::EMFILE, "64 files open: raise the limit with `ulimit -n`"),
            (libc::ENOMEM, "limited to 100 MiB: raise the limit with `ulimit -v unlimited`"),
        ] {
            for code in [code, -code] {
                let reason = format!("failed to attach BPF program: x (os error {code})");
                let remedy = remedy(os_error(&reason).unwrap(), &limits).unwrap();
                assert!(remedy.contains(words), "{code}: {remedy}");
            }
        }
        let unlimited = Limits::default();
        assert!(remedy(libc::ENOMEM, &unlimited).unwrap().contains("memory limit"));
        assert_eq!(remedy(libc::EINVAL, &limits), None);
        assert_eq!(os_error("no such program"), None);
    }

    #[test]
    fn message_contains_cause_and_remedy() {
        let cause = Cause::from(libbpf_rs::Error::from_raw_os_error(libc::EMFILE));
        let error = Error::Map { map: "records".into(), cause };
        let message = error.to_string();
        assert!(message.starts_with("cannot access the BPF map `records`: Too many"), "{message}");
        assert!(message.contains("ulimit -n"), "{message}");
    }
}
