//! Verbs that read files.

pub(crate) mod diff;
pub(crate) mod export;
pub(crate) mod plot;
pub(crate) mod replay;
pub(crate) mod report;
