//! Every analysis compared with a naive implementation over random changes, and small cases whose
//! results were computed by hand.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod bands;
mod cases;
mod courses;
mod feed;
mod plain;
#[path = "../random/mod.rs"]
mod random;

use engine::analysis::Measure;
use engine::analysis::groups::Groups;
use engine::analysis::leakage::Leakage;
use engine::analysis::summary::Summary;
use engine::analysis::usage::Usage;
use engine::analysis::watermark::Watermark;
use engine::change::Change;
use feed::changes;
use proptest::prelude::*;
use random::{CASES, config};

fn groups(changes: &[Change]) -> Groups {
    let mut groups = Groups::new(Measure::Device);
    changes.iter().for_each(|change| groups.change(change));
    groups
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn peak_and_its_live_set_match_naive(changes in changes(120)) {
        let mut watermark = Watermark::new(Measure::Device);
        changes.iter().for_each(|change| watermark.change(change));
        prop_assert_eq!(watermark.finish(), plain::peaks(&changes));
    }

    #[test]
    fn never_freed_memory_matches_naive(changes in changes(120)) {
        let found = Leakage::of(&groups(&changes));
        let expected = plain::never_freed(&changes);
        let counted = expected.iter().filter(|(key, _)| key.kind.takes_device_memory());
        let leaks: Vec<_> = found.sites.iter().map(|leak| (leak.place, leak.amount)).collect();
        for (key, amount) in counted.clone() {
            prop_assert!(leaks.contains(&(*key, *amount)), "{key:?} {amount:?} {leaks:?}");
        }
        prop_assert_eq!(leaks.len(), counted.clone().count());
        prop_assert_eq!(found.leaked.bytes, counted.map(|(_, amount)| amount.bytes).sum::<u64>());
        let all = found.by_kind.iter().chain(&found.host_by_kind).chain(&found.other_by_kind);
        let managed: u64 = found.managed.iter().map(|leak| leak.amount.allocations).sum();
        let listed = all.map(|(_, amount)| amount.allocations).sum::<u64>() + managed;
        prop_assert_eq!(listed, expected.values().map(|amount| amount.allocations).sum::<u64>());
    }

    #[test]
    fn summary_and_peak_analysis_agree(changes in changes(120)) {
        let mut summary = Summary::new(Measure::Device);
        changes.iter().for_each(|change| summary.change(change));
        let overview = summary.finish(3);
        for peak in plain::peaks(&changes).iter().filter(|peak| peak.pid.is_some()) {
            let process = overview.processes.iter().find(|process| Some(process.pid) == peak.pid);
            let mut devices = process.unwrap().devices.iter();
            // Missing if all memory on the device turned out to be elsewhere.
            let Some(device) = devices.find(|device| device.device == peak.device) else { continue };
            prop_assert_eq!((device.peak_bytes, device.peak_at), (peak.bytes, peak.at));
        }
        let began = changes.iter().filter(|change| change.what == engine::change::Turn::Began);
        let devices = overview.processes.iter().flat_map(|process| &process.devices);
        let allocations: u64 = devices.map(|device| device.allocations).sum();
        prop_assert_eq!(allocations, began.count() as u64);
    }

    #[test]
    fn downsampled_usage_keeps_ends_and_extremes(
        changes in changes(400),
        most in 4..40_usize,
    ) {
        let mut every = Usage::new(Measure::Device, None);
        let mut few = Usage::new(Measure::Device, Some(most));
        for change in &changes {
            every.change(change);
            few.change(change);
        }
        let (every, few) = (every.finish(), few.finish());
        prop_assert_eq!(plain::totals(&changes), courses::points(&every.totals));
        prop_assert_eq!(every.series.len(), few.series.len());
        let pairs = every.series.iter().chain(&every.totals).zip(few.series.iter().chain(&few.totals));
        for (every, few) in pairs {
            courses::check_few(every, few, most)?;
        }
    }
}
