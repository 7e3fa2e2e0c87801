//! Written recordings are read back.

use std::collections::BTreeSet;

use engine::model::event::{Allocate, Event, EventKind, FailedCall, SiteFrames};
use engine::model::ids::{AllocationKey, FunctionId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, Language, UnknownReason};
use engine::model::units::Timestamp;
use formats::recording::schema::{COLUMNS, ROWS};
use formats::recording::{RecordingRow, RecordingWriter};
use proptest::collection::vec;
use proptest::prelude::Strategy;
use proptest::strategy::ValueTree;
use proptest::{prop_assert, prop_assert_eq, proptest};

use super::{HEADER_ROWS, events, function, header, read, reader, record};
use crate::random;

proptest! {
    #![proptest_config(random::config(64))]
    #[test]
    fn every_event_round_trips(written in vec(events::event(), 0..60)) {
        let (rows, warnings) = read(&record(&written)).unwrap();
        prop_assert!(warnings.is_empty(), "{:?}", warnings);
        prop_assert_eq!(rows.last(), Some(&RecordingRow::End(Timestamp(99))));
        prop_assert_eq!(super::events(rows), written);
    }
}

fn at(time: u64, kind: EventKind) -> Event {
    Event { pid: Pid(1), tid: Tid(2), entry_time: Timestamp(time), time: Timestamp(time), kind }
}

#[test]
fn header_round_trips() {
    let (rows, _) = read(&record(&[])).unwrap();
    let header = header();
    let about =
        |key: &str, value: &str| RecordingRow::About { key: key.into(), value: value.into() };
    assert_eq!(
        rows,
        [
            about("vramscope", &header.version),
            about("hostname", &header.hostname),
            about("kernel", &header.kernel),
            about("target", &header.target),
            about("kernels", "yes"),
            RecordingRow::Clock(header.clock),
            RecordingRow::Gpu(header.gpus[0].clone()),
            RecordingRow::End(Timestamp(99)),
        ]
    );
    assert_eq!(rows.len(), HEADER_ROWS + 1);
}

#[test]
fn events_of_several_batches_stay_in_order() {
    let many: Vec<Event> = (0..40_000).map(|time| at(time, EventKind::ThreadExit)).collect();
    let (rows, _) = read(&record(&many)).unwrap();
    assert_eq!(super::events(rows), many);
}

#[test]
fn late_site_frames_are_written_once() {
    let main = Frame {
        function: "main".into(),
        file: Some("a.c".into()),
        line: 3,
        module: Some("prog".into()),
        ..Frame::default()
    };
    let step =
        Frame { language: Language::Python, unknown: Some(UnknownReason::Jit), ..Frame::default() };
    let call = Allocate {
        key: AllocationKey::address(1),
        kind: MemoryKind::Device,
        bytes: 1,
        context: None,
        device: None,
        pool: None,
        stream: None,
        site: Some(SiteId(70)),
    };
    let frames_of = |site, frames: &[Frame]| {
        at(6, EventKind::Site(SiteFrames { site: SiteId(site), frames: frames.into() }))
    };
    let many = [
        at(5, EventKind::Allocate(call)),
        frames_of(70, &[step.clone(), main.clone()]),
        frames_of(3, std::slice::from_ref(&main)),
        frames_of(4, &[]),
    ];
    let bytes = record(&many);
    let (rows, _) = read(&bytes).unwrap();
    assert_eq!(super::events(rows), many);
    let mut frames = 0;
    for batch in arrow_ipc::reader::StreamReader::try_new(&*bytes, None).unwrap() {
        let batch = batch.unwrap();
        let column = arrow_array::cast::as_string_array(batch.column(0));
        frames += column.iter().filter(|word| *word == Some("frame")).count();
    }
    assert_eq!(frames, 2);
}

#[test]
fn rows_are_flushed_within_a_second() {
    let second = 1_000_000_000;
    let mut writer = RecordingWriter::new(Vec::new(), &header(), function).unwrap();
    let header = writer.bytes();
    writer.tick(Timestamp(10)).unwrap();
    writer.flush_due(Timestamp(10 + 20 * second)).unwrap();
    assert_eq!(writer.bytes(), header, "a tick alone waits");
    writer.event(&at(20 * second, EventKind::Exec)).unwrap();
    writer.flush_due(Timestamp(21 * second - 1)).unwrap();
    assert_eq!(writer.bytes(), header, "not yet");
    writer.flush_due(Timestamp(21 * second)).unwrap();
    let flushed = writer.bytes();
    assert!(flushed > header);
    writer.flush_due(Timestamp(90 * second)).unwrap();
    assert_eq!(writer.bytes(), flushed, "nothing waits");
    writer.tick(Timestamp(90 * second)).unwrap();
    writer.flush_due(Timestamp(120 * second)).unwrap();
    assert!(writer.bytes() > flushed, "ticks do not wait forever");
    assert_eq!((writer.events(), writer.lost()), (1, 0));
}

#[test]
fn unknown_function_keeps_its_name() {
    fn other(_: FunctionId) -> &'static str {
        "cuMemAllocTomorrow"
    }
    let failed = FailedCall {
        function: FunctionId(300),
        code: 2,
        requested: None,
        freed: None,
        device: None,
        context: None,
        site: None,
    };
    let mut writer = RecordingWriter::new(Vec::new(), &header(), other).unwrap();
    writer.event(&at(1, EventKind::Failed(failed))).unwrap();
    writer.finish(Timestamp(2)).unwrap();
    let bytes = writer.into_out();
    let mut reader = reader(&bytes).unwrap();
    let mut found = None;
    while let Some(row) = reader.next_row().unwrap() {
        if let RecordingRow::Event(Event { kind: EventKind::Failed(failed), .. }) = row {
            found = Some(failed.function);
        }
    }
    assert_eq!(found, Some(FunctionId(300)));
    assert_eq!(reader.functions().name(FunctionId(300)), Some("cuMemAllocTomorrow"));
}

#[test]
fn every_row_type_uses_existing_columns() {
    let mut runner = random::runner();
    let strategy = vec(events::event(), 3000);
    let mut row_types: BTreeSet<String> = BTreeSet::new();
    let many = strategy.new_tree(&mut runner).unwrap().current();
    let bytes = record(&many);
    // The words are stored compressed: read them with Arrow, not with our own reader.
    let stream = arrow_ipc::reader::StreamReader::try_new(&*bytes, None).unwrap();
    for batch in stream {
        let batch = batch.unwrap();
        let column = arrow_array::cast::as_string_array(batch.column(0));
        row_types.extend(column.iter().map(|word| word.unwrap().to_owned()));
    }
    row_types.insert("report".to_owned());
    let listed: BTreeSet<String> = ROWS.iter().map(|(word, ..)| (*word).to_owned()).collect();
    assert_eq!(row_types, listed);
    for (word, _, columns) in ROWS {
        for column in columns.split(", ").flat_map(|text| text.split(" or ")) {
            let exists = COLUMNS.iter().any(|(name, ..)| *name == column);
            assert!(exists || column.is_empty(), "{word}: {column}");
        }
    }
}
