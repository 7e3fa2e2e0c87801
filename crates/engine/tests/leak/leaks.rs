//! Sites that leak.

use engine::verdict::{Confidence, Verdict};

use super::scenario::{Dice, Scenario, every};

/// Asserts that the verdict is a leak from `from` on.
#[track_caller]
fn assert_leak(scenario: &Scenario, from: f64, to: f64) {
    let step = (to - from) / 29.0;
    for number in 0..30 {
        let now = f64::from(number).mul_add(step, from);
        let (verdict, _, evidence) = scenario.classify(now, false);
        assert_eq!(verdict, Verdict::Leak, "at {now}: {evidence:?}");
    }
}

#[test]
fn steady_leak_is_found_within_half_a_minute() {
    let scenario = Scenario::new().keep(every(0.0, 300.0, 0.1), 1000);
    assert_leak(&scenario, 32.0, 300.0);
    let (_, confidence, evidence) = scenario.classify(200.0, false);
    assert_eq!(confidence, Confidence::Certain);
    // Ten per second.
    assert!(
        (35_000_000..37_000_000).contains(&evidence.growth_per_hour),
        "{}",
        evidence.growth_per_hour
    );
    assert_eq!((evidence.live, evidence.live_count, evidence.freed), (2_001_000, 2001, 0));
    assert_eq!(scenario.classify(32.0, false).1, Confidence::Likely);
}

#[test]
fn leak_of_one_percent_under_churn_is_found() {
    let scenario = Scenario::new()
        .churn(every(0.0, 120.0, 0.01), 0.005, 1000)
        .keep(every(0.5, 120.0, 1.0), 1000);
    assert_leak(&scenario, 20.0, 120.0);
    let (_, confidence, evidence) = scenario.classify(100.0, false);
    assert_eq!(confidence, Confidence::Certain);
    assert!(
        (3_500_000..3_700_000).contains(&evidence.growth_per_hour),
        "{}",
        evidence.growth_per_hour
    );
    assert!(evidence.overdue >= 90_000, "{}", evidence.overdue);
}

#[test]
fn leak_of_one_percent_among_long_lived_is_found() {
    // 200 are live at any time, each for two seconds; one per second is never freed.
    let scenario =
        Scenario::new().churn(every(0.0, 600.0, 0.01), 2.0, 10).keep(every(0.5, 600.0, 1.0), 10);
    assert_leak(&scenario, 60.0, 600.0);
}

#[test]
fn slow_leak_is_found() {
    let scenario = Scenario::new().keep(every(0.0, 3600.0, 10.0), 1 << 20);
    assert_leak(&scenario, 130.0, 3600.0);
}

#[test]
fn fast_leak_is_found_when_its_process_exits() {
    let scenario = Scenario::new().keep(every(0.0, 3.0, 0.01), 1);
    assert_eq!(scenario.verdict(3.0), Verdict::RampUp);
    assert_eq!(scenario.classify(3.0, true).0, Verdict::Leak);
}

#[test]
fn leak_per_epoch_is_found() {
    // Three at once every ten seconds.
    let mut scenario = Scenario::new();
    for epoch in every(1.0, 600.0, 10.0) {
        scenario = scenario.keep(vec![epoch, epoch + 0.01, epoch + 0.02], 500);
    }
    assert_leak(&scenario, 120.0, 600.0);
}

#[test]
fn leak_per_epoch_under_churn_is_found() {
    let scenario = Scenario::new()
        .churn(every(0.0, 600.0, 0.05), 0.02, 500)
        .keep(every(5.0, 600.0, 20.0), 500);
    assert_leak(&scenario, 260.0, 600.0);
}

#[test]
fn noisy_leak_is_found() {
    for seed in 1..20 {
        let mut dice = Dice(seed);
        let mut scenario = Scenario::new();
        for allocated_at in every(0.0, 200.0, 0.05) {
            scenario = if dice.roll() < 0.1 {
                scenario.one(allocated_at, None, 50 + (dice.roll() * 100.0) as u64)
            } else {
                let lifetime = dice.decay(0.5);
                scenario.one(
                    allocated_at,
                    Some(allocated_at + lifetime),
                    50 + (dice.roll() * 100.0) as u64,
                )
            };
        }
        assert_leak(&scenario, 60.0, 200.0);
    }
}

#[test]
fn leak_at_random_times_is_found() {
    for seed in 1..20 {
        let mut dice = Dice(seed);
        let (mut now, mut times) = (0.0, Vec::new());
        while now < 300.0 {
            now += dice.decay(1.0);
            times.push(now);
        }
        assert_leak(&Scenario::new().keep(times, 7), 100.0, 290.0);
    }
}

#[test]
fn late_leak_is_found() {
    let scenario =
        Scenario::new().keep(every(0.0, 1.0, 0.1), 10_000).keep(every(60.0, 200.0, 0.2), 100);
    assert_eq!(scenario.verdict(59.0), Verdict::Plateau);
    assert_leak(&scenario, 90.0, 200.0);
    let (_, _, evidence) = scenario.classify(200.0, false);
    assert!(
        (1_700_000..1_900_000).contains(&evidence.growth_per_hour),
        "{}",
        evidence.growth_per_hour
    );
}

#[test]
fn late_leak_at_a_busy_site_is_found() {
    let scenario = Scenario::new()
        .churn(every(0.0, 300.0, 0.05), 0.2, 100)
        .keep(every(150.0, 300.0, 0.5), 100);
    assert_ne!(scenario.verdict(149.0), Verdict::Leak);
    assert_leak(&scenario, 220.0, 300.0);
}

#[test]
fn leak_of_a_new_site_in_a_long_trace_is_found() {
    let hour = 3600.0;
    let scenario = Scenario::new().keep(every(hour, hour + 60.0, 0.1), 1);
    assert_leak(&scenario, hour + 32.0, hour + 60.0);
}

#[test]
fn leak_under_a_sawtooth_is_found() {
    let scenario = Scenario::new()
        .until_next(every(0.0, 300.0, 0.1), 10.0, 100)
        .keep(every(0.0, 300.0, 0.5), 100);
    assert_leak(&scenario, 100.0, 300.0);
}

#[test]
fn leak_next_to_a_bounded_cache_is_found() {
    let scenario =
        Scenario::new().fifo(every(0.0, 300.0, 0.1), 50, 100).keep(every(0.0, 300.0, 0.7), 100);
    assert_leak(&scenario, 60.0, 300.0);
}

#[test]
fn slowing_leak_is_found() {
    let times = (0..3000).map(|n| f64::from(n).powf(1.05) * 0.05).collect();
    assert_leak(&Scenario::new().keep(times, 1), 35.0, 220.0);
}

#[test]
fn accelerating_leak_is_found() {
    let times = (0..4000).map(|n| (f64::from(n) * 10.0).sqrt()).collect();
    assert_leak(&Scenario::new().keep(times, 1), 60.0, 199.0);
}

#[test]
fn leak_of_blocks_that_become_much_larger_is_found_after_half_a_minute() {
    let scenario =
        Scenario::new().keep(every(0.0, 18.0, 0.05), 2).keep(every(18.0, 90.0, 0.05), 20);
    assert_leak(&scenario, 32.0, 90.0);
    let burst = Scenario::new().keep(every(0.0, 2.0, 0.05), 2).keep(every(30.0, 34.0, 0.05), 20);
    assert_ne!(burst.verdict(34.0), Verdict::Leak);
}

#[test]
fn large_single_allocation_does_not_hide_a_leak() {
    let scenario = Scenario::new().one(20.0, None, 1_000_000).keep(every(0.0, 120.0, 0.2), 100);
    assert_leak(&scenario, 60.0, 120.0);
    let (_, _, evidence) = scenario.classify(119.0, false);
    assert!(evidence.growth_per_hour < 4_000_000, "{}", evidence.growth_per_hour);
}

#[test]
fn leak_with_random_sizes_is_found() {
    let mut dice = Dice(3);
    let mut scenario = Scenario::new();
    for allocated_at in every(0.0, 200.0, 0.1) {
        scenario = scenario.one(allocated_at, None, 1 << (dice.roll() * 20.0) as u32);
    }
    assert_leak(&scenario, 60.0, 200.0);
}

#[test]
fn leak_with_late_frees_is_found() {
    let mut scenario = Scenario::new();
    for (number, allocated_at) in every(0.0, 300.0, 0.1).into_iter().enumerate() {
        let freed_at = match number % 100 {
            7 => None,
            99 => Some(allocated_at + 3.0),
            _ => Some(allocated_at + 0.05),
        };
        scenario = scenario.one(allocated_at, freed_at, 10);
    }
    assert_leak(&scenario, 150.0, 300.0);
}

#[test]
fn site_without_a_stack_lowers_confidence() {
    let scenario = Scenario::new().keep(every(0.0, 100.0, 0.1), 1);
    assert_eq!(scenario.classify(100.0, false).1, Confidence::Certain);
    assert_eq!(scenario.classify_as(100.0, false, false).1, Confidence::Likely);
    assert_eq!(scenario.classify(40.0, false).1, Confidence::Likely);
    assert_eq!(scenario.classify_as(40.0, false, false).1, Confidence::Possible);
}

#[test]
fn leak_after_an_hour_is_found_within_fifteen_minutes() {
    let hour = 3600.0;
    let scenario = Scenario::new()
        .churn(every(0.0, 1.5 * hour, 1.0), 0.3, 100)
        .keep(every(hour, 1.5 * hour, 1.0), 100);
    let is_leak = |after: &i32| scenario.verdict(hour + f64::from(*after)) == Verdict::Leak;
    let first = (0..1800).step_by(10).find(is_leak);
    assert!(first.unwrap() <= 15 * 60, "{first:?}");
}

#[test]
fn leak_that_is_freed_at_exit_is_found() {
    let leak = Scenario::new().churn(every(0.0, 20.0, 0.05), 0.02, 7).keep_until(
        every(0.0, 20.0, 0.1),
        20.2,
        1000,
    );
    assert_ne!(leak.verdict(20.3), Verdict::Leak);
    let (verdict, confidence, evidence) = leak.classify(20.3, true);
    assert_eq!((verdict, confidence), (Verdict::Leak, Confidence::Likely));
    // As of the last allocation: one of the short-lived ones is live, too.
    assert_eq!(
        (evidence.freed_at_end, evidence.live, evidence.live_count),
        (200_007, 200_007, 201)
    );
    assert_eq!((evidence.created, evidence.freed), (600, 399));
    assert!((35_000_000..38_000_000).contains(&evidence.growth_per_hour), "{evidence:?}");
}

#[test]
fn leak_that_is_slowly_freed_at_exit_is_found() {
    let freed_within = |seconds: f64, grew: f64| {
        // The oldest first.
        let life = |at: f64| grew + 0.1 + seconds * at / grew - at;
        let leak = Scenario::new().with_lifetimes(every(0.0, grew, 0.1), 1000, life);
        leak.classify(grew + seconds + 0.2, true).0
    };
    assert_eq!(freed_within(4.5, 20.0), Verdict::Leak);
    assert_ne!(freed_within(6.0, 20.0), Verdict::Leak);
    assert_eq!(freed_within(18.0, 40.0), Verdict::Leak);
    assert_ne!(freed_within(25.0, 40.0), Verdict::Leak);
}

#[test]
fn leak_remains_one_while_it_is_freed() {
    // A communicator per evaluation; destroying them takes a fifth as long, newest last.
    let (grew, freed) = (60.0, 12.0);
    let life = |at: f64| grew + 1.0 + freed * at / grew - at;
    let leak = Scenario::new().with_lifetimes(every(0.0, grew, 0.4), 6 << 20, life);
    assert_eq!(leak.verdict(59.0), Verdict::Leak);
    for now in [61.5, 64.0, 68.0, 72.0] {
        let (verdict, confidence, evidence) = leak.classify(now, false);
        assert_eq!((verdict, confidence), (Verdict::Leak, Confidence::Certain), "{now}");
        assert!(evidence.is_freeing && evidence.freed_at_end > 0);
        assert_eq!(evidence.live_count, 150);
    }
    // All is free, and the program runs on, or has ended.
    assert_ne!(leak.verdict(73.5), Verdict::Leak);
    let (verdict, _, evidence) = leak.classify(73.5, true);
    assert_eq!((verdict, evidence.is_freeing), (Verdict::Leak, false));
    // Memory that is only partly freed is not being freed for ever.
    let partly = Scenario::new()
        .with_lifetimes(every(0.0, grew, 0.4), 100, |at| if at < 30.0 { life(at) } else { 1e6 });
    assert_eq!(partly.verdict(63.0), Verdict::Leak);
    assert_ne!(partly.verdict(90.0), Verdict::Leak);
    // A minute of work that is freed in one go, again and again.
    let rounds = Scenario::new().until_next(every(0.0, 400.0, 0.4), 60.0, 100);
    assert_ne!(rounds.verdict(362.0), Verdict::Leak);
}

#[test]
fn leak_that_is_not_freed_at_exit_has_no_final_frees() {
    let leak = Scenario::new().keep(every(0.0, 20.0, 0.1), 1000);
    let (verdict, _, evidence) = leak.classify(20.1, true);
    assert_eq!((verdict, evidence.freed_at_end), (Verdict::Leak, 0));
}
