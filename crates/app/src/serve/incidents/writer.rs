//! The writer thread of incidents: diagnoses the cause, derives advice and writes the directory.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result};
use engine::diagnosis::{self, Asked, Host, Scene, diagnose};
use engine::event::Failed;
use engine::ids::Pid;
use engine::units::{Bytes, Moment, Nanos};
use formats::export::advice::GpuAdvice;
use formats::export::incident::{
    self, Grown, IncidentObject, OBJECT, RECORDING, Refused, SNAPSHOT, SUMMARY, Story, Trigger,
};
use formats::export::page::Opens;
use formats::export::{Names, json};
use formats::plain::plain;

use super::history::History;
use super::job::{Call, Job, Order, Update};
use super::pages::{Made, Pages};
use super::recent::Excerpt;
use super::{IncidentView, folder, holders, host, recording, unwritten};
use crate::advising::{self, Question};
use crate::output;
use crate::serve::Shared;
use crate::serve::actions::Actor;

/// Poll interval for snapshots.
const ATTENTION: Duration = Duration::from_millis(100);

/// Number of incidents that can still be updated.
const KEPT: usize = 10;

/// Handles commands until the feed is closed.
pub(crate) fn run(shared: &Arc<Shared>, commands: &Receiver<Order>) -> Result<()> {
    let mut writer = Writer::new(Arc::clone(shared));
    let mut seen = 0;
    loop {
        match commands.recv_timeout(ATTENTION) {
            Ok(command) => writer.handle(command),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(ATTENTION),
        }
        if let Some(published) = shared.feed.newer(seen, Duration::ZERO) {
            seen = published.sequence;
            writer.history.note(&published.snapshot);
            shared.incidents.show_idle(writer.history.all_idle(published.snapshot.at));
            writer.actions.look(&published.snapshot, &writer.history);
        }
        writer.actions.tend();
        writer.poll_pages();
        if shared.feed.is_closed() {
            commands.try_iter().for_each(|command| writer.handle(command));
            writer.finish_pages();
            return Ok(());
        }
    }
}

struct Writer {
    shared: Arc<Shared>,
    root: PathBuf,
    host: String,
    history: History,
    actions: Actor,
    pages: Pages,
    views: Vec<IncidentView>,
    /// The last incidents, newest last.
    recent: VecDeque<Told>,
}

/// An incident with all of its data.
struct Told {
    id: String,
    job: Job,
    failure: Option<Refused>,
    free_then: Option<Bytes>,
    grown: Vec<Grown>,
    advice: Vec<GpuAdvice>,
    events: u64,
    errors: u64,
    recovered: bool,
    page: String,
    took: Nanos,
    dir: PathBuf,
}

impl Told {
    fn report<'a>(&'a self, host: &'a str) -> Story<'a> {
        let job = &self.job;
        Story {
            id: &self.id,
            trigger: job.trigger,
            at: job.at,
            host,
            who: job.requester.as_ref(),
            limit: job.limit.as_deref(),
            refused: self.failure.as_ref(),
            device: job.device,
            gpu: job.gpu,
            free_then: self.free_then,
            holders: &job.holders,
            grown: &self.grown,
            advice: &self.advice,
            snapshot: &job.published.snapshot,
            names: &job.published.names,
            errors: self.errors,
            recovered: self.recovered,
            skipped: job.skipped,
            events: self.events,
            page: &self.page,
            took: self.took,
        }
    }

    fn summary(&self, host: &str) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        incident::write_text(&mut text, &self.report(host))?;
        Ok(text)
    }
}

impl Writer {
    fn new(shared: Arc<Shared>) -> Self {
        let root = shared.config.incidents_dir();
        let mut writer = Self {
            host: crate::host::name(),
            history: History::default(),
            actions: Actor::new(&shared),
            pages: Pages::default(),
            views: Vec::new(),
            recent: VecDeque::new(),
            root,
            shared,
        };
        if writer.shared.config.incidents.enabled {
            folder::remove_unfinished(&writer.root);
            writer.views = folder::list(&writer.root);
            writer.apply_retention();
        }
        writer
    }

    fn handle(&mut self, command: Order) {
        match command {
            Order::Write(job) => self.write(*job),
            Order::Update(update) => self.update(update),
        }
    }

    fn write(&mut self, job: Job) {
        let trigger = job.trigger;
        let mut incident = self.analyze(job);
        let cause = incident.failure.as_ref().map(|one| one.diagnosis.cause);
        self.actions.incident(&incident.job, cause, &self.history);
        match self.write_dir(&mut incident) {
            Ok(()) => {
                self.shared.incidents.count(trigger.name(), "written");
                self.log_incident(&incident);
                self.show(&incident, None);
            }
            Err(error) => {
                self.shared.incidents.count(trigger.name(), "failed");
                output::complain(&format!(
                    "cannot write the incident {}: {}; {}; the summary is available at \
                     /api/v1/incidents until the next incident",
                    incident.id,
                    output::reasons(&error),
                    unwritten::hint(&error)
                ));
                let summary = self.summary_text(&incident);
                self.show(&incident, Some(summary));
            }
        }
        // The events are in the file by now.
        incident.job.window = Excerpt::default();
        incident.job.sites = Vec::new();
        if self.recent.len() >= KEPT {
            self.recent.pop_front();
        }
        let rejected = self.request_page(&incident);
        self.recent.push_back(incident);
        self.apply_retention();
        if let Some((number, why)) = rejected {
            self.page_finished(number, why);
        }
        self.poll_pages();
    }

    /// Returns the summary as the API may show it.
    fn summary_text(&self, incident: &Told) -> String {
        let (mut text, report) = (Vec::new(), incident.report(&self.host));
        let written = if self.shared.config.http.show_paths {
            incident::write_text(&mut text, &report)
        } else {
            incident::write_without_folders(&mut text, &report)
        };
        written.map_or_else(|_| String::new(), |()| String::from_utf8_lossy(&text).into_owned())
    }

    /// Diagnoses the cause and derives advice.
    fn analyze(&self, mut job: Job) -> Told {
        let snapshot = &job.published.snapshot;
        let names = &job.published.names;
        let pid = job.requester.as_ref().map(|requester| requester.pid);
        holders::complete(&mut job.holders, snapshot, (job.gpu, job.device), pid);
        let held: Vec<_> = job.holders.iter().map(|one| (one.key.pid, one.live_bytes)).collect();
        let total = job.gpu.and_then(|gpu| names.gpu(gpu)).map(|gpu| Bytes(gpu.total_bytes));
        let context = Scene {
            pid: Pid(0),
            asked: Asked::Other,
            device: job.device,
            gpu: job.gpu,
            holders: &held,
            snapshot,
            total: total.filter(|total| total.0 > 0),
            cached: job.cached,
            host: Host::default(),
            hints: &[],
        };
        let failure = job.call.as_ref().map(|call| failed_request(call, pid, names, &context));
        // Driver-reported usage may be a second old; the diagnosis is of the time of the error.
        let free_then = match &failure {
            Some(failure) => failure.diagnosis.figures.free,
            None => diagnosis::free(&context),
        };
        let cause = failure.as_ref().map(|one| one.diagnosis.cause);
        let requester = job.requester.as_ref().filter(|_| job.call.is_some()).map(|who| who.pid);
        let idle = |process: &_| self.history.idle(process, snapshot.at);
        let request =
            Question { gpu: job.gpu, only: &[], requester, cause, idle: &idle, local: true };
        let mut advice = advising::answer(&request, snapshot, names);
        for gpu in advice.iter_mut().filter(|gpu| free_then.is_some() && gpu.gpu.is_some()) {
            gpu.free_bytes = free_then.map(|free| free.0);
        }
        Told {
            id: self.id(&job),
            failure,
            free_then,
            grown: self.history.grown(snapshot, job.gpu),
            advice,
            events: 0,
            errors: u64::from(job.call.is_some()),
            recovered: false,
            page: if self.shared.config.incidents.html_report {
                incident::FOLLOWS
            } else {
                "disabled"
            }
            .into(),
            took: Nanos(0),
            dir: PathBuf::new(),
            job,
        }
    }

    /// Returns an unused name: time, trigger, GPU and process.
    fn id(&self, job: &Job) -> String {
        let gpu = job.gpu.map_or_else(String::new, |gpu| format!("-gpu{}", gpu.0));
        let pid = job.requester.as_ref().map_or_else(String::new, |who| format!("-pid{}", who.pid));
        let time = stamp(&job.published.names, job.at);
        let name = format!("{time}-{}{gpu}{pid}", job.trigger.short());
        let is_used = |name: &str| {
            self.root.join(name).exists() || self.recent.iter().any(|incident| incident.id == name)
        };
        let others = (2..100).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone()).chain(others).find(|name| !is_used(name)).unwrap_or(name)
    }

    /// Writes everything but the HTML report, which takes longer.
    fn write_dir(&self, incident: &mut Told) -> Result<()> {
        let context = || format!("in {}", self.root.display());
        let new = folder::NewFolder::create(&self.root, &incident.id).with_context(context)?;
        let published = &incident.job.published;
        let mut line = json::line(&published.snapshot, &published.names)?;
        line.push('\n');
        new.write(SNAPSHOT, line.as_bytes()).with_context(context)?;
        incident.events =
            recording::write(new.file(RECORDING)?, &incident.job).with_context(context)?;
        incident.took = incident.job.age();
        new.write(SUMMARY, &incident.summary(&self.host)?).with_context(context)?;
        new.write(OBJECT, &object(&incident.report(&self.host))?).with_context(context)?;
        incident.dir = new.finish().with_context(context)?;
        incident.took = incident.job.age();
        Ok(())
    }

    fn log_incident(&self, incident: &Told) {
        let object = IncidentObject::new(&incident.report(&self.host));
        output::complain(&format!(
            "{}; see {} ({} ms after it)",
            object.title,
            plain(&incident.dir.to_string_lossy()),
            incident.took.millis()
        ));
    }

    /// Queues the HTML report. Returns a result if it is rejected.
    fn request_page(&mut self, incident: &Told) -> Option<Made> {
        if !self.shared.config.incidents.html_report || !incident.dir.is_dir() {
            return None;
        }
        let is_oom = incident.job.trigger == Trigger::OutOfMemory;
        let opens = if is_oom { Opens::Peak } else { Opens::Sites };
        let rejected = self.pages.add(incident.job.number, &incident.dir, opens);
        if let Some((_, why)) = &rejected {
            output::complain(&format!("no HTML report of {}: {why}", incident.id));
        }
        rejected
    }

    /// Updates incidents whose HTML reports are finished.
    fn poll_pages(&mut self) {
        if let Some((number, page)) = self.pages.turn() {
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
        let bytes = folder::size(&incident.dir);
        let id = incident.id.clone();
        if let Some(view) = self.views.iter_mut().find(|view| view.id == id) {
            view.size_bytes = bytes;
        }
        self.apply_retention();
    }

    /// Updates an incident with what became known later.
    fn update(&mut self, update: Update) {
        self.actions.settled(update.number, update.recovered);
        if update.errors > 1 || update.recovered {
            self.change(update.number, |incident| {
                incident.errors = update.errors;
                incident.recovered = update.recovered;
            });
        }
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Told)) {
        if let Some(incident) = self.recent.iter_mut().find(|one| one.job.number == number) {
            change(incident);
            if incident.dir.is_dir() {
                rewrite(incident, &self.host);
            }
        }
    }

    /// Lists an incident; with its summary if there is no directory.
    fn show(&mut self, incident: &Told, summary: Option<String>) {
        let object = IncidentObject::new(&incident.report(&self.host));
        let path = self.root.join(&incident.id);
        let mut view = folder::view(&object, &path);
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
            folder::retain(written, config.retention_count, config.retention_size.0, last);
        if let Some(error) = errors.first() {
            output::complain(&format!(
                "cannot remove old incidents in {}: {error}; remove them manually",
                plain(&self.root.to_string_lossy())
            ));
        }
        self.views = unwritten.into_iter().chain(remaining).collect();
        self.views.sort_by(|a, b| b.id.cmp(&a.id));
        self.shared.incidents.show(self.views.clone());
    }
}

/// Rewrites the text files of an incident. On failure the old ones stay.
fn rewrite(incident: &Told, host: &str) {
    let write = || -> Result<()> {
        let (summary, text) = (incident.summary(host)?, object(&incident.report(host))?);
        folder::put(&incident.dir, SUMMARY, |out| Ok(out.write_all(&summary)?))?;
        folder::put(&incident.dir, OBJECT, |out| Ok(out.write_all(&text)?))
    };
    if let Err(error) = write() {
        output::complain(&format!(
            "cannot update the incident {}: {}; the old files stay",
            incident.id,
            output::reasons(&error)
        ));
    }
}

/// Diagnoses a failed call.
fn failed_request(call: &Call, pid: Option<Pid>, names: &Names, context: &Scene<'_>) -> Refused {
    let function = names.function(call.failed.function).into_owned();
    let requested = requested(&call.failed, &function);
    let diagnosis = diagnose(&Scene {
        pid: pid.unwrap_or(Pid(0)),
        asked: requested,
        host: host::facts(pid),
        hints: &host::hints(pid),
        ..*context
    });
    let (site, frames) = (call.site, Arc::clone(&call.frames));
    Refused { asked: requested, function: function.into(), site, frames, diagnosis }
}

/// Returns what a failed call requested.
fn requested(failed: &Failed, function: &str) -> Asked {
    match failed.asked {
        Some((kind, bytes)) => Asked::Memory(kind, Bytes(bytes)),
        None if function.starts_with("cuMemAddressReserve") => Asked::Addresses,
        None => Asked::Other,
    }
}

fn object(report: &Story<'_>) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(&IncidentObject::new(report))?;
    text.push(b'\n');
    Ok(text)
}

/// Formats a time for directory names, in UTC.
fn stamp(names: &Names, at: Moment) -> String {
    let nanos = names.clock.nanos(at);
    let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H-%M-%S%.3fZ").to_string()
}
