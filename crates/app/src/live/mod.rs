//! Live tracing, shared by the commands that trace.

#[cfg(feature = "capture")]
mod keeper_search;
#[cfg(feature = "capture")]
pub(crate) mod notice;
#[cfg(feature = "capture")]
pub(super) mod pipeline;
pub(crate) mod print;
#[cfg(feature = "capture")]
pub(crate) mod process_filter;
#[cfg(feature = "capture")]
pub(crate) mod program_socket;
#[cfg(feature = "capture")]
pub(super) mod recorder;
#[cfg(feature = "capture")]
pub(crate) mod report_loop;
#[cfg(feature = "capture")]
pub(crate) mod requests;
#[cfg(feature = "capture")]
pub(crate) mod state;
