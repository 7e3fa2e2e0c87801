//! Incidents: the state of memory at an out-of-memory error, or when a threshold was crossed.
//! | [`IncidentCollector`] runs on the engine thread: it keeps the last events, detects
//! out-of-memory errors and limits the rate of incidents. The writer runs on its own thread: it
//! diagnoses the cause, derives advice and writes directories.

mod collect;
mod job;
mod notice;
mod write;

pub(crate) use collect::collector::IncidentCollector;
pub(crate) use notice::IncidentNotice;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use engine::model::{Nanos, Pid, ProcessKey};
use formats::report::advice::{AdviceReport, AdviceRequest, advice_report};
use formats::report::incident::IncidentRow;
use serde::Serialize;

use super::{OutcomeCounter, PublishedSnapshot};

/// Maximum number of messages that wait for receivers of alerts.
const MAX_NOTICES: usize = 64;

/// A written incident, as the API shows it. All text is sanitized.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct IncidentView {
    /// Name of the incident and of its directory.
    pub(crate) id: String,
    /// Trigger: `out_of_memory`, `threshold` or `manual`.
    pub(crate) trigger: &'static str,
    /// Diagnosed cause.
    pub(crate) cause: String,
    /// Time, RFC 3339.
    pub(crate) time: String,
    /// Process that requested the memory or crossed the threshold.
    pub(crate) pid: Option<u32>,
    /// Name of the process.
    pub(crate) process: String,
    /// Requested bytes.
    pub(crate) requested_bytes: Option<u64>,
    /// The GPU.
    pub(crate) gpu: Option<u16>,
    /// The first line of the summary.
    pub(crate) summary: String,
    /// Total size of its files.
    pub(crate) size_bytes: u64,
    /// Time from the error to the complete directory, in milliseconds.
    pub(crate) written_after_ms: u64,
    /// Whether the directory was written: the disk may be full.
    pub(crate) written: bool,
    /// The full summary, if there is no directory with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) summary_text: Option<String>,
    /// Values for tables; not exposed by the API.
    #[serde(skip)]
    pub(crate) row: IncidentRow,
    /// The directory; not exposed by the API.
    #[serde(skip)]
    pub(crate) dir: PathBuf,
}

/// Incidents, newest first.
#[derive(Default)]
pub(crate) struct IncidentStore {
    idle: Mutex<HashMap<ProcessKey, Nanos>>,
    incidents: Mutex<Vec<IncidentView>>,
    /// Messages for receivers of alerts.
    notices: Mutex<Vec<IncidentNotice>>,
    /// Incidents by trigger and outcome.
    pub(crate) counts: OutcomeCounter,
}

impl IncidentStore {
    /// Returns the incidents.
    pub(crate) fn list(&self) -> Vec<IncidentView> {
        self.incidents.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the incidents.
    pub(crate) fn show(&self, incidents: Vec<IncidentView>) {
        *self.incidents.lock().unwrap_or_else(PoisonError::into_inner) = incidents;
    }

    /// Adds a message for receivers of alerts. Without a reader, the first ones stay.
    fn announce(&self, notice: IncidentNotice) {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        if notices.len() < MAX_NOTICES {
            notices.push(notice);
        }
    }

    /// Takes the messages for receivers of alerts.
    pub(crate) fn take_notices(&self) -> Vec<IncidentNotice> {
        std::mem::take(&mut *self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets for how long processes have launched nothing.
    fn show_idle(&self, idle: HashMap<ProcessKey, Nanos>) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = idle;
    }

    /// Returns how memory could be freed now, for `/api/v1/advice`.
    pub(crate) fn advice(&self, published: &PublishedSnapshot) -> AdviceReport {
        let (snapshot, context) = (&published.snapshot, &*published.context);
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let request = AdviceRequest {
            gpu: None,
            only: &[],
            requester: None,
            cause: None,
            idle: &|process| idle.get(&process.key).copied(),
            own: Some(Pid(std::process::id())),
        };
        advice_report(&request, snapshot, context)
    }

    /// Counts an incident by trigger and outcome: `written`, `failed` or `suppressed`.
    pub(crate) fn count(&self, trigger: &'static str, outcome: &'static str) {
        self.counts.count(trigger, outcome, 1);
    }
}

#[cfg(test)]
mod tests {
    use engine::metrics::MetricSet;
    use engine::snapshot::{Snapshot, Uncertainty};

    use super::*;
    use crate::exporters::published;

    #[test]
    fn advice_says_that_memory_is_from_before_the_trace() {
        let uncertainty = Uncertainty { before_trace: true, ..Uncertainty::default() };
        let snapshot = Snapshot { uncertainty, ..Snapshot::default() };
        let notes =
            IncidentStore::default().advice(&published(1, snapshot, MetricSet::default())).notes;
        assert!(notes[0].contains("started before the trace"), "{notes:?}");
        assert!(notes[1].contains("free memory is unknown"), "{notes:?}");
    }
}
