//! What can go wrong, each with what to do next.

use std::io;
use std::path::PathBuf;

use engine::ids::Pid;

use crate::libraries::ImageError;
use crate::plan::{Impossible, Tier};

/// Why tracing did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This host cannot trace.
    #[error(transparent)]
    Impossible(#[from] Impossible),
    /// A library that was named by hand cannot be probed.
    #[error(transparent)]
    Library(#[from] ImageError),
    /// The kernel refused the programs.
    #[error(
        "cannot load the probes: {source}{}; `vramscope doctor` tells what this host can do",
        crate::session::said()
    )]
    Load {
        /// Why.
        source: libbpf_rs::Error,
    },
    /// The kernel refused a link.
    #[error("cannot attach to {path} ({tier}): {source}; `vramscope doctor` tells what works here")]
    Attach {
        /// The library.
        path: PathBuf,
        /// How.
        tier: Tier,
        /// Why.
        source: libbpf_rs::Error,
    },
    /// The object lacks something: the build is broken.
    #[error("the probes have no {0}: this build of vramscope is broken, build it again")]
    Broken(&'static str),
    /// The thread that finds names did not start.
    #[error("cannot start a thread to find the names of code: {0}; `--stacks off` does without")]
    Names(io::Error),
    /// A target that is not there.
    #[error("there is no process {0}; `ps -e` lists those that run")]
    NoProcess(Pid),
    /// A target that went away.
    #[error("process {0} ended while the probes were being attached")]
    ProcessGone(Pid),
    /// A command that cannot be started.
    #[error("cannot start `{command}`: {source}")]
    Command {
        /// The program.
        command: String,
        /// Why.
        source: io::Error,
    },
}
