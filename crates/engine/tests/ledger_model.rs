//! The ledger compared with two models: a naive implementation of the same rules over random
//! events, and a simulated driver that knows the actual state, over possible traces with and
//! without losses.

use std::collections::BTreeMap;

use engine::ledger::Ledger;
use engine::model::event::Event;
use engine::model::ids::{Pid, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::{ProcessView, SiteView, Snapshot, SnapshotOptions, Uncertainty};
use engine::verdict::Resource;
use proptest::prelude::*;

use crate::model::naive::Naive;
use crate::model::steps::{Step, step};
use crate::model::tracked::LiveSet;
use crate::model::world::World;
use crate::random::config_after;

/// Removes the bounds, which the naive ledger does not compute, after a check that they contain the
/// listed value.
fn without_bounds(mut snapshot: Snapshot) -> Snapshot {
    let clear = |uncertainty: &mut engine::snapshot::Uncertainty, live: Bytes| {
        assert!(uncertainty.live_min <= live && live <= uncertainty.live_max);
        uncertainty.live_min = live;
        uncertainty.live_max = live;
    };
    clear(&mut snapshot.uncertainty, snapshot.live_bytes);
    for process in &mut snapshot.processes {
        clear(&mut process.uncertainty, process.live_bytes);
        // Imported memory can be opened more than once.
        let ends = process.frees_total + process.released_total + process.uncertainty.implied_frees;
        assert!(process.allocations_total >= process.live_allocations + ends);
    }
    snapshot
}

/// Checks that the totals of all sites are those of the process.
fn check_sites(process: &ProcessView) -> Result<(), TestCaseError> {
    let mut kinds: BTreeMap<MemoryKind, (u64, u64)> = BTreeMap::new();
    for view in process.sites.iter().flat_map(|site| &site.kinds) {
        let sum = kinds.entry(view.kind).or_default();
        *sum = (sum.0 + view.live_bytes.0, sum.1 + view.live_allocations);
    }
    kinds.retain(|_, (_, count)| *count > 0);
    let held = process.kinds.iter();
    let held = held.map(|view| (view.kind, (view.live_bytes.0, view.live_allocations)));
    prop_assert_eq!(kinds, held.collect());
    let sum = |of: fn(&SiteView) -> u64| process.sites.iter().map(of).sum::<u64>();
    prop_assert_eq!(sum(|site| site.live_bytes.0), process.live_bytes.0);
    let calls = |site: &SiteView| site.kinds.iter().map(|kind| kind.allocations_total).sum();
    prop_assert_eq!(sum(calls), process.allocations_total);
    // An imported handle that is open twice counts as one release, which no driver does.
    let freed = |site: &SiteView| {
        let own = site.kinds.iter().filter(|view| view.kind != MemoryKind::Imported);
        own.map(|view| view.freed_total).sum()
    };
    let ended = process.frees_total + process.uncertainty.implied_frees;
    prop_assert!(sum(freed) <= ended + process.released_total);
    let mut objects: BTreeMap<_, u64> = BTreeMap::new();
    for view in process.sites.iter().flat_map(|site| &site.objects) {
        *objects.entry(view.kind).or_default() += view.live;
    }
    objects.retain(|_, live| *live > 0);
    let held = process.objects.iter().filter(|view| view.live > 0);
    prop_assert_eq!(objects, held.map(|view| (view.kind, view.live)).collect());
    Ok(())
}

/// Checks that the evidence of verdicts agrees with the sites of the process.
fn check_verdicts(snapshot: &mut Snapshot) -> Result<(), TestCaseError> {
    let suspects = std::mem::take(&mut snapshot.suspects);
    prop_assert_eq!(suspects, []);
    for one in std::mem::take(&mut snapshot.other_verdicts) {
        let evidence = &one.evidence;
        prop_assert!(
            evidence.window_min.len() <= 32 && evidence.window_min.last() <= Some(&evidence.live)
        );
        let of =
            |process: &&ProcessView| Some(process.key.pid) == one.pid && process.ended.is_none();
        let kind = match one.resource {
            Resource::Memory(kind) => kind,
            Resource::Blocks(allocator) => allocator.kind(),
            Resource::Objects(_) => continue,
        };
        let Some(process) = snapshot.processes.iter().find(of) else { continue };
        let Some(site) = process.sites.iter().find(|site| site.name == one.site) else { continue };
        let view = site.kinds.iter().find(|view| view.kind == kind).unwrap();
        prop_assert_eq!(
            (evidence.live, evidence.live_count),
            (view.live_bytes.0, view.live_allocations)
        );
        prop_assert_eq!(
            (evidence.created, evidence.freed),
            (view.allocations_total, view.freed_total)
        );
    }
    Ok(())
}

fn is_within(peak: Bytes, bounds: Option<(Bytes, Bytes)>) -> bool {
    bounds.is_none_or(|(low, high)| (low..=high).contains(&peak))
}

/// Feeds steps to the ledger and the models; `scale` is the duration of a step.
fn run(steps: Vec<Step>, losses: bool, scale: u64) -> Result<(), TestCaseError> {
    let mut ledger = Ledger::with_change_log();
    let mut live_set = LiveSet::default();
    let mut naive = Naive::default();
    let last =
        SnapshotOptions { top_sites: usize::MAX, ended_sites: true, ..SnapshotOptions::default() };
    let last = Step::Snapshot(last);
    for (number, step) in (1..).zip(steps.into_iter().chain([last])) {
        let at = Timestamp(number * 10 * scale);
        match step {
            Step::Event(pid, tid, duration, kind) => {
                let entered = Timestamp(at.0.saturating_sub(duration * scale));
                let event =
                    Event { pid: Pid(pid), tid: Tid(tid), entry_time: entered, time: at, kind };
                ledger.apply(&event);
                naive.apply(&event);
                live_set.apply(&mut ledger)?;
                prop_assert_eq!(&live_set.live, &naive.live());
            }
            Step::Snapshot(options) => {
                let options =
                    SnapshotOptions { min_age: Nanos(options.min_age.0 * scale), ..options };
                let mut seen = ledger.snapshot(at, &options);
                let expected = naive.snapshot(at, &options);
                live_set.check(&seen)?;
                if !options.ended_sites {
                    check_verdicts(&mut seen)?;
                }
                (seen.other_verdicts, seen.suspects, seen.suspects_total) = Default::default();
                seen.not_freed = Vec::new();
                seen.gpus.iter_mut().for_each(|gpu| gpu.growth_per_hour = None);
                let lists_all_sites =
                    |process: &&ProcessView| process.sites.len() as u64 == process.sites_total;
                seen.processes.iter().filter(lists_all_sites).try_for_each(check_sites)?;
                let doubt = seen.processes.iter().any(|one| {
                    one.uncertainty.unknown_context > 0 || one.uncertainty.ambiguous_calls > 0
                });
                let inexact = losses || doubt || seen.uncertainty.before_trace;
                prop_assert!(inexact || seen.uncertainty.exact());
                let mut seen = if inexact { without_bounds(seen) } else { seen };
                for process in &mut seen.processes {
                    // Derived from history that the naive model does not keep.
                    (process.growth_per_hour, process.undecided) = Default::default();
                    process.identity = Default::default();
                    process.overhead = Default::default();
                    let libraries = std::mem::take(&mut process.libraries);
                    prop_assert_eq!(
                        libraries.iter().map(|view| view.live_bytes.0).sum::<u64>(),
                        process.live_bytes.0
                    );
                    for device in &mut process.devices {
                        (device.driver_traced, device.driver_unplaced) = Default::default();
                        let bounds = device.peak_bounds.take();
                        prop_assert!(
                            is_within(device.peak_bytes, bounds),
                            "{bounds:?}: {device:?}"
                        );
                    }
                    let bounds = process.peak_bounds.take();
                    prop_assert!(is_within(process.peak_bytes, bounds), "{bounds:?}: {process:?}");
                }
                prop_assert_eq!(seen, expected);
            }
        }
    }
    Ok(())
}

/// Checks that the actual state is within the bounds, and equal to the snapshot without losses.
fn check(world: &mut World) -> Result<(), TestCaseError> {
    let at = world.finish_all();
    let snapshot = world.ledger.snapshot(at, &SnapshotOptions::default());
    let actual = Bytes(world.total_held());
    let uncertainty = &snapshot.uncertainty;
    prop_assert_eq!(uncertainty.lost.events(), world.losses);
    let is_known = world.all_contexts_known() && !world.has_ambiguous;
    if is_known {
        prop_assert_eq!(
            uncertainty.exact(),
            world.losses == 0,
            "{:?} after\n{}",
            snapshot.processes.iter().map(|one| (&one.key, &one.uncertainty)).collect::<Vec<_>>(),
            snapshot.processes.iter().map(|one| world.log(one.key.pid)).collect::<String>()
        );
    }
    for process in snapshot.processes.iter().filter(|process| process.ended.is_none()) {
        let held = world.held(process.key.pid);
        let actual = Bytes(held.values().sum());
        let Uncertainty { live_min, live_max, .. } = process.uncertainty;
        let inside = (live_min..=live_max).contains(&actual);
        let log = || world.log(process.key.pid);
        prop_assert!(inside, "{process:?}, actual {actual:?}, after\n{}", log());
        if process.uncertainty.exact() && !is_known {
            prop_assert_eq!(process.live_bytes, actual, "after\n{}", log());
        } else if world.losses == 0 && is_known {
            check_exactly(world, process)
                .map_err(|error| TestCaseError::fail(format!("{error}\nafter\n{}", log())))?;
        }
    }
    prop_assert!(uncertainty.live_min <= actual, "{uncertainty:?}, actual {actual:?}");
    prop_assert!(actual <= uncertainty.live_max, "{uncertainty:?}, actual {actual:?}");
    Ok(())
}

/// Checks all values against the actual state, without losses.
fn check_exactly(world: &World, process: &ProcessView) -> Result<(), TestCaseError> {
    let pid = process.key.pid;
    let held = world.held(pid);
    prop_assert_eq!(process.live_bytes.0, held.values().sum::<u64>());
    let devices = process.devices.iter().filter(|view| view.live_bytes.0 > 0);
    let devices: BTreeMap<_, _> = devices.map(|view| (view.device, view.live_bytes.0)).collect();
    let held: BTreeMap<_, _> =
        held.into_iter().map(|(device, bytes)| (Some(device), bytes)).collect();
    prop_assert_eq!(devices, held);
    let pools = process.pools.iter().filter(|view| view.allocations > 0);
    let pools = pools.filter_map(|view| Some((view.pool?, view.used.0)));
    let pools: BTreeMap<_, _> = pools.filter(|(pool, _)| pool.0 < 50).collect();
    prop_assert_eq!(pools, world.used(pid));
    let totals = world.totals(pid);
    prop_assert_eq!(process.allocations_total, totals.allocations);
    let unknown = totals.unknown_frees..=totals.unknown_frees + totals.overtaken;
    prop_assert!(unknown.contains(&process.unknown_frees), "{}", process.unknown_frees);
    prop_assert_eq!(process.api_misuse.mismatched_frees, 0);
    prop_assert_eq!(process.uncertainty.implied_frees, 0);
    let frees = process.frees_total..=process.frees_total + totals.overtaken;
    prop_assert!(frees.contains(&totals.frees), "{}", totals.frees);
    Ok(())
}

/// Steps of nanoseconds, or long enough for a trace with many windows of growth.
fn scale() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(1 << 16), Just(1 << 19)]
}

proptest! {
    #![proptest_config(config_after(1000, &[
        // Memory of a pool whose device is unknown, beside a context whose device becomes known.
        "cc 64879a21f629582ba199f9c27b6d79c6115addea1c9342adcaf37a307418cafa",
    ]))]

    #[test]
    fn ledger_matches_naive_model(
        scale in scale(),
        steps in prop::collection::vec(step(false), 1..250),
    ) {
        run(steps, false, scale)?;
    }

    #[test]
    fn losses_change_only_the_uncertainty(
        scale in scale(),
        steps in prop::collection::vec(step(true), 1..250),
    ) {
        run(steps, true, scale)?;
    }
}

proptest! {
    #![proptest_config(config_after(10_000, &[
        // A free on a stream whose capture began after the free was entered, in a thread that
        // captures another stream.
        "cc a9efaf5ba8a806223dd0e7de042a0a71e262b100f7707eae7649d7a805e160bf",
        "cc 3be1753ce21f8ff76be8e581f8a38801b2ecc0f9435e0fbc73d603271d1571cc",
    ]))]

    #[test]
    fn without_losses_the_ledger_matches_the_driver_model(
        dice in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 1..300),
    ) {
        let mut world = World::new(0);
        for (number, dice) in dice.into_iter().enumerate() {
            world.step(dice);
            if number % 25 == 0 {
                check(&mut world)?;
            }
        }
        check(&mut world)?;
    }

    #[test]
    fn bounds_contain_actual_usage_with_unknown_contexts(
        loss_below in prop_oneof![Just(0), 1..100_u8],
        unknown_below in 1..250_u8,
        dice in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 1..300),
    ) {
        let mut world = World::new(loss_below).with_unknown_contexts(unknown_below);
        for (number, dice) in dice.into_iter().enumerate() {
            world.step(dice);
            if number % 25 == 0 {
                check(&mut world)?;
            }
        }
        check(&mut world)?;
    }

    #[test]
    fn bounds_contain_actual_usage_with_losses(
        loss_below in 1..200_u8,
        every in 1..60_usize,
        dice in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 1..300),
    ) {
        let mut world = World::new(loss_below);
        for (number, dice) in dice.into_iter().enumerate() {
            world.step(dice);
            if number % every == 0 {
                check(&mut world)?;
            }
        }
        check(&mut world)?;
    }
}
