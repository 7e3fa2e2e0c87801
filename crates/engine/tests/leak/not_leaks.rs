//! Sites that do not leak, even if they look like it for a while.

use engine::verdict::Verdict::{
    self, Burst, Cache, Leak, NotEnoughData, Periodic, Plateau, RampUp,
};

use super::scenario::{Dice, Scenario, every};

/// Asserts that the site is never classified as a leak and ends with the verdict `last`.
#[track_caller]
fn assert_never_leak(scenario: &Scenario, to: f64, last: Verdict) {
    for number in 1..=60 {
        let now = f64::from(number) * to / 60.0;
        let (verdict, _, evidence) = scenario.classify(now, false);
        assert_ne!(verdict, Leak, "at {now}: {evidence:?}");
    }
    let (verdict, _, evidence) = scenario.classify(to, false);
    assert_eq!(verdict, last, "{evidence:?}");
    let (verdict, _, evidence) = scenario.classify(to, true);
    assert_ne!(verdict, Leak, "has ended: {evidence:?}");
}

/// Asserts that the site is not classified as a leak after `from` and ends with the verdict `last`.
#[track_caller]
fn assert_not_leak_after(scenario: &Scenario, from: f64, to: f64, last: Verdict) {
    for number in 0..=40 {
        let now = f64::from(number).mul_add((to - from) / 40.0, from);
        let (verdict, _, evidence) = scenario.classify(now, false);
        assert_ne!(verdict, Leak, "at {now}: {evidence:?}");
    }
    assert_eq!(scenario.verdict(to), last, "{:?}", scenario.classify(to, false).2);
}

#[test]
fn warm_up_of_ten_seconds_is_not_a_leak() {
    let scenario = Scenario::new().keep(every(0.0, 10.0, 0.1), 100);
    assert_eq!(scenario.verdict(1.0), NotEnoughData);
    for now in [5.0, 9.9, 10.0, 10.5] {
        assert_eq!(scenario.verdict(now), RampUp, "{now}");
    }
    assert_never_leak(&scenario, 60.0, Plateau);
}

#[test]
fn finished_warm_up_is_not_a_leak() {
    for length in [1.0, 3.0, 20.0, 60.0, 300.0] {
        let scenario = Scenario::new().keep(every(0.0, length, length / 200.0), 100);
        assert_not_leak_after(&scenario, length * 1.13, length * 6.0, Plateau);
    }
}

#[test]
fn decaying_warm_up_is_not_a_leak() {
    for (tau, seed) in [(2.0, 1), (5.0, 2), (8.0, 3)] {
        let mut dice = Dice(seed);
        let mut times: Vec<f64> = (0..300).map(|_| dice.decay(tau)).collect();
        times.sort_by(f64::total_cmp);
        assert_never_leak(&Scenario::new().keep(times, 10), 100.0, Plateau);
    }
}

#[test]
fn sublinear_growth_is_not_a_leak() {
    let log = (1..120).map(|n| (f64::from(n) * 0.05).exp() - 1.0).collect();
    assert_never_leak(&Scenario::new().keep(log, 10), 300.0, RampUp);
    let root = (0..200).map(|n| f64::from(n).powi(2) * 0.01).collect();
    assert_never_leak(&Scenario::new().keep(root, 10), 390.0, RampUp);
}

#[test]
fn single_large_allocation_is_not_a_leak() {
    let scenario = Scenario::new().one(0.0, None, 1 << 30);
    assert_never_leak(&scenario, 60.0, Plateau);
}

#[test]
fn startup_allocations_are_not_a_leak() {
    assert_never_leak(&Scenario::new().keep(every(0.0, 0.5, 0.02), 1 << 20), 30.0, Plateau);
}

#[test]
fn doubling_pool_is_not_a_leak() {
    let mut scenario = Scenario::new();
    let mut size = 1;
    let mut at = 0.1;
    while at < 2000.0 {
        scenario = scenario.one(at, None, size);
        (size, at) = (size * 2, at * 2.0);
    }
    for number in 1..=60 {
        let now = f64::from(number) * 20.0;
        assert_ne!(scenario.verdict(now), Leak, "{now}");
    }
}

#[test]
fn doubling_pool_that_moves_is_not_a_leak() {
    let mut scenario = Scenario::new();
    let (mut size, mut at) = (1, 0.1);
    while at < 2000.0 {
        scenario = scenario.one(at, Some(at * 2.0), size);
        (size, at) = (size * 2, at * 2.0);
    }
    for number in 1..=60 {
        let now = f64::from(number) * 20.0;
        assert_ne!(scenario.verdict(now), Leak, "{now}");
    }
}

#[test]
fn small_bounded_queue_is_not_a_leak() {
    assert_never_leak(&Scenario::new().fifo(every(0.0, 300.0, 0.1), 100, 10), 300.0, Cache);
}

#[test]
fn full_bounded_queue_is_not_a_leak() {
    let scenario = Scenario::new().fifo(every(0.0, 600.0, 0.1), 500, 10);
    assert_not_leak_after(&scenario, 52.0, 600.0, Cache);
}

#[test]
fn random_eviction_cache_is_not_a_leak() {
    for seed in 1..20 {
        let scenario = Scenario::new().random_cache(every(0.0, 200.0, 0.02), 200, 10, seed);
        assert_never_leak(&scenario, 200.0, Cache);
    }
}

#[test]
fn small_random_eviction_cache_is_not_a_leak() {
    for seed in 1..20 {
        let scenario = Scenario::new().random_cache(every(0.0, 300.0, 0.5), 20, 10, seed);
        assert_never_leak(&scenario, 300.0, Cache);
    }
}

#[test]
fn random_lifetimes_are_not_a_leak() {
    for seed in 1..20 {
        let mut dice = Dice(seed);
        let scenario =
            Scenario::new().with_lifetimes(every(0.0, 200.0, 0.05), 10, |_| dice.decay(3.0));
        assert_never_leak(&scenario, 200.0, Cache);
    }
}

#[test]
fn heavy_tailed_lifetimes_are_not_a_leak() {
    for seed in 1..20 {
        let mut dice = Dice(seed);
        let pareto = |_| 0.05 * (1.0 - dice.roll()).powf(-0.7);
        let scenario = Scenario::new().with_lifetimes(every(0.0, 300.0, 0.02), 10, pareto);
        assert_not_leak_after(&scenario, 30.0, 300.0, scenario.verdict(300.0));
    }
}

#[test]
fn cache_with_hot_and_cold_entries_is_not_a_leak() {
    let scenario =
        Scenario::new().keep(every(0.0, 5.0, 0.1), 10).fifo(every(5.0, 200.0, 0.1), 30, 10);
    assert_not_leak_after(&scenario, 15.0, 200.0, Plateau);
}

#[test]
fn reallocated_buffer_is_not_a_leak() {
    assert_never_leak(&Scenario::new().churn(every(0.0, 60.0, 0.1), 0.05, 1000), 60.0, Periodic);
}

#[test]
fn overlapping_buffers_are_not_a_leak() {
    // Two or three are live at any time.
    assert_never_leak(&Scenario::new().churn(every(0.0, 60.0, 0.1), 0.25, 1000), 60.0, Cache);
}

#[test]
fn periodic_evaluation_is_not_a_leak() {
    let mut scenario = Scenario::new().keep(every(0.0, 1.0, 0.1), 100);
    for round in every(10.0, 200.0, 20.0) {
        scenario = scenario.with_lifetimes(every(round, round + 3.0, 0.1), 100, |allocated_at| {
            round + 4.0 - allocated_at
        });
    }
    assert_not_leak_after(&scenario, 1.0, 200.0, Periodic);
}

#[test]
fn sawtooth_is_not_a_leak_after_its_first_tooth() {
    let scenario = Scenario::new().until_next(every(0.0, 400.0, 0.1), 20.0, 10);
    assert_not_leak_after(&scenario, 20.5, 400.0, Periodic);
}

#[test]
fn short_sawtooth_is_not_a_leak() {
    assert_never_leak(&Scenario::new().until_next(every(0.0, 100.0, 0.1), 5.0, 10), 99.0, Periodic);
}

#[test]
fn irregular_sawtooth_is_not_a_leak() {
    for seed in 1..10 {
        let mut dice = Dice(seed);
        let mut scenario = Scenario::new();
        for round in every(0.0, 300.0, 6.0) {
            let until = round + 2.0 + dice.roll() * 3.5;
            scenario = scenario.with_lifetimes(every(round, until, 0.1), 10, |allocated_at| {
                round + 5.9 - allocated_at
            });
        }
        assert_never_leak(&scenario, 300.0, Periodic);
    }
}

#[test]
fn burst_is_not_a_leak() {
    let scenario = Scenario::new()
        .with_lifetimes(every(5.0, 8.0, 0.05), 10, |allocated_at| 12.0 - allocated_at);
    assert_never_leak(&scenario, 60.0, Burst);
}

#[test]
fn burst_over_a_plateau_is_not_a_leak() {
    let scenario = Scenario::new().keep(every(0.0, 1.0, 0.1), 100).with_lifetimes(
        every(20.0, 25.0, 0.1),
        100,
        |allocated_at| 30.0 - allocated_at,
    );
    assert_never_leak(&scenario, 80.0, Plateau);
}

#[test]
fn growth_that_stopped_is_not_a_leak() {
    let scenario = Scenario::new().keep(every(0.0, 50.0, 0.1), 10);
    assert_not_leak_after(&scenario, 57.0, 400.0, Plateau);
}

#[test]
fn growth_that_is_freed_is_not_a_leak() {
    let scenario = Scenario::new()
        .with_lifetimes(every(0.0, 11.0, 0.1), 10, |allocated_at| 40.0 - allocated_at);
    assert_never_leak(&scenario, 120.0, Burst);
}

#[test]
fn two_plateaus_are_not_a_leak() {
    let scenario = Scenario::new().keep(every(0.0, 2.0, 0.1), 10).keep(every(40.0, 42.0, 0.1), 10);
    assert_never_leak(&scenario, 120.0, Plateau);
}

#[test]
fn model_loading_is_not_a_leak() {
    // Layers of a model over eleven seconds, each with a staging buffer that is freed.
    let scenario =
        Scenario::new().keep(every(0.0, 11.0, 0.25), 100).churn(every(0.0, 11.0, 0.25), 0.2, 100);
    assert_never_leak(&scenario, 120.0, Plateau);
}

#[test]
fn no_or_one_allocation_is_not_a_leak() {
    assert_eq!(Scenario::new().verdict(10.0), NotEnoughData);
    assert_eq!(Scenario::new().one(9.999, None, 1).verdict(10.0), NotEnoughData);
    assert_eq!(Scenario::new().one(1.0, Some(1.5), 1).verdict(60.0), Burst);
}

#[test]
fn few_slow_allocations_are_not_enough_data() {
    assert_never_leak(&Scenario::new().keep(every(0.0, 60.0, 9.0), 10), 55.0, NotEnoughData);
}

#[test]
fn short_program_without_frees_is_not_a_leak() {
    let scenario = Scenario::new().keep(every(0.0, 0.3, 0.01), 10);
    assert_ne!(scenario.classify(1.5, true).0, Leak);
    assert_ne!(scenario.classify(0.3, true).0, Leak);
}

#[test]
fn buffers_held_until_exit_are_not_a_leak() {
    let held = Scenario::new().keep_until(every(0.0, 6.0, 0.1), 20.0, 1000);
    assert_ne!(held.classify(20.1, true).0, Verdict::Leak);
    let cache = Scenario::new().fifo(every(0.0, 20.0, 0.05), 50, 1000);
    assert_ne!(cache.classify(20.1, true).0, Verdict::Leak);
}

#[test]
fn short_program_that_frees_what_it_made_is_not_a_leak() {
    let build = Scenario::new().keep_until(every(0.0, 4.0, 0.02), 4.1, 1000);
    assert_ne!(build.classify(4.2, true).0, Verdict::Leak);
}

#[test]
fn frees_long_before_the_exit_are_not_its_final_frees() {
    let early = Scenario::new().keep_until(every(0.0, 20.0, 0.1), 20.0, 1000);
    assert_eq!(early.classify(20.1, true).0, Verdict::Leak);
    assert_ne!(early.classify(60.0, true).0, Verdict::Leak);
}
