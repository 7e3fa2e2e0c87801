//! Lives of any sort.

use engine::analysis::leak::{Case, Course, Spans, Window, judge};
use engine::units::Nanos;
use engine::verdict::Verdict;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::play::{Play, every};

fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}

/// Something happened: a moment, what is live after it, and for a birth its number, for a death that
/// of the birth.
struct Event {
    at: u64,
    live: u64,
}

/// Feeds a course with births and deaths in the order of time; also keeps everything.
struct Fed {
    course: Course,
    log: Vec<Event>,
    live: Vec<(u64, u64)>,
}

fn feed(dice: &[(u32, u8, u16)]) -> Fed {
    let mut fed = Fed { course: Course::default(), log: Vec::new(), live: Vec::new() };
    let (mut at, mut sum) = (0, 0);
    for &(step, what, size) in dice {
        at += u64::from(step) << 4;
        if what % 2 == 0 || fed.live.is_empty() {
            fed.course.begin(Nanos(at), sum, u64::from(size));
            fed.live.push((at, u64::from(size)));
            sum += u64::from(size);
        } else {
            let (began, size) = fed.live.swap_remove(usize::from(what) % fed.live.len());
            fed.course.finish(Nanos(began), Nanos(at), sum, size);
            sum -= size;
        }
        fed.log.push(Event { at, live: sum });
    }
    fed
}

/// One window, the plain way.
fn plain(fed: &Fed, from: u64, to: u64) -> Window {
    let before = fed.log.iter().rev().find(|event| event.at < from).map_or(0, |event| event.live);
    let inside = || fed.log.iter().filter(|event| (from..to).contains(&event.at));
    let levels = || inside().map(|event| event.live).chain([before]);
    let born = fed.live.iter().filter(|(began, _)| (from..to).contains(began));
    Window {
        low: levels().min().unwrap_or(0),
        high: levels().max().unwrap_or(0),
        end: inside().next_back().map_or(before, |event| event.live),
        kept: born.clone().map(|(_, size)| size).sum(),
        kept_count: born.count() as u32,
        born: 0,
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn windows_are_those_of_the_plain_way(
        dice in prop::collection::vec(any::<(u32, u8, u16)>(), 1..200),
        idle in any::<u32>(),
    ) {
        let fed = feed(&dice);
        let sum = fed.live.iter().map(|(_, size)| size).sum::<u64>();
        let now = fed.log.last().unwrap().at + u64::from(idle);
        let (length, start, windows) = fed.course.until(Nanos(now), sum);
        prop_assert!(windows.len() <= 32);
        prop_assert_eq!(windows.iter().map(|window| window.kept).sum::<u64>(), sum);
        let born = windows.iter().map(|window| window.born as usize).sum::<usize>();
        prop_assert!(born >= fed.live.len() && born <= dice.len());
        for (number, window) in (0..).zip(windows) {
            let from = start.0 + length.0 * number;
            prop_assert!(window.low <= window.end && window.end <= window.high);
            prop_assert_eq!(Window { born: 0, ..window }, plain(&fed, from, from + length.0));
        }
    }

    #[test]
    fn any_case_has_a_verdict(
        dice in prop::collection::vec(any::<(u64, u64, u64, u64, bool)>(), 0..100),
        (live, live_count, begun, ended, first, last, now) in any::<(u64, u64, u64, u64, u64, u64, u64)>(),
        (over, named) in any::<(bool, bool)>(),
    ) {
        let (mut course, mut spans) = (Course::default(), Spans::default());
        for (began, at, live, size, ends) in dice {
            if ends {
                course.finish(Nanos(began), Nanos(at), live, size);
                spans.add(Nanos(size));
            } else {
                course.begin(Nanos(at), live, size);
            }
        }
        let (first, last, now) = (Nanos(first), Nanos(last), Nanos(now));
        let (course, spans) = (&course, &spans);
        let (mean_age, mean_life) = (now, None);
        let case = Case {
            course, spans, live, live_count, begun, ended, mean_age, mean_life, first, last, now, over, named,
        };
        let (verdict, _, evidence) = judge(&case);
        prop_assert!(evidence.lows.len() <= 32);
        prop_assert!(verdict != Verdict::Leak || evidence.growing_steps > 0);
    }

    #[test]
    fn what_is_not_above_where_it_was_at_half_time_is_no_leak(
        lives in prop::collection::vec((0.0..50.0, 1.0..60.0), 1..300),
        late in 0..60_usize,
        over in any::<bool>(),
    ) {
        // The second half replaces what the first half made, one by one, and has never more.
        let mut play = Play::new();
        let mut replaced = every(51.0, 100.0, 49.0 / 60.0).into_iter().take(late);
        for (began, _) in lives {
            match replaced.next() {
                Some(at) => play = play.one(began, Some(at - 0.001), 10).one(at, None, 10),
                None => play = play.one(began, None, 10),
            }
        }
        prop_assert_ne!(play.judged(100.0, over).0, Verdict::Leak);
    }
}
