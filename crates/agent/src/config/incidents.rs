//! `[incidents]`: snapshots at out-of-memory errors and thresholds, and their retention.

use super::section::section;
use super::{ByteSize, DurationValue, Ratio, problems};

section! {
    /// Snapshots of the state at out-of-memory errors and thresholds: incidents.md.
    IncidentsConfig {
        /// Write incidents.
        enabled: bool = true, default "true";
        /// Incidents to keep, 1 or more; the oldest are removed first, the newest never.
        retention_count: usize = 20, default "20";
        /// Maximum size of all incidents.
        retention_size: ByteSize = ByteSize::mib(1024), default "\"1G\"";
        /// Events in `recent.arrows`, 1 to 10000000.
        recent_events: usize = 100_000, default "100000";
        /// Agent memory for them, 1M to 4G.
        recent_events_size: ByteSize = ByteSize::mib(32), default "\"32M\"";
        /// Failures of one process and device within this time are one incident; at most 1m. A
        /// process that gets the memory in this time has recovered.
        group_window: DurationValue = DurationValue::secs(5), default "\"5s\"";
        /// Minimum time between two incidents of one process.
        cooldown: DurationValue = DurationValue::secs(300), default "\"5m\"";
        /// Incidents of all processes per hour.
        max_per_hour: usize = 30, default "30";
        /// Threshold: write an incident when this share of a GPU is used.
        gpu_used_above: Option<Ratio> = None, example "0.97";
        /// Threshold: write an incident when a process holds more device memory.
        process_live_above: Option<ByteSize> = None, example "\"60G\"";
        /// Write `report.html`.
        html_report: bool = true, default "true";
    }
}

impl IncidentsConfig {
    /// Name of the incidents directory.
    pub(crate) const DIR_NAME: &'static str = "incidents";

    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        let size = self.recent_events_size;
        let problems = problems([
            (
                self.retention_count > 0,
                "retention_count must be 1 or more; enabled = false writes none",
            ),
            (
                (1..=10_000_000).contains(&self.recent_events),
                "recent_events must be between 1 and 10000000",
            ),
            (
                (ByteSize::mib(1)..=ByteSize::mib(4096)).contains(&size),
                "recent_events_size must be between 1M and 4G: events are kept in memory",
            ),
            (self.group_window <= DurationValue::secs(60), "group_window must be 1m or less"),
        ]);
        errors.extend(problems.map(|problem| format!("[incidents] {problem}")));
    }
}
