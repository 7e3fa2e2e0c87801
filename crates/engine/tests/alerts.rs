//! Rules over made-up figures: when alerts begin, when they end, and how many there can be.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use engine::alert::builtin::{self, Thresholds};
use engine::alert::{Alert, Book, Limit, Measure, Rule, Severity, Transition, placeholders};
use engine::metrics::{Family, Figures, Metric, Sample, Value, catalogue};
use engine::units::{Bytes, Moment, Nanos};

const NONE: Thresholds = Thresholds {
    leak_suspect: None,
    full_within: None,
    out_of_memory: false,
    nearly_full: None,
    fragmentation: None,
    untracked_growth: None,
    events_lost: false,
    degraded: false,
    not_ready: false,
};

fn at(seconds: u64) -> Moment {
    Moment((1_000_000 + seconds) * 1_000_000_000)
}

fn span(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

fn family(metric: &'static Metric, samples: &[(&[&str], f64)]) -> Family {
    let samples = samples.iter().map(|(labels, value)| {
        assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        Sample {
            labels: labels.iter().map(|label| (*label).into()).collect(),
            value: Value::Real(*value),
        }
    });
    Family { metric, samples: samples.collect() }
}

fn one(metric: &'static Metric, labels: &[&str], value: f64) -> Figures {
    Figures { families: vec![family(metric, &[(labels, value)])] }
}

fn book(limits: &Thresholds) -> Book {
    Book::new(builtin::rules(limits), span(60))
}

fn fired(changes: &[Transition]) -> Vec<&Alert> {
    let fired = changes.iter().map(|change| match change {
        Transition::Fired(alert) => alert,
        Transition::Resolved(alert) => panic!("resolved: {alert:?}"),
    });
    fired.collect()
}

fn resolved(changes: &[Transition]) -> Vec<&Alert> {
    let resolved = changes.iter().map(|change| match change {
        Transition::Resolved(alert) => alert,
        Transition::Fired(alert) => panic!("fired: {alert:?}"),
    });
    resolved.collect()
}

const SUSPECT: [&str; 10] =
    ["41", "train", "", "", "", "0", "GPU-a", "s1", "main.py:7 step", "device"];

#[test]
fn a_suspect_is_an_alert_when_it_stays_one() {
    let mut book = book(&Thresholds { leak_suspect: Some(span(300)), ..NONE });
    let suspect = one(&catalogue::SUSPECT_GROWTH, &SUSPECT, (3_u64 << 30) as f64 / 3600.0);
    assert_eq!(book.look(&suspect, at(0)), []);
    assert_eq!(book.look(&suspect, at(299)), []);
    let changes = book.look(&suspect, at(300));
    let [alert] = fired(&changes)[..] else { panic!("{changes:?}") };
    assert_eq!((alert.since, alert.fired, alert.resolved), (at(0), at(300), None));
    assert_eq!(alert.summary(), "train (pid 41) leaks at main.py:7 step: 3.00 GiB/h (device)");
    assert_eq!(alert.rule.alert_name(), "VramscopeLeakSuspect");
    assert!(alert.labels.iter().all(|(_, value)| !value.is_empty()), "{:?}", alert.labels);
    assert_eq!(book.look(&suspect, at(301)), [], "once is enough");
    assert_eq!(book.firing().len(), 1);
}

#[test]
fn growth_of_objects_is_no_number_of_bytes() {
    let mut book = book(&Thresholds { leak_suspect: Some(span(0)), ..NONE });
    let mut labels = SUSPECT;
    labels[9] = "stream_objects";
    let growth = one(&catalogue::SUSPECT_GROWTH_OBJECTS, &labels, 4096.0 / 3600.0);
    let changes = book.look(&growth, at(0));
    assert_eq!(fired(&changes)[0].value_in_words(), "4096/h");
}

#[test]
fn what_is_interrupted_before_its_time_begins_anew() {
    let mut book = book(&Thresholds { leak_suspect: Some(span(300)), ..NONE });
    let suspect = one(&catalogue::SUSPECT_GROWTH, &SUSPECT, 1e9);
    book.look(&suspect, at(0));
    book.look(&Figures::default(), at(200));
    book.look(&suspect, at(210));
    assert_eq!(book.look(&suspect, at(400)), []);
    assert_eq!(book.look(&suspect, at(510)).len(), 1);
}

#[test]
fn an_alert_is_over_when_its_figure_stays_away() {
    let mut book = book(&Thresholds { leak_suspect: Some(span(0)), ..NONE });
    let suspect = one(&catalogue::SUSPECT_GROWTH, &SUSPECT, 1e9);
    assert_eq!(book.look(&suspect, at(0)).len(), 1);
    assert_eq!(book.look(&Figures::default(), at(10)), []);
    assert_eq!(book.look(&suspect, at(30)), [], "it goes on");
    assert_eq!(book.look(&Figures::default(), at(40)), []);
    assert_eq!(book.look(&Figures::default(), at(99)), []);
    let changes = book.look(&Figures::default(), at(100));
    let [alert] = resolved(&changes)[..] else { panic!("{changes:?}") };
    assert_eq!((alert.id, alert.resolved), (1, Some(at(100))));
    assert!(book.firing().is_empty());
    assert_eq!(book.past().count(), 1);
    let again = book.look(&suspect, at(101));
    assert_eq!(fired(&again)[0].id, 2, "another one");
}

#[test]
fn an_alert_that_is_over_tells_the_figure_that_was_too_much() {
    let mut book = book(&Thresholds { nearly_full: Some(0.95), ..NONE });
    let used = |share: f64| Figures {
        families: vec![
            family(&catalogue::GPU_TOTAL, &[(&["0", "GPU-a"], 1000.0)]),
            family(&catalogue::GPU_USED, &[(&["0", "GPU-a"], 1000.0 * share)]),
        ],
    };
    book.look(&used(0.96), at(0));
    book.look(&used(0.96), at(600));
    book.look(&used(0.98), at(601));
    book.look(&used(0.1), at(602));
    let changes = book.look(&used(0.1), at(700));
    assert_eq!(resolved(&changes)[0].summary(), "98 % of GPU 0 is used");
}

#[test]
fn labels_that_are_not_known_are_left_out_of_a_list() {
    let rule = |summary: &str| {
        let [rule, _] = &builtin::rules(&Thresholds { leak_suspect: Some(span(0)), ..NONE })[..]
        else {
            panic!()
        };
        Rule { summary: summary.into(), ..rule.clone() }
    };
    let suspect = one(&catalogue::SUSPECT_GROWTH, &SUSPECT, (1_u64 << 30) as f64 / 3600.0);
    for (summary, filled) in [
        (
            "it is {value}: pid={pid} container={container} pod={pod} gpu={gpu}",
            "it is 1.00 GiB/h: pid=41 gpu=0",
        ),
        ("it is {value}: pid={pid} pod={pod}", "it is 1.00 GiB/h: pid=41"),
        ("it is {value}: container={container} pod={pod}", "it is 1.00 GiB/h"),
        ("{process} in pod {pod}: too much", "train in pod ?: too much"),
    ] {
        let mut book = Book::new(vec![rule(summary)], span(60));
        assert_eq!(fired(&book.look(&suspect, at(0)))[0].summary(), filled);
    }
}

#[test]
fn names_that_come_late_do_not_make_another_alert() {
    let mut book = book(&Thresholds { leak_suspect: Some(span(0)), ..NONE });
    let early = one(&catalogue::SUSPECT_GROWTH, &SUSPECT, 1e9);
    let mut labels = SUSPECT;
    labels[3] = "trainer-0";
    let late = one(&catalogue::SUSPECT_GROWTH, &labels, 1e9);
    assert_eq!(book.look(&early, at(0)).len(), 1);
    assert_eq!(book.look(&late, at(1)), []);
    let firing = book.firing();
    assert_eq!(firing.len(), 1);
    assert!(!firing[0].labels.iter().any(|(label, _)| *label == "pod"), "labels stay");
}

#[test]
fn a_gpu_is_nearly_full_by_share_and_not_for_a_moment() {
    let mut book = book(&Thresholds { nearly_full: Some(0.95), ..NONE });
    let used = |share: f64| Figures {
        families: vec![
            family(&catalogue::GPU_TOTAL, &[(&["0", "GPU-a"], 1000.0), (&["1", "GPU-b"], 100.0)]),
            family(
                &catalogue::GPU_USED,
                &[(&["0", "GPU-a"], 1000.0 * share), (&["1", "GPU-b"], 50.0)],
            ),
        ],
    };
    book.look(&used(0.96), at(0));
    let changes = book.look(&used(0.96), at(600));
    assert_eq!(fired(&changes)[0].summary(), "96 % of GPU 0 is used");
    // Back below the limit, but not by more than the slack: it goes on for ever.
    for second in 601..1000 {
        assert_eq!(book.look(&used(0.945), at(second)), []);
    }
    assert_eq!(book.look(&used(0.92), at(1000)), []);
    assert_eq!(resolved(&book.look(&used(0.92), at(1060))).len(), 1);
}

#[test]
fn a_gpu_of_no_memory_is_not_full() {
    let mut book = book(&Thresholds { nearly_full: Some(0.95), ..NONE });
    let figures = Figures {
        families: vec![
            family(&catalogue::GPU_TOTAL, &[(&["0", ""], 0.0)]),
            family(&catalogue::GPU_USED, &[(&["0", ""], 0.0)]),
        ],
    };
    for second in [0, 600, 1200] {
        assert_eq!(book.look(&figures, at(second)), []);
    }
}

#[test]
fn out_of_memory_is_told_also_when_it_is_the_first_thing_that_is_seen() {
    let mut book = book(&Thresholds { out_of_memory: true, ..NONE });
    let count = |count: f64| one(&catalogue::OUT_OF_MEMORY, &["0", "GPU-a"], count);
    let changes = book.look(&count(2.0), at(0));
    assert_eq!(
        fired(&changes)[0].summary(),
        "out of memory on GPU 0: 2 failed calls in the last 10 minutes"
    );
    assert_eq!(fired(&changes)[0].rule.severity, Severity::Critical);
    let mut over = Vec::new();
    for second in 1..720 {
        over.extend(book.look(&count(2.0), at(second)).into_iter().map(|change| (second, change)));
    }
    let [(second, Transition::Resolved(_))] = &over[..] else { panic!("{over:?}") };
    assert!((660..700).contains(second), "after ten minutes and one: {second}");
    assert_eq!(book.look(&count(3.0), at(800)).len(), 1, "another one");
}

#[test]
fn a_counter_that_begins_anew_counts_from_zero() {
    let mut book = book(&Thresholds { events_lost: true, ..NONE });
    let lost = |count: f64| one(&catalogue::LOST, &["allocations"], count);
    assert_eq!(book.look(&lost(0.0), at(0)), []);
    let changes = book.look(&lost(7.0), at(1));
    assert_eq!(fired(&changes)[0].value, 7.0);
    book.look(&lost(3.0), at(2));
    assert_eq!(book.firing()[0].value, 10.0);
}

const PROCESS: [&str; 7] = ["0", "GPU-a", "41", "train", "", "", ""];

#[test]
fn untracked_memory_grows_only_where_it_was_known_an_hour_ago() {
    let mut book = book(&Thresholds { untracked_growth: Some(Bytes(1 << 30)), ..NONE });
    let mut found = Vec::new();
    for minute in 0..150_u64 {
        // 20 MiB a minute: 1.17 GiB an hour, on top of a context of 500 MiB.
        let bytes = ((500 + 20 * minute) << 20) as f64;
        let changes = book.look(&one(&catalogue::UNTRACKED, &PROCESS, bytes), at(minute * 60));
        found.extend(changes.into_iter().map(|change| (minute, change)));
    }
    let [(minute, Transition::Fired(alert))] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*minute, 60);
    assert_eq!(alert.value, (1200_u64 << 20) as f64);
}

#[test]
fn what_others_hold_together_is_no_growth() {
    let mut book = book(&Thresholds { untracked_growth: Some(Bytes(1)), ..NONE });
    let mut labels = PROCESS;
    labels[2] = "other";
    for minute in 0..150_u64 {
        let figures = one(&catalogue::UNTRACKED, &labels, (minute << 30) as f64);
        assert_eq!(book.look(&figures, at(minute * 60)), []);
    }
}

#[test]
fn small_caches_may_be_in_pieces() {
    let mut book = book(&Thresholds { fragmentation: Some(0.4), ..NONE });
    let cache = |reserved: u64| Figures {
        families: vec![
            family(&catalogue::CACHE_RESERVED, &[(&PROCESS, reserved as f64)]),
            family(&catalogue::FRAGMENTATION, &[(&PROCESS, 0.6)]),
        ],
    };
    for second in [0, 900, 1800] {
        assert_eq!(book.look(&cache(200 << 20), at(second)), []);
    }
    book.look(&cache(2 << 30), at(2000));
    assert_eq!(book.look(&cache(2 << 30), at(2900)).len(), 1);
}

#[test]
fn a_rule_of_somebody_s_own_sees_only_the_labels_it_names() {
    let rule = Rule {
        name: "my_pinned".into(),
        is_builtin: false,
        severity: Severity::Info,
        metric: &catalogue::PINNED,
        measure: Measure::Value,
        matching: vec![("process".into(), "train".into())],
        at_least: None,
        limit: Limit::Above(100.0),
        slack: 0.0,
        hold: Nanos(0),
        summary: "{process} pins {value}, more than {threshold}; {pod}".into(),
        advice: "".into(),
    };
    let mut book = Book::new(vec![rule], Nanos(0));
    let labels = |pid, name| [pid, name, "", "", ""];
    let figures = Figures {
        families: vec![family(
            &catalogue::PINNED,
            &[
                (&labels("1", "train"), 2048.0),
                (&labels("2", "serve"), 2048.0),
                (&labels("3", "train"), 100.0),
            ],
        )],
    };
    let changes = book.look(&figures, at(0));
    let [alert] = fired(&changes)[..] else { panic!("{changes:?}") };
    assert_eq!(alert.summary(), "train pins 2.00 KiB, more than 100 B; ?");
    assert_eq!(alert.rule.alert_name(), "my_pinned");
}

#[test]
fn the_number_of_alerts_is_bounded_and_what_is_passed_over_is_counted() {
    let mut book = book(&Thresholds { leak_suspect: Some(span(0)), ..NONE });
    let pids: Vec<String> = (0..5000).map(|pid| pid.to_string()).collect();
    let labels: Vec<[&str; 10]> = pids
        .iter()
        .map(|pid| {
            let mut labels = SUSPECT;
            labels[0] = pid;
            labels
        })
        .collect();
    let samples: Vec<(&[&str], f64)> = labels.iter().map(|labels| (&labels[..], 1.0)).collect();
    let figures = Figures { families: vec![family(&catalogue::SUSPECT_GROWTH, &samples)] };
    let changes = book.look(&figures, at(0));
    assert_eq!(fired(&changes).len(), 64);
    assert_eq!(book.passed_over(), 5000 - 64);
    // Others take their place when they are over.
    assert_eq!(
        resolved(&{
            book.look(&Figures::default(), at(1));
            book.look(&Figures::default(), at(61))
        })
        .len(),
        64
    );
    assert_eq!(book.look(&figures, at(62)).len(), 64);
    assert!(book.past().count() <= 128);
}

#[test]
fn figures_that_are_no_numbers_are_nothing() {
    let mut book = book(&Thresholds { leak_suspect: Some(span(0)), ..NONE });
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(book.look(&one(&catalogue::SUSPECT_GROWTH, &SUSPECT, value), at(0)), []);
    }
}

#[test]
fn built_in_rules_name_only_labels_that_their_metric_has() {
    let rules = builtin::rules(&Thresholds::default());
    let mut names: Vec<&str> = rules.iter().map(|rule| &*rule.name).collect();
    names.dedup();
    assert_eq!(names, builtin::NAMES);
    for rule in &rules {
        for name in placeholders(&rule.summary).chain(placeholders(&rule.advice)) {
            let known =
                ["value", "threshold"].contains(&name) || rule.metric.labels.contains(&name);
            assert!(known, "{}: {name}", rule.name);
        }
    }
    assert!(builtin::rules(&NONE).is_empty());
}

#[test]
fn a_forecast_is_told_in_hours() {
    let mut book = book(&Thresholds { full_within: Some(span(21_600)), ..NONE });
    let full = |seconds: f64| one(&catalogue::GPU_FULL_IN, &["3", "GPU-d"], seconds);
    book.look(&full(30_000.0), at(0));
    book.look(&full(11_100.0), at(10));
    let changes = book.look(&full(11_100.0), at(310));
    assert_eq!(
        fired(&changes)[0].summary(),
        "GPU 3 will be full in 3h 05m at the current growth of its leak suspects"
    );
    assert_eq!(
        resolved(&{
            book.look(&full(30_000.0), at(320));
            book.look(&full(30_000.0), at(380))
        })
        .len(),
        1
    );
}
