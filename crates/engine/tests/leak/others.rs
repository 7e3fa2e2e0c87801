//! Places that do not leak, whatever they look like for a while.

use engine::verdict::Verdict::{
    self, Burst, Cache, Leak, NotEnoughData, Periodic, Plateau, RampUp,
};

use super::play::{Dice, Play, every};

/// It is never accused, and has that verdict at the end.
#[track_caller]
fn never(play: &Play, to: f64, last: Verdict) {
    for number in 1..=60 {
        let now = f64::from(number) * to / 60.0;
        let (verdict, _, evidence) = play.judged(now, false);
        assert_ne!(verdict, Leak, "at {now}: {evidence:?}");
    }
    let (verdict, _, evidence) = play.judged(to, false);
    assert_eq!(verdict, last, "{evidence:?}");
    let (verdict, _, evidence) = play.judged(to, true);
    assert_ne!(verdict, Leak, "as it is over: {evidence:?}");
}

/// It may look like a leak until then, but not after.
#[track_caller]
fn not_after(play: &Play, from: f64, to: f64, last: Verdict) {
    for number in 0..=40 {
        let now = f64::from(number).mul_add((to - from) / 40.0, from);
        let (verdict, _, evidence) = play.judged(now, false);
        assert_ne!(verdict, Leak, "at {now}: {evidence:?}");
    }
    assert_eq!(play.verdict(to), last, "{:?}", play.judged(to, false).2);
}

#[test]
fn a_warm_up_of_ten_seconds() {
    let play = Play::new().keep(every(0.0, 10.0, 0.1), 100);
    assert_eq!(play.verdict(1.0), NotEnoughData);
    for now in [5.0, 9.9, 10.0, 10.5] {
        assert_eq!(play.verdict(now), RampUp, "{now}");
    }
    never(&play, 60.0, Plateau);
}

#[test]
fn warm_ups_of_any_length_once_they_are_over() {
    for length in [1.0, 3.0, 20.0, 60.0, 300.0] {
        let play = Play::new().keep(every(0.0, length, length / 200.0), 100);
        not_after(&play, length * 1.13, length * 6.0, Plateau);
    }
}

#[test]
fn a_warm_up_whose_growth_decays() {
    for (tau, seed) in [(2.0, 1), (5.0, 2), (8.0, 3)] {
        let mut dice = Dice(seed);
        let mut times: Vec<f64> = (0..300).map(|_| dice.decay(tau)).collect();
        times.sort_by(f64::total_cmp);
        never(&Play::new().keep(times, 10), 100.0, Plateau);
    }
}

#[test]
fn growth_by_the_logarithm_or_the_root_of_time() {
    let log = (1..120).map(|n| (f64::from(n) * 0.05).exp() - 1.0).collect();
    never(&Play::new().keep(log, 10), 300.0, RampUp);
    let root = (0..200).map(|n| f64::from(n).powi(2) * 0.01).collect();
    never(&Play::new().keep(root, 10), 390.0, RampUp);
}

#[test]
fn one_big_allocation() {
    let play = Play::new().one(0.0, None, 1 << 30);
    never(&play, 60.0, Plateau);
}

#[test]
fn a_few_at_the_start() {
    never(&Play::new().keep(every(0.0, 0.5, 0.02), 1 << 20), 30.0, Plateau);
}

#[test]
fn a_pool_that_doubles() {
    let mut play = Play::new();
    let mut size = 1;
    let mut at = 0.1;
    while at < 2000.0 {
        play = play.one(at, None, size);
        (size, at) = (size * 2, at * 2.0);
    }
    for number in 1..=60 {
        let now = f64::from(number) * 20.0;
        assert_ne!(play.verdict(now), Leak, "{now}");
    }
}

#[test]
fn a_pool_that_doubles_by_moving() {
    let mut play = Play::new();
    let (mut size, mut at) = (1, 0.1);
    while at < 2000.0 {
        play = play.one(at, Some(at * 2.0), size);
        (size, at) = (size * 2, at * 2.0);
    }
    for number in 1..=60 {
        let now = f64::from(number) * 20.0;
        assert_ne!(play.verdict(now), Leak, "{now}");
    }
}

#[test]
fn a_bounded_queue_that_is_full_soon() {
    never(&Play::new().fifo(every(0.0, 300.0, 0.1), 100, 10), 300.0, Cache);
}

#[test]
fn a_bounded_queue_once_it_is_full() {
    let play = Play::new().fifo(every(0.0, 600.0, 0.1), 500, 10);
    not_after(&play, 52.0, 600.0, Cache);
}

#[test]
fn a_cache_that_evicts_at_random() {
    for seed in 1..20 {
        let play = Play::new().random_cache(every(0.0, 200.0, 0.02), 200, 10, seed);
        never(&play, 200.0, Cache);
    }
}

#[test]
fn a_cache_that_evicts_at_random_and_has_few_entries() {
    for seed in 1..20 {
        let play = Play::new().random_cache(every(0.0, 300.0, 0.5), 20, 10, seed);
        never(&play, 300.0, Cache);
    }
}

#[test]
fn entries_that_live_for_random_times() {
    for seed in 1..20 {
        let mut dice = Dice(seed);
        let play = Play::new().lives(every(0.0, 200.0, 0.05), 10, |_| dice.decay(3.0));
        never(&play, 200.0, Cache);
    }
}

#[test]
fn lives_with_a_heavy_tail() {
    for seed in 1..20 {
        let mut dice = Dice(seed);
        let pareto = |_| 0.05 * (1.0 - dice.roll()).powf(-0.7);
        let play = Play::new().lives(every(0.0, 300.0, 0.02), 10, pareto);
        not_after(&play, 30.0, 300.0, play.verdict(300.0));
    }
}

#[test]
fn hot_entries_that_stay_and_cold_ones_that_go() {
    let play = Play::new().keep(every(0.0, 5.0, 0.1), 10).fifo(every(5.0, 200.0, 0.1), 30, 10);
    not_after(&play, 15.0, 200.0, Plateau);
}

#[test]
fn a_buffer_that_is_taken_and_given_back() {
    never(&Play::new().churn(every(0.0, 60.0, 0.1), 0.05, 1000), 60.0, Periodic);
}

#[test]
fn buffers_that_are_replaced_before_they_are_freed() {
    // Always two or three of them.
    never(&Play::new().churn(every(0.0, 60.0, 0.1), 0.25, 1000), 60.0, Cache);
}

#[test]
fn an_evaluation_every_so_often() {
    let mut play = Play::new().keep(every(0.0, 1.0, 0.1), 100);
    for round in every(10.0, 200.0, 20.0) {
        play = play.lives(every(round, round + 3.0, 0.1), 100, |began| round + 4.0 - began);
    }
    not_after(&play, 1.0, 200.0, Periodic);
}

#[test]
fn a_sawtooth_once_its_first_tooth_is_over() {
    let play = Play::new().until_next(every(0.0, 400.0, 0.1), 20.0, 10);
    not_after(&play, 20.5, 400.0, Periodic);
}

#[test]
fn a_sawtooth_of_short_teeth() {
    never(&Play::new().until_next(every(0.0, 100.0, 0.1), 5.0, 10), 99.0, Periodic);
}

#[test]
fn teeth_of_different_height() {
    for seed in 1..10 {
        let mut dice = Dice(seed);
        let mut play = Play::new();
        for round in every(0.0, 300.0, 6.0) {
            let until = round + 2.0 + dice.roll() * 3.5;
            play = play.lives(every(round, until, 0.1), 10, |began| round + 5.9 - began);
        }
        never(&play, 300.0, Periodic);
    }
}

#[test]
fn a_burst() {
    let play = Play::new().lives(every(5.0, 8.0, 0.05), 10, |began| 12.0 - began);
    never(&play, 60.0, Burst);
}

#[test]
fn a_burst_over_a_level() {
    let play =
        Play::new()
            .keep(every(0.0, 1.0, 0.1), 100)
            .lives(every(20.0, 25.0, 0.1), 100, |began| 30.0 - began);
    never(&play, 80.0, Plateau);
}

#[test]
fn growth_that_stopped_long_ago() {
    let play = Play::new().keep(every(0.0, 50.0, 0.1), 10);
    not_after(&play, 57.0, 400.0, Plateau);
}

#[test]
fn growth_that_is_given_back() {
    let play = Play::new().lives(every(0.0, 11.0, 0.1), 10, |began| 40.0 - began);
    never(&play, 120.0, Burst);
}

#[test]
fn two_levels() {
    let play = Play::new().keep(every(0.0, 2.0, 0.1), 10).keep(every(40.0, 42.0, 0.1), 10);
    never(&play, 120.0, Plateau);
}

#[test]
fn a_program_that_loads_its_parts_one_by_one_and_is_done() {
    // Layers of a model over eleven seconds, each with a staging buffer that is freed.
    let play =
        Play::new().keep(every(0.0, 11.0, 0.25), 100).churn(every(0.0, 11.0, 0.25), 0.2, 100);
    never(&play, 120.0, Plateau);
}

#[test]
fn nothing_and_next_to_nothing() {
    assert_eq!(Play::new().verdict(10.0), NotEnoughData);
    assert_eq!(Play::new().one(9.999, None, 1).verdict(10.0), NotEnoughData);
    assert_eq!(Play::new().one(1.0, Some(1.5), 1).verdict(60.0), Burst);
}

#[test]
fn a_few_slow_steps_are_too_little() {
    never(&Play::new().keep(every(0.0, 60.0, 9.0), 10), 55.0, NotEnoughData);
}

#[test]
fn a_short_program_that_frees_nothing() {
    let play = Play::new().keep(every(0.0, 0.3, 0.01), 10);
    assert_ne!(play.judged(1.5, true).0, Leak);
    assert_ne!(play.judged(0.3, true).0, Leak);
}
