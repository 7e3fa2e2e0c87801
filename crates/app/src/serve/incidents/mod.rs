//! Pictures of memory at the moment when it ran out, or when a limit was crossed.
//!
//! [`Desk`] is the side of the engine thread: it remembers the last events ([`recent`]), notices
//! refusals, and decides which become folders ([`gate`]). The rest is a part of its own: [`writer`]
//! finds causes, asks for advice and writes [`folder`]s.

mod before;
mod desk;
mod folder;
mod gate;
mod history;
mod holders;
mod host;
mod job;
mod limits;
#[cfg(test)]
mod made;
mod pages;
mod recent;
mod recording;
mod unwritten;
mod writer;

pub(crate) use desk::Desk;
pub(crate) use history::History;
pub(crate) use job::Job;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use engine::ids::ProcessKey;
use engine::units::Nanos;
use formats::export::advice::Advice;
use serde::Serialize;

use super::{Published, Tally};
use crate::advising::{self, Question};

/// A folder that was written, as the API tells it. All text is clean.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct IncidentView {
    /// Its name: the folder's.
    pub(crate) id: String,
    /// What made it necessary: `out_of_memory`, `threshold` or `manual`.
    pub(crate) trigger: &'static str,
    /// What was the matter, by the diagnosis.
    pub(crate) cause: String,
    /// When, RFC 3339.
    pub(crate) time: String,
    /// Who.
    pub(crate) pid: Option<u32>,
    /// Its name.
    pub(crate) process: String,
    /// What was asked for.
    pub(crate) requested_bytes: Option<u64>,
    /// The GPU.
    pub(crate) gpu: Option<u16>,
    /// The first line of the summary.
    pub(crate) summary: String,
    /// Bytes of all its files.
    pub(crate) size_bytes: u64,
    /// From the error to the folder, in milliseconds.
    pub(crate) written_after_ms: u64,
    /// Whether there is a folder: a disk may be full.
    pub(crate) written: bool,
    /// The whole summary, where there is no folder that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) summary_text: Option<String>,
    /// Where it is; not told in the API.
    #[serde(skip)]
    pub(crate) folder: PathBuf,
}

/// The folders that there are, the newest first.
#[derive(Default)]
pub(crate) struct Shelf {
    idle: Mutex<HashMap<ProcessKey, Nanos>>,
    incidents: Mutex<Vec<IncidentView>>,
    /// Incidents by trigger and outcome.
    pub(crate) counts: Tally,
}

impl Shelf {
    /// The folders.
    pub(crate) fn list(&self) -> Vec<IncidentView> {
        self.incidents.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the place of what was there.
    pub(crate) fn show(&self, incidents: Vec<IncidentView>) {
        *self.incidents.lock().unwrap_or_else(PoisonError::into_inner) = incidents;
    }

    /// For how long processes have launched nothing.
    fn show_idle(&self, idle: HashMap<ProcessKey, Nanos>) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = idle;
    }

    /// What would give memory back now: the answer of `/api/v1/advice`.
    pub(crate) fn advice(&self, published: &Published) -> Advice {
        let (snapshot, names) = (&published.snapshot, &*published.names);
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let question = Question {
            gpu: None,
            only: &[],
            asker: None,
            cause: None,
            idle: &|process| idle.get(&process.key).copied(),
            local: true,
        };
        Advice {
            time: names.clock.precise(snapshot.at),
            gpus: advising::answer(&question, snapshot, names),
            notes: advising::notes(snapshot),
        }
    }

    /// Counts one by its trigger and how it went: `written`, `failed` or `skipped`.
    pub(crate) fn count(&self, trigger: &'static str, outcome: &'static str) {
        self.counts.count(trigger, outcome, 1);
    }
}

#[cfg(test)]
mod tests {
    use engine::metrics::Figures;
    use engine::snapshot::{Certainty, Snapshot};

    use super::*;
    use crate::serve::onward::published;

    #[test]
    fn advice_says_that_memory_is_from_before_the_trace() {
        let certainty = Certainty { before_trace: true, ..Certainty::default() };
        let snapshot = Snapshot { certainty, ..Snapshot::default() };
        let notes = Shelf::default().advice(&published(1, snapshot, Figures::default())).notes;
        assert!(notes[0].contains("started before the trace"), "{notes:?}");
        assert!(notes[1].contains("free memory is unknown"), "{notes:?}");
    }
}
