//! Every analysis compared with a naive implementation over random changes, and small cases whose
//! results were computed by hand.

mod bands;
mod cases;
mod feed;
mod naive;
mod usage;

use engine::analysis::MemoryScope;
use engine::analysis::groups::GroupTable;
use engine::analysis::leaks::LeakReport;
use engine::analysis::peak::PeakAnalysis;
use engine::analysis::summary::SummaryAnalysis;
use engine::analysis::usage::UsageAnalysis;
use engine::model::change::AllocationChange;
use feed::changes;
use proptest::prelude::*;

use crate::random::{CASES, config};

fn groups(changes: &[AllocationChange]) -> GroupTable {
    let mut groups = GroupTable::new(MemoryScope::Device);
    changes.iter().for_each(|change| groups.observe(change));
    groups
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn peak_and_its_live_set_match_naive(changes in changes(120)) {
        let mut analysis = PeakAnalysis::new(MemoryScope::Device);
        changes.iter().for_each(|change| analysis.observe(change));
        prop_assert_eq!(analysis.finish(), naive::peaks(&changes));
    }

    #[test]
    fn never_freed_memory_matches_naive(changes in changes(120)) {
        let found = LeakReport::of(&groups(&changes));
        let expected = naive::never_freed(&changes);
        let counted = expected.iter().filter(|(key, _)| key.kind.takes_device_memory());
        let leaks: Vec<_> = found.sites.iter().map(|leak| (leak.key, leak.amount)).collect();
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
        let mut summary = SummaryAnalysis::new(MemoryScope::Device);
        changes.iter().for_each(|change| summary.observe(change));
        let report = summary.finish(3);
        for peak in naive::peaks(&changes).iter().filter(|peak| peak.pid.is_some()) {
            let process = report.processes.iter().find(|process| Some(process.pid) == peak.pid);
            let mut devices = process.unwrap().devices.iter();
            // Missing if all memory on the device turned out to be elsewhere.
            let Some(device) = devices.find(|device| device.device == peak.device) else { continue };
            prop_assert_eq!((device.peak_bytes, device.peak_at), (peak.bytes, peak.at));
        }
        let allocated = changes.iter().filter(|change| change.action == engine::model::change::ChangeKind::Allocated);
        let devices = report.processes.iter().flat_map(|process| &process.devices);
        let allocations: u64 = devices.map(|device| device.allocations).sum();
        prop_assert_eq!(allocations, allocated.count() as u64);
    }

    #[test]
    fn downsampled_usage_keeps_ends_and_extremes(
        changes in changes(400),
        limit in 4..40_usize,
    ) {
        let mut every = UsageAnalysis::new(MemoryScope::Device, None);
        let mut few = UsageAnalysis::new(MemoryScope::Device, Some(limit));
        for change in &changes {
            every.observe(change);
            few.observe(change);
        }
        let (every, few) = (every.finish(), few.finish());
        prop_assert_eq!(naive::totals(&changes), usage::points(&every.totals));
        prop_assert_eq!(every.series.len(), few.series.len());
        let pairs = every.series.iter().chain(&every.totals).zip(few.series.iter().chain(&few.totals));
        for (every, few) in pairs {
            usage::check_few(every, few, limit)?;
        }
    }
}
