//! Places that leak.

use engine::verdict::{Sureness, Verdict};

use super::play::{Dice, Play, every};

/// It is named at that moment, and from then on.
#[track_caller]
fn named(play: &Play, from: f64, to: f64) {
    let step = (to - from) / 29.0;
    for number in 0..30 {
        let now = f64::from(number).mul_add(step, from);
        let (verdict, _, evidence) = play.judged(now, false);
        assert_eq!(verdict, Verdict::Leak, "at {now}: {evidence:?}");
    }
}

#[test]
fn a_plain_one_is_named_within_half_a_minute() {
    let play = Play::new().keep(every(0.0, 300.0, 0.1), 1000);
    named(&play, 32.0, 300.0);
    let (_, sureness, evidence) = play.judged(200.0, false);
    assert_eq!(sureness, Sureness::Certain);
    // Ten a second.
    assert!((35_000_000..37_000_000).contains(&evidence.per_hour), "{}", evidence.per_hour);
    assert_eq!((evidence.live, evidence.live_count, evidence.ended), (2_001_000, 2001, 0));
    assert_eq!(play.judged(32.0, false).1, Sureness::Likely);
}

#[test]
fn one_of_a_hundred_with_heavy_churn() {
    let play =
        Play::new().churn(every(0.0, 120.0, 0.01), 0.005, 1000).keep(every(0.5, 120.0, 1.0), 1000);
    named(&play, 20.0, 120.0);
    let (_, sureness, evidence) = play.judged(100.0, false);
    assert_eq!(sureness, Sureness::Certain);
    assert!((3_500_000..3_700_000).contains(&evidence.per_hour), "{}", evidence.per_hour);
    assert!(evidence.overdue >= 90_000, "{}", evidence.overdue);
}

#[test]
fn one_of_a_hundred_among_many_that_are_in_flight() {
    // 200 are live at any time, each for two seconds; one a second stays.
    let play = Play::new().churn(every(0.0, 600.0, 0.01), 2.0, 10).keep(every(0.5, 600.0, 1.0), 10);
    named(&play, 60.0, 600.0);
}

#[test]
fn a_slow_one() {
    let play = Play::new().keep(every(0.0, 3600.0, 10.0), 1 << 20);
    named(&play, 130.0, 3600.0);
}

#[test]
fn a_fast_one_of_a_process_that_ended() {
    let play = Play::new().keep(every(0.0, 3.0, 0.01), 1);
    assert_eq!(play.verdict(3.0), Verdict::RampUp);
    assert_eq!(play.judged(3.0, true).0, Verdict::Leak);
}

#[test]
fn steps_per_epoch() {
    // Every ten seconds three at once.
    let mut play = Play::new();
    for epoch in every(1.0, 600.0, 10.0) {
        play = play.keep(vec![epoch, epoch + 0.01, epoch + 0.02], 500);
    }
    named(&play, 120.0, 600.0);
}

#[test]
fn steps_per_epoch_among_churn() {
    let play =
        Play::new().churn(every(0.0, 600.0, 0.05), 0.02, 500).keep(every(5.0, 600.0, 20.0), 500);
    named(&play, 260.0, 600.0);
}

#[test]
fn one_with_noise() {
    for seed in 1..20 {
        let mut dice = Dice(seed);
        let mut play = Play::new();
        for began in every(0.0, 200.0, 0.05) {
            play = if dice.roll() < 0.1 {
                play.one(began, None, 50 + (dice.roll() * 100.0) as u64)
            } else {
                let life = dice.decay(0.5);
                play.one(began, Some(began + life), 50 + (dice.roll() * 100.0) as u64)
            };
        }
        named(&play, 60.0, 200.0);
    }
}

#[test]
fn one_whose_moments_are_random() {
    for seed in 1..20 {
        let mut dice = Dice(seed);
        let (mut now, mut times) = (0.0, Vec::new());
        while now < 300.0 {
            now += dice.decay(1.0);
            times.push(now);
        }
        named(&Play::new().keep(times, 7), 100.0, 290.0);
    }
}

#[test]
fn one_that_begins_late() {
    let play = Play::new().keep(every(0.0, 1.0, 0.1), 10_000).keep(every(60.0, 200.0, 0.2), 100);
    assert_eq!(play.verdict(59.0), Verdict::Plateau);
    named(&play, 90.0, 200.0);
    let (_, _, evidence) = play.judged(200.0, false);
    assert!((1_700_000..1_900_000).contains(&evidence.per_hour), "{}", evidence.per_hour);
}

#[test]
fn one_that_begins_late_at_a_busy_place() {
    let play =
        Play::new().churn(every(0.0, 300.0, 0.05), 0.2, 100).keep(every(150.0, 300.0, 0.5), 100);
    assert_ne!(play.verdict(149.0), Verdict::Leak);
    named(&play, 220.0, 300.0);
}

#[test]
fn one_at_a_place_that_is_young_in_an_old_trace() {
    let hour = 3600.0;
    let play = Play::new().keep(every(hour, hour + 60.0, 0.1), 1);
    named(&play, hour + 32.0, hour + 60.0);
}

#[test]
fn one_under_a_sawtooth() {
    let play =
        Play::new().until_next(every(0.0, 300.0, 0.1), 10.0, 100).keep(every(0.0, 300.0, 0.5), 100);
    named(&play, 100.0, 300.0);
}

#[test]
fn one_beside_a_bounded_cache() {
    let play = Play::new().fifo(every(0.0, 300.0, 0.1), 50, 100).keep(every(0.0, 300.0, 0.7), 100);
    named(&play, 60.0, 300.0);
}

#[test]
fn one_that_slows_its_program_down_a_little() {
    let times = (0..3000).map(|n| f64::from(n).powf(1.05) * 0.05).collect();
    named(&Play::new().keep(times, 1), 35.0, 220.0);
}

#[test]
fn one_that_grows_faster_and_faster() {
    let times = (0..4000).map(|n| (f64::from(n) * 10.0).sqrt()).collect();
    named(&Play::new().keep(times, 1), 60.0, 199.0);
}

#[test]
fn a_big_one_time_allocation_does_not_hide_it() {
    let play = Play::new().one(20.0, None, 1_000_000).keep(every(0.0, 120.0, 0.2), 100);
    named(&play, 60.0, 120.0);
    let (_, _, evidence) = play.judged(119.0, false);
    assert!(evidence.per_hour < 4_000_000, "{}", evidence.per_hour);
}

#[test]
fn sizes_of_all_sorts() {
    let mut dice = Dice(3);
    let mut play = Play::new();
    for began in every(0.0, 200.0, 0.1) {
        play = play.one(began, None, 1 << (dice.roll() * 20.0) as u32);
    }
    named(&play, 60.0, 200.0);
}

#[test]
fn one_of_which_a_few_are_freed_late() {
    let mut play = Play::new();
    for (number, began) in every(0.0, 300.0, 0.1).into_iter().enumerate() {
        let ended = match number % 100 {
            7 => None,
            99 => Some(began + 3.0),
            _ => Some(began + 0.05),
        };
        play = play.one(began, ended, 10);
    }
    named(&play, 150.0, 300.0);
}

#[test]
fn a_place_without_a_name_is_less_sure() {
    let play = Play::new().keep(every(0.0, 100.0, 0.1), 1);
    assert_eq!(play.judged(100.0, false).1, Sureness::Certain);
    assert_eq!(play.judged_as(100.0, false, false).1, Sureness::Likely);
    assert_eq!(play.judged(40.0, false).1, Sureness::Likely);
    assert_eq!(play.judged_as(40.0, false, false).1, Sureness::Possible);
}

#[test]
fn one_that_begins_after_an_hour_is_named_within_a_quarter_of_one() {
    let hour = 3600.0;
    let play = Play::new()
        .churn(every(0.0, 1.5 * hour, 1.0), 0.3, 100)
        .keep(every(hour, 1.5 * hour, 1.0), 100);
    let first =
        (0..1800).step_by(10).find(|after| play.verdict(hour + f64::from(*after)) == Verdict::Leak);
    assert!(first.unwrap() <= 15 * 60, "{first:?}");
}
