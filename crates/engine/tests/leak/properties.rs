//! Properties of the classifier over random histories.

use std::cell::RefCell;
use std::collections::BTreeSet;

use engine::leak::{GrowthHistory, LifetimeHistogram, SiteObservation, Window, classify};
use engine::model::units::Nanos;
use engine::verdict::{Evidence, Verdict};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::random::{CASES, config, many, runner, seed};
use super::scenario::{Dice, Scenario, every};

/// A point in time and the live bytes after it.
struct Event {
    at: u64,
    live: u64,
}

/// A growth history fed with allocations and frees in time order, and the complete log.
struct FedHistory {
    course: GrowthHistory,
    spans: LifetimeHistogram,
    log: Vec<Event>,
    /// Times of all allocations.
    begun: Vec<u64>,
    live: Vec<(u64, u64)>,
}

fn feed(dice: &[(u32, u8, u16)]) -> FedHistory {
    let mut fed = FedHistory {
        course: GrowthHistory::default(),
        spans: LifetimeHistogram::default(),
        log: Vec::new(),
        begun: Vec::new(),
        live: Vec::new(),
    };
    let (mut at, mut sum) = (0, 0);
    for &(step, what, size) in dice {
        at += u64::from(step) << 4;
        if what % 2 == 0 || fed.live.is_empty() {
            fed.course.allocated(Nanos(at), sum, u64::from(size));
            fed.live.push((at, u64::from(size)));
            fed.begun.push(at);
            sum += u64::from(size);
        } else {
            let (began, size) = fed.live.swap_remove(usize::from(what) % fed.live.len());
            fed.course.freed(Nanos(began), Nanos(at), sum, size);
            fed.spans.add(Nanos(at - began));
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
    let born = fed.live.iter().filter(|(began, _)| (from..to).contains(began));
    Window {
        low: levels().min().unwrap_or(0),
        high: levels().max().unwrap_or(0),
        end: inside().next_back().map_or(before, |event| event.live),
        survived: born.clone().map(|(_, size)| size).sum(),
        survived_count: born.count() as u32,
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
        let (length, start, windows) = fed.course.windows_until(Nanos(now), sum);
        prop_assert!(windows.len() <= 32);
        prop_assert_eq!(windows.iter().map(|window| window.survived).sum::<u64>(), sum);
        let born = windows.iter().map(|window| window.allocated_count as usize).sum::<usize>();
        prop_assert!(born >= fed.live.len() && born <= dice.len());
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
        (live, live_count, begun, ended, first, last, now) in any::<(u64, u64, u64, u64, u64, u64, u64)>(),
        (over, named) in any::<(bool, bool)>(),
    ) {
        let (mut course, mut spans) = (GrowthHistory::default(), LifetimeHistogram::default());
        for (began, at, live, size, ends) in dice {
            if ends {
                course.freed(Nanos(began), Nanos(at), live, size);
                spans.add(Nanos(size));
            } else {
                course.allocated(Nanos(at), live, size);
            }
        }
        let (first, last, now) = (Nanos(first), Nanos(last), Nanos(now));
        let (course, spans) = (&course, &spans);
        let (mean_age, mean_life) = (now, None);
        let case = SiteObservation {
            course, spans, live, live_count, begun, ended, mean_age, mean_life, first, last, now, has_ended: over, has_stack: named,
        };
        let (_, _, evidence) = classify(&case);
        prop_assert_eq!((evidence.live, evidence.created, evidence.freed), (live, begun, ended));
    }

    #[test]
    fn no_growth_since_half_time_is_not_a_leak(
        lives in prop::collection::vec((0.0..50.0, 1.0..60.0), 1..300),
        late in 0..60_usize,
        over in any::<bool>(),
    ) {
        // The second half replaces allocations of the first half one by one, and never has more.
        let mut scenario = Scenario::new();
        let mut replaced = every(51.0, 100.0, 49.0 / 60.0).into_iter().take(late);
        for (began, _) in lives {
            match replaced.next() {
                Some(at) => scenario = scenario.one(began, Some(at - 0.001), 10).one(at, None, 10),
                None => scenario = scenario.one(began, None, 10),
            }
        }
        prop_assert_ne!(scenario.classify(100.0, over).0, Verdict::Leak);
    }
}

/// Classifies random allocations and frees; `deaths` sets the share of frees.
fn classified(dice: &[(u32, u8, u16)], deaths: u8, idle: u32, over: bool) -> Classified {
    let kinds = dice.iter().map(|&(step, what, size)| {
        // An odd number is a free; the number selects the allocation.
        let number = what & !1 | u8::from(what < deaths);
        (step / 64, number, size)
    });
    let fed = feed(&kinds.collect::<Vec<_>>());
    let live: u64 = fed.live.iter().map(|(_, size)| size).sum();
    let now = fed.log.last().map_or(0, |event| event.at) + u64::from(idle);
    let (first, last) = (Nanos(fed.log[0].at), fed.begun.iter().copied().max().unwrap_or(0));
    let case = SiteObservation {
        course: &fed.course,
        spans: &fed.spans,
        live,
        live_count: fed.live.len() as u64,
        begun: fed.begun.len() as u64,
        ended: (fed.begun.len() - fed.live.len()) as u64,
        mean_age: Nanos(0),
        mean_life: None,
        first,
        last: Nanos(last),
        now: Nanos(now),
        has_ended: over,
        has_stack: true,
    };
    let (verdict, _, evidence) = classify(&case);
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
    let oldest = fed.live.iter().map(|(began, _)| now - began).max();
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
    let result = runner().run(&strategy, |(dice, deaths, idle, over)| {
        let classified = classified(&dice, deaths, idle, over);
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
    let (mut lives, mut heights) = (Dice(seed), Dice(seed));
    let mut teeth = Scenario::new();
    for round in every(0.0, 200.0, 6.0) {
        let until = round + 2.0 + heights.roll() * 3.5;
        teeth = teeth.lives(every(round, until, 0.1), 10, |began| round + 5.9 - began);
    }
    [
        ("cache", Scenario::new().random_cache(every(0.0, 200.0, 0.05), 200, 10, seed), 200.0),
        ("small cache", Scenario::new().random_cache(every(0.0, 300.0, 0.5), 20, 10, seed), 300.0),
        ("lives", Scenario::new().lives(every(0.0, 200.0, 0.05), 10, |_| lives.decay(3.0)), 200.0),
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
