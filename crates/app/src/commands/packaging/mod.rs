//! Verbs that print what packages install.

pub(crate) mod completions;
pub(crate) mod man;
