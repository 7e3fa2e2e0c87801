//! Verbs that ask a running Python program.

pub(crate) mod reclaim;
pub(crate) mod why;
