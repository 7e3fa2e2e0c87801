//! One module per verb, and what they share.

pub(crate) mod advise;
pub(crate) mod agent_query;
pub(crate) mod agent_report;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod file;
pub(crate) mod mark;
pub(crate) mod packaging;
pub(crate) mod program;
pub(crate) mod serve;
pub(crate) mod top;
pub(crate) mod trace;
