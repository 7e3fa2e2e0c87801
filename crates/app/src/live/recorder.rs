//! The recording of a trace. If writing fails, the trace continues without it.

use std::io;

use anyhow::{Result, bail};
use capture::hooks::function_name;
use engine::model::{Bytes, Event, Timestamp};
use formats::export::{CaptureSource, ReportContext};
use formats::recording::{RecordingHeader, RecordingWriter};

use crate::io::output;
use crate::io::output_file::{OutFile, Planned};
use crate::{Outcome, cli};

/// A recording that is written until it ends or fails.
pub(crate) struct Recorder {
    /// File name for messages.
    name: String,
    writer: Option<RecordingWriter<OutFile>>,
}

impl Recorder {
    /// Opens the file and writes the header.
    pub(crate) fn start(
        file: Planned,
        context: &ReportContext,
        target: &cli::TargetArgs,
        counts_activity: bool,
    ) -> Result<Self> {
        let file = file.open()?;
        let name = file.name().to_owned();
        if file.is_terminal() {
            bail!("{name} is a terminal, and a recording is binary; use -o FILE or a pipe");
        }
        let header = RecordingHeader {
            version: env!("CARGO_PKG_VERSION").into(),
            hostname: formats::hostname::name(),
            kernel: formats::hostname::kernel(),
            target: describe(target),
            activity: counts_activity,
            clock: context.clock.clone(),
            gpus: context.gpus.clone(),
            source: context.source.filter(|source| *source != CaptureSource::Probes),
        };
        Ok(match RecordingWriter::new(file, &header, function_name) {
            Ok(writer) => Self { name, writer: Some(writer) },
            Err(error) => {
                complain(&name, &error, 0);
                Self { name, writer: None }
            }
        })
    }

    /// Whether it has not failed.
    pub(crate) const fn is_running(&self) -> bool {
        self.writer.is_some()
    }

    /// Records an event.
    pub(crate) fn event(&mut self, event: &Event) {
        self.attempt(|writer| writer.event(event));
    }

    /// Records that a report is printed; shows progress if nothing else is printed.
    pub(crate) fn tick(&mut self, now: Timestamp, show: bool) {
        self.attempt(|writer| writer.tick(now));
        if let Some(writer) = self.writer.as_ref().filter(|_| show) {
            output::progress(&summary(&self.name, writer));
        }
    }

    /// Writes buffered events that are due.
    pub(crate) fn flush_due(&mut self, now: Timestamp) {
        self.attempt(|writer| writer.flush_due(now));
    }

    /// Completes the file after the final report and logs a summary.
    pub(crate) fn finish(mut self, now: Timestamp) -> Outcome {
        self.attempt(|writer| writer.finish(now));
        let Some(writer) = self.writer.take() else { return Outcome::Incomplete };
        output::log(&summary(&self.name, &writer));
        Outcome::Success
    }

    /// Writes what is buffered, without an end row, because capture ended early.
    pub(crate) fn interrupt(mut self) -> Outcome {
        self.attempt(RecordingWriter::flush);
        if let Some(writer) = self.writer.take() {
            output::log(&summary(&self.name, &writer));
        }
        Outcome::Incomplete
    }

    fn attempt(&mut self, write: impl FnOnce(&mut RecordingWriter<OutFile>) -> io::Result<()>) {
        let Some(writer) = &mut self.writer else { return };
        if let Err(error) = write(writer) {
            let complete = writer.bytes();
            // An incomplete batch cannot be read.
            writer.out().truncate(complete);
            complain(&self.name, &error, complete);
            self.writer = None;
        }
    }
}

impl Drop for Recorder {
    /// A trace that fails keeps what it recorded.
    fn drop(&mut self) {
        self.attempt(RecordingWriter::flush);
    }
}

fn complain(name: &str, error: &io::Error, complete: u64) {
    output::log(&format!(
        "recording to {name} stopped: {error}; readable up to {}",
        Bytes(complete),
    ));
}

fn summary(name: &str, writer: &RecordingWriter<OutFile>) -> String {
    let lost = match writer.lost() {
        0 => "nothing".to_owned(),
        lost => lost.to_string(),
    };
    format!(
        "recorded {} events in {name} ({}), {lost} lost",
        writer.events(),
        Bytes(writer.bytes()),
    )
}

/// Describes the target.
fn describe(target: &cli::TargetArgs) -> String {
    if !target.command.is_empty() {
        let arguments: Vec<_> =
            target.command.iter().map(|argument| argument.to_string_lossy()).collect();
        return format!("the command {}", arguments.join(" "));
    }
    if target.pid.is_empty() {
        return "every process".into();
    }
    let pids: Vec<String> = target.pid.iter().map(u32::to_string).collect();
    let children = if target.follow_forks { " and their children" } else { "" };
    format!("processes {}{children}", pids.join(", "))
}
