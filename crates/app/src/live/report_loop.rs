//! The engine thread of a live verb: applies events to the ledger and prints reports.

use anyhow::Result;
use engine::model::{Event, Timestamp};
use engine::snapshot::{EndedHistory, Snapshot, SnapshotOptions};
use formats::export::{CaptureSource, ReportContext};
use formats::report::explain::{self, ExplainHistory};
use formats::report::live::text::overview::LastOptions;
use formats::report::live::text::{TextStyle, overview};

use super::notice::log_notice;
pub(crate) use super::print::LiveView;
use super::print::print;
use super::process_filter::ProcessFilter;
use super::state::LiveState;
use crate::Outcome;
pub(crate) use crate::cli::LiveFormat;
use crate::io::output::{self, ResultOutput};
use crate::live::keeper_search::KeeperSearch;
use crate::live::pipeline::{LiveTrace, PipelineMessage};
use crate::live::recorder::Recorder;

/// What reports contain.
#[derive(Clone, Default)]
pub(crate) struct ReportOptions {
    pub(crate) snapshot: SnapshotOptions,
    /// Maximum number of rows per list of the last report.
    pub(crate) top: usize,
    /// Leak that the last report shows with its evidence and stack.
    pub(crate) leak: Option<usize>,
    /// How to see the evidence of a leak.
    pub(crate) more: String,
    /// Processes to report.
    pub(crate) filter: ProcessFilter,
    /// Reports replace each other on a terminal. Not if a command writes to it, too.
    pub(crate) in_place: bool,
    /// Search for Python references that keep leaking memory alive.
    pub(crate) why: bool,
}

/// The ledger and what is needed to print it.
pub(crate) struct LiveReport {
    state: LiveState,
    options: ReportOptions,
    view: LiveView,
    /// None: nothing is reported, and no ledger is kept.
    format: Option<LiveFormat>,
    style: TextStyle,
    out: ResultOutput,
    ended: EndedHistory,
    explained: ExplainHistory,
    recorder: Option<Recorder>,
    /// A ledger is kept for requests of programs, also if nothing is reported.
    answers_requests: bool,
    keepers: KeeperSearch,
    /// Reason why capture ended early.
    failure: Option<anyhow::Error>,
    /// Log which libraries are probed.
    pub(crate) verbose: bool,
}

impl LiveReport {
    pub(crate) fn new(
        live: &LiveTrace,
        options: ReportOptions,
        view: LiveView,
        format: impl Into<Option<LiveFormat>>,
        out: ResultOutput,
    ) -> Self {
        Self {
            state: LiveState::new(live),
            options,
            view,
            format: format.into(),
            style: out.style,
            out,
            ended: EndedHistory::default(),
            explained: ExplainHistory::default(),
            recorder: None,
            answers_requests: live.source == CaptureSource::InProcess,
            keepers: KeeperSearch::default(),
            failure: None,
            verbose: true,
        }
    }

    /// Declares functions that are never the headline of a call stack.
    pub(crate) fn add_wrappers(&mut self, names: &[String]) {
        self.state.ledger.add_wrappers(names.iter().map(String::as_str));
    }

    /// Records all events from now on.
    pub(crate) fn record(
        &mut self,
        start: impl FnOnce(&ReportContext) -> Result<Recorder>,
    ) -> Result<()> {
        self.recorder = Some(start(&self.state.context)?);
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

    /// Flushes the recording and answers requests; to be called several times a second.
    pub(crate) fn tick(&mut self) {
        self.state.tick();
        if let Some(recorder) = &mut self.recorder {
            recorder.flush_due(capture::monotonic());
        }
    }

    /// Handles a message of the capture thread.
    pub(crate) fn handle(&mut self, message: PipelineMessage) {
        match message {
            PipelineMessage::Events(events) => events.iter().for_each(|event| self.event(event)),
            // A recording starts without these GPUs, and its replay must print the same.
            PipelineMessage::Gpus(_) if self.recorder.is_some() => {}
            PipelineMessage::Notice(notice) if self.verbose => log_notice(&notice),
            other => {
                if let Err(error) = self.state.apply(other) {
                    self.failure = Some(error);
                }
            }
        }
        self.state.tick();
    }

    /// Records and applies an event.
    fn event(&mut self, event: &Event) {
        if let Some(recorder) = &mut self.recorder {
            recorder.event(event);
        }
        if self.format.is_some() || self.answers_requests {
            self.state.ledger.apply(event);
        }
    }

    /// Prints a report of the current state.
    pub(crate) fn report(&mut self) -> Result<()> {
        let now = capture::monotonic();
        if let Some(recorder) = &mut self.recorder {
            recorder.tick(now, self.format.is_none());
        }
        let snapshot = self.state.ledger.snapshot(now, &self.options.snapshot);
        if self.options.why {
            self.keepers.search(&snapshot.suspects);
        }
        self.print(&snapshot)?;
        self.ended.push_snapshot(snapshot);
        Ok(())
    }

    /// Detaches the probes and prints the final report, which includes processes that exited during
    /// the trace. The outcome is incomplete if the recording failed or if capture ended early; in
    /// the latter case the report is of that time, and not exact.
    pub(crate) fn finish(&mut self, live: LiveTrace) -> Result<(Snapshot, Outcome)> {
        let (remaining, complete_until) = live.finish();
        for message in remaining {
            self.handle(message);
        }
        let now = if self.has_failed() { complete_until } else { capture::monotonic() };
        let mut outcome = self.finish_recording(now);
        let snapshot_options = SnapshotOptions { ended_sites: true, ..self.options.snapshot };
        let mut last = self.state.ledger.snapshot(now, &snapshot_options);
        if let Some(error) = self.failure.take() {
            last.mark_capture_ended(now);
            outcome = Outcome::Incomplete;
            output::fail(&error);
        }
        self.ended.merge_into(&mut last);
        self.options.filter.apply(&mut last);
        self.style.last = true;
        self.out.clear_block()?;
        self.print(&last)?;
        let unlisted = self.ended.dropped() + self.state.ledger.dropped_ended();
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
        let Some(format) = self.format else { return Ok(()) };
        let mut filtered = None;
        if !self.options.filter.is_empty() {
            let mut selected = snapshot.clone();
            self.options.filter.apply(&mut selected);
            filtered = Some(selected);
        }
        let snapshot = filtered.as_ref().unwrap_or(snapshot);
        let (context, style) = (&self.state.context, self.style);
        if self.view == LiveView::Explain {
            self.explained.observe(snapshot);
            return if style.last { self.print_explained(format) } else { Ok(()) };
        }
        // Without a known size, lines may wrap.
        let in_place = self.options.in_place && style.rows.is_some() && !style.last;
        if in_place && self.view == LiveView::Overview && format == LiveFormat::Text {
            let (mut news, mut block) = (Vec::new(), Vec::new());
            overview::news(&mut news, snapshot, context, style)?;
            overview::block(&mut block, snapshot, context, style)?;
            return Ok(self.out.replace_block(&news, &block)?);
        }
        let ReportOptions { top, leak, more, .. } = &self.options;
        let last = LastOptions { top: *top, leak: *leak, more };
        print(&mut *self.out.writer, self.view, format, snapshot, context, style, &last)
    }

    fn print_explained(&mut self, format: LiveFormat) -> Result<()> {
        let report = std::mem::take(&mut self.explained).report(&self.state.context);
        let out = &mut *self.out.writer;
        match format {
            LiveFormat::Json => writeln!(out, "{}", serde_json::to_string(&report)?)?,
            LiveFormat::Text => explain::write(out, &report, self.style, self.options.top)?,
        }
        Ok(out.flush()?)
    }

    /// Returns the names and the clock of the reports.
    pub(crate) const fn context(&self) -> &ReportContext {
        &self.state.context
    }
}
