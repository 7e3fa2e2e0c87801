//! Recordings: every row is replayed, and what was read is written and read again.

use std::path::Path;

use engine::ledger::Ledger;
use engine::model::event::{Event, EventKind};
use engine::model::ids::FunctionId;
use engine::model::units::Timestamp;
use engine::snapshot::{Snapshot, SnapshotOptions};
use formats::WallClock;
use formats::export::ReportContext;
use formats::recording::{
    FunctionTable, RecordingHeader, RecordingReader, RecordingRow, RecordingWriter,
};
use formats::report::live::text::TextStyle;
use formats::report::{kernels, live};

use super::live_set::LiveSet;
use super::{Rotation, assert_lines, assert_printable, reject};

/// Driver functions that are known here; others get numbers from the recording.
const FUNCTIONS: [&str; 2] = ["cuMemAlloc_v2", "cuMemFree_v2"];

fn function(id: FunctionId) -> &'static str {
    FUNCTIONS.get(usize::from(id.0)).copied().unwrap_or("an unknown function")
}

fn lookup(name: &str) -> Option<FunctionId> {
    let index = FUNCTIONS.iter().position(|known| *known == name)?;
    u16::try_from(index).ok().map(FunctionId)
}

fn reader(bytes: &[u8]) -> Result<RecordingReader<&[u8]>, formats::import::ImportError> {
    RecordingReader::new(bytes, Path::new("input"), Some(bytes.len() as u64), lookup)
}

/// Replays a recording up to its end or first error. Returns whether it has an event.
pub(crate) fn recording(bytes: &[u8]) -> bool {
    let mut reader = match reader(bytes) {
        Ok(reader) => reader,
        Err(error) => return reject(&error),
    };
    let mut replay = Replay::default();
    loop {
        match reader.next_row() {
            Ok(Some(row)) => replay.row(row),
            Ok(None) => break,
            Err(error) => {
                reject(&error);
                break;
            }
        }
    }
    let recorded = reader.functions().clone();
    for warning in reader.warnings() {
        assert_printable(&warning.text);
    }
    let turn = Rotation::of(bytes);
    replay.finish(recorded, &turn);
    if turn.is(0, 4) && !replay.events.is_empty() {
        assert_round_trip(&replay.events);
    }
    !replay.events.is_empty()
}

struct Replay {
    ledger: Ledger,
    live: LiveSet,
    events: Vec<Event>,
    clock: WallClock,
    at: Timestamp,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            ledger: Ledger::with_change_log(),
            live: LiveSet::default(),
            events: Vec::new(),
            clock: WallClock::fixed(Timestamp(0), 0),
            at: Timestamp(0),
        }
    }
}

impl Replay {
    fn row(&mut self, row: RecordingRow) {
        match row {
            RecordingRow::Clock(clock) => self.clock = clock,
            RecordingRow::Event(event) => {
                self.at = self.at.max(event.time);
                self.ledger.apply(&event);
                self.events.push(event);
            }
            RecordingRow::Tick(at) | RecordingRow::End(at) => {
                self.at = self.at.max(at);
                self.snapshot(at, false);
            }
            RecordingRow::About { key, .. } if &*key == "kernels" && self.events.is_empty() => {
                self.ledger = std::mem::take(&mut self.ledger).with_activity();
            }
            RecordingRow::About { .. } | RecordingRow::Gpu(_) | RecordingRow::Unknown => {}
        }
    }

    fn snapshot(&mut self, at: Timestamp, last: bool) -> Snapshot {
        let mut changes = Vec::new();
        self.ledger.drain_changes(&mut changes);
        changes.iter().for_each(|change| self.live.apply(change));
        let options = SnapshotOptions { ended_sites: last, ..SnapshotOptions::default() };
        let snapshot = self.ledger.snapshot(at, &options);
        self.live.check(&snapshot);
        assert_eq!(snapshot.live_bytes, self.ledger.live_bytes());
        snapshot
    }

    fn finish(&mut self, recorded: FunctionTable, turn: &Rotation) {
        let snapshot = self.snapshot(self.at, true);
        let clock = self.clock.clone();
        let context = ReportContext { source: None, clock, function, recorded, gpus: Vec::new() };
        let style = TextStyle { last: true, ..TextStyle::default() };
        let texts = [live::text::report, live::text::sites::report, kernels::text::report];
        for (number, report) in (0..).zip(texts) {
            if turn.is(number, 5) {
                let mut out = Vec::new();
                report(&mut out, &snapshot, &context, style).unwrap();
                assert_lines(out);
            }
        }
        if turn.is(3, 5) {
            live::json::line(&snapshot, &context).unwrap();
        }
        if turn.is(4, 5) {
            kernels::json::line(&snapshot, &context).unwrap();
        }
    }
}

/// Writes events and reads them again. Functions that are not known here have no name to write.
fn assert_round_trip(events: &[Event]) {
    let is_known = |event: &&Event| match &event.kind {
        EventKind::Failed(failed) => usize::from(failed.function.0) < FUNCTIONS.len(),
        _ => true,
    };
    let events: Vec<_> = events.iter().filter(is_known).collect();
    let header = RecordingHeader {
        version: String::new(),
        hostname: String::new(),
        kernel: String::new(),
        target: String::new(),
        activity: true,
        clock: WallClock::fixed(Timestamp(0), 0),
        gpus: Vec::new(),
        source: None,
    };
    let mut writer = RecordingWriter::new(Vec::new(), &header, function).unwrap();
    for event in &events {
        writer.event(event).unwrap();
    }
    writer.finish(Timestamp(0)).unwrap();
    let bytes = writer.into_out();
    let mut reader = reader(&bytes).unwrap();
    let mut again = Vec::new();
    while let Some(row) = reader.next_row().unwrap() {
        if let RecordingRow::Event(event) = row {
            again.push(event);
        }
    }
    assert!(reader.warnings().is_empty());
    assert_eq!(again.iter().collect::<Vec<_>>(), events);
}
