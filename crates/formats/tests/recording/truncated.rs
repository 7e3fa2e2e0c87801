//! Truncated files are read up to the truncation.

use engine::model::event::{Event, EventKind};
use engine::model::ids::{Pid, Tid};
use engine::model::units::Timestamp;
use formats::recording::RecordingWriter;

use super::{events, function, header, read};

fn event(moment: u64) -> Event {
    let at = Timestamp(moment);
    Event { pid: Pid(1), tid: Tid(1), entry_time: at, time: at, kind: EventKind::Exec }
}

/// Returns a recording of three batches with one event each, and the end of each batch.
fn three() -> (Vec<u8>, Vec<usize>) {
    let mut writer = RecordingWriter::new(Vec::new(), &header(), function).unwrap();
    let mut ends = vec![writer.bytes() as usize];
    for moment in 1..4 {
        writer.event(&event(moment)).unwrap();
        writer.flush().unwrap();
        ends.push(writer.bytes() as usize);
    }
    writer.finish(Timestamp(9)).unwrap();
    (writer.into_out(), ends)
}

#[test]
fn truncated_file_is_read_up_to_the_cut() {
    let (bytes, ends) = three();
    let mut readable = 0;
    for length in 0..bytes.len() {
        let Ok((rows, warnings)) = read(&bytes[..length]) else {
            assert!(length < ends[0], "{length} bytes cannot be read");
            continue;
        };
        readable += 1;
        let complete = ends.iter().skip(1).filter(|end| length >= **end).count();
        assert_eq!(events(rows).len(), complete, "{length}");
        let from = ends.iter().rev().find(|end| length >= **end);
        match from {
            // After the end row, the end is known even without the end mark.
            Some(from) if length < bytes.len() - 8 => {
                assert!(
                    warnings[0].contains(&format!("truncated at byte {from} (")),
                    "{warnings:?}"
                );
            }
            _ => assert_eq!(warnings.len(), 1, "{length} {warnings:?}"),
        }
    }
    assert!(readable > ends[3] - ends[0]);
    assert!(read(&bytes).unwrap().1.is_empty());
}

#[test]
fn trailing_zeros_count_as_truncation() {
    let (bytes, ends) = three();
    let mut bytes = bytes[..ends[2]].to_vec();
    bytes.resize(ends[2] + 4096, 0);
    let (rows, warnings) = read(&bytes).unwrap();
    assert_eq!(events(rows), [event(1), event(2)]);
    assert!(warnings[0].contains(&format!("truncated at byte {} (", ends[2])), "{warnings:?}");
}
