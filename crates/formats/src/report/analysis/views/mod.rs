//! Tables of the analyses.

pub(super) mod diff;
pub(super) mod fragmentation;
pub(super) mod leaks;
pub(super) mod peak;
pub(super) mod summary;
pub(super) mod suspects;
pub(super) mod usage;
