//! Corrupt, foreign and newer files.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema};
use formats::import::ImportError;
use formats::recording::VERSION_KEY;
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::proptest;
use proptest::strategy::{Strategy, ValueTree};

use super::{events, read, record};
use crate::random;

fn some_recording() -> Vec<u8> {
    let mut runner = random::runner();
    record(&vec(events::event(), 40).new_tree(&mut runner).unwrap().current())
}

/// Arrow must not panic: anything that would make it panic is rejected before.
#[test]
fn any_changed_byte_is_handled() {
    let panics = Arc::new(AtomicUsize::new(0));
    let (count, usual) = (Arc::clone(&panics), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        let file = panic.location().map_or("", |at| at.file());
        count.fetch_add(usize::from(file.contains("arrow")), Ordering::Relaxed);
        usual(panic);
    }));
    let good = some_recording();
    let mut rejected = 0;
    for offset in 0..good.len() {
        let mut bad = good.clone();
        bad[offset] ^= [0x01, 0x80, 0xff][offset % 3];
        match read(&bad) {
            Ok(_) => {}
            Err(ImportError::Broken { location, advice, .. }) => {
                rejected += 1;
                assert!(location.starts_with("byte ") && !advice.is_empty());
            }
            Err(ImportError::NotRecognized { reason, .. }) => assert!(!reason.is_empty()),
            Err(ImportError::Io { source, .. }) => panic!("{source}"),
        }
    }
    assert!(rejected > good.len() / 10, "only {rejected} changes were detected");
    assert_eq!(panics.load(Ordering::Relaxed), 0, "Arrow panicked");
}

proptest! {
    #![proptest_config(random::config(256))]
    #[test]
    fn random_bytes_do_not_panic(
        bytes in vec(any::<u8>(), 0..200),
        offset in any::<proptest::sample::Index>(),
    ) {
        let _ = read(&bytes);
        let mut marked = vec![0xff; 4];
        marked.extend(&bytes);
        let _ = read(&marked);
        let mut inside = some_recording();
        let offset = offset.index(inside.len());
        let end = inside.len().min(offset + bytes.len());
        inside[offset..end].copy_from_slice(&bytes[..end - offset]);
        let _ = read(&inside);
    }
}

#[test]
fn huge_lengths_do_not_allocate() {
    let good = some_recording();
    let meta = u32::from_le_bytes(good[4..8].try_into().unwrap()) as usize;
    let batch = 8 + meta;
    for (offset, value) in [(4, i32::MAX), (batch + 4, i32::MAX), (batch + 4, -5), (4, 1 << 23)] {
        let mut bad = good.clone();
        bad[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        // Either it is impossible, or it looks truncated.
        if let Ok((rows, warnings)) = read(&bad) {
            assert!(rows.is_empty() && !warnings.is_empty(), "{offset} {value}");
        }
    }
}

/// The buffers of a compressed batch begin with their uncompressed size.
#[test]
fn buffer_with_a_huge_size_is_rejected() {
    let good = some_recording();
    let start = good.windows(8).skip(8).position(|w| w == [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    assert!(start.is_some(), "no end mark");
    let mut rejected = 0;
    for offset in (0..good.len() - 8).step_by(8) {
        let mut bad = good.clone();
        bad[offset..offset + 8].copy_from_slice(&(1_i64 << 46).to_le_bytes());
        if let Err(ImportError::Broken { problem, .. }) = read(&bad) {
            rejected += usize::from(problem.contains("larger than any recording"));
        }
    }
    assert!(rejected > 10, "only {rejected} of them");
}

fn stream(schema: Schema, columns: Vec<ArrayRef>) -> Vec<u8> {
    let schema = Arc::new(schema);
    let mut writer = StreamWriter::try_new(Vec::new(), &schema).unwrap();
    writer.write(&RecordBatch::try_new(schema, columns).unwrap()).unwrap();
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn strings(strings: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(strings.to_vec()))
}

fn marked(fields: Vec<Field>, version: &str) -> Schema {
    let metadata = HashMap::from([(VERSION_KEY.to_owned(), version.to_owned())]);
    Schema::new_with_metadata(fields, metadata)
}

fn error_text(bytes: &[u8]) -> String {
    read(bytes).unwrap_err().to_string()
}

#[test]
fn foreign_arrow_files_are_rejected() {
    let field = Field::new("type", DataType::Utf8, false);
    let foreign = stream(Schema::new(vec![field.clone()]), vec![strings(&["report"])]);
    assert!(
        error_text(&foreign).contains("not one that vramscope wrote"),
        "{}",
        error_text(&foreign)
    );
    for other in [&b""[..], b"ARROW1\0\0", b"SQLite format 3\0", b"\x80\x04\x95", b"{}"] {
        let error = error_text(other);
        assert!(error.contains("vramscope record"), "{error}");
    }
}

#[test]
fn newer_version_is_rejected_with_advice() {
    let field = Field::new("type", DataType::Utf8, false);
    let newer = stream(marked(vec![field.clone()], "2"), vec![strings(&["report"])]);
    assert!(
        error_text(&newer).contains("read it with a newer vramscope"),
        "{}",
        error_text(&newer)
    );
    let invalid = stream(marked(vec![field], "one"), vec![strings(&["report"])]);
    assert!(error_text(&invalid).contains("invalid recording version"));
}

#[test]
fn old_column_names_are_rejected_as_unreleased() {
    let fields =
        vec![Field::new("row", DataType::Utf8, false), Field::new("at", DataType::UInt64, true)];
    let times: ArrayRef = Arc::new(UInt64Array::from(vec![1]));
    let old = stream(marked(fields, "1"), vec![strings(&["tick"]), times]);
    let error = error_text(&old);
    assert!(error.contains("unreleased version of vramscope"), "{error}");
    assert!(error.contains("record again"), "{error}");
}

#[test]
fn columns_of_another_type_are_rejected() {
    let field = Field::new("type", DataType::UInt64, false);
    let numbers: ArrayRef = Arc::new(UInt64Array::from(vec![1]));
    let wrong = stream(marked(vec![field], "1"), vec![numbers]);
    let error = error_text(&wrong);
    assert!(error.contains("`type` is UInt64 instead of string"), "{error}");
}

#[test]
fn rows_without_required_columns_are_rejected() {
    let field = || Field::new("type", DataType::Utf8, false);
    let bare = stream(marked(vec![field()], "1"), vec![strings(&["allocate"])]);
    let error = error_text(&bare);
    assert!(error.contains("a row `allocate` has no `address_type`, at byte"), "{error}");
    let extra = Field::new("color", DataType::UInt64, true);
    let at = Field::new("time_ns", DataType::UInt64, true);
    let timestamps: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2]));
    let new = stream(
        marked(vec![extra, at, field()], "1"),
        vec![Arc::clone(&timestamps), timestamps, strings(&["teleport", "end"])],
    );
    let (rows, warnings) = read(&new).unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].contains("newer version"), "{warnings:?}");
}
