//! The part that writes folders: finds the cause, asks for advice, and writes all of it down.

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

/// How often the part looks at what is published.
const ATTENTION: Duration = Duration::from_millis(100);

/// Incidents whose folders can still be written anew.
const KEPT: usize = 10;

/// Takes orders until nothing is published any more.
pub(crate) fn run(shared: &Arc<Shared>, orders: &Receiver<Order>) -> Result<()> {
    let mut writer = Writer::new(Arc::clone(shared));
    let mut seen = 0;
    loop {
        match orders.recv_timeout(ATTENTION) {
            Ok(order) => writer.take(order),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(ATTENTION),
        }
        if let Some(published) = shared.feed.newer(seen, Duration::ZERO) {
            seen = published.sequence;
            writer.history.note(&published.snapshot);
            shared.incidents.show_idle(writer.history.all_idle(published.snapshot.at));
            writer.actor.look(&published.snapshot, &writer.history);
        }
        writer.actor.tend();
        writer.turn_pages();
        if shared.feed.is_closed() {
            orders.try_iter().for_each(|order| writer.take(order));
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
    actor: Actor,
    pages: Pages,
    views: Vec<IncidentView>,
    /// The last ones, the newest last.
    told: VecDeque<Told>,
}

/// An incident with all that is told of it.
struct Told {
    id: String,
    job: Job,
    refused: Option<Refused>,
    free_then: Option<Bytes>,
    grown: Vec<Grown>,
    advice: Vec<GpuAdvice>,
    events: u64,
    errors: u64,
    recovered: bool,
    page: String,
    took: Nanos,
    folder: PathBuf,
}

impl Told {
    fn story<'a>(&'a self, host: &'a str) -> Story<'a> {
        let job = &self.job;
        Story {
            id: &self.id,
            trigger: job.trigger,
            at: job.at,
            host,
            who: job.who.as_ref(),
            limit: job.limit.as_deref(),
            refused: self.refused.as_ref(),
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
        incident::write_text(&mut text, &self.story(host))?;
        Ok(text)
    }
}

impl Writer {
    fn new(shared: Arc<Shared>) -> Self {
        let root = shared.config.incidents_dir();
        let mut writer = Self {
            host: crate::host::name(),
            history: History::default(),
            actor: Actor::new(&shared),
            pages: Pages::default(),
            views: Vec::new(),
            told: VecDeque::new(),
            root,
            shared,
        };
        if writer.shared.config.incidents.enabled {
            folder::remove_unfinished(&writer.root);
            writer.views = folder::list(&writer.root);
            writer.tidy();
        }
        writer
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Write(job) => self.write(*job),
            Order::Update(update) => self.update(update),
        }
    }

    fn write(&mut self, job: Job) {
        let trigger = job.trigger;
        let mut told = self.think(job);
        let cause = told.refused.as_ref().map(|one| one.diagnosis.cause);
        self.actor.incident(&told.job, cause, &self.history);
        match self.make(&mut told) {
            Ok(()) => {
                self.shared.incidents.count(trigger.name(), "written");
                self.announce(&told);
                self.show(&told, None);
            }
            Err(error) => {
                self.shared.incidents.count(trigger.name(), "failed");
                output::complain(&format!(
                    "cannot write the incident {}: {}; {}; the summary is available at \
                     /api/v1/incidents until the next incident",
                    told.id,
                    output::reasons(&error),
                    unwritten::hint(&error)
                ));
                let summary = self.kept(&told);
                self.show(&told, Some(summary));
            }
        }
        // The events are in the file.
        told.job.excerpt = Excerpt::default();
        told.job.sites = Vec::new();
        if self.told.len() >= KEPT {
            self.told.pop_front();
        }
        let wants = self.want_page(&told);
        self.told.push_back(told);
        self.tidy();
        if let Some((number, why)) = wants {
            self.note_page(number, why);
        }
        self.turn_pages();
    }

    /// The summary as the API may tell it.
    fn kept(&self, told: &Told) -> String {
        let (mut text, story) = (Vec::new(), told.story(&self.host));
        let written = if self.shared.config.http.show_paths {
            incident::write_text(&mut text, &story)
        } else {
            incident::write_without_folders(&mut text, &story)
        };
        written.map_or_else(|_| String::new(), |()| String::from_utf8_lossy(&text).into_owned())
    }

    /// Finds the cause and what would help.
    fn think(&self, mut job: Job) -> Told {
        let snapshot = &job.published.snapshot;
        let names = &job.published.names;
        let pid = job.who.as_ref().map(|who| who.pid);
        holders::complete(&mut job.holders, snapshot, (job.gpu, job.device), pid);
        let held: Vec<_> = job.holders.iter().map(|one| (one.key.pid, one.live_bytes)).collect();
        let total = job.gpu.and_then(|gpu| names.gpu(gpu)).map(|gpu| Bytes(gpu.total_bytes));
        let scene = Scene {
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
        let refused = job.call.as_ref().map(|call| refused(call, pid, names, &scene));
        // The driver's account may be a second old; what was found out about the moment is better.
        let free_then = match &refused {
            Some(refused) => refused.diagnosis.figures.free,
            None => diagnosis::free(&scene),
        };
        let cause = refused.as_ref().map(|one| one.diagnosis.cause);
        let asker = job.who.as_ref().filter(|_| job.call.is_some()).map(|who| who.pid);
        let idle = |process: &_| self.history.idle(process, snapshot.at);
        let question = Question { gpu: job.gpu, only: &[], asker, cause, idle: &idle, local: true };
        let mut advice = advising::answer(&question, snapshot, names);
        for gpu in advice.iter_mut().filter(|gpu| free_then.is_some() && gpu.gpu.is_some()) {
            gpu.free_bytes = free_then.map(|free| free.0);
        }
        Told {
            id: self.id(&job),
            refused,
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
            folder: PathBuf::new(),
            job,
        }
    }

    /// A name that no folder has: the time, what happened, the GPU and the process.
    fn id(&self, job: &Job) -> String {
        let gpu = job.gpu.map_or_else(String::new, |gpu| format!("-gpu{}", gpu.0));
        let who = job.who.as_ref().map_or_else(String::new, |who| format!("-pid{}", who.pid));
        let time = stamp(&job.published.names, job.at);
        let name = format!("{time}-{}{gpu}{who}", job.trigger.short());
        let taken = |name: &str| {
            self.root.join(name).exists() || self.told.iter().any(|told| told.id == name)
        };
        let others = (2..100).map(|number| format!("{name}-{number}"));
        std::iter::once(name.clone()).chain(others).find(|name| !taken(name)).unwrap_or(name)
    }

    /// Everything but the page, which takes longer.
    fn make(&self, told: &mut Told) -> Result<()> {
        let place = || format!("in {}", self.root.display());
        let new = folder::NewFolder::create(&self.root, &told.id).with_context(place)?;
        let published = &told.job.published;
        let mut line = json::line(&published.snapshot, &published.names)?;
        line.push('\n');
        new.write(SNAPSHOT, line.as_bytes()).with_context(place)?;
        told.events = recording::write(new.file(RECORDING)?, &told.job).with_context(place)?;
        told.took = told.job.age();
        new.write(SUMMARY, &told.summary(&self.host)?).with_context(place)?;
        new.write(OBJECT, &object(&told.story(&self.host))?).with_context(place)?;
        told.folder = new.finish().with_context(place)?;
        told.took = told.job.age();
        Ok(())
    }

    fn announce(&self, told: &Told) {
        let object = IncidentObject::new(&told.story(&self.host));
        output::complain(&format!(
            "{}; see {} ({} ms after it)",
            object.title,
            plain(&told.folder.to_string_lossy()),
            told.took.millis()
        ));
    }

    /// Orders the page; what is to be told where there will be none.
    fn want_page(&mut self, told: &Told) -> Option<Made> {
        if !self.shared.config.incidents.html_report || !told.folder.is_dir() {
            return None;
        }
        let is_oom = told.job.trigger == Trigger::OutOfMemory;
        let opens = if is_oom { Opens::Peak } else { Opens::Sites };
        let refused = self.pages.add(told.job.number, &told.folder, opens);
        if let Some((_, why)) = &refused {
            output::complain(&format!("no HTML report of {}: {why}", told.id));
        }
        refused
    }

    /// Pages that are done are told in their folders.
    fn turn_pages(&mut self) {
        if let Some((number, page)) = self.pages.turn() {
            self.note_page(number, page);
        }
    }

    fn finish_pages(&mut self) {
        for (number, page) in self.pages.finish() {
            self.note_page(number, page);
        }
    }

    fn note_page(&mut self, number: u64, page: String) {
        self.change(number, |told| told.page = page);
        let Some(told) = self.told.iter().find(|told| told.job.number == number) else { return };
        let bytes = folder::size(&told.folder);
        let id = told.id.clone();
        if let Some(view) = self.views.iter_mut().find(|view| view.id == id) {
            view.size_bytes = bytes;
        }
        self.tidy();
    }

    /// More is known of an incident.
    fn update(&mut self, update: Update) {
        self.actor.settled(update.number, update.recovered);
        if update.errors > 1 || update.recovered {
            self.change(update.number, |told| {
                told.errors = update.errors;
                told.recovered = update.recovered;
            });
        }
    }

    fn change(&mut self, number: u64, change: impl FnOnce(&mut Told)) {
        if let Some(told) = self.told.iter_mut().find(|told| told.job.number == number) {
            change(told);
            if told.folder.is_dir() {
                rewrite(told, &self.host);
            }
        }
    }

    /// Lists an incident; with its summary where there is no folder.
    fn show(&mut self, told: &Told, kept: Option<String>) {
        let object = IncidentObject::new(&told.story(&self.host));
        let path = self.root.join(&told.id);
        let mut view = folder::view(&object, &path);
        view.written = kept.is_none();
        if kept.is_some() {
            // One summary in memory is enough: the last.
            self.views.retain(|view| view.written);
        }
        view.summary_text = kept;
        self.views.retain(|known| known.id != view.id);
        self.views.insert(0, view);
        self.shared.incidents.show(self.views.clone());
    }

    fn tidy(&mut self) {
        let config = &self.shared.config.incidents;
        let (written, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.views).into_iter().partition(|view| view.written);
        let last = self.told.back().map(|told| told.id.as_str());
        let (left, errors) =
            folder::retain(written, config.retention_count, config.retention_size.0, last);
        if let Some(error) = errors.first() {
            output::complain(&format!(
                "cannot remove old incidents in {}: {error}; remove them manually",
                plain(&self.root.to_string_lossy())
            ));
        }
        self.views = kept.into_iter().chain(left).collect();
        self.views.sort_by(|a, b| b.id.cmp(&a.id));
        self.shared.incidents.show(self.views.clone());
    }
}

/// Writes the texts of a folder anew. Where that fails the old ones stay.
fn rewrite(told: &Told, host: &str) {
    let write = || -> Result<()> {
        let (summary, text) = (told.summary(host)?, object(&told.story(host))?);
        folder::put(&told.folder, SUMMARY, |out| Ok(out.write_all(&summary)?))?;
        folder::put(&told.folder, OBJECT, |out| Ok(out.write_all(&text)?))
    };
    if let Err(error) = write() {
        output::complain(&format!(
            "cannot update the incident {}: {}; the old files stay",
            told.id,
            output::reasons(&error)
        ));
    }
}

/// What is known of a refused call.
fn refused(call: &Call, pid: Option<Pid>, names: &Names, scene: &Scene<'_>) -> Refused {
    let function = names.function(call.failed.function).into_owned();
    let asked = asked(&call.failed, &function);
    let diagnosis = diagnose(&Scene {
        pid: pid.unwrap_or(Pid(0)),
        asked,
        host: host::facts(pid),
        hints: &host::hints(pid),
        ..*scene
    });
    let (site, frames) = (call.site, Arc::clone(&call.frames));
    Refused { asked, function: function.into(), site, frames, diagnosis }
}

/// What a refused call asked for.
fn asked(failed: &Failed, function: &str) -> Asked {
    match failed.asked {
        Some((kind, bytes)) => Asked::Memory(kind, Bytes(bytes)),
        None if function.starts_with("cuMemAddressReserve") => Asked::Addresses,
        None => Asked::Other,
    }
}

fn object(story: &Story<'_>) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(&IncidentObject::new(story))?;
    text.push(b'\n');
    Ok(text)
}

/// The time of a moment as names of folders have it, in UTC.
fn stamp(names: &Names, at: Moment) -> String {
    let nanos = names.clock.nanos(at);
    let time = jiff::Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H-%M-%S%.3fZ").to_string()
}
