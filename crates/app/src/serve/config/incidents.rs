//! `[incidents]`: snapshots of memory, and how many are kept.

use std::path::{Path, PathBuf};
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
    /// The agent's folder; folders of incidents are in `incidents` in it.
    pub(crate) state: PathBuf,
    /// How many folders are kept, and how much they may take together.
    pub(crate) keep: usize,
    pub(crate) keep_size: Size,
    /// How many of the last events are remembered, and what they may take in memory.
    pub(crate) events: usize,
    pub(crate) events_size: Size,
    /// Refusals of one process and device within this time are one incident.
    pub(crate) together: Span,
    /// How long a process that was refused memory makes no further folder.
    pub(crate) pause: Span,
    /// The most folders of all processes in an hour.
    pub(crate) per_hour: usize,
    /// A GPU that is used to more than this part makes a folder.
    pub(crate) used_above: Option<f64>,
    /// A process that holds more device memory than this makes a folder.
    pub(crate) process_above: Option<Size>,
    /// The page for a browser is made, too.
    pub(crate) page: bool,
}

impl Incidents {
    /// Where the agent keeps what must survive it, unless told otherwise.
    pub(crate) const STATE: &'static str = "/var/lib/vramscope";

    /// The name of the directory that incidents are in.
    pub(crate) const FOLDERS: &'static str = "incidents";

    /// The folder of folders.
    pub(crate) fn folder(&self) -> PathBuf {
        self.state.join(Self::FOLDERS)
    }

    /// What is wrong with it.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        if self.used_above.is_some_and(|part| !(part > 0.0 && part < 1.0)) {
            wrong.push(
                "[incidents] used_above is a part of the GPU: between 0 and 1, such as 0.97".into(),
            );
        }
        if self.keep == 0 {
            wrong.push(
                "[incidents] keep is how many folders stay: 1 or more; enabled = false makes none"
                    .into(),
            );
        }
        if self.events == 0 || self.events_size.0.0 < 1 << 20 {
            wrong.push(
                "[incidents] events must be 1 or more and events_size 1M or more: a folder has the \
                 last events"
                    .into(),
            );
        }
        if self.events > 10_000_000 || self.events_size.0.0 > 4 << 30 {
            wrong.push(
                "[incidents] events must be at most 10000000 and events_size at most 4G: they are \
                 kept in memory"
                    .into(),
            );
        }
        if self.together.0 > Duration::from_secs(60) {
            wrong.push("[incidents] together must be 1m or less".into());
        }
        if !self.state.is_absolute() {
            wrong.push(format!(
                "[incidents] state is {}: write the whole path, such as {}",
                self.state.display(),
                Self::STATE
            ));
        }
    }
}

impl Default for Incidents {
    fn default() -> Self {
        Self {
            enabled: true,
            state: Path::new(Self::STATE).into(),
            keep: 20,
            keep_size: Size(Bytes(1 << 30)),
            events: 100_000,
            events_size: Size(Bytes(32 << 20)),
            together: Span(Duration::from_secs(5)),
            pause: Span(Duration::from_secs(300)),
            per_hour: 30,
            used_above: None,
            process_above: None,
            page: true,
        }
    }
}
