//! Tables of the analyses.

pub(super) mod diff;
pub(super) mod fragmentation;
pub(super) mod leaks;
pub(super) mod libraries;
pub(super) mod marks;
pub(super) mod peak;
pub(super) mod sites;
pub(super) mod summary;
pub(super) mod usage;
