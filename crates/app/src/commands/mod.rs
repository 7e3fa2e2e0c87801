//! A verb each.

#[cfg(feature = "capture")]
pub(crate) mod demo;
#[cfg(feature = "capture")]
pub(crate) mod doctor;
mod ended;
#[cfg(feature = "capture")]
pub(crate) mod launch;
#[cfg(feature = "capture")]
mod live;
mod print;
#[cfg(feature = "capture")]
pub(crate) mod record;
#[allow(dead_code, reason = "for the verb that reads files")]
pub(crate) mod replay;
#[cfg(feature = "capture")]
pub(crate) mod trace;

/// This binary was built to read files only.
#[cfg(not(feature = "capture"))]
pub(crate) fn no_capture() -> anyhow::Error {
    anyhow::anyhow!(
        "this build cannot trace; build it on Linux with the feature `capture` (the default)"
    )
}
