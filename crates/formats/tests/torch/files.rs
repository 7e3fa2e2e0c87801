//! Real and generated snapshots compared with independent results.

use engine::analysis::fragmentation::{PoolOwner, Suggestion, analyze};
use engine::model::caching_allocator::{AllocatorStats, PoolSizeClass};
use engine::model::ids::{AllocationKey, DeviceId, StreamId};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, Language};
use formats::import::{SourceFormat, torch};
use serde_json::Value;

use super::checking_sink::{CheckingSink, file};

fn read(name: &str) -> (CheckingSink, u64) {
    let mut sink = CheckingSink::default();
    let imported = torch::read(&file(name), &mut sink).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(imported.source, SourceFormat::Torch);
    (sink, imported.events)
}

fn expected() -> serde_json::Map<String, Value> {
    let text = std::fs::read_to_string(file("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Compares the four stats with the expected ones; `null` is unknown.
fn compare_stats(name: &str, got: &AllocatorStats, expected: &Value, peaks: bool) {
    for (word, level) in [
        ("allocated", got.allocated),
        ("requested", got.requested),
        ("active", got.active),
        ("reserved", got.reserved),
    ] {
        let expected = &expected[word];
        assert_eq!(Some(level.current), expected["current"].as_u64(), "{name}: {word}");
        if peaks && let Some(peak) = expected["peak"].as_u64() {
            assert_eq!(level.peak, peak, "{name}: peak of {word}");
        }
    }
}

fn compare(name: &str, sink: &CheckingSink, expected: &Value) {
    for (word, got) in [
        ("began", sink.allocated),
        ("ended", sink.ended),
        ("older", sink.warning("before the trace begins").map_or(0, |warning| warning.count)),
        ("torch", sink.live_bytes(MemoryKind::Torch)),
        ("pageable", sink.live_bytes(MemoryKind::Pageable)),
        ("pinned", sink.live_bytes(MemoryKind::Pinned)),
        ("live", sink.live_bytes(MemoryKind::Torch)),
        ("reserved", sink.live_bytes(MemoryKind::Pool)),
    ] {
        if let Some(expected) = expected.get(word).and_then(Value::as_u64) {
            assert_eq!(got, expected, "{name}: {word}");
        }
    }
    if let Some(exact) = expected["exact"].as_bool() {
        assert_eq!(sink.exact(), exact, "{name}: {:?}", sink.warnings);
    }
    let levels = expected["levels"].as_array().unwrap();
    for (number, wanted_stats) in (0..).zip(levels) {
        let device = Some(DeviceId(number));
        let got = sink.stats.iter().find(|stats| stats.device == device).unwrap();
        compare_stats(name, got, wanted_stats, expected["exact"] != Value::Null);
        // The sums of all changes agree.
        for (kind, level) in [(MemoryKind::Torch, got.allocated), (MemoryKind::Pool, got.reserved)]
        {
            let sum = sink.sums.get(&(kind, device)).copied().unwrap_or(0);
            let peak = sink.peaks.get(&(kind, device)).copied().unwrap_or(0);
            assert_eq!((sum, peak), (level.current, level.peak), "{name}: {kind} of {device:?}");
        }
    }
}

#[test]
fn snapshots_match_the_expected_results() {
    let expected = expected();
    assert!(expected.len() > 20);
    for (name, wanted) in &expected {
        let dir = if name.starts_with("torch-2.11") { "real" } else { "generated" };
        let (sink, _) = read(&format!("{dir}/{name}"));
        compare(name, &sink, wanted);
    }
}

#[test]
fn every_generated_file_has_an_expected_result() {
    let expected = expected();
    for entry in std::fs::read_dir(file("generated")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(expected.contains_key(&name), "{name} is not compared with anything");
    }
}

#[test]
fn real_snapshot_has_times_stacks_and_settings() {
    let (sink, events) = read("real/torch-2.11_native.pickle");
    assert_eq!(events, 598);
    let first = expected()["torch-2.11_native.pickle"]["first_us"].as_u64().unwrap() * 1000;
    assert_eq!(
        sink.clock.map(|(moment, utc)| (moment.0, utc.unsigned_abs())),
        Some((first, first))
    );
    let settings = sink.settings.as_ref().unwrap();
    assert_eq!(settings.expandable_segments, Some(false));
    assert_eq!((settings.max_split_bytes, settings.roundup_divisions), (None, [0; 16]));
    let mut with_python = 0;
    // Every live block has a stack, innermost first, without frames of the recorder.
    for change in sink.live.values().filter(|change| change.kind == MemoryKind::Torch) {
        let frames: Vec<_> = sink.stacks.frames(change.site.unwrap()).collect();
        assert!(frames[0].function.contains("malloc"), "{:?}", frames[0]);
        assert!(frames.iter().all(|frame| !frame.function.contains("unwind")));
        let python = |frame: &&Frame| frame.language == Language::Python && frame.line > 0;
        with_python += u64::from(frames.iter().any(python));
    }
    let wanted = &expected()["torch-2.11_native.pickle"]["live_with_python"];
    assert_eq!(Some(with_python), wanted.as_u64());
    // Blocks of the segments have the same stacks as their allocations.
    for block in sink.segments.iter().flat_map(|segment| &segment.blocks) {
        if let Some(change) = sink.live.get(&AllocationKey::address(block.address)) {
            assert_eq!(change.site, block.site);
        }
    }
}

#[test]
fn out_of_memory_warning_has_requested_and_free_sizes() {
    let (sink, _) = read("real/torch-2.11_oom.pickle");
    let oom = sink.warning("out of memory").unwrap();
    assert_eq!(
        oom.text,
        "out of memory on gpu_0 at 2026-11-15T00:44:39.756815Z: 4.00 TiB (4398046511104 bytes) \
         wanted, 138.91 GiB (149156921344 bytes) free on the device"
    );
    // PyTorch's message: 125.02 MiB allocated, 34.98 MiB reserved but unallocated.
    let stats = sink.stats[0];
    let mib = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 20));
    assert_eq!(mib(stats.allocated.current), "125.02");
    assert_eq!(mib(stats.reserved.current - stats.allocated.current), "34.98");
    let message = std::fs::read_to_string(file("real/torch-2.11_oom_message.txt")).unwrap();
    assert!(
        message.contains("125.02 MiB is allocated") && message.contains("34.98 MiB is reserved")
    );
}

#[test]
fn gaps_of_a_real_snapshot_match_pytorch_stats() {
    let (sink, _) = read("real/torch-2.11_native.pickle");
    let found = analyze(&sink.segments, &[], sink.settings.as_ref().unwrap());
    let wanted = &expected()["torch-2.11_native.pickle"]["inactive_split"];
    assert_eq!(found.pools.len(), 2);
    for pool in &found.pools {
        let PoolOwner::Cache(cache) = pool.owner else { panic!("no cache") };
        let part = if cache.size_class == PoolSizeClass::Small { "small" } else { "large" };
        assert_eq!(pool.stuck_bytes, wanted[part].as_u64(), "{part}");
        assert_eq!(pool.stream, Some(StreamId(0)));
    }
    let advice = found.advice[0].suggestion;
    assert!(matches!(advice, Suggestion::ExpandableSegments { stuck_bytes: 36_683_776, .. }));
}

#[test]
fn all_pickle_protocols_give_the_same_result() {
    let (one, events) = read("generated/protocol-4.pickle");
    for other in ["protocol-2", "protocol-3", "protocol-5", "cpp-pickler", "one-by-one"] {
        let (other, other_events) = read(&format!("generated/{other}.pickle"));
        assert_eq!(other.live, one.live);
        assert_eq!(other.segments, one.segments);
        assert_eq!((other.stats, other_events), (one.stats.clone(), events));
        assert_eq!(other.settings, one.settings);
    }
    assert_eq!(read("generated/page.html").0.live, one.live);
}

#[test]
fn unusual_entries_are_warned_about_and_counted() {
    let (sink, _) = read("generated/odd-entries.pickle");
    let unknown = sink.warning("`segment_teleport`").unwrap();
    assert_eq!((unknown.count, unknown.inexact), (2, false));
    assert!(sink.warning("1.00 TiB (1099511627776 bytes) wanted, 3.00 GiB").is_some());
    // A 64-bit stream needs a nine-byte integer.
    let streams: Vec<_> = sink.live.values().filter_map(|change| change.stream).collect();
    assert!(streams.contains(&StreamId((1 << 63) + 5)));
    let without = sink.live.values().filter(|change| change.kind == MemoryKind::Torch);
    assert_eq!(without.filter(|change| change.site.is_none()).count(), 1);
}

#[test]
fn profile_snapshot_has_categories_and_a_cpu_device() {
    let (sink, _) = read("generated/profile.pickle");
    assert!(sink.segments.is_empty() && sink.stats.is_empty());
    let outermost = |kind: MemoryKind| -> Vec<String> {
        let of_kind = sink.live.values().filter(|change| change.kind == kind);
        let frames = of_kind.map(|change| sink.stacks.frames(change.site.unwrap()).last().unwrap());
        frames.map(|frame| frame.function.to_string()).collect()
    };
    assert_eq!(outermost(MemoryKind::Torch), ["main", "category: parameter"]);
    assert_eq!(outermost(MemoryKind::Pageable), ["category: unknown"]);
    assert!(
        sink.live
            .values()
            .all(|change| change.device.is_some() == (change.kind == MemoryKind::Torch))
    );
}

#[test]
fn torch_2_0_stacks_come_from_the_history() {
    let (sink, _) = read("generated/torch-2.0.pickle");
    let active = sink.segments.iter().flat_map(|segment| &segment.blocks);
    for block in active.filter(|block| block.requested > 0) {
        let inner = sink.stacks.frames(block.site.unwrap()).next().unwrap();
        assert_eq!(&*inner.function, "c10::alloc");
    }
    let timeless = sink.warning("no time").unwrap();
    assert!(timeless.inexact && sink.clock.is_none());
}

#[test]
fn large_blocks_from_before_the_trace_are_estimated() {
    let (sink, _) = read("generated/ring-large.pickle");
    let wanted = &expected()["ring-large.pickle"]["levels"][0]["allocated"]["peak"];
    let older = sink.warning("before the trace begins").unwrap().count;
    let guessed = sink.warning("may be up to 1 MiB larger").map_or(0, |warning| warning.count);
    let off = sink.stats[0].allocated.peak.abs_diff(wanted.as_u64().unwrap());
    assert!(off <= (older + guessed) << 20, "{off}");
}
