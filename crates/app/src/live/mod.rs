//! Live tracing, shared by the commands that trace.

pub(crate) mod keeper_search;
pub(crate) mod notice;
pub(super) mod pipeline;
pub(crate) mod print;
pub(crate) mod process_filter;
pub(crate) mod program_socket;
pub(super) mod recorder;
pub(crate) mod report_loop;
pub(crate) mod requests;
pub(crate) mod state;
