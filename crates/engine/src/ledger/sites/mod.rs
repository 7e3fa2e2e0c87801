//! Memory by allocation site.

pub(super) mod anomaly_log;
pub(super) mod ended_sites;
pub(super) mod holders;
pub(super) mod libraries;
pub(super) mod table;
pub(super) mod verdicts;
pub(super) mod views;
