//! The engine thread of a live verb: applies events to the ledger and prints reports.

use anyhow::Result;
use capture::gpus::Gpu;
use capture::hooks::function_name;
use capture::session::Notice;
use engine::ledger::Ledger;
use engine::snapshot::{Snapshot, View};
use engine::units::Moment;
use formats::WallClock;
use formats::export::text::Style;
use formats::export::{GpuName, Names};
use formats::plain::plain;
use formats::recording::Functions;

use super::ended::Ended;
use super::print::print;
pub(crate) use super::print::{Format, Subject};
use crate::Outcome;
use crate::outfile::shown;
use crate::output::{self, Results};
use crate::pipeline::{Live, Message, end_capture};
use crate::recorder::Recorder;

/// The ledger and what is needed to print it.
pub(crate) struct LiveReport {
    ledger: Ledger,
    view: View,
    subject: Subject,
    /// None: nothing is reported, and no ledger is kept.
    format: Option<Format>,
    names: Names,
    style: Style,
    out: Results,
    ended: Ended,
    recorder: Option<Recorder>,
    /// Reason why capture ended early.
    failure: Option<anyhow::Error>,
    /// Log which libraries are probed.
    pub(crate) verbose: bool,
}

impl LiveReport {
    pub(crate) fn new(
        live: &Live,
        view: View,
        subject: Subject,
        format: impl Into<Option<Format>>,
        out: Results,
    ) -> Self {
        let clock = WallClock::now(capture::monotonic());
        let gpus = gpu_names(&live.gpus);
        let ledger = Ledger::new();
        Self {
            ledger: if live.counts_work { ledger.following_work() } else { ledger },
            view,
            subject,
            format: format.into(),
            names: Names { clock, function: function_name, recorded: Functions::default(), gpus },
            style: out.style,
            out,
            ended: Ended::default(),
            recorder: None,
            failure: None,
            verbose: true,
        }
    }

    /// Records all events from now on.
    pub(crate) fn record(&mut self, start: impl FnOnce(&Names) -> Result<Recorder>) -> Result<()> {
        self.recorder = Some(start(&self.names)?);
        Ok(())
    }

    /// Whether events are being recorded; false after a failure.
    pub(crate) fn records(&self) -> bool {
        self.recorder.as_ref().is_some_and(Recorder::is_running)
    }

    /// Whether capture ended early: only the final report follows.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Flushes the recording; to be called several times a second.
    pub(crate) fn keep_up(&mut self) {
        if let Some(recorder) = &mut self.recorder {
            recorder.keep_up(capture::monotonic());
        }
    }

    /// Handles a message of the capture thread.
    pub(crate) fn take(&mut self, message: Message) {
        match message {
            Message::Events(events) => {
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
            Message::Gpus(_) if self.recorder.is_some() => {}
            Message::Gpus(gpus) => self.names.gpus = gpu_names(&gpus),
            Message::Notice(notice) if self.verbose || notice.is_trouble() => tell(&notice),
            Message::Notice(_) => {}
            Message::Failed(error) => self.failure = Some(error),
        }
    }

    /// Prints a report of the current state.
    pub(crate) fn report(&mut self) -> Result<()> {
        let now = capture::monotonic();
        if let Some(recorder) = &mut self.recorder {
            recorder.tick(now, self.format.is_none());
        }
        let snapshot = self.ledger.snapshot(now, &self.view);
        self.print(&snapshot)?;
        self.ended.remember(snapshot);
        Ok(())
    }

    /// Detaches the probes and prints the final report, which includes processes that exited during
    /// the trace. The outcome is incomplete if the recording failed or if capture ended early; in
    /// the latter case the report is of that time, and not exact.
    pub(crate) fn finish(mut self, live: Live) -> Result<(Snapshot, Outcome)> {
        let (remaining, complete_until) = live.finish();
        for message in remaining {
            self.take(message);
        }
        let now = if self.has_failed() { complete_until } else { capture::monotonic() };
        let mut outcome = self.finish_recording(now);
        let view = View { ended_sites: true, ..self.view };
        let mut last = self.ledger.snapshot(now, &view);
        if let Some(error) = self.failure.take() {
            end_capture(&mut last, now);
            outcome = Outcome::Incomplete;
            output::complain(&format!("error: {}", output::reasons(&error)));
        }
        self.ended.recall_into(&mut last);
        self.style.last = true;
        self.print(&last)?;
        let unlisted = self.ended.dropped() + self.ledger.unlisted_ends();
        if unlisted > 0 {
            output::complain(&format!(
                "{unlisted} exited processes are not listed in the final report"
            ));
        }
        Ok((last, outcome))
    }

    /// Ends the recording. If capture failed, the end row is missing, as after a crash; the file
    /// stays readable.
    fn finish_recording(&mut self, now: Moment) -> Outcome {
        match self.recorder.take() {
            Some(recorder) if self.has_failed() => recorder.interrupt(),
            Some(recorder) => recorder.finish(now),
            None => Outcome::Fine,
        }
    }

    fn print(&mut self, snapshot: &Snapshot) -> Result<()> {
        let out = &mut *self.out.writer;
        match self.format {
            Some(format) => print(out, self.subject, format, snapshot, &self.names, self.style),
            None => Ok(()),
        }
    }
}

pub(super) fn gpu_names(gpus: &[Gpu]) -> Vec<GpuName> {
    gpus.iter()
        .map(|gpu| GpuName {
            id: gpu.id,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            total_bytes: gpu.total_bytes,
        })
        .collect()
}

pub(super) fn tell(notice: &Notice) {
    output::complain(&match notice {
        Notice::Attached { path, functions, stepped } => {
            let suffix = match stepped {
                0 => String::new(),
                n => format!(" ({n} of them single-stepped (slow))"),
            };
            format!("attached to {functions} functions of {}{suffix}", shown(path))
        }
        Notice::NotAttached { reason } => format!("not attached: {}", plain(reason)),
        Notice::NoDriver => "no libcuda.so.1 installed or in use yet: waiting for a process that \
             loads it; `--driver PATH` names one"
            .to_owned(),
        Notice::SlowWatch { reason } => format!(
            "cannot watch for newly loaded drivers ({reason}); rescanning every few seconds"
        ),
        Notice::NoPython { pid, reason } => {
            format!("process {pid}: no Python frames: {}", plain(reason))
        }
        Notice::NoNames { reason } => format!("function names are missing: {}", plain(reason)),
        Notice::NoAccount { reason } => {
            format!("driver-reported memory usage is unavailable: {}; retrying", plain(reason))
        }
        Notice::Tensors { path } => format!("tracking PyTorch tensors via {}", shown(path)),
        Notice::NoTensors { pid, reason } => {
            format!("process {pid}: tensors not tracked: {}", reason.reason())
        }
        Notice::Released { path } => format!("detached from {} (no longer in use)", shown(path)),
    });
}
