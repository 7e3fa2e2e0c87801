//! Bands and allocation spans, compared with naive implementations.

use std::collections::BTreeMap;

use engine::analysis::bands::{Band, BandSampler, BandScan, BandScanResult, BandSeries, GroupBy};
use engine::analysis::largest::LargestAnalysis;
use engine::analysis::lifetimes::Lifetime;
use engine::analysis::{Amount, MemoryScope};
use engine::model::change::{AllocationChange, ChangeKind};
use engine::model::ids::SiteId;
use engine::model::stack::{Frame, StackTable};
use engine::model::units::Timestamp;
use proptest::prelude::*;

use super::feed::changes;
use super::naive;
use crate::random::{CASES, config};

/// Returns the band of a change, computed without the engine.
fn band(by: GroupBy, change: &AllocationChange) -> Band {
    match by {
        GroupBy::Kind => Band::Kind(change.kind),
        GroupBy::Site => Band::Site(change.site),
        GroupBy::Process => Band::Process(change.pid),
        GroupBy::Device => Band::Device(change.device),
        GroupBy::Library => panic!("a library is a sum of sites"),
    }
}

/// Groupings whose bands are known from a change alone.
const GROUPINGS: [GroupBy; 4] = [GroupBy::Kind, GroupBy::Site, GroupBy::Process, GroupBy::Device];

/// Sites of two libraries.
fn stacks() -> StackTable {
    let mut stacks = StackTable::default();
    for number in 0..64 {
        let module = if number % 3 == 0 { "/lib/libnccl.so.2" } else { "/srv/app" };
        let function = format!("step{number}").into();
        let frame = Frame { function, module: Some(module.into()), ..Frame::default() };
        let id = stacks.frame(frame);
        stacks.site(&[id]);
    }
    stacks
}

fn first_pass(changes: &[AllocationChange]) -> BandScanResult {
    let mut scan = BandScan::new(MemoryScope::Device);
    changes.iter().for_each(|change| scan.observe(change));
    scan.finish()
}

type Filled = (Vec<BandSeries>, Vec<(Option<SiteId>, Amount)>);

fn fill(
    scan: &BandScanResult,
    changes: &[AllocationChange],
    points: usize,
    limit: usize,
) -> Filled {
    let groupings = GROUPINGS.map(|by| (by, limit));
    let mut bands = BandSampler::new(scan, scan.sample_points(points), &groupings);
    changes.iter().for_each(|change| bands.observe(change));
    assert!(bands.is_complete());
    bands.finish()
}

type Row = (Timestamp, Vec<u64>);

/// Returns the rows of a series, each with all bands.
fn rows(series: &BandSeries) -> Vec<Row> {
    let mut now = vec![0; series.bands.len()];
    let all = series.rows().map(|(at, cells)| {
        for (band, bytes) in cells {
            now[*band as usize] = *bytes;
        }
        (at, now.clone())
    });
    all.collect()
}

/// Computes the rows after each counted change naively.
fn expected_rows(series: &BandSeries, changes: &[AllocationChange]) -> Vec<Row> {
    let sets = naive::sets(changes).into_iter().zip(changes);
    let counted = sets.filter(|(_, change)| naive::counts(change));
    let row = |((at, live), _): ((Timestamp, naive::LiveSet), &AllocationChange)| {
        let mut bytes = vec![0; series.bands.len()];
        for (change, _) in live.values().filter(|(change, _)| naive::counts(change)) {
            let band = band(series.by, change);
            let known = series.bands.iter().position(|other| *other == band);
            bytes[known.unwrap_or(series.bands.len() - 1)] += change.bytes;
        }
        (at, bytes)
    };
    counted.map(row).collect()
}

fn sum(row: &Row) -> u64 {
    row.1.iter().sum()
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn bands_match_naive_after_every_change(changes in changes(150), limit in 1..4_usize) {
        let scan = first_pass(&changes);
        for series in fill(&scan, &changes, changes.len(), limit).0 {
            let named = series.bands.iter().filter(|band| !matches!(band, Band::Rest(_))).count();
            prop_assert!(named <= limit + 1);
            prop_assert_eq!(rows(&series), expected_rows(&series, &changes));
        }
    }

    #[test]
    fn downsampling_keeps_peak_trough_and_end(
        changes in changes(400),
        points in 3..60_usize,
    ) {
        let scan = first_pass(&changes);
        for series in fill(&scan, &changes, points, 3).0 {
            let (all, few) = (expected_rows(&series, &changes), rows(&series));
            prop_assert!(few.len() <= points, "{} of {points}", few.len());
            let mut rest = all.iter();
            for row in &few {
                prop_assert!(rest.any(|other| other == row), "{row:?}");
            }
            prop_assert_eq!(few.last(), all.last());
            prop_assert_eq!(few.iter().map(sum).max(), all.iter().map(sum).max());
            prop_assert_eq!(few.iter().map(sum).min(), all.iter().map(sum).min());
            prop_assert_eq!(few.iter().map(sum).max().unwrap_or(0), scan.peak_bytes);
        }
    }

    #[test]
    fn band_totals_match_naive(changes in changes(150)) {
        let scan = first_pass(&changes);
        let never_freed = naive::never_freed(&changes);
        for by in GROUPINGS {
            let series = fill(&scan, &changes, changes.len(), 100).0.swap_remove(by as usize);
            let peaks = expected_rows(&series, &changes);
            for (index, total) in scan.totals(by).iter().enumerate() {
                prop_assert_eq!(total.key, series.bands[index]);
                let peak = peaks.iter().map(|(_, bytes)| bytes[index]).max();
                prop_assert_eq!(Some(total.peak_bytes), peak);
                let here = never_freed.iter().filter(|(key, _)| {
                    key.kind.takes_device_memory() && match total.key {
                        Band::Kind(kind) => key.kind == kind,
                        Band::Site(site) => key.site == site,
                        Band::Process(pid) => key.pid == pid,
                        Band::Device(device) => key.device == device,
                        Band::Library(_) | Band::Rest(_) => false,
                    }
                });
                let expected = here.fold(Amount::default(), |sum, (_, amount)| sum.plus(*amount));
                prop_assert_eq!(total.live.plus(total.exited), expected);
            }
        }
    }

    #[test]
    fn libraries_are_sums_of_their_sites(changes in changes(150)) {
        let (mut scan, stacks) = (first_pass(&changes), stacks());
        scan.add_libraries(&stacks);
        let groupings = [(GroupBy::Site, 1000), (GroupBy::Library, 1000)];
        let mut bands = BandSampler::new(&scan, scan.sample_points(1000), &groupings);
        changes.iter().for_each(|change| bands.observe(change));
        let (series, _) = bands.finish();
        let named = |series: &BandSeries, row: &Row| {
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for (band, bytes) in series.bands.iter().zip(&row.1) {
                let (Band::Site(site) | Band::Library(site)) = band else { continue };
                let name = site.map_or("unknown".into(), |site| stacks.library(site));
                *sums.entry(name.to_string()).or_default() += bytes;
            }
            sums
        };
        prop_assert!(series[1].bands.len() <= 3, "{:?}", series[1].bands);
        for (sites, libraries) in rows(&series[0]).iter().zip(&rows(&series[1])) {
            prop_assert_eq!(named(&series[0], sites), named(&series[1], libraries));
        }
    }

    #[test]
    fn peak_breakdown_by_site_matches_naive(changes in changes(150)) {
        let scan = first_pass(&changes);
        let (_, at_peak) = fill(&scan, &changes, 3, 3);
        let sum = |(_, live): &(Timestamp, naive::LiveSet)| -> u64 {
            let counted = live.values().filter(|(change, _)| naive::counts(change));
            counted.map(|(change, _)| change.bytes).sum()
        };
        let sets = naive::sets(&changes);
        let first = sets.iter().find(|set| sum(set) == scan.peak_bytes);
        let mut sites: BTreeMap<Option<SiteId>, Amount> = BTreeMap::new();
        for (change, _) in first.unwrap().1.values().filter(|(change, _)| naive::counts(change)) {
            let amount = sites.entry(change.site).or_default();
            *amount = amount.plus(Amount { bytes: change.bytes, allocations: 1 });
        }
        sites.retain(|_, amount| amount.bytes > 0);
        prop_assert_eq!(at_peak.into_iter().collect::<BTreeMap<_, _>>(), sites);
    }

    #[test]
    fn largest_allocations_match_naive(changes in changes(150), limit in 1..20_usize) {
        let mut analysis = LargestAnalysis::new(MemoryScope::Device, limit);
        changes.iter().for_each(|change| analysis.observe(change));
        let found = analysis.finish();
        let mut all = all_lifetimes(&changes);
        prop_assert_eq!(found.count, all.len() as u64);
        prop_assert_eq!(found.allocations.len(), limit.min(all.len()));
        prop_assert!(found.allocations.is_sorted_by_key(|one| one.allocated_at));
        prop_assert!(found.allocations.iter().all(|one| all.contains(one)));
        all.sort_by_key(|one| std::cmp::Reverse(one.change.bytes));
        let sum = |all: &[Lifetime]| -> u64 { all.iter().map(|one| one.change.bytes).sum() };
        prop_assert_eq!(sum(&found.allocations), sum(&all[..limit.min(all.len())]));
    }
}

fn all_lifetimes(changes: &[AllocationChange]) -> Vec<Lifetime> {
    let mut live: Vec<Lifetime> = Vec::new();
    let mut all = Vec::new();
    for change in changes.iter().filter(|change| naive::counts(change)) {
        let is_own = |one: &Lifetime| (one.change.pid, one.change.key) == (change.pid, change.key);
        let own = live.iter().position(is_own);
        let new = Lifetime { change: *change, allocated_at: change.at, ended: None };
        match change.action {
            ChangeKind::Allocated => live.push(new),
            ChangeKind::Updated { allocated_at, .. } => {
                live[own.unwrap()] = Lifetime { allocated_at, ..new }
            }
            ChangeKind::Ended { reason, .. } => {
                let Lifetime { allocated_at, .. } = live.remove(own.unwrap());
                all.push(Lifetime { allocated_at, ended: Some((change.at, reason)), ..new });
            }
        }
    }
    all.extend(live);
    all
}

#[test]
fn changes_after_the_first_pass_are_left_out() {
    use super::feed::alloc;
    let changes: Vec<_> = (0..10).map(|n| alloc(n, 1, n, 10, 0)).collect();
    let scan = first_pass(&changes[..5]);
    let mut bands = BandSampler::new(&scan, scan.sample_points(100), &[(GroupBy::Kind, 3)]);
    changes[..4].iter().for_each(|change| bands.observe(change));
    assert!(!bands.is_complete());
    changes[4..].iter().for_each(|change| bands.observe(change));
    assert!(bands.is_complete());
    let (series, _) = bands.finish();
    assert_eq!(rows(&series[0]).last(), Some(&(Timestamp(4), vec![50])));
}
