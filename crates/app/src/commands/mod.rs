//! One module per verb, and what they share.

pub(crate) mod advise;
#[cfg(feature = "capture")]
pub(crate) mod agent_query;
#[cfg(feature = "capture")]
mod command_user;
pub(crate) mod completions;
pub(crate) mod demo;
pub(crate) mod diff;
#[cfg(feature = "capture")]
pub(crate) mod doctor;
#[cfg(feature = "capture")]
mod exit_status;
pub(crate) mod explain;
pub(crate) mod export;
#[cfg(feature = "capture")]
pub(crate) mod kernels;
#[cfg(feature = "capture")]
pub(crate) mod launcher;
pub(crate) mod man;
pub(crate) mod plot;
#[cfg(feature = "capture")]
pub(crate) mod reclaim;
#[cfg(feature = "capture")]
pub(crate) mod record;
pub(crate) mod replay;
pub(crate) mod report;
#[cfg(feature = "capture")]
pub(crate) mod run;
#[cfg(feature = "capture")]
pub(crate) mod serve;
pub(crate) mod top;
#[cfg(feature = "capture")]
pub(crate) mod trace;
#[cfg(feature = "capture")]
pub(crate) mod why;

/// Error of a build that can only read files.
#[cfg(not(feature = "capture"))]
pub(crate) fn no_capture() -> anyhow::Error {
    anyhow::anyhow!(
        "this build cannot trace; build it on x86-64 Linux with the feature `capture` (the default)"
    )
}
