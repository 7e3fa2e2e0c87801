//! The engine thread of a live verb: applies events to the ledger and prints reports.

use anyhow::Result;
use capture::gpus::GpuInfo;
use capture::hooks::function_name;
use capture::session::Notice;
use engine::ledger::Ledger;
use engine::model::units::Timestamp;
use engine::snapshot::{Snapshot, SnapshotOptions};
use formats::WallClock;
use formats::export::{GpuLabel, ReportContext};
use formats::recording::FunctionTable;
use formats::report::live::text::TextStyle;
use formats::sanitize::sanitize;

use super::ended_history::EndedHistory;
use super::print::print;
pub(crate) use super::print::{LiveFormat, LiveView};
use crate::Outcome;
use crate::io::output;
use crate::io::output::ResultOutput;
use crate::io::output_file::shown;
use crate::live::pipeline::{LiveTrace, PipelineMessage};
use crate::live::recorder::Recorder;

/// The ledger and what is needed to print it.
pub(crate) struct LiveReport {
    ledger: Ledger,
    snapshot_options: SnapshotOptions,
    view: LiveView,
    /// None: nothing is reported, and no ledger is kept.
    format: Option<LiveFormat>,
    context: ReportContext,
    style: TextStyle,
    out: ResultOutput,
    ended: EndedHistory,
    recorder: Option<Recorder>,
    /// Reason why capture ended early.
    failure: Option<anyhow::Error>,
    /// Log which libraries are probed.
    pub(crate) verbose: bool,
}

impl LiveReport {
    pub(crate) fn new(
        live: &LiveTrace,
        snapshot_options: SnapshotOptions,
        view: LiveView,
        format: impl Into<Option<LiveFormat>>,
        out: ResultOutput,
    ) -> Self {
        let clock = WallClock::now(capture::monotonic());
        let gpus = gpu_names(&live.gpus);
        let ledger = Ledger::new();
        Self {
            ledger: if live.counts_activity { ledger.with_activity() } else { ledger },
            snapshot_options,
            view,
            format: format.into(),
            context: ReportContext {
                clock,
                function: function_name,
                recorded: FunctionTable::default(),
                gpus,
                source: Some(live.source),
            },
            style: out.style,
            out,
            ended: EndedHistory::default(),
            recorder: None,
            failure: None,
            verbose: true,
        }
    }

    /// Records all events from now on.
    pub(crate) fn record(
        &mut self,
        start: impl FnOnce(&ReportContext) -> Result<Recorder>,
    ) -> Result<()> {
        self.recorder = Some(start(&self.context)?);
        Ok(())
    }

    /// Whether events are being recorded; false after a failure.
    pub(crate) fn is_recording(&self) -> bool {
        self.recorder.as_ref().is_some_and(Recorder::is_running)
    }

    /// Whether capture ended early: only the final report follows.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Flushes the recording; to be called several times a second.
    pub(crate) fn tick(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.flush_due(capture::monotonic());
        }
    }

    /// Handles a message of the capture thread.
    pub(crate) fn handle(&mut self, message: PipelineMessage) {
        match message {
            PipelineMessage::Events(events) => {
                for event in &events {
                    if let Some(recorder) = &mut self.recorder {
                        recorder.event(event);
                    }
                    if self.format.is_some() {
                        self.ledger.apply(event);
                    }
                }
            }
            // A recording starts without these GPUs, and its replay must print the same.
            PipelineMessage::Gpus(_) if self.recorder.is_some() => {}
            PipelineMessage::Gpus(gpus) => self.context.gpus = gpu_names(&gpus),
            PipelineMessage::Notice(notice) if self.verbose || notice.is_warning() => {
                log_notice(&notice)
            }
            PipelineMessage::Notice(_) => {}
            PipelineMessage::Failed(error) => self.failure = Some(error),
        }
    }

    /// Prints a report of the current state.
    pub(crate) fn report(&mut self) -> Result<()> {
        let now = capture::monotonic();
        if let Some(recorder) = &mut self.recorder {
            recorder.tick(now, self.format.is_none());
        }
        let snapshot = self.ledger.snapshot(now, &self.snapshot_options);
        self.print(&snapshot)?;
        self.ended.push_snapshot(snapshot);
        Ok(())
    }

    /// Detaches the probes and prints the final report, which includes processes that exited during
    /// the trace. The outcome is incomplete if the recording failed or if capture ended early; in
    /// the latter case the report is of that time, and not exact.
    pub(crate) fn finish(mut self, live: LiveTrace) -> Result<(Snapshot, Outcome)> {
        let (remaining, complete_until) = live.finish();
        for message in remaining {
            self.handle(message);
        }
        let now = if self.has_failed() { complete_until } else { capture::monotonic() };
        let mut outcome = self.finish_recording(now);
        let snapshot_options = SnapshotOptions { ended_sites: true, ..self.snapshot_options };
        let mut last = self.ledger.snapshot(now, &snapshot_options);
        if let Some(error) = self.failure.take() {
            last.mark_capture_ended(now);
            outcome = Outcome::Incomplete;
            output::fail(&error);
        }
        self.ended.merge_into(&mut last);
        self.style.last = true;
        self.print(&last)?;
        let unlisted = self.ended.dropped() + self.ledger.dropped_ended();
        if unlisted > 0 {
            output::log(&format!("{unlisted} exited processes are not listed in the final report"));
        }
        Ok((last, outcome))
    }

    /// Ends the recording. If capture failed, the end row is missing, as after a crash; the file
    /// stays readable.
    fn finish_recording(&mut self, now: Timestamp) -> Outcome {
        match self.recorder.take() {
            Some(recorder) if self.has_failed() => recorder.interrupt(),
            Some(recorder) => recorder.finish(now),
            None => Outcome::Success,
        }
    }

    fn print(&mut self, snapshot: &Snapshot) -> Result<()> {
        let out = &mut *self.out.writer;
        match self.format {
            Some(format) => print(out, self.view, format, snapshot, &self.context, self.style),
            None => Ok(()),
        }
    }
}

pub(crate) fn gpu_names(gpus: &[GpuInfo]) -> Vec<GpuLabel> {
    gpus.iter()
        .map(|gpu| GpuLabel {
            id: gpu.id,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            total_bytes: gpu.total_bytes,
        })
        .collect()
}

pub(crate) fn log_notice(notice: &Notice) {
    let log = if notice.is_warning() { output::warn } else { output::log };
    log(&match notice {
        Notice::Attached { path, functions, stepped } => {
            let suffix = match stepped {
                0 => String::new(),
                n => format!(" ({n} of them single-stepped (slow))"),
            };
            format!("attached to {functions} functions of {}{suffix}", shown(path))
        }
        Notice::Wrapped { pid, functions, missing } if missing.is_empty() => {
            format!("process {pid}: tracing {functions} driver functions in-process")
        }
        Notice::Wrapped { pid, functions, missing } => format!(
            "process {pid}: tracing {functions} driver functions in-process; not traced, because \
             their code is not recognized: {}",
            missing.join(", ")
        ),
        Notice::HiddenCalls { pid, functions } => format!(
            "process {pid}: probes of another tool hide calls of {}; values are not exact",
            functions.join(", ")
        ),
        Notice::NotAttached { reason } => format!("not attached: {}", sanitize(reason)),
        Notice::NoDriver => "no libcuda.so.1 installed or in use yet: waiting for a process that \
             loads it; `--driver PATH` names one"
            .to_owned(),
        Notice::NoMmapEvents { reason } => format!(
            "cannot watch for newly loaded drivers ({reason}); rescanning every few seconds"
        ),
        Notice::PythonUnsupported { pid, reason } => {
            format!("process {pid}: no Python frames: {}", sanitize(reason))
        }
        Notice::NoNames { reason } => format!("function names are missing: {}", sanitize(reason)),
        Notice::UsageUnavailable { reason } => {
            format!("driver-reported memory usage is unavailable: {}; retrying", sanitize(reason))
        }
        Notice::TorchAttached { path } => format!("tracking PyTorch tensors via {}", shown(path)),
        Notice::TensorsUnavailable { pid, reason } => {
            format!("process {pid}: tensors not tracked: {}", reason.reason())
        }
        Notice::Detached { path } => format!("detached from {} (no longer in use)", shown(path)),
    });
}
