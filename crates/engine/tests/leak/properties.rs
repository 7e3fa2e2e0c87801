//! Properties of the classifier over random histories.

use std::cell::RefCell;
use std::collections::BTreeSet;

use engine::leak::{GrowthHistory, LifetimeHistogram, SiteObservation, Window, classify};
use engine::model::units::Nanos;
use engine::verdict::{Evidence, Verdict};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::scenario::{Dice, Scenario, every};
use crate::random::{CASES, config, many, runner, seed};

/// A point in time and the live bytes after it.
struct Event {
    at: u64,
    live: u64,
}

/// A growth history fed with allocations and frees in time order, and the complete log.
struct FedHistory {
    history: GrowthHistory,
    lifetimes: LifetimeHistogram,
    log: Vec<Event>,
    /// Times of all allocations.
    allocated: Vec<u64>,
    live: Vec<(u64, u64)>,
}

fn feed(dice: &[(u32, u8, u16)]) -> FedHistory {
    let mut fed = FedHistory {
        history: GrowthHistory::default(),
        lifetimes: LifetimeHistogram::default(),
        log: Vec::new(),
        allocated: Vec::new(),
        live: Vec::new(),
    };
    let (mut at, mut sum) = (0, 0);
    for &(step, choice, size) in dice {
        at += u64::from(step) << 4;
        if choice % 2 == 0 || fed.live.is_empty() {
            fed.history.allocated(Nanos(at), sum, u64::from(size));
            fed.live.push((at, u64::from(size)));
            fed.allocated.push(at);
            sum += u64::from(size);
        } else {
            let (allocated_at, size) = fed.live.swap_remove(usize::from(choice) % fed.live.len());
            fed.history.freed(Nanos(allocated_at), Nanos(at), sum, size);
            fed.lifetimes.add(Nanos(at - allocated_at));
            sum -= size;
        }
        fed.log.push(Event { at, live: sum });
    }
    fed
}

/// Computes one window naively.
fn naive(fed: &FedHistory, from: u64, to: u64) -> Window {
    let before = fed.log.iter().rev().find(|event| event.at < from).map_or(0, |event| event.live);
    let inside = || fed.log.iter().filter(|event| (from..to).contains(&event.at));
    let levels = || inside().map(|event| event.live).chain([before]);
    let survivors = fed.live.iter().filter(|(allocated_at, _)| (from..to).contains(allocated_at));
    Window {
        low: levels().min().unwrap_or(0),
        high: levels().max().unwrap_or(0),
        end: inside().next_back().map_or(before, |event| event.live),
        survived: survivors.clone().map(|(_, size)| size).sum(),
        survived_count: survivors.count() as u32,
        allocated_count: 0,
    }
}

proptest! {
    #![proptest_config(config(CASES))]

    #[test]
    fn windows_match_naive(
        dice in prop::collection::vec(any::<(u32, u8, u16)>(), 1..200),
        idle in any::<u32>(),
    ) {
        let fed = feed(&dice);
        let sum = fed.live.iter().map(|(_, size)| size).sum::<u64>();
        let now = fed.log.last().unwrap().at + u64::from(idle);
        let (length, start, windows) = fed.history.windows_until(Nanos(now), sum);
        prop_assert!(windows.len() <= 32);
        prop_assert_eq!(windows.iter().map(|window| window.survived).sum::<u64>(), sum);
        let allocated = windows.iter().map(|window| window.allocated_count as usize).sum::<usize>();
        prop_assert!(allocated >= fed.live.len() && allocated <= dice.len());
        for (number, window) in (0..).zip(windows) {
            let from = start.0 + length.0 * number;
            prop_assert!(window.low <= window.end && window.end <= window.high);
            prop_assert_eq!(Window { allocated_count: 0, ..window }, naive(&fed, from, from + length.0));
        }
    }

    /// Contradictory values, as in a damaged file.
    #[test]
    fn contradictory_values_do_not_panic(
        dice in prop::collection::vec(any::<(u64, u64, u64, u64, bool)>(), 0..100),
        (live, live_count, allocated, freed, first, last, now) in any::<(u64, u64, u64, u64, u64, u64, u64)>(),
        (has_ended, has_stack) in any::<(bool, bool)>(),
    ) {
        let (mut history, mut lifetimes) = (GrowthHistory::default(), LifetimeHistogram::default());
        for (allocated_at, at, live, size, ends) in dice {
            if ends {
                history.freed(Nanos(allocated_at), Nanos(at), live, size);
                lifetimes.add(Nanos(size));
            } else {
                history.allocated(Nanos(at), live, size);
            }
        }
        let (first, last, now) = (Nanos(first), Nanos(last), Nanos(now));
        let (history, lifetimes) = (&history, &lifetimes);
        let (mean_age, mean_life) = (now, None);
        let site = SiteObservation {
            history, lifetimes, live, live_count, allocated, freed, mean_age, mean_life, first, last, now, has_ended, has_stack,
            freed_at_end: false,
            is_sampled: false,
        };
        let (_, _, evidence) = classify(&site);
        prop_assert_eq!((evidence.live, evidence.created, evidence.freed), (live, allocated, freed));
    }

    #[test]
    fn no_growth_since_half_time_is_not_a_leak(
        allocations in prop::collection::vec((0.0..50.0, 1.0..60.0), 1..300),
        late in 0..60_usize,
        has_ended in any::<bool>(),
    ) {
        // The second half replaces allocations of the first half one by one, and never has more.
        let mut scenario = Scenario::new();
        let mut replaced = every(51.0, 100.0, 49.0 / 60.0).into_iter().take(late);
        for (allocated_at, _) in allocations {
            match replaced.next() {
                Some(at) => scenario = scenario.one(allocated_at, Some(at - 0.001), 10).one(at, None, 10),
                None => scenario = scenario.one(allocated_at, None, 10),
            }
        }
        prop_assert_ne!(scenario.classify(100.0, has_ended).0, Verdict::Leak);
    }
}

/// Classifies random allocations and frees; `deaths` sets the share of frees.
fn classified(dice: &[(u32, u8, u16)], deaths: u8, idle: u32, has_ended: bool) -> Classified {
    let kinds = dice.iter().map(|&(step, choice, size)| {
        // An odd number is a free; the number selects the allocation.
        let number = choice & !1 | u8::from(choice < deaths);
        (step / 64, number, size)
    });
    let fed = feed(&kinds.collect::<Vec<_>>());
    let live: u64 = fed.live.iter().map(|(_, size)| size).sum();
    let now = fed.log.last().map_or(0, |event| event.at) + u64::from(idle);
    let (first, last) = (Nanos(fed.log[0].at), fed.allocated.iter().copied().max().unwrap_or(0));
    let site = SiteObservation {
        history: &fed.history,
        lifetimes: &fed.lifetimes,
        live,
        live_count: fed.live.len() as u64,
        allocated: fed.allocated.len() as u64,
        freed: (fed.allocated.len() - fed.live.len()) as u64,
        mean_age: Nanos(0),
        mean_life: None,
        first,
        last: Nanos(last),
        now: Nanos(now),
        has_ended,
        has_stack: true,
        freed_at_end: false,
        is_sampled: false,
    };
    let (verdict, _, evidence) = classify(&site);
    Classified { fed, now, verdict, evidence }
}

/// A history and its verdict.
struct Classified {
    fed: FedHistory,
    now: u64,
    verdict: Verdict,
    evidence: Evidence,
}

/// An empty, shrunken or nearly empty site is never a leak, and the evidence agrees with the
/// history.
fn check(classified: &Classified) -> Result<(), TestCaseError> {
    let Classified { fed, now, verdict, evidence } = classified;
    let live: u64 = fed.live.iter().map(|(_, size)| size).sum();
    prop_assert_eq!((evidence.live, evidence.live_count), (live, fed.live.len() as u64));
    prop_assert_eq!(evidence.steps as usize + 1, evidence.window_min.len());
    prop_assert!(evidence.growing_steps + evidence.shrinking_steps <= evidence.steps);
    prop_assert!(evidence.overdue <= live);
    let highest = fed.log.iter().map(|event| event.live).max().unwrap_or(0);
    prop_assert!(evidence.window_min.iter().all(|low| *low <= highest));
    let oldest = fed.live.iter().map(|(allocated_at, _)| now - allocated_at).max();
    prop_assert_eq!(evidence.oldest.is_some(), oldest.is_some());
    if let (Some(found), Some(oldest)) = (evidence.oldest, oldest) {
        // A window that has just begun counts as a part of the previous one.
        prop_assert!(found.0.abs_diff(oldest) <= 2 * evidence.window.0, "{} {}", found.0, oldest);
    }
    if *verdict == Verdict::Leak {
        prop_assert!(
            fed.live.len() >= 10 && evidence.growth_per_hour > 0 && evidence.growing_steps > 0
        );
        let half = fed.log.iter().rev().find(|event| event.at <= now / 2);
        prop_assert!(live > half.map_or(0, |event| event.live) / 2);
    }
    Ok(())
}

#[test]
fn evidence_matches_the_history() {
    let strategy = (
        prop::collection::vec(any::<(u32, u8, u16)>(), 1..300),
        any::<u8>(),
        any::<u32>(),
        any::<bool>(),
    );
    let reached = RefCell::new(BTreeSet::new());
    let result = runner().run(&strategy, |(dice, deaths, idle, has_ended)| {
        let classified = classified(&dice, deaths, idle, has_ended);
        reached.borrow_mut().insert(format!("{:?}", classified.verdict));
        check(&classified)
    });
    result.unwrap_or_else(|error| panic!("VRAMSCOPE_SEED={}: {error}", seed()));
    // Otherwise the run checked nothing about leaks.
    let reached = reached.into_inner();
    for verdict in ["Leak", "RampUp", "Burst", "Cache"] {
        assert!(reached.contains(verdict), "{reached:?}");
    }
}

/// Random caches, lifetimes and sawtooths. `others` has cases whose final verdict is also known.
fn healthy(seed: u64) -> [(&'static str, Scenario, f64); 4] {
    let (mut lifetimes, mut heights) = (Dice(seed), Dice(seed));
    let mut teeth = Scenario::new();
    for round in every(0.0, 200.0, 6.0) {
        let until = round + 2.0 + heights.roll() * 3.5;
        teeth = teeth.with_lifetimes(every(round, until, 0.1), 10, |allocated_at| {
            round + 5.9 - allocated_at
        });
    }
    [
        ("cache", Scenario::new().random_cache(every(0.0, 200.0, 0.05), 200, 10, seed), 200.0),
        ("small cache", Scenario::new().random_cache(every(0.0, 300.0, 0.5), 20, 10, seed), 300.0),
        (
            "lives",
            Scenario::new().with_lifetimes(every(0.0, 200.0, 0.05), 10, |_| lifetimes.decay(3.0)),
            200.0,
        ),
        ("teeth", teeth, 200.0),
    ]
}

#[test]
fn random_healthy_sites_are_never_leaks() {
    for seed in many(3) {
        for (name, scenario, end) in healthy(seed) {
            for number in 1..=40 {
                let now = f64::from(number) * end / 40.0;
                let (verdict, _, evidence) = scenario.classify(now, number == 40);
                assert_ne!(verdict, Verdict::Leak, "{name}, seed {seed}, at {now}: {evidence:?}");
            }
        }
    }
}
