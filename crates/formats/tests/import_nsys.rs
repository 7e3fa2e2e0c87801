//! Exports of Nsight Systems: a real one and small ones of other versions, compared with results
//! that `tests/import/nsys/expected.py` computes independently; and files with all kinds of damage.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use engine::model::change::{ChangeKind, EndReason};
use engine::model::ids::{DeviceId, StreamId};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::collect::{Collected, file, fixture};
use crate::random;

/// Returns the path of a fixture; SQL fixtures are first made into a database.
fn database(dir: &TempDir, name: &str) -> PathBuf {
    let path = fixture("nsys").join(name);
    if name.ends_with(".sql") {
        make_database(dir, name, &std::fs::read_to_string(path).unwrap())
    } else {
        path
    }
}

fn make_database(dir: &TempDir, name: &str, statements: &str) -> PathBuf {
    let path = dir.path().join(name).with_extension("sqlite");
    rusqlite::Connection::open(&path).unwrap().execute_batch(statements).unwrap();
    path
}

fn read(path: &Path) -> Collected {
    Collected::read(path).unwrap().0
}

/// Converts the result to the form of `expected.py`.
fn summary(found: &Collected) -> Value {
    let (mut total, mut peak) = (0, (0, 0));
    let (mut allocations, mut replaced) = (0, 0);
    for change in &found.changes {
        let bytes = if change.kind.takes_device_memory() { change.bytes } else { 0 };
        match change.action {
            ChangeKind::Allocated => {
                allocations += 1;
                total += bytes;
            }
            ChangeKind::Ended { reason, .. } => {
                replaced += u64::from(reason == EndReason::Replaced);
                total -= bytes;
            }
            ChangeKind::Updated { .. } => {}
        }
        if total > peak.0 {
            peak = (total, change.at.0);
        }
    }
    let mut by_kind = BTreeMap::new();
    let live = found.live();
    for change in &live {
        *by_kind.entry(change.kind.name()).or_insert(0) += change.bytes;
    }
    let live: Vec<_> = live
        .iter()
        .map(|change| {
            json!({
                "began": change.at.0, "bytes": change.bytes, "kind": change.kind.name(),
                "pid": change.pid.0, "tid": change.tid.0,
                "device": change.device.map(|DeviceId(id)| id), "frames": found.frames(change.site),
            })
        })
        .collect();
    json!({
        "began": allocations, "peak_bytes": peak.0, "peak_at": peak.1, "replaced": replaced,
        "unmatched": found.warned("frees of memory whose allocation is not in the file"),
        "live_by_kind": by_kind, "live": live,
    })
}

#[test]
fn exports_of_all_versions_match_the_script() {
    let dir = TempDir::new().unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(fixture("nsys")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !name.contains(".sql") {
            continue;
        }
        let expected = fixture("nsys").join(&name).with_extension("json");
        let expected: Value =
            serde_json::from_str(&std::fs::read_to_string(expected).unwrap()).unwrap();
        let found = read(&database(&dir, &name));
        assert_eq!(summary(&found), expected, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 5);
}

#[test]
fn real_export_has_processes_devices_clock_and_pools() {
    let (found, imported) = Collected::read(&fixture("nsys/h200-2024.2.3.sqlite")).unwrap();
    assert_eq!(imported.events, 42);
    assert_eq!(imported.producer.as_deref(), Some("NVIDIA Nsight Systems 2024.2.3.38"));
    assert_eq!(found.processes, [(711, "./fmt_test".into())]);
    assert_eq!(found.devices, [(0, "NVIDIA H200".into(), Some(150_109_880_320))]);
    assert_eq!(found.clock, Some((0, 1_794_704_721_774_275_447)));
    let pools: Vec<_> =
        found.pools.iter().map(|pool| (pool.pool, pool.reserved, pool.used, pool.at.0)).collect();
    assert_eq!(
        pools,
        [
            (313_163_513_856, Some(32 << 20), 0, 575_827_262),
            (12_918_456_320, Some(32 << 20), 2 << 20, 597_900_474)
        ]
    );
    assert_eq!(found.warned("calls of cudaMalloc failed: out of memory"), 1);
    assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
}

#[test]
fn older_spellings_and_missing_tables_are_supported() {
    let dir = TempDir::new().unwrap();
    let (found, imported) = Collected::read(&database(&dir, "2022.2.sql")).unwrap();
    assert_eq!(imported.producer.as_deref(), Some("NVIDIA Nsight Systems 2022.2.1.31"));
    assert_eq!(found.clock, Some((0, 1_700_000_000_000_000_000)));
    assert_eq!(found.processes, [(711, "/srv/app".into())]);
    // Without that column, the number of the GPU is its id.
    assert_eq!(found.devices, [(1, "Tesla T4".into(), Some(15_843_721_216))]);
    assert_eq!(found.warned("calls of cudaMalloc failed: out of memory"), 2);
}

#[test]
fn free_row_has_the_pool_size_before_it() {
    let dir = TempDir::new().unwrap();
    let found = read(&database(&dir, "2022.4-empty-enums.sql"));
    let pools: Vec<_> = found.pools.iter().map(|p| (p.pool, p.reserved, p.used, p.at.0)).collect();
    // The second pool was destroyed, although its last row has a size.
    assert_eq!(pools, [(65536, Some(32 << 20), 512, 30), (99, Some(0), 0, 60)]);
}

#[test]
fn unordered_rows_are_sorted_and_counted() {
    let dir = TempDir::new().unwrap();
    let found = read(&database(&dir, "2025.6-unordered.sql"));
    assert_eq!(found.warned("out of order"), 3);
    assert_eq!(found.warned("CUDA_MEMOPR_MEMORY_KIND_FABRIC is not known"), 1);
    // Normalized times are wall-clock times already.
    assert_eq!(found.clock, Some((0, 0)));
    assert_eq!(found.processes, [(1, "train".into())]);
    let pooled = found.live().into_iter().find(|change| change.kind == MemoryKind::Async).unwrap();
    assert_eq!(pooled.stream, Some(StreamId(7)));
}

#[test]
fn invalid_rows_are_skipped_with_warnings() {
    let dir = TempDir::new().unwrap();
    let (found, imported) = Collected::read(&database(&dir, "odd.sql")).unwrap();
    assert_eq!(imported.events, 14);
    for (text, count) in [
        ("negative sizes", 1),
        ("not numbers", 1),
        ("neither allocation nor free", 1),
        ("a kind that is not known", 1),
        ("address reused", 1),
    ] {
        assert_eq!(found.warned(text), count, "{text}");
    }
    assert_eq!(found.changes[0].at, Timestamp(0), "negative times are shifted");
    let inexact: Vec<_> = found.warnings.iter().filter(|warning| warning.inexact).collect();
    assert_eq!(inexact.len(), 5, "{:?}", found.warnings);
}

#[test]
fn environment_of_the_program_is_never_imported() {
    let dir = TempDir::new().unwrap();
    for name in ["2022.2.sql", "2025.6-unordered.sql"] {
        let path = database(&dir, name);
        assert!(std::fs::read(&path).unwrap().windows(12).any(|part| part == b"TOKEN=secret"));
        assert!(!read(&path).everything().contains("secret"), "{name}");
    }
}

#[test]
fn capture_without_memory_events_has_advice() {
    let dir = TempDir::new().unwrap();
    let path = make_database(&dir, "a", "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)");
    let (found, imported) = Collected::read(&path).unwrap();
    assert_eq!(imported.events, 0);
    assert_eq!(found.warned("--cuda-memory-usage=true"), 1);
}

#[test]
fn unreadable_files_have_advice() {
    let dir = TempDir::new().unwrap();
    let whole = std::fs::read(database(&dir, "2022.2.sql")).unwrap();
    let error = |path: &Path| Collected::read(path).err().expect("it fails").to_string();

    let cut = file(&dir, "cut", &whole[..whole.len() / 2]);
    assert!(error(&cut).contains("the file is cut"), "{}", error(&cut));

    let mut bytes = whole.clone();
    let second_page = bytes.len() - 4096;
    bytes[4096..second_page].fill(0x55);
    let damaged = file(&dir, "damaged", &bytes);
    assert!(error(&damaged).contains("damaged"), "{}", error(&damaged));

    let writing = file(&dir, "writing", &whole);
    file(&dir, "writing-journal", b"not empty");
    assert!(error(&writing).contains("another program is writing it"), "{}", error(&writing));

    let columns = make_database(
        &dir,
        "columns",
        "CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS (start INTEGER, globalPid INTEGER)",
    );
    assert!(
        error(&columns)
            .contains("column address is missing, at table CUDA_GPU_MEMORY_USAGE_EVENTS")
    );

    let secret: Vec<u8> = whole[..16].iter().copied().chain((0..4096).map(|i| i as u8)).collect();
    let encrypted = file(&dir, "encrypted", secret);
    assert!(error(&encrypted).contains("nsys export"), "{}", error(&encrypted));
}

#[test]
fn write_ahead_log_is_read() {
    let dir = TempDir::new().unwrap();
    let path = database(&dir, "2022.2.sql");
    let expected = summary(&read(&path));
    let writer = rusqlite::Connection::open(&path).unwrap();
    writer.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;").unwrap();
    assert_eq!(summary(&read(&path)), expected, "WAL mode with an empty log");
    writer.execute_batch("DELETE FROM CUDA_GPU_MEMORY_USAGE_EVENTS WHERE start = 4000").unwrap();
    assert_eq!(summary(&read(&path))["began"], 2, "the log is read");
    writer
        .execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; DELETE FROM PROCESSES")
        .unwrap();
    let error = Collected::read(&path).err().expect("it is locked").to_string();
    assert!(error.contains("another program has locked it"), "{error}");
}

fn small_files(dir: &TempDir) -> Vec<Vec<u8>> {
    ["2022.2.sql", "2022.4-empty-enums.sql", "2025.6-unordered.sql", "odd.sql"]
        .map(|name| std::fs::read(database(dir, name)).unwrap())
        .into()
}

proptest! {
    #![proptest_config(random::config(2000))]

    /// Any result is allowed, but no hang and no panic.
    #[test]
    fn damaged_files_do_not_panic(
        which in 0_usize..4,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..40),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        static WHOLE: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
        let dir = TempDir::new().unwrap();
        let mut bytes = WHOLE.get_or_init(|| small_files(&dir))[which].clone();
        for (at, byte) in flips {
            let at = at.index(bytes.len() - 16) + 16;
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = Collected::read(&file(&dir, "damaged", bytes));
    }
}
