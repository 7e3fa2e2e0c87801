//! The writer thread of incidents: diagnoses the cause, derives advice and writes the directory.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result};
use engine::model::{Bytes, FailedCall, FunctionId, Nanos, Pid, Timestamp};
use engine::oom::{self, GpuSharingHint, HostMemory, OomContext, RequestedResource, diagnose};
use formats::export::ReportContext;
use formats::report::advice::{AdviceRequest, GpuAdvice, gpu_advice};
use formats::report::html::InitialView;
use formats::report::incident::{
    self, FailedRequest, HolderGrowth, INCIDENT_FILE, IncidentJson, IncidentReport, RECORDING_FILE,
    SNAPSHOT_FILE, SUMMARY_FILE, Trigger,
};
use formats::report::live::json;
use formats::sanitize::{error_chain, sanitize};

use super::super::collect::event_ring::EventWindow;
use super::super::collect::holder_history::HolderHistory;
use super::super::job::{FailedAllocation, IncidentJob, IncidentUpdate, WriterCommand};
use super::super::{IncidentNotice, IncidentView};
use super::html::{HtmlRenderer, RenderResult};
use super::{directory, host_facts, recording, untraced_holders, write_error};
use crate::AgentState;
use crate::files::durable_file::DurableFile;
use crate::source::WriteHtml;

/// Poll interval for snapshots.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Number of incidents that can still be updated.
const MAX_REWRITABLE: usize = 10;

/// Handles commands until the feed is closed.
pub(crate) fn run(
    shared: &Arc<AgentState>,
    commands: &Receiver<WriterCommand>,
    write_html: WriteHtml,
) -> Result<()> {
    let mut writer = IncidentWriter::new(Arc::clone(shared), write_html);
    let mut seen = 0;
    loop {
        match commands.recv_timeout(POLL_INTERVAL) {
            Ok(command) => writer.handle(command),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(POLL_INTERVAL),
        }
        if let Some(published) = shared.feed.newer(seen, Duration::ZERO) {
            seen = published.sequence;
            writer.history.observe(&published.snapshot);
            shared.incidents.show_idle(writer.history.all_idle(published.snapshot.at));
        }
        writer.poll_pages();
        if shared.feed.is_closed() {
            commands.try_iter().for_each(|command| writer.handle(command));
            writer.finish_pages();
            return Ok(());
        }
    }
}

struct IncidentWriter {
    shared: Arc<AgentState>,
    root: PathBuf,
    host: String,
    history: HolderHistory,
    pages: HtmlRenderer,
    views: Vec<IncidentView>,
    /// The last incidents, newest last.
    recent: VecDeque<WrittenIncident>,
}

/// An incident with all of its data.
struct WrittenIncident {
    id: String,
    job: IncidentJob,
    failure: Option<FailedRequest>,
    free_estimate: Option<Bytes>,
    grown: Vec<HolderGrowth>,
    advice: Vec<GpuAdvice>,
    events: u64,
    errors: u64,
    recovered: bool,
    page: String,
    write_delay: Nanos,
    dir: PathBuf,
}

impl WrittenIncident {
    fn report<'a>(&'a self, host: &'a str) -> IncidentReport<'a> {
        let job = &self.job;
        IncidentReport {
            id: &self.id,
            trigger: job.trigger,
            at: job.at,
            host,
            requester: job.requester.as_ref(),
            limit: job.limit.as_deref(),
            failed_request: self.failure.as_ref(),
            device: job.device,
            gpu: job.gpu,
            free_estimate: self.free_estimate,
            holders: &job.holders,
            grown: &self.grown,
            advice: &self.advice,
            snapshot: &job.published.snapshot,
            context: &job.published.context,
            errors: self.errors,
            recovered: self.recovered,
            skipped: job.skipped,
            events: self.events,
            page: &self.page,
            write_delay: self.write_delay,
        }
    }

    fn summary(&self, host: &str) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        incident::write_text(&mut text, &self.report(host))?;
        Ok(text)
    }
}

impl IncidentWriter {
    fn new(shared: Arc<AgentState>, write_html: WriteHtml) -> Self {
        let root = shared.config.incidents_dir();
        let mut writer = Self {
            host: formats::hostname::name(),
            history: HolderHistory::default(),
            pages: HtmlRenderer::new(write_html),
            views: Vec::new(),
            recent: VecDeque::new(),
            root,
            shared,
        };
        if writer.shared.config.incidents.enabled {
            directory::remove_unfinished(&writer.root);
            writer.views = directory::list(&writer.root);
            writer.apply_retention();
        }
        writer
    }

    fn handle(&mut self, command: WriterCommand) {
        match command {
            WriterCommand::Write(job) => self.write(*job),
            WriterCommand::Update(update) => self.update(update),
        }
    }

    fn write(&mut self, job: IncidentJob) {
        let trigger = job.trigger;
        let mut incident = self.analyze(job);
        match self.write_dir(&mut incident) {
            Ok(()) => {
                self.shared.incidents.count(trigger.name(), "written");
                self.log_incident(&incident);
                self.show(&incident, None);
            }
            Err(error) => {
                self.shared.incidents.count(trigger.name(), "failed");
                tracing::warn!(
                    "cannot write the incident {}: {}; {}; the summary is available at \
                     /api/v1/incidents until the next incident",
                    incident.id,
                    error_chain(error.as_ref()),
                    write_error::advice_for(&error)
                );
                let summary = self.summary_text(&incident);
                self.show(&incident, Some(summary));
            }
        }
        // The events are in the file by now.
        incident.job.window = EventWindow::default();
        incident.job.sites = Vec::new();
        if self.recent.len() >= MAX_REWRITABLE {
            self.recent.pop_front();
        }
        let rejected = self.request_page(&incident);
        let number = incident.job.number;
        self.recent.push_back(incident);
        self.apply_retention();
        // Errors are announced when their process had time to recover.
        if trigger != Trigger::OutOfMemory {
            self.announce(number);
        }
        if let Some((number, reason)) = rejected {
            self.page_finished(number, reason);
        }
        self.poll_pages();
    }

    /// Returns the summary as the API may show it.
    fn summary_text(&self, incident: &WrittenIncident) -> String {
        let (mut text, report) = (Vec::new(), incident.report(&self.host));
        let written = if self.shared.config.http.show_paths {
            incident::write_text(&mut text, &report)
        } else {
            incident::write_redacted(&mut text, &report)
        };
        written.map_or_else(|_| String::new(), |()| String::from_utf8_lossy(&text).into_owned())
    }

    /// Diagnoses the cause and derives advice.
    fn analyze(&self, mut job: IncidentJob) -> WrittenIncident {
        let snapshot = &job.published.snapshot;
        let context = &job.published.context;
        let pid = job.requester.as_ref().map(|requester| requester.pid);
        untraced_holders::add_untraced(&mut job.holders, snapshot, (job.gpu, job.device), pid);
        let held: Vec<_> = job.holders.iter().map(|one| (one.key.pid, one.live_bytes)).collect();
        let total = job.gpu.and_then(|gpu| context.gpu(gpu)).map(|gpu| Bytes(gpu.total_bytes));
        let oom_context = OomContext {
            pid: Pid(0),
            requested: RequestedResource::Other,
            device: job.device,
            gpu: job.gpu,
            holders: &held,
            snapshot,
            total: total.filter(|total| total.0 > 0),
            cached: job.cached,
            host: HostMemory::default(),
            hints: &[],
        };
        let failure =
            job.call.as_ref().map(|call| failed_request(call, pid, context, &oom_context));
        // Driver-reported usage may be a second old; the diagnosis is of the time of the error.
        let free_estimate = match &failure {
            Some(failure) => failure.diagnosis.memory.free_estimated,
            None => oom::estimated_free(&oom_context),
        };
        let cause = failure.as_ref().map(|one| one.diagnosis.cause);
        let requester =
            job.requester.as_ref().filter(|_| job.call.is_some()).map(|requester| requester.pid);
        let idle = |process: &_| self.history.idle(process, snapshot.at);
        let own = Some(Pid(std::process::id()));
        let request = AdviceRequest { gpu: job.gpu, only: &[], requester, cause, idle: &idle, own };
        let mut advice = gpu_advice(&request, snapshot, context);
        for gpu in advice.iter_mut().filter(|gpu| free_estimate.is_some() && gpu.gpu.is_some()) {
            gpu.free_bytes = free_estimate.map(|free| free.0);
        }
        WrittenIncident {
            id: self.id(&job),
            failure,
            free_estimate,
            grown: self.history.growth(snapshot, job.gpu),
            advice,
            events: 0,
            errors: u64::from(job.call.is_some()),
            recovered: false,
            page: if self.shared.config.incidents.html_report {
                incident::HTML_PENDING
            } else {
                "disabled"
            }
            .into(),
            write_delay: Nanos(0),
            dir: PathBuf::new(),
            job,
        }
    }

    /// Returns an unused name: time, trigger, GPU and process.
    fn id(&self, job: &IncidentJob) -> String {
        let gpu = job.gpu.map_or_else(String::new, |gpu| format!("-gpu{}", gpu.0));
        let pid = job
            .requester
            .as_ref()
            .map_or_else(String::new, |requester| format!("-pid{}", requester.pid));
        let time = stamp(&job.published.context, job.at);
        let name = format!("{time}-{}{gpu}{pid}", job.trigger.short());
        let is_used = |name: &str| {
            self.root.join(name).exists() || self.recent.iter().any(|incident| incident.id == name)
        };
        let others = (2..100).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone()).chain(others).find(|name| !is_used(name)).unwrap_or(name)
    }

    /// Writes everything but the HTML report, which takes longer.
    fn write_dir(&self, incident: &mut WrittenIncident) -> Result<()> {
        let context = || format!("in {}", self.root.display());
        let new =
            directory::NewIncidentDir::create(&self.root, &incident.id).with_context(context)?;
        let published = &incident.job.published;
        let mut line = json::line(&published.snapshot, &published.context)?;
        line.push('\n');
        new.write(SNAPSHOT_FILE, line.as_bytes()).with_context(context)?;
        incident.events =
            recording::write(new.file(RECORDING_FILE)?, &incident.job).with_context(context)?;
        incident.write_delay = incident.job.age();
        new.write(SUMMARY_FILE, &incident.summary(&self.host)?).with_context(context)?;
        new.write(INCIDENT_FILE, &object(&incident.report(&self.host))?).with_context(context)?;
        incident.dir = new.finish().with_context(context)?;
        incident.write_delay = incident.job.age();
        Ok(())
    }

    fn log_incident(&self, incident: &WrittenIncident) {
        let object = IncidentJson::new(&incident.report(&self.host));
        tracing::warn!(
            "{}; see {} ({} ms after it)",
            object.title,
            sanitize(&incident.dir.to_string_lossy()),
            incident.write_delay.millis()
        );
    }

    /// Queues the HTML report. Returns a result if it is rejected.
    fn request_page(&mut self, incident: &WrittenIncident) -> Option<RenderResult> {
        if !self.shared.config.incidents.html_report || !incident.dir.is_dir() {
            return None;
        }
        let is_oom = incident.job.trigger == Trigger::OutOfMemory;
        let initial_view = if is_oom { InitialView::Peak } else { InitialView::Sites };
        let rejected = self.pages.add(incident.job.number, &incident.dir, initial_view);
        if let Some((_, reason)) = &rejected {
            tracing::warn!("no HTML report of {}: {reason}", incident.id);
        }
        rejected
    }

    /// Updates incidents whose HTML reports are finished.
    fn poll_pages(&mut self) {
        if let Some((number, page)) = self.pages.poll() {
            self.page_finished(number, page);
        }
    }

    fn finish_pages(&mut self) {
        for (number, page) in self.pages.finish() {
            self.page_finished(number, page);
        }
    }

    fn page_finished(&mut self, number: u64, page: String) {
        self.change(number, |incident| incident.page = page);
        let incident = self.recent.iter().find(|one| one.job.number == number);
        let Some(incident) = incident else { return };
        let bytes = directory::size(&incident.dir);
        let id = incident.id.clone();
        if let Some(view) = self.views.iter_mut().find(|view| view.id == id) {
            view.size_bytes = bytes;
        }
        self.apply_retention();
    }

    /// Updates an incident with what became known later. It is complete now.
    fn update(&mut self, update: IncidentUpdate) {
        if update.errors > 1 || update.recovered {
            self.change(update.number, |incident| {
                incident.errors = update.errors;
                incident.recovered = update.recovered;
            });
        }
        self.announce(update.number);
    }

    /// Announces a written incident to receivers of alerts.
    fn announce(&self, number: u64) {
        let Some(incident) = self.recent.iter().find(|one| one.job.number == number) else {
            return;
        };
        if !incident.dir.is_dir() {
            return;
        }
        let requester = incident.job.requester.as_ref().map(|requester| requester.pid);
        let mut processes = incident.job.published.snapshot.processes.iter();
        let process = processes.find(|process| Some(process.key.pid) == requester);
        let uid = process.and_then(|process| process.uid);
        let object = IncidentJson::new(&incident.report(&self.host));
        let notice = IncidentNotice::new(&object, incident.job.trigger, &incident.dir, uid);
        self.shared.incidents.announce(notice);
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut WrittenIncident)) {
        if let Some(incident) = self.recent.iter_mut().find(|one| one.job.number == number) {
            change(incident);
            if incident.dir.is_dir() {
                rewrite(incident, &self.host);
            }
        }
    }

    /// Lists an incident; with its summary if there is no directory.
    fn show(&mut self, incident: &WrittenIncident, summary: Option<String>) {
        let object = IncidentJson::new(&incident.report(&self.host));
        let path = self.root.join(&incident.id);
        let mut view = directory::view(&object, &path);
        view.written = summary.is_none();
        if summary.is_some() {
            // Only the latest summary is kept in memory.
            self.views.retain(|view| view.written);
        }
        view.summary_text = summary;
        self.views.retain(|known| known.id != view.id);
        self.views.insert(0, view);
        self.shared.incidents.show(self.views.clone());
    }

    fn apply_retention(&mut self) {
        let config = &self.shared.config.incidents;
        let (written, unwritten): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.views).into_iter().partition(|view| view.written);
        let last = self.recent.back().map(|incident| incident.id.as_str());
        let (remaining, errors) =
            directory::retain(written, config.retention_count, config.retention_size.0, last);
        if let Some(error) = errors.first() {
            tracing::warn!(
                "cannot remove old incidents in {}: {error}; remove them manually",
                sanitize(&self.root.to_string_lossy())
            );
        }
        self.views = unwritten.into_iter().chain(remaining).collect();
        self.views.sort_by(|a, b| b.id.cmp(&a.id));
        self.shared.incidents.show(self.views.clone());
    }
}

/// Rewrites the text files of an incident. On failure the old ones stay.
fn rewrite(incident: &WrittenIncident, host: &str) {
    let write = || -> Result<()> {
        let (summary, text) = (incident.summary(host)?, object(&incident.report(host))?);
        DurableFile::write(incident.dir.join(SUMMARY_FILE), |out| out.write_all(&summary))?;
        Ok(DurableFile::write(incident.dir.join(INCIDENT_FILE), |out| out.write_all(&text))?)
    };
    if let Err(error) = write() {
        tracing::warn!(
            "cannot update the incident {}: {}; the old files stay",
            incident.id,
            error_chain(error.as_ref())
        );
    }
}

/// Diagnoses a failed call.
fn failed_request(
    call: &FailedAllocation,
    pid: Option<Pid>,
    context: &ReportContext,
    oom_context: &OomContext<'_>,
) -> FailedRequest {
    let function = context.function(call.failed.function).into_owned();
    let requested = requested(&call.failed, &function);
    let framework = call.failed.function == FunctionId::FRAMEWORK;
    let mut hints = host_facts::hints(pid);
    hints.extend(framework.then_some(GpuSharingHint::MemoryFraction));
    let diagnosis = diagnose(&OomContext {
        pid: pid.unwrap_or(Pid(0)),
        requested,
        host: host_facts::host_memory(pid),
        hints: &hints,
        ..*oom_context
    });
    let (site, frames) = (call.site, call.frames.clone());
    FailedRequest { requested, function: function.into(), site, frames, diagnosis }
}

/// Returns what a failed call requested.
fn requested(failed: &FailedCall, function: &str) -> RequestedResource {
    match failed.requested {
        Some((kind, bytes)) => RequestedResource::Memory(kind, Bytes(bytes)),
        None if function.starts_with("cuMemAddressReserve") => RequestedResource::Addresses,
        None => RequestedResource::Other,
    }
}

fn object(report: &IncidentReport<'_>) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(&IncidentJson::new(report))?;
    text.push(b'\n');
    Ok(text)
}

/// Formats a time for directory names, in UTC.
fn stamp(context: &ReportContext, at: Timestamp) -> String {
    let nanos = context.clock.nanos(at);
    let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H-%M-%S%.3fZ").to_string()
}
