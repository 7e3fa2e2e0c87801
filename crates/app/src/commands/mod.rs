//! One module per verb, and what they share.

pub(crate) mod advise;
#[cfg(feature = "capture")]
pub(crate) mod agent_query;
#[cfg(feature = "capture")]
pub(crate) mod agent_report;
pub(crate) mod demo;
#[cfg(feature = "capture")]
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod file;
pub(crate) mod packaging;
#[cfg(feature = "capture")]
pub(crate) mod program;
#[cfg(feature = "capture")]
pub(crate) mod serve;
pub(crate) mod top;
#[cfg(feature = "capture")]
pub(crate) mod trace;

/// Error of a build that can only read files.
#[cfg(not(feature = "capture"))]
pub(crate) fn no_capture() -> anyhow::Error {
    anyhow::anyhow!(
        "this build cannot trace; build it on x86-64 Linux with the feature `capture` (the default)"
    )
}
