//! `[log]`: level and format of log messages.

use std::io;

use serde::{Deserialize, Deserializer, de};
use tracing_subscriber::filter::Targets;

use super::section::section;

section! {
    /// Log messages on standard error.
    LogConfig {
        /// Lowest level: `error`, `warn`, `info`, `debug`, `trace` or `off`. Modules may have their
        /// own: `info,agent::alerts=debug`.
        level: LogLevel = LogLevel::default(), default "\"info\"";
        /// `text` (time, level, message), `json` (one object per line) or `journald` (with a
        /// priority that the systemd journal reads). `auto` is `journald` under systemd, else `text`.
        format: LogFormat = LogFormat::Auto, default "\"auto\"";
    }
}

/// Minimum level of messages, by module.
#[derive(Clone, PartialEq, Debug)]
pub struct LogLevel(pub(crate) Targets);

/// Format of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// `journald` if the systemd journal reads stderr, otherwise `text`.
    Auto,
    /// Time, level and message.
    Text,
    /// The message with a priority that the systemd journal reads.
    Journald,
    /// A JSON object.
    Json,
}

impl Default for LogLevel {
    fn default() -> Self {
        Self(Targets::new().with_default(tracing::Level::INFO))
    }
}

impl<'de> Deserialize<'de> for LogLevel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let expected = "must be error, warn, info, debug, trace or off";
        let targets = text.parse().map_err(|error| format!("{expected}: {error}"));
        targets.map(Self).map_err(de::Error::custom)
    }
}

impl LogConfig {
    /// Returns the format; `auto` is replaced by the one that fits stderr.
    pub(crate) fn resolved_format(&self) -> LogFormat {
        match self.format {
            LogFormat::Auto if is_journal() => LogFormat::Journald,
            LogFormat::Auto => LogFormat::Text,
            format => format,
        }
    }
}

/// Whether the systemd journal reads stderr: systemd sets the variable to its device and inode.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    let stderr = rustix::fs::fstat(io::stderr());
    stderr.is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}
