//! Exports of changes: no file content breaks them, and their documentation is up to date.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use engine::analysis::MemoryScope;
use engine::analysis::groups::GroupTable;
use engine::model::change::{AllocationChange, ChangeKind, EndReason, LateFields};
use engine::model::ids::{AddressType, AllocationKey, DeviceId, Pid, SiteId, StreamId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::Frame;
use engine::model::units::Timestamp;
use formats::export::allocations::{AllocationWriter, COLUMNS, CsvEncoder, JsonEncoder};
use formats::export::format_writer::FormatWriter;
use formats::export::perfetto::PerfettoWriter;
use formats::export::profile::{Profile, ProfileUnit, at_end, speedscope};
use formats::export::torch::{Prescan, SnapshotWriter};
use formats::import::collecting_sink::FileInfo;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::collect::{self, Collected};
use crate::random;

fn change(at: u64, action: ChangeKind, address: u64, bytes: u64) -> AllocationChange {
    AllocationChange {
        at: Timestamp(at),
        action,
        pid: Pid(1),
        tid: Tid(1),
        device: Some(DeviceId(0)),
        kind: MemoryKind::Device,
        key: AllocationKey::address(address),
        bytes,
        pool: None,
        stream: None,
        site: None,
    }
}

/// Feeds a format writer; returns its final notes.
fn feed(
    mut exporter: Box<dyn FormatWriter + '_>,
    changes: &[AllocationChange],
    info: &FileInfo,
) -> Vec<String> {
    for change in changes {
        exporter.change(change, info).unwrap();
    }
    exporter.finish(info).unwrap()
}

fn torch(
    scope: MemoryScope,
    changes: &[AllocationChange],
    info: &FileInfo,
) -> Result<Vec<u8>, Vec<Pid>> {
    let mut prescan = Prescan::new(scope);
    for change in changes {
        prescan.change(change);
    }
    let mut out = Vec::new();
    let mut snapshot = SnapshotWriter::new(&mut out, prescan, info).unwrap()?;
    for target in snapshot.targets() {
        snapshot.open(target, info).unwrap();
        for change in changes {
            snapshot.change(change, info).unwrap();
        }
        snapshot.close(info).unwrap();
    }
    snapshot.finish(info).unwrap();
    Ok(out)
}

#[test]
fn documented_columns_match_the_output() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/export-formats.md");
    let found = fs::read_to_string(&path).unwrap();
    let mut table = String::from("| column | type | description |\n|---|---|---|\n");
    for (name, of, about) in COLUMNS {
        writeln!(table, "| `{name}` | {} | {about} |", of.name()).unwrap();
    }
    let start = "<!-- columns -->\n";
    let (before, rest) = found.split_once(start).expect("the mark of the table");
    let (_, after) = rest.split_once("<!-- end -->").expect("the end of the table");
    let page = format!("{before}{start}{table}<!-- end -->{after}");
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
        return;
    }
    assert!(
        found == page,
        "docs/reference/export-formats.md is stale: VRAMSCOPE_UPDATE=1 cargo test -p vramscope-formats --test integration exports"
    );
}

#[test]
fn number_of_allocations_without_a_slice_is_reported() {
    let changes =
        [(1, 5), (2, 9), (3, 7)].map(|(at, bytes)| change(at, ChangeKind::Allocated, at, bytes));
    let mut out = Vec::new();
    let exporter = Box::new(PerfettoWriter::new(&mut out, MemoryScope::Device, 1));
    let notes = feed(exporter, &changes, &FileInfo::default());
    assert!(notes[0].starts_with("2 of the smaller allocations"), "{notes:?}");
    let exporter = Box::new(PerfettoWriter::new(&mut out, MemoryScope::Device, 3));
    assert!(feed(exporter, &changes, &FileInfo::default()).is_empty());
}

#[test]
fn exec_ends_the_memory_of_the_old_program() {
    let exited = |allocated_at| ChangeKind::Ended {
        allocated_at: Timestamp(allocated_at),
        reason: EndReason::ProcessExited,
    };
    let first = [
        change(1, ChangeKind::Allocated, 0x1000, 512),
        change(2, ChangeKind::Allocated, 0x2000, 1024),
        change(3, exited(1), 0x1000, 512),
        change(3, exited(2), 0x2000, 1024),
    ];
    let sums = |changes: &[AllocationChange]| {
        let dir = tempfile::tempdir().unwrap();
        let bytes = torch(MemoryScope::Device, changes, &FileInfo::default()).unwrap();
        let path = collect::file(&dir, "made.pickle", bytes);
        let (found, _) = Collected::read(&path).unwrap();
        assert!(found.warnings.is_empty(), "{:?}", found.warnings);
        let live = found.live().into_iter().filter(|change| change.kind == MemoryKind::Torch);
        live.map(|change| (change.key.value, change.bytes)).collect::<Vec<_>>()
    };
    assert_eq!(sums(&first), [(0x1000, 512), (0x2000, 1024)], "never freed");
    // An exec; the new program gets the same addresses.
    let mut second = first.to_vec();
    second.push(change(5, ChangeKind::Allocated, 0x1000, 2048));
    assert_eq!(sums(&second), [(0x1000, 2048)]);
}

fn change_kind() -> impl Strategy<Value = ChangeKind> {
    let reason = prop_oneof![
        Just(EndReason::Freed),
        Just(EndReason::Replaced),
        Just(EndReason::Released),
        Just(EndReason::ProcessExited)
    ];
    let known = (prop::option::of(0_u16..3), any::<u64>()).prop_map(|(device, bytes)| LateFields {
        device: device.map(DeviceId),
        pool: None,
        bytes,
    });
    prop_oneof![
        3 => Just(ChangeKind::Allocated),
        2 => (any::<u64>(), reason).prop_map(|(at, reason)| ChangeKind::Ended { allocated_at: Timestamp(at), reason }),
        1 => (any::<u64>(), known)
            .prop_map(|(at, before)| ChangeKind::Updated { allocated_at: Timestamp(at), before }),
    ]
}

fn any_change() -> impl Strategy<Value = AllocationChange> {
    let spaces = [
        AddressType::Pointer,
        AddressType::Handle,
        AddressType::Array,
        AddressType::Pool,
        AddressType::External,
    ];
    let number = prop_oneof![Just(0), Just(u64::MAX), 0..8_u64, any::<u64>()];
    (
        (number.clone(), change_kind(), 0..2_u32, prop::option::of(0_u16..3)),
        (prop::sample::select(&MemoryKind::ALL[..]), prop::sample::select(spaces.to_vec())),
        (number.clone(), number.clone(), prop::option::of(number), prop::option::of(0..3_u32)),
    )
        .prop_map(
            |((at, action, pid, device), (kind, space), (value, bytes, stream, site))| {
                AllocationChange {
                    at: Timestamp(at),
                    action,
                    pid: Pid(pid),
                    tid: Tid(pid),
                    device: device.map(DeviceId),
                    kind,
                    key: AllocationKey { space, value },
                    bytes,
                    pool: None,
                    stream: stream.map(StreamId),
                    site: site.map(SiteId),
                }
            },
        )
}

proptest! {
    #![proptest_config(random::config(300))]

    #[test]
    fn any_changes_are_exported_correctly(
        changes in vec(any_change(), 0..40),
        clock in prop::option::of((any::<u64>(), any::<i64>())),
        name in ".{0,20}",
    ) {
        let mut info = FileInfo { clock: clock.map(|(at, utc)| (Timestamp(at), utc)), ..FileInfo::default() };
        info.processes.insert(Pid(1), name.clone());
        let frame = info.stacks.frame(Frame { function: name.as_str().into(), ..Frame::default() });
        info.stacks.site(&[frame]);
        let ends = changes.iter().filter(|change| matches!(change.action, ChangeKind::Ended { .. })).count();
        let mut json = Vec::new();
        feed(Box::new(AllocationWriter::new(JsonEncoder::new(&mut json).unwrap())), &changes, &info);
        let rows: Vec<serde_json::Value> = serde_json::from_slice(&json).unwrap();
        prop_assert!(rows.len() >= ends && rows.iter().all(|row| row["bytes"].is_u64()));
        let mut csv = Vec::new();
        feed(Box::new(AllocationWriter::new(CsvEncoder::new(&mut csv).unwrap())), &changes, &info);
        // Names contain no line breaks here, so lines are rows.
        prop_assert_eq!(String::from_utf8(csv).unwrap().lines().count(), rows.len() + 1);
        let mut groups = GroupTable::new(MemoryScope::Device);
        changes.iter().for_each(|change| groups.observe(change));
        let (samples, stacks, processes) = (at_end(&groups), &info.stacks, &info.processes);
        let profile = Profile { samples: &samples, stacks, processes, title: &name };
        let mut file = Vec::new();
        speedscope(&mut file, &profile, "held", None, ProfileUnit::Bytes).unwrap();
        serde_json::from_slice::<serde_json::Value>(&file).unwrap();
        let mut perfetto = Vec::new();
        feed(Box::new(PerfettoWriter::new(&mut perfetto, MemoryScope::Device, 10)), &changes, &info);
        for scope in [MemoryScope::Device, MemoryScope::Torch] {
            match torch(scope, &changes, &info) {
                Err(processes) => prop_assert!(processes.len() == 2),
                Ok(bytes) => prop_assert!(bytes.starts_with(&[0x80, 4]) && bytes.ends_with(b".")),
            }
        }
    }
}
