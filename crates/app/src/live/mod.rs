//! Live tracing, shared by the commands that trace.

pub(crate) mod ended_history;
#[cfg(feature = "capture")]
pub(super) mod pipeline;
pub(crate) mod print;
#[cfg(feature = "capture")]
pub(super) mod recorder;
#[cfg(feature = "capture")]
pub(crate) mod report_loop;
