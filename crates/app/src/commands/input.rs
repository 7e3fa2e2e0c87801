//! Files in, whoever made them: what every verb that reads files begins with.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use engine::change::Change;
use engine::event::{Event, What};
use engine::ids::{DeviceId, Pid};
use engine::ledger::Ledger;
use formats::import::gather::{Facts, Gather, Only};
use formats::import::{Imported, Sink, Source};
use formats::plain::plain;

use crate::cli;

/// How long a file may take before progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// A file that was read.
pub(crate) struct Input {
    /// Its name as it may be shown.
    pub(crate) name: String,
    /// Who made it.
    pub(crate) imported: Imported,
    /// What it tells besides changes.
    pub(crate) facts: Facts,
}

/// Who made a file, by its content.
pub(crate) fn recognise(path: &Path) -> Result<Source> {
    let mut first = [0];
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let read = io::Read::read(&mut BufReader::new(file), &mut first)
        .with_context(|| format!("cannot read {}", path.display()))?;
    match &first[..read] {
        b"{" => Ok(Source::Recording),
        _ => bail!(
            "{}: no file that this version knows begins like it; give a recording",
            path.display()
        ),
    }
}

/// Reads a file; each wanted change goes to `each`.
pub(crate) fn read(
    path: &Path,
    only: Only,
    each: &mut dyn FnMut(&Change, &Facts),
) -> Result<Input> {
    let mut progress = Progress::new(path);
    let mut tell = |done, total| progress.tell(done, total);
    let mut gather = Gather::new(only, each, &mut tell);
    let imported = read_events(path, &mut gather)?;
    let facts = gather.facts;
    progress.end();
    Ok(Input { name: plain(&path.display().to_string()).into_owned(), imported, facts })
}

/// Which changes a command line asks for.
pub(crate) fn only(part: &cli::Part) -> Only {
    Only { pid: part.process.map(Pid), device: part.device.map(DeviceId) }
}

/// Events, one JSON object a line, as `trace --events` writes them.
fn read_events(path: &Path, sink: &mut dyn Sink) -> Result<Imported> {
    let place = || path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot read {}", place()))?;
    let total = file.metadata().map_or(0, |metadata| metadata.len());
    let mut ledger = Ledger::observed();
    let (mut changes, mut events, mut done) = (Vec::new(), 0_u64, 0_u64);
    for line in BufReader::new(file).lines() {
        let line = line.with_context(|| format!("cannot read {}", place()))?;
        events += 1;
        done = done.saturating_add(line.len() as u64 + 1);
        let event: Event = serde_json::from_str(&line)
            .with_context(|| format!("{}: line {events} is no event", place()))?;
        if let What::Process(facts) = &event.what {
            sink.process(event.pid, &facts.name);
        }
        ledger.apply(&event);
        ledger.take_changes(&mut changes);
        changes.drain(..).for_each(|change| sink.change(&change));
        if events % 65_536 == 0 {
            sink.progress(done, total);
        }
    }
    Ok(Imported { source: Source::Recording, events, producer: None })
}

/// How far a reader is, on a terminal, when it takes long enough to wonder.
struct Progress {
    name: String,
    wanted: bool,
    started: Instant,
    shown: Option<u64>,
}

impl Progress {
    fn new(path: &Path) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = plain(&name).into_owned();
        let wanted = io::stderr().is_terminal();
        Self { name, wanted, started: Instant::now(), shown: None }
    }

    fn tell(&mut self, done: u64, total: u64) {
        let percent = u128::from(done) * 100 / u128::from(total.max(1));
        let percent = u64::try_from(percent.min(100)).unwrap_or(100);
        if self.wanted && self.shown != Some(percent) && self.started.elapsed() >= PATIENCE {
            self.shown = Some(percent);
            let _ = write!(io::stderr(), "\rreading {}: {percent} %", self.name);
        }
    }

    /// Leaves the line empty.
    fn end(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
