//! Events as `trace --events` writes them, one JSON object a line: for tests and for looking closely.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result};
use engine::event::{Event, What};
use engine::ledger::Ledger;
use formats::import::{Imported, Sink, Source};

/// How such a file begins.
const BEGINNING: &[u8] = b"{\"pid\":";

/// Whether a file begins like one.
pub(crate) fn are_in(path: &Path) -> bool {
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    let mut first = [0; BEGINNING.len()];
    is_file
        && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
        && first == BEGINNING
}

/// Replays the events.
pub(crate) fn read(path: &Path, sink: &mut dyn Sink) -> Result<Imported> {
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
