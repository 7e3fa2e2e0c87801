//! Fragmentation: cases computed by hand, and properties of any cache.

use engine::analysis::fragmentation::{
    FitResult, FragmentationReport, PoolOwner, Suggestion, analyze,
};
use engine::model::caching_allocator::{
    AllocatorSettings, Block, BlockState, CachePool, PoolSizeClass, PoolTotals, Segment,
};
use engine::model::ids::{DeviceId, Pid, StreamId};
use engine::model::units::Timestamp;
use proptest::prelude::*;

use crate::random;

const MIB: u64 = 1 << 20;

/// Parses a segment: `a4` is 4 MiB in use, `p` pending, `f` free; a `k` after the number means KiB.
/// The requested size is the whole block, or the number after `/`.
fn segment(notation: &str, size_class: PoolSizeClass, expandable: bool) -> Segment {
    let mut address = 1 << 40;
    let size = |text: &str| match text.strip_suffix('k') {
        Some(kib) => kib.parse::<u64>().unwrap() << 10,
        None => text.parse::<u64>().unwrap() << 20,
    };
    let blocks: Box<[Block]> = notation
        .split_whitespace()
        .map(|word| {
            let (state, rest) = word.split_at(1);
            let (bytes, requested) = rest.split_once('/').unwrap_or((rest, rest));
            let state = match state {
                "a" => BlockState::Allocated,
                "p" => BlockState::PendingFree,
                _ => BlockState::Free,
            };
            let block = Block {
                address,
                bytes: size(bytes),
                requested: size(requested),
                state,
                site: None,
            };
            address += block.bytes;
            block
        })
        .collect();
    Segment {
        device: Some(DeviceId(0)),
        pool: CachePool { id: (0, 0), size_class },
        stream: Some(StreamId(0)),
        address: 1 << 40,
        bytes: blocks.iter().map(|block| block.bytes).sum(),
        expandable,
        blocks,
    }
}

fn large(notations: &[&str]) -> Vec<Segment> {
    notations.iter().map(|notation| segment(notation, PoolSizeClass::Large, false)).collect()
}

fn of(segments: &[Segment]) -> FragmentationReport {
    analyze(segments, &[], &AllocatorSettings::default())
}

#[test]
fn values_match_those_computed_by_hand() {
    struct Case {
        segments: &'static [&'static str],
        expandable: bool,
        /// In MiB: reserved, active, requested, pending, free, largest, releasable, stuck.
        sums: [u64; 8],
        /// Internal, external.
        parts: [f64; 2],
    }
    let cases = [
        Case {
            segments: &["a4 f4 a8/6 f4"],
            expandable: false,
            sums: [20, 12, 10, 0, 8, 4, 0, 8],
            parts: [2.0 / 12.0, 0.5],
        },
        Case {
            segments: &["f20", "a10 f10"],
            expandable: false,
            sums: [40, 10, 10, 0, 30, 20, 20, 10],
            parts: [0.0, 1.0 / 3.0],
        },
        Case {
            segments: &["p5 f15"],
            expandable: false,
            sums: [20, 0, 0, 5, 15, 15, 0, 15],
            parts: [0.0, 0.0],
        },
        // Whole pages of 20 MiB can be released: of the gap from 10 to 65 MiB, those from 20 to 60.
        Case {
            segments: &["a10 f55 a15 f20"],
            expandable: true,
            sums: [100, 25, 25, 0, 75, 55, 60, 15],
            parts: [0.0, 20.0 / 75.0],
        },
        Case {
            segments: &["a20"],
            expandable: false,
            sums: [20, 20, 20, 0, 0, 0, 0, 0],
            parts: [0.0; 2],
        },
    ];
    for case in cases {
        let segments: Vec<_> = case
            .segments
            .iter()
            .map(|notation| segment(notation, PoolSizeClass::Large, case.expandable))
            .collect();
        let pools = of(&segments).pools;
        let [pool] = &*pools else { panic!("one pool") };
        let sums = [
            pool.reserved_bytes.unwrap(),
            pool.active_bytes,
            pool.requested_bytes.unwrap(),
            pool.pending_bytes,
            pool.free_bytes,
            pool.largest_free_bytes.unwrap(),
            pool.releasable_bytes.unwrap(),
            pool.stuck_bytes.unwrap(),
        ];
        assert_eq!(sums, case.sums.map(|mib| mib * MIB), "{:?}", case.segments);
        let parts = [pool.internal, pool.external];
        for (got, wanted) in parts.into_iter().zip(case.parts) {
            assert!((got.unwrap() - wanted).abs() < 1e-12, "{:?}: {got:?} {wanted}", case.segments);
        }
    }
}

#[test]
fn pools_streams_and_devices_are_separate() {
    let mut segments = large(&["a10 f10", "a10 f10", "a10 f10", "a10 f10"]);
    segments[1].stream = Some(StreamId(7));
    segments[2].pool.id = (0, 3);
    segments[3].device = Some(DeviceId(1));
    let found = of(&segments);
    assert_eq!(found.pools.len(), 4);
    assert!(found.pools.iter().all(|pool| pool.largest_free_bytes == Some(10 * MIB)));
    let reserved: Vec<_> = found.devices.iter().map(|device| device.reserved_bytes).collect();
    assert_eq!(reserved, [60 * MIB, 20 * MIB]);
}

#[test]
fn would_fit_reports_what_a_request_needs() {
    let found = of(&large(&["a4 f6 a4 f6", "f20"]));
    let fit = |mib: u64| found.would_fit(Some(DeviceId(0)), mib * MIB);
    assert_eq!(fit(6), FitResult::InFreeBlock { block_bytes: 6 * MIB });
    assert_eq!(fit(7), FitResult::InFreeBlock { block_bytes: 20 * MIB });
    assert_eq!(fit(22), FitResult::OnlyDefragmented { free_bytes: 32 * MIB, more_bytes: 2 * MIB });
    assert_eq!(fit(33), FitResult::NeedsMore { more_bytes: 14 * MIB });
    // Two idle segments of 20 MiB together free 40.
    let found = of(&large(&["f20", "f20"]));
    let fit = found.would_fit(Some(DeviceId(0)), 30 * MIB);
    assert_eq!(fit, FitResult::AfterEmptyCache { releasable_bytes: 40 * MIB });
    // A small request is not served from large segments.
    let fit = found.would_fit(Some(DeviceId(0)), 4096);
    assert_eq!(fit, FitResult::AfterEmptyCache { releasable_bytes: 40 * MIB });
    // Nothing is known about another device.
    assert_eq!(
        found.would_fit(Some(DeviceId(9)), 4096),
        FitResult::NeedsMore { more_bytes: 2 * MIB }
    );
}

#[test]
fn max_split_size_keeps_large_blocks_for_large_requests() {
    let settings =
        AllocatorSettings { max_split_bytes: Some(32 * MIB), ..AllocatorSettings::default() };
    let found = analyze(&large(&["f64 a2"]), &[], &settings);
    let fit = |mib: u64| found.would_fit(Some(DeviceId(0)), mib * MIB);
    assert_eq!(fit(4), FitResult::OnlyDefragmented { free_bytes: 64 * MIB, more_bytes: 20 * MIB });
    assert_eq!(fit(50), FitResult::InFreeBlock { block_bytes: 64 * MIB });
}

#[test]
fn driver_pools_have_totals_only() {
    let sums = PoolTotals {
        pid: Pid(7),
        device: Some(DeviceId(0)),
        pool: 5,
        reserved: Some(100),
        used: 40,
        at: Timestamp(1),
    };
    let unknown = PoolTotals { reserved: None, pool: 6, ..sums };
    let found = analyze(&[], &[sums, unknown], &AllocatorSettings::default());
    assert_eq!(found.pools[0].owner, PoolOwner::Driver(Pid(7), 5));
    assert_eq!(found.pools[0].free_bytes, 60);
    assert_eq!(found.pools[0].external, None);
    assert_eq!(found.pools[1].reserved_bytes, None);
    assert!(found.advice.is_empty());
}

fn advice(segments: &[Segment], settings: &AllocatorSettings) -> Vec<Suggestion> {
    let found = analyze(segments, &[], settings);
    for advice in &found.advice {
        assert!(
            advice
                .suggestion
                .reason()
                .ends_with(|last: char| last.is_alphanumeric() || last == ')')
        );
    }
    found.advice.into_iter().map(|advice| advice.suggestion).collect()
}

#[test]
fn gaps_suggest_expandable_segments_unless_enabled() {
    let notation = "a10 f90";
    let off = AllocatorSettings::default();
    let found = advice(&large(&[notation]), &off);
    let stuck_bytes = 90 * MIB;
    assert_eq!(
        found,
        [
            Suggestion::ExpandableSegments { stuck_bytes, reserved_bytes: 100 * MIB },
            Suggestion::MaxSplitSize { mib: 64, avoided_bytes: stuck_bytes, stuck_bytes },
        ]
    );
    assert_eq!(found[0].setting().unwrap(), "expandable_segments:True");
    assert_eq!(found[1].setting().unwrap(), "max_split_size_mb:64");
    let limited = AllocatorSettings { max_split_bytes: Some(64 * MIB), ..off.clone() };
    assert_eq!(advice(&large(&[notation]), &limited).len(), 1);
    let on = AllocatorSettings { expandable_segments: Some(true), ..off };
    // Pages from 20 MiB on can be released: that is cache.
    let found = advice(&[segment(notation, PoolSizeClass::Large, true)], &on);
    assert_eq!(found, [Suggestion::EmptyCache { releasable_bytes: 80 * MIB }]);
}

#[test]
fn full_cache_is_not_fragmented() {
    let found = advice(&large(&["a95 f5"]), &AllocatorSettings::default());
    let (used_bytes, reserved_bytes) = (95 * MIB, 100 * MIB);
    assert_eq!(found, [Suggestion::NotFragmentation { used_bytes, reserved_bytes }]);
    assert_eq!(found[0].setting(), None);
}

#[test]
fn idle_segments_are_cache() {
    let off = AllocatorSettings::default();
    let (releasable_bytes, reserved_bytes) = (60 * MIB, 100 * MIB);
    let empty = Suggestion::EmptyCache { releasable_bytes };
    let collect =
        Suggestion::GarbageCollectionThreshold { percent: 80, releasable_bytes, reserved_bytes };
    assert_eq!(advice(&large(&["a40", "f60"]), &off), [empty, collect]);
    assert_eq!(collect.setting().unwrap(), "garbage_collection_threshold:0.80");
    let on = AllocatorSettings { garbage_collection_threshold: Some(0.6), ..off };
    assert_eq!(advice(&large(&["a40", "f60"]), &on), [empty]);
}

#[test]
fn many_sizes_between_gaps_suggest_rounding() {
    let mixed: Vec<String> = (2..20).map(|mib| format!("a{mib} f{mib}")).collect();
    let found = advice(&large(&[&mixed.join(" ")]), &AllocatorSettings::default());
    let steps = found.iter().find_map(Suggestion::setting).unwrap();
    assert_eq!(steps, "expandable_segments:True");
    assert!(found.iter().any(|suggestion| matches!(
        suggestion,
        Suggestion::RoundupPower2Divisions { divisions: 8, sizes: 18, blocks: 18, .. }
    )));
    let same: Vec<String> = (2..20).map(|_| "a4 f4".to_owned()).collect();
    let found = advice(&large(&[&same.join(" ")]), &AllocatorSettings::default());
    assert!(
        !found
            .iter()
            .any(|suggestion| matches!(suggestion, Suggestion::RoundupPower2Divisions { .. }))
    );
}

#[test]
fn coarse_rounding_is_reported_when_configured() {
    let set = AllocatorSettings { roundup_divisions: [2; 16], ..AllocatorSettings::default() };
    let found = advice(&large(&["a96/70"]), &set);
    assert!(found.contains(&Suggestion::FinerRounding {
        divisions: 4,
        rounding_bytes: 26 * MIB,
        active_bytes: 96 * MIB,
    }));
    assert_eq!(advice(&large(&["a96/70"]), &AllocatorSettings::default()).len(), 1);
}

prop_compose! {
    fn any_segment()(
        blocks in prop::collection::vec((0_u8..3, 1_u64..1 << 16, 0_u64..1 << 16), 0..12),
        device in 0_u16..2,
        stream in 0_u64..2,
        size_class in prop::sample::select(vec![PoolSizeClass::Small, PoolSizeClass::Large, PoolSizeClass::Whole]),
        expandable: bool,
    ) -> Segment {
        let mut address = 1 << 30;
        let blocks: Box<[Block]> = blocks.into_iter().map(|(state, grains, requested)| {
            let state = [BlockState::Allocated, BlockState::PendingFree, BlockState::Free][usize::from(state)];
            let block = Block { address, bytes: grains * 512, requested: requested * 512, state, site: None };
            address += block.bytes;
            block
        }).collect();
        Segment {
            device: Some(DeviceId(device)),
            pool: CachePool { id: (0, 0), size_class },
            stream: Some(StreamId(stream)),
            address: 1 << 30,
            bytes: blocks.iter().map(|block| block.bytes).sum(),
            expandable,
            blocks,
        }
    }
}

proptest! {
    #![proptest_config(random::config(random::CASES))]

    #[test]
    fn reserved_is_active_pending_releasable_or_stuck(
        segments in prop::collection::vec(any_segment(), 0..12),
        request in 0_u64..1 << 28,
    ) {
        let found = of(&segments);
        for pool in &found.pools {
            let parts = pool.active_bytes + pool.pending_bytes
                + pool.releasable_bytes.unwrap() + pool.stuck_bytes.unwrap();
            prop_assert_eq!(parts, pool.reserved_bytes.unwrap());
            prop_assert_eq!(pool.free_blocks.iter().sum::<u64>(), pool.free_bytes);
            for part in [pool.internal, pool.external] {
                prop_assert!((0.0..=1.0).contains(&part.unwrap()));
            }
            if let FitResult::InFreeBlock { block_bytes } = found.would_fit(pool.device, request) {
                prop_assert!(block_bytes >= request);
                prop_assert!(found.pools.iter().any(|one| one.free_blocks.contains(&block_bytes)));
            }
        }
        let reserved: u64 = found.pools.iter().filter_map(|pool| pool.reserved_bytes).sum();
        prop_assert_eq!(reserved, segments.iter().map(|segment| segment.bytes).sum::<u64>());
    }

    #[test]
    fn invalid_segments_do_not_panic(
        numbers in prop::collection::vec(any::<(u64, u64, u64)>(), 1..8),
        request: u64,
        divisions: u64,
        limit: Option<u64>,
    ) {
        let block = |&(address, bytes, requested): &(u64, u64, u64)| Block {
            address, bytes, requested, state: BlockState::Free, site: None,
        };
        let mut segment = segment("a1", PoolSizeClass::Large, numbers.len() % 2 == 0);
        segment.blocks = numbers.iter().map(block).collect();
        segment.bytes = numbers[0].0;
        let settings = AllocatorSettings {
            roundup_divisions: [divisions; 16],
            max_split_bytes: limit,
            ..AllocatorSettings::default()
        };
        let found = analyze(&[segment], &[], &settings);
        let _ = found.would_fit(Some(DeviceId(0)), request);
        prop_assert!(found.advice.iter().all(|advice| !advice.suggestion.reason().is_empty()));
    }
}
