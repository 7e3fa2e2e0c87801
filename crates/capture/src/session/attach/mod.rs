//! Attaches the probes to drivers and to allocators.

pub(super) mod allocators;
pub(super) mod context_discovery;
pub(super) mod drivers;
mod growth;
pub(super) mod probes;
pub(super) mod retry;
