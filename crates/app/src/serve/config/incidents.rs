//! `[incidents]`: snapshots at out-of-memory errors and thresholds, and their retention.

use std::time::Duration;

use engine::model::units::Bytes;
use serde::Deserialize;

use super::{ByteSize, DurationValue};

/// `[incidents]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct IncidentsConfig {
    /// Write incident directories.
    pub(crate) enabled: bool,
    /// Maximum number of kept directories, and their total size.
    pub(crate) retention_count: usize,
    pub(crate) retention_size: ByteSize,
    /// Number of recent events that are kept, and their maximum size in memory.
    pub(crate) recent_events: usize,
    pub(crate) recent_events_size: ByteSize,
    /// Failures of one process and device within this time are one incident.
    pub(crate) group_window: DurationValue,
    /// Time after an incident in which the same process causes no further one.
    pub(crate) cooldown: DurationValue,
    /// Maximum number of incidents of all processes per hour.
    pub(crate) max_per_hour: usize,
    /// Write an incident when usage of a GPU exceeds this ratio.
    pub(crate) gpu_used_above: Option<f64>,
    /// Write an incident when a process holds more device memory than this.
    pub(crate) process_live_above: Option<ByteSize>,
    /// Also write the HTML report.
    pub(crate) html_report: bool,
}

impl IncidentsConfig {
    /// Name of the incidents directory.
    pub(crate) const DIR_NAME: &'static str = "incidents";

    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        if self.gpu_used_above.is_some_and(|ratio| !(ratio > 0.0 && ratio < 1.0)) {
            errors.push("[incidents] gpu_used_above must be between 0 and 1, such as 0.97".into());
        }
        if self.retention_count == 0 {
            errors.push(
                "[incidents] retention_count must be 1 or more; enabled = false writes none".into(),
            );
        }
        if self.recent_events == 0 || self.recent_events_size.0.0 < 1 << 20 {
            errors.push(
                "[incidents] recent_events must be 1 or more and recent_events_size 1M or more: an \
                 incident has the last events"
                    .into(),
            );
        }
        if self.recent_events > 10_000_000 || self.recent_events_size.0.0 > 4 << 30 {
            errors.push(
                "[incidents] recent_events must be at most 10000000 and recent_events_size at most \
                 4G: they are kept in memory"
                    .into(),
            );
        }
        if self.group_window.0 > Duration::from_secs(60) {
            errors.push("[incidents] group_window must be 1m or less".into());
        }
    }
}

impl Default for IncidentsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            retention_count: 20,
            retention_size: ByteSize(Bytes(1 << 30)),
            recent_events: 100_000,
            recent_events_size: ByteSize(Bytes(32 << 20)),
            group_window: DurationValue(Duration::from_secs(5)),
            cooldown: DurationValue(Duration::from_secs(300)),
            max_per_hour: 30,
            gpu_used_above: None,
            process_live_above: None,
            html_report: true,
        }
    }
}
