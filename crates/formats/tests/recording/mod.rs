//! Recordings: everything that is written is read back, and file contents are never trusted.

mod docs;
mod events;
mod hostile;
mod import;
mod round_trip;
mod truncated;

use std::path::Path;

use engine::model::event::Event;
use engine::model::ids::{FunctionId, GpuId};
use engine::model::units::Timestamp;
use formats::WallClock;
use formats::export::GpuLabel;
use formats::import::ImportError;
use formats::recording::{RecordingHeader, RecordingReader, RecordingRow, RecordingWriter};

/// Driver functions of these tests.
const FUNCTIONS: [&str; 4] = ["cuMemAlloc_v2", "cuMemFree_v2", "cuMemCreate", "cuMemMap"];

fn function(id: FunctionId) -> &'static str {
    FUNCTIONS[usize::from(id.0)]
}

fn known(name: &str) -> Option<FunctionId> {
    let index = FUNCTIONS.iter().position(|known| *known == name)?;
    Some(FunctionId(index as u16))
}

fn header() -> RecordingHeader {
    RecordingHeader {
        source: None,
        version: "1.2.3".into(),
        hostname: "box".into(),
        kernel: "6.12".into(),
        target: "every process".into(),
        activity: true,
        clock: WallClock::recorded(Timestamp(7), 1_700_000_000_000_000_000, Some("UTC"), 0),
        gpus: vec![GpuLabel {
            id: GpuId(0),
            uuid: "GPU-1".into(),
            name: "Simulated".into(),
            total_bytes: 8 << 30,
        }],
    }
}

/// Header rows of these tests: four metadata rows, the clock, a GPU.
const HEADER_ROWS: usize = 7;

fn record(events: &[Event]) -> Vec<u8> {
    let mut writer = RecordingWriter::new(Vec::new(), &header(), function).unwrap();
    for event in events {
        writer.event(event).unwrap();
    }
    writer.finish(Timestamp(99)).unwrap();
    writer.into_out()
}

fn reader(bytes: &[u8]) -> Result<RecordingReader<&[u8]>, ImportError> {
    RecordingReader::new(bytes, Path::new("test.arrows"), Some(bytes.len() as u64), known)
}

/// Returns all rows and warnings.
fn read(bytes: &[u8]) -> Result<(Vec<RecordingRow>, Vec<String>), ImportError> {
    let mut reader = reader(bytes)?;
    let mut rows = Vec::new();
    while let Some(row) = reader.next_row()? {
        rows.push(row);
    }
    let warnings = reader.warnings().into_iter().map(|warning| warning.text).collect();
    Ok((rows, warnings))
}

fn events(rows: Vec<RecordingRow>) -> Vec<Event> {
    let events = rows.into_iter().filter_map(|row| match row {
        RecordingRow::Event(event) => Some(event),
        _ => None,
    });
    events.collect()
}
