//! Malformed and malicious files.

use std::io::Write;
use std::path::Path;

use formats::import::{ImportError, torch};
use proptest::prelude::*;

use super::checking_sink::{CheckingSink, file};
use crate::random;

fn read(bytes: &[u8]) -> (Result<u64, ImportError>, CheckingSink) {
    let mut named = tempfile::NamedTempFile::new().unwrap();
    named.write_all(bytes).unwrap();
    let mut sink = CheckingSink::default();
    let result = torch::read(named.path(), &mut sink).map(|imported| imported.events);
    (result, sink)
}

fn error(bytes: &[u8]) -> String {
    let error = read(bytes).0.expect_err("accepted as a snapshot");
    let text = error.to_string();
    // Without the file name, which differs each time.
    text.split_once(": ").map_or(text.clone(), |(_, text)| text.to_owned())
}

#[test]
fn executable_opcodes_are_rejected_by_name() {
    for (bytes, name, at) in [
        (
            b"\x80\x02cos\nsystem\nq\0X\x02\0\0\0lsq\x01\x85q\x02Rq\x03.".as_slice(),
            "GLOBAL (0x63)",
            2,
        ),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL (0x93)", 14),
        (b"\x80\x04]R.", "REDUCE (0x52)", 3),
        (b"\x80\x04}b.", "BUILD (0x62)", 3),
        (b"\x80\x04(ios\nsystem\n.", "INST (0x69)", 3),
        (b"\x80\x04(o.", "OBJ (0x6f)", 3),
        (b"\x80\x04]]\x81.", "NEWOBJ (0x81)", 4),
        (b"\x80\x04\x92.", "NEWOBJ_EX (0x92)", 2),
        (b"\x80\x04\x82\x01.", "EXT1 (0x82)", 2),
        (b"\x80\x04\x83\x01\0.", "EXT2 (0x83)", 2),
        (b"\x80\x04\x84\x01\0\0\0.", "EXT4 (0x84)", 2),
        (b"\x80\x04Pname\n.", "PERSID (0x50)", 2),
        (b"\x80\x04NQ.", "BINPERSID (0x51)", 3),
        (b"\x80\x05\x97.", "NEXT_BUFFER (0x97)", 2),
        (b"\x80\x04\x8f.", "EMPTY_SET (0x8f)", 2),
        (b"\x80\x04N2.", "DUP (0x32)", 3),
        (b"\x80\x04\xff.", "no opcode of a pickle (0xff)", 2),
    ] {
        let text = error(bytes);
        let expected = format!("the pickle uses {name}, at byte {at}; pickles are never executed");
        assert!(text.starts_with(&expected), "{text}");
        assert!(text.ends_with("torch.cuda.memory._dump_snapshot()"), "{text}");
    }
}

#[test]
fn lengths_are_not_trusted() {
    for bytes in [
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc".as_slice(),
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"\x80\x04X\xff\xff\xff\xffabc",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"\x80\x04B\xff\xff\xff\xffabc",
        b"\x80\x04\x8b\xff\xff\xff\xffabc",
        b"\x80\x04\x8a\xffabc",
    ] {
        assert!(error(bytes).contains("is longer than what is left of the file"), "{bytes:?}");
    }
    assert!(error(b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff}.").contains("ends before"));
    assert!(error(b"\x80\x04]r\xff\xff\xff\xff.").contains("far from all others"));
}

#[test]
fn broken_structures_are_rejected() {
    for (bytes, expected) in [
        (b"\x80\x04".as_slice(), "ends in the middle"),
        (b"\x80\x09.", "NotRecognized"),
        (b"\x80\x04.", "a value is missing"),
        (b"\x80\x04\x94.", "a value is missing"),
        (b"\x80\x04u.", "the beginning of a group"),
        (b"\x80\x04e.", "the beginning of a group"),
        (b"\x80\x04(u.", "what is not a dictionary"),
        (b"\x80\x04(e.", "what is not a list"),
        (b"\x80\x04s.", "what is not a dictionary"),
        (b"\x80\x04a.", "what is not a list"),
        (b"\x80\x04Na.", "what is not a list"),
        (b"\x80\x04h\x07.", "value 7 is used and was never kept"),
        (b"\x80\x04]\x940h\0.", "a value that was dropped"),
        (b"\x80\x04N.", "neither `segments` nor `device_traces`"),
        (b"\x80\x04}.", "neither `segments` nor `device_traces`"),
        (b"\x80\x04\x86.", "a value is missing"),
    ] {
        if expected == "NotRecognized" {
            assert!(matches!(read(bytes).0, Err(ImportError::NotRecognized { .. })));
        } else {
            let text = error(bytes);
            assert!(text.contains(expected), "{bytes:?}: {text}");
        }
    }
}

#[test]
fn self_referential_pickle_is_rejected() {
    // A list in itself, a dictionary in itself, and a list in a dictionary in the list.
    for bytes in [
        b"\x80\x04]\x94h\0a.".as_slice(),
        b"\x80\x04]\x94(h\0e.",
        b"\x80\x04}\x94\x8c\x01ah\0s.",
        b"\x80\x04}\x94(\x8c\x01ah\0u.",
        b"\x80\x04]\x94}\x94(\x8c\x01ah\0ua.",
    ] {
        assert!(error(bytes).contains("or complete"), "{bytes:?}");
    }
}

#[test]
fn shared_trace_entry_is_rejected() {
    let entry = b"}\x94(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01u";
    let twice = [b"\x80\x04](".as_slice(), entry, b"h\0e."].concat();
    assert!(error(&twice).contains("used twice"));
}

#[test]
fn shared_values_are_not_expanded() {
    // Each list contains the previous one twice: 2^100000 values if it were expanded.
    let mut bytes = b"\x80\x04]\x94".to_vec();
    for index in 0..100_000_u32 {
        bytes.extend(b"]\x94(j");
        bytes.extend(index.to_le_bytes());
        bytes.push(b'j');
        bytes.extend(index.to_le_bytes());
        bytes.push(b'e');
    }
    bytes.push(b'.');
    assert!(read(&bytes).0.is_err());
}

#[test]
fn nesting_depth_is_bounded() {
    let marks = [b"\x80\x04".as_slice(), &b"(".repeat(1_000_000), b"."].concat();
    assert!(error(&marks).contains("nested too deeply"));
    let nested = [b"\x80\x04".as_slice(), &b"](".repeat(1000), &b"e".repeat(1000), b"."].concat();
    assert!(error(&nested).contains("nested too deeply"));
    // Without marks nothing is nested in the reader, however deep it is in the file.
    let chain =
        [b"\x80\x04".as_slice(), &b"]".repeat(100_000), &b"a".repeat(99_999), b"."].concat();
    assert!(error(&chain).contains("neither"));
    let lists = [b"\x80\x04".as_slice(), &b"]".repeat(5_000_000), b"."].concat();
    assert!(error(&lists).contains("too many values at one time"));
}

#[test]
fn non_snapshot_files_are_rejected() {
    for bytes in
        [b"".as_slice(), b"PK\x03\x04", b"plain text", b"\x80", b"<html></html>", b"[1, 2]"]
    {
        let text = error(bytes);
        assert!(text.contains("make one with torch.cuda.memory._dump_snapshot()"), "{text}");
    }
    let mut sink = CheckingSink::default();
    let missing = torch::read(Path::new("/nowhere/snapshot.pickle"), &mut sink);
    assert!(matches!(missing, Err(ImportError::Io { .. })));
    let page = error(b"<html> \"base64\": \"gARjb3MK\"");
    assert!(page.contains("GLOBAL (0x63), at byte 2 of the pickle in the page"), "{page}");
}

#[test]
fn truncated_file_is_rejected_without_output() {
    let whole = std::fs::read(file("generated/odd-entries.pickle")).unwrap();
    for end in 0..whole.len() {
        let (result, sink) = read(&whole[..end]);
        assert!(result.is_err(), "cut at {end}");
        assert_eq!((sink.allocated, sink.segments.len(), sink.warnings.len()), (0, 0, 0));
    }
    assert!(read(&whole).0.is_ok());
    for name in ["real/torch-2.11_native.pickle", "generated/page.html"] {
        let whole = std::fs::read(file(name)).unwrap();
        for end in (0..whole.len() - 100).step_by(997) {
            assert!(read(&whole[..end]).0.is_err(), "{name} cut at {end}");
        }
    }
}

fn entry(action: &str, address: u8, size: &[u8]) -> Vec<u8> {
    let length = u8::try_from(action.len()).unwrap();
    let action = [&[0x8c, length], action.as_bytes()].concat();
    let key = b"}(\x8c\x06action".as_slice();
    [key, &action, b"\x8c\x04addrK", &[address], b"\x8c\x04size", size, b"u"].concat()
}

#[test]
fn address_is_live_on_one_device_at_a_time() {
    let first = entry("alloc", 1, b"K\x05");
    let second = [entry("alloc", 1, b"K\x06"), entry("free", 1, b"K\x06")].concat();
    let traces = [b"](".as_slice(), &first, b"e](", &second, b"e"].concat();
    let bytes = [b"\x80\x04}\x8c\x0ddevice_traces](".as_slice(), &traces, b"es."].concat();
    let (events, sink) = read(&bytes);
    assert_eq!(events.unwrap(), 3);
    assert_eq!((sink.allocated, sink.ended), (2, 2));
    assert_eq!(sink.warning("reused without a free").unwrap().count, 1);
}

#[test]
fn out_of_range_numbers_are_counted() {
    // An allocation of -1 bytes, one of 2^62 bytes, and its free.
    let huge = b"\x8a\x08\0\0\0\0\0\0\0\x40";
    let entries = [
        entry("alloc", 1, b"J\xff\xff\xff\xff"),
        entry("alloc", 2, huge),
        entry("free", 2, huge),
        entry("free", 2, huge),
        entry("alloc", 1, b"K\x05"),
    ];
    let bytes =
        [b"\x80\x04}\x8c\x0ddevice_traces](](".as_slice(), &entries.concat(), b"ees."].concat();
    let (events, sink) = read(&bytes);
    assert_eq!(events.unwrap(), 5);
    assert_eq!((sink.allocated, sink.ended), (3, 2));
    assert_eq!(sink.warning("negative or too large").unwrap().count, 4);
    assert_eq!(sink.warning("were not live").unwrap().count, 1);
    assert_eq!(sink.warning("reused without a free").unwrap().count, 1);
    assert!(sink.warning("no segments").is_some());
}

fn any_opcodes() -> impl Strategy<Value = Vec<u8>> {
    let words = [
        "segments",
        "device_traces",
        "action",
        "alloc",
        "free_requested",
        "addr",
        "size",
        "frames",
        "name",
        "filename",
        "line",
        "blocks",
        "state",
        "active_allocated",
        "total_size",
        "history",
        "segment_map",
        "segment_unmap",
        "segment_free",
        "time_us",
        "device",
        "host_traces",
        "oom",
    ];
    let word = prop::sample::select(words.to_vec())
        .prop_map(|word| [&[0x8c, u8::try_from(word.len()).unwrap()], word.as_bytes()].concat());
    let fixed: Vec<&[u8]> = vec![
        b"(",
        b"}",
        b"]",
        b")",
        b"N",
        b"\x88",
        b"u",
        b"e",
        b"s",
        b"a",
        b"t",
        b"l",
        b"d",
        b"0",
        b"1",
        b"\x85",
        b"\x86",
        b"\x87",
        b"\x94",
        b"K\x07",
        b"M\x07\x08",
        b"J\xff\xff\xff\xff",
        b"h\0",
        b"h\x01",
        b"h\x02",
        b"j\x03\0\0\0",
        b"q\0",
        b"q\x04",
        b"\x8a\x01\xff",
        b"\x8a\x09\0\0\0\0\0\0\0\x80\0",
        b"G\x7f\xf8\0\0\0\0\0\0",
        b".",
    ];
    let step = prop_oneof![
        3 => prop::sample::select(fixed).prop_map(<[u8]>::to_vec),
        2 => word,
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(step, 0..120)
        .prop_map(|steps| [b"\x80\x04".to_vec(), steps.concat(), b".".to_vec()].concat())
}

/// Snapshots with entries in any order and of any size.
fn any_entries() -> impl Strategy<Value = Vec<u8>> {
    let action = prop::sample::select(vec![
        "alloc",
        "free",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
        "snapshot",
    ]);
    let entry = (action, 0_u8..8, any::<i32>(), prop::option::of(any::<u16>())).prop_map(
        |(action, address, size, time)| {
            let length = u8::try_from(action.len()).unwrap();
            let mut bytes =
                [b"}(\x8c\x06action\x8c".as_slice(), &[length], action.as_bytes()].concat();
            bytes.extend(b"\x8c\x04addrK");
            bytes.push(address);
            bytes.extend(
                [b"\x8c\x04sizeJ".as_slice(), &(size >> (size & 31)).to_le_bytes()].concat(),
            );
            if let Some(time) = time {
                bytes.extend([b"\x8c\x07time_usM".as_slice(), &time.to_le_bytes()].concat());
            }
            bytes.push(b'u');
            bytes
        },
    );
    let trace = prop::collection::vec(entry, 0..30)
        .prop_map(|entries| [b"](".as_slice(), &entries.concat(), b"e"].concat());
    let block = (0_u8..3, any::<u8>()).prop_map(|(state, size)| {
        let state = ["active_allocated", "active_pending_free", "inactive"][usize::from(state)];
        let length = u8::try_from(state.len()).unwrap();
        [
            b"}(\x8c\x05state\x8c".as_slice(),
            &[length],
            state.as_bytes(),
            b"\x8c\x04sizeK",
            &[size],
            b"u",
        ]
        .concat()
    });
    let segments =
        prop::collection::vec((prop::collection::vec(block, 0..5), 0_u8..8, any::<u8>()), 0..4)
            .prop_map(|segments| {
                let each = segments.into_iter().map(|(blocks, address, size)| {
                    let start = [
                        b"}(\x8c\x07addressK".as_slice(),
                        &[address],
                        b"\x8c\x0atotal_sizeK",
                        &[size],
                    ]
                    .concat();
                    [start.as_slice(), b"\x8c\x06blocks](".as_slice(), &blocks.concat(), b"eu"]
                        .concat()
                });
                [b"](".to_vec(), each.collect::<Vec<_>>().concat(), b"e".to_vec()].concat()
            });
    (prop::collection::vec(trace, 0..3), segments).prop_map(|(traces, segments)| {
        let traces = [b"\x8c\x0ddevice_traces](".as_slice(), &traces.concat(), b"e"].concat();
        [b"\x80\x04}(".as_slice(), &traces, b"\x8c\x08segments", &segments, b"u."].concat()
    })
}

proptest! {
    #![proptest_config(random::config(512))]

    #[test]
    fn any_opcodes_are_handled(bytes in any_opcodes()) {
        let _ = read(&bytes);
    }

    #[test]
    fn any_bytes_are_handled(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&[b"\x80\x04".to_vec(), bytes].concat());
    }

    /// The sink checks that time never goes backwards, that only live blocks end, and that no key
    /// is live twice.
    #[test]
    fn any_entries_satisfy_the_sink_invariants(bytes in any_entries()) {
        let (result, sink) = read(&bytes);
        prop_assert!(result.is_ok(), "{:?}", result.err().map(|error| error.to_string()));
        prop_assert!(sink.allocated >= sink.ended);
    }

    #[test]
    fn one_changed_byte_does_not_panic(at in 0_usize..1594, byte: u8) {
        let mut bytes = std::fs::read(file("generated/odd-entries.pickle")).unwrap();
        if let Some(target) = bytes.get_mut(at) {
            *target = byte;
        }
        let _ = read(&bytes);
    }
}
