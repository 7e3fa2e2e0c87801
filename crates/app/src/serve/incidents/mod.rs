//! Pictures of memory at the moment when it ran out, or when a limit was crossed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Result;
use engine::event::Event;
use engine::ledger::Ledger;
use serde::Serialize;

use super::{Part, Published, Shared};

/// A folder that was written, as the API tells it. All text is clean.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct IncidentView {
    /// Its name: the folder's.
    pub(crate) id: String,
    /// What made it necessary: `out_of_memory`, `limit` or `asked`.
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
    pub(crate) asked_bytes: Option<u64>,
    /// The GPU.
    pub(crate) gpu: Option<u16>,
    /// The first line of the summary.
    pub(crate) summary: String,
    /// Bytes of all its files.
    pub(crate) bytes: u64,
    /// From the error to the folder, in milliseconds.
    pub(crate) took_ms: u64,
    /// Where it is; not told in the API.
    #[serde(skip)]
    pub(crate) folder: PathBuf,
}

/// The folders that there are, the newest first.
#[derive(Default)]
pub(crate) struct Shelf {
    incidents: Mutex<Vec<IncidentView>>,
    counts: Mutex<Vec<((&'static str, &'static str), u64)>>,
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

    /// Counts one by its trigger and how it went: `written`, `failed` or `skipped`.
    pub(crate) fn count(&self, trigger: &'static str, outcome: &'static str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.iter_mut().find(|(key, _)| *key == (trigger, outcome)) {
            Some((_, count)) => *count += 1,
            None => counts.push(((trigger, outcome), 1)),
        }
    }

    /// Incidents by trigger and outcome.
    pub(crate) fn counts(&self) -> Vec<((&'static str, &'static str), u64)> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The side of the engine thread: remembers recent events, notices that memory ran out, and hands
/// what is to be written to a part of its own.
pub(crate) struct Desk {
    due: Option<Instant>,
}

impl Desk {
    /// Starts the part that writes folders.
    pub(crate) fn start(shared: &Arc<Shared>) -> Result<(Self, Part)> {
        Ok((Self { due: None }, Part::spawn("incidents", shared, |_| ())?))
    }

    /// To be called with every event, after the ledger applied it.
    pub(crate) fn event(&mut self, _event: &Event) {}

    /// When a snapshot is to be published without waiting for the next second: soon after memory ran
    /// out, so that names of frames can come in.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// To be called with everything that is published.
    pub(crate) fn published(&mut self, _published: &Arc<Published>, _ledger: &Ledger) {
        self.due = None;
    }
}
