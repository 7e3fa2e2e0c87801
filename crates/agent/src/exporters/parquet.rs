//! Parquet files, partitioned such that databases read those of many hosts as one table.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use engine::model::{Bytes, Timestamp};
use formats::export::parquet::{LiveTable, PartFile, TableSample, day_of, host_dir, part_path};
use formats::report::incident::IncidentRow;

use super::retention::{Retention, prune, sweep};
use super::ticker::{Tick, Ticker};
use crate::config::exporters::ParquetConfig;
use crate::delivery::FailureLog;
use crate::files::durable_file::DurableFile;
use crate::incidents::IncidentView;
use crate::{AgentState, PublishedSnapshot, Worker};

const NAME: &str = "parquet";

/// Starts the worker.
pub(super) fn start(
    shared: &Arc<AgentState>,
    config: &ParquetConfig,
    host: &str,
) -> Result<Worker> {
    let mut writer = ParquetExporter::new(config, host, shared.config.exporters.show_paths);
    let interval = config.interval.0;
    Worker::of_agent("export-parquet", shared, move |shared| {
        writer.clean();
        let operation = format!("write tables to {}", writer.dir.display());
        let mut failure_log = FailureLog::new(operation);
        let mut ticker = Ticker::new(interval).each_snapshot();
        while let Some(tick) = ticker.next(&shared.feed) {
            shared.exports.count(NAME, "dropped", tick.missed);
            let mut outcome = writer.tick(&tick, &shared.incidents.list());
            if tick.is_last {
                outcome.add(writer.finish());
            }
            report(shared, &mut failure_log, &outcome);
        }
        report(shared, &mut failure_log, &writer.finish());
        Ok(())
    })
}

/// Rows are buffered in memory: only a complete file shows that writing works.
fn report(shared: &AgentState, failure_log: &mut FailureLog, outcome: &WriteOutcome) {
    shared.exports.count(NAME, "sent", outcome.files);
    shared.exports.count(NAME, "failed", outcome.failures.len() as u64);
    match outcome.failures.first() {
        Some(error) => failure_log.report_failure(&error.to_string()),
        None if outcome.files > 0 => failure_log.report_success(),
        None => {}
    }
}

/// Whether a file in a directory of this host was written by the agent.
fn is_own(name: &str) -> bool {
    name.starts_with("part-") && name.ends_with(".parquet")
}

fn has_files(dir: &Path) -> bool {
    let names = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.into_iter().any(|name| name.to_str().is_some_and(is_own))
}

/// Result of writing.
#[derive(Default)]
struct WriteOutcome {
    /// Completed files.
    files: u64,
    failures: Vec<io::Error>,
}

impl WriteOutcome {
    fn add(&mut self, other: Self) {
        self.files += other.files;
        self.failures.extend(other.failures);
    }
}

struct ParquetExporter {
    dir: PathBuf,
    host: String,
    rotate_interval: Duration,
    rotate_size: Bytes,
    limits: Retention,
    paths: bool,
    /// Time of the last sample.
    previous: Option<Timestamp>,
    /// Incidents of the last sample.
    incidents: Vec<IncidentRow>,
    open: [Option<OpenPart>; LiveTable::ALL.len()],
}

/// A file that rows are added to.
struct OpenPart {
    rows: PartFile<DurableFile>,
    dir: PathBuf,
    opened: Instant,
    day: i64,
}

impl ParquetExporter {
    fn new(config: &ParquetConfig, host: &str, paths: bool) -> Self {
        Self {
            dir: config.dir.clone(),
            host: host.to_owned(),
            rotate_interval: config.rotate_interval.0,
            rotate_size: config.rotate_size.0,
            limits: Retention { age: config.retention.0, size: config.retention_size.0 },
            paths,
            previous: None,
            incidents: Vec::new(),
            open: Default::default(),
        }
    }

    /// Returns the directories of this host; others belong to other hosts.
    fn own_dirs(&self) -> Vec<PathBuf> {
        let dir = |table| self.dir.join(host_dir(table, &self.host));
        LiveTable::ALL.into_iter().map(dir).collect()
    }

    /// Removes old files, and partial files of an agent that was killed.
    fn clean(&self) {
        for dir in self.own_dirs() {
            sweep(&dir, &is_own);
        }
        self.prune();
    }

    fn prune(&self) {
        prune(&self.own_dirs(), &is_own, self.limits, SystemTime::now());
    }

    /// Adds the rows of a snapshot to each table. A table that fails loses its current file and
    /// starts a new one with the next snapshot.
    fn tick(&mut self, tick: &Tick, incidents: &[IncidentView]) -> WriteOutcome {
        let PublishedSnapshot { snapshot, metrics, context, own, .. } = &*tick.published;
        let all: Vec<IncidentRow> = incidents.iter().map(|one| one.row.clone()).collect();
        let is_new = |row: &&IncidentRow| !self.incidents.contains(row);
        let new: Vec<IncidentRow> = all.iter().filter(is_new).cloned().collect();
        let sample = TableSample {
            snapshot,
            metrics,
            context,
            paths: self.paths,
            previous: self.previous,
            agent_start: (own.started * 1e6) as i64,
            incidents: &new,
            is_due: tick.is_due,
        };
        if tick.is_due {
            self.previous = Some(snapshot.at);
            self.incidents = all;
        }
        let now = context.clock.nanos(snapshot.at);
        let mut outcome = self.rotate(now);
        for (index, table) in LiveTable::ALL.into_iter().enumerate() {
            let open = self.open.get_mut(index).and_then(Option::take);
            match self.add(table, open, now, &sample) {
                Ok(open) => {
                    if let Some(slot) = self.open.get_mut(index) {
                        *slot = Some(open);
                    }
                }
                Err(error) => outcome.failures.push(error),
            }
        }
        outcome
    }

    fn add(
        &self,
        table: LiveTable,
        open: Option<OpenPart>,
        now: i64,
        tick: &TableSample<'_>,
    ) -> io::Result<OpenPart> {
        let mut open = match open {
            Some(open) => open,
            None => self.begin(table, now, tick)?,
        };
        open.rows.add(tick)?;
        Ok(open)
    }

    fn begin(&self, table: LiveTable, now: i64, tick: &TableSample<'_>) -> io::Result<OpenPart> {
        let paths = (0..).map(|number| self.dir.join(part_path(table, &self.host, now, number)));
        let path = paths.into_iter().find(|path| !path.exists());
        let path = path.ok_or(io::ErrorKind::AlreadyExists)?;
        let dir = path.parent().unwrap_or(&self.dir).to_owned();
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let file = DurableFile::create(path)?;
        let rows = PartFile::new(table, file, tick)?;
        Ok(OpenPart { rows, dir, opened: Instant::now(), day: day_of(now) })
    }

    /// Completes files that are old or large enough, or from a previous day.
    fn rotate(&mut self, now: i64) -> WriteOutcome {
        let (time, size) = (self.rotate_interval, self.rotate_size);
        let is_due = |open: &OpenPart| {
            let is_large = open.rows.bytes() >= size.0;
            open.opened.elapsed() >= time || is_large || open.day != day_of(now)
        };
        self.close(is_due)
    }

    fn finish(&mut self) -> WriteOutcome {
        self.close(|_| true)
    }

    fn close(&mut self, is_due: impl Fn(&OpenPart) -> bool) -> WriteOutcome {
        let due: Vec<OpenPart> =
            self.open.iter_mut().filter_map(|open| open.take_if(|open| is_due(open))).collect();
        let mut outcome = WriteOutcome::default();
        if due.is_empty() {
            return outcome;
        }
        // A file without rows is written only if the day has no other: readers need its columns.
        for open in due.into_iter().filter(|open| open.rows.rows() > 0 || !has_files(&open.dir)) {
            match open.rows.finish().and_then(DurableFile::finish) {
                Ok(()) => outcome.files += 1,
                Err(error) => outcome.failures.push(error),
            }
        }
        self.prune();
        outcome
    }
}
