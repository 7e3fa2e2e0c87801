//! The log of decisions: one JSON object per line, private to its owner, of bounded size.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::serve::trusted_path;

/// Size at which the log is rotated; one old file is kept.
const MAX_LOG_BYTES: u64 = 8 << 20;

/// One decision.
#[derive(Serialize)]
pub(super) struct LogEntry<'a> {
    pub(super) trigger: &'static str,
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) bytes: u64,
    /// `done`, `dry_run`, `rate_limited`, `skipped` or `failed`.
    pub(super) outcome: &'a str,
    pub(super) reason: String,
}

#[derive(Serialize)]
struct LogLine<'a> {
    time: String,
    #[serde(flatten)]
    entry: &'a LogEntry<'a>,
}

/// The log file.
pub(super) struct ActionLog {
    path: PathBuf,
}

impl ActionLog {
    pub(super) fn new(state: &Path) -> Self {
        Self { path: state.join("actions.log") }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn add(&self, entry: &LogEntry<'_>) -> io::Result<()> {
        if let Some(dir) = self.path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        if fs::metadata(&self.path).is_ok_and(|file| file.len() > MAX_LOG_BYTES) {
            fs::rename(&self.path, self.path.with_extension("log.old"))?;
        }
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        let mut line = serde_json::to_vec(&LogLine { time, entry })?;
        line.push(b'\n');
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(0o600).custom_flags(trusted_path::NO_LINK);
        options.open(&self.path)?.write_all(&line)
    }
}
