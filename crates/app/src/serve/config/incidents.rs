//! `[incidents]`: snapshots of memory, and how many are kept.

use std::time::Duration;

use engine::units::Bytes;
use serde::Deserialize;

use super::{Size, Span};

/// `[incidents]`: snapshots of memory, and how many are kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Incidents {
    /// Folders are written.
    pub(crate) enabled: bool,
    /// How many folders are kept, and how much they may take together.
    pub(crate) retention_count: usize,
    pub(crate) retention_size: Size,
    /// How many of the last events are remembered, and what they may take in memory.
    pub(crate) recent_events: usize,
    pub(crate) recent_events_size: Size,
    /// Refusals of one process and device within this time are one incident.
    pub(crate) group_window: Span,
    /// How long a process that was refused memory makes no further folder.
    pub(crate) cooldown: Span,
    /// The most folders of all processes in an hour.
    pub(crate) max_per_hour: usize,
    /// A GPU that is used to more than this part makes a folder.
    pub(crate) gpu_used_above: Option<f64>,
    /// A process that holds more device memory than this makes a folder.
    pub(crate) process_live_above: Option<Size>,
    /// The HTML report is written, too.
    pub(crate) html_report: bool,
}

impl Incidents {
    /// The name of the directory that incidents are in.
    pub(crate) const FOLDERS: &'static str = "incidents";

    /// What is wrong with it.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        if self.gpu_used_above.is_some_and(|part| !(part > 0.0 && part < 1.0)) {
            wrong.push("[incidents] gpu_used_above must be between 0 and 1, such as 0.97".into());
        }
        if self.retention_count == 0 {
            wrong.push(
                "[incidents] retention_count must be 1 or more; enabled = false writes none".into(),
            );
        }
        if self.recent_events == 0 || self.recent_events_size.0.0 < 1 << 20 {
            wrong.push(
                "[incidents] recent_events must be 1 or more and recent_events_size 1M or more: an \
                 incident has the last events"
                    .into(),
            );
        }
        if self.recent_events > 10_000_000 || self.recent_events_size.0.0 > 4 << 30 {
            wrong.push(
                "[incidents] recent_events must be at most 10000000 and recent_events_size at most \
                 4G: they are kept in memory"
                    .into(),
            );
        }
        if self.group_window.0 > Duration::from_secs(60) {
            wrong.push("[incidents] group_window must be 1m or less".into());
        }
    }
}

impl Default for Incidents {
    fn default() -> Self {
        Self {
            enabled: true,
            retention_count: 20,
            retention_size: Size(Bytes(1 << 30)),
            recent_events: 100_000,
            recent_events_size: Size(Bytes(32 << 20)),
            group_window: Span(Duration::from_secs(5)),
            cooldown: Span(Duration::from_secs(300)),
            max_per_hour: 30,
            gpu_used_above: None,
            process_live_above: None,
            html_report: true,
        }
    }
}
