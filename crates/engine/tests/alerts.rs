//! Alert rules over synthetic metrics: when alerts fire, when they resolve, and how many there can
//! be.

use engine::alert::builtin::{self, Thresholds};
use engine::alert::{Alert, AlertEvaluator, Severity, Transition, pieces};
use engine::metrics::{Metric, MetricFamily, MetricSet, Sample, SampleValue, catalog};
use engine::model::units::{Bytes, Nanos, Timestamp};

fn at(seconds: u64) -> Timestamp {
    Timestamp((1_000_000 + seconds) * 1_000_000_000)
}

fn span(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

fn family(metric: &'static Metric, samples: &[(&[&str], f64)]) -> MetricFamily {
    let samples = samples.iter().map(|(labels, value)| {
        assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
        Sample {
            labels: labels.iter().map(|label| (*label).into()).collect(),
            value: SampleValue::Real(*value),
        }
    });
    MetricFamily { metric, samples: samples.collect() }
}

fn one(metric: &'static Metric, labels: &[&str], value: f64) -> MetricSet {
    MetricSet { families: vec![family(metric, &[(labels, value)])] }
}

fn alerts(thresholds: &Thresholds) -> AlertEvaluator {
    AlertEvaluator::new(builtin::rules(thresholds), span(60))
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

const SUSPECT: [&str; 12] =
    ["41", "python3", "train", "ann", "", "", "", "0", "GPU-a", "s1", "main.py:7 step", "device"];

#[test]
fn suspect_fires_after_its_hold_time() {
    let mut alerts = alerts(&Thresholds { leak_suspect: span(300), ..Thresholds::default() });
    let suspect = one(&catalog::SUSPECT_GROWTH, &SUSPECT, (3_u64 << 30) as f64 / 3600.0);
    assert_eq!(alerts.evaluate(&suspect, at(0)), []);
    assert_eq!(alerts.evaluate(&suspect, at(299)), []);
    let changes = alerts.evaluate(&suspect, at(300));
    let [alert] = fired(&changes)[..] else { panic!("{changes:?}") };
    assert_eq!((alert.since, alert.fired, alert.resolved), (at(0), at(300), None));
    assert_eq!(alert.summary(), "train (pid 41) leaks at main.py:7 step: 3.00 GiB/h (device)");
    assert_eq!(alert.rule.alert_name(), "VramscopeLeakSuspect");
    assert!(alert.labels.iter().all(|(_, value)| !value.is_empty()), "{:?}", alert.labels);
    assert_eq!(alerts.evaluate(&suspect, at(301)), [], "already firing");
    assert_eq!(alerts.firing().len(), 1);
}

#[test]
fn object_growth_is_not_formatted_as_bytes() {
    let mut alerts = alerts(&Thresholds { leak_suspect: span(0), ..Thresholds::default() });
    let mut labels = SUSPECT;
    labels[11] = "stream_objects";
    let growth = one(&catalog::SUSPECT_GROWTH_OBJECTS, &labels, 4096.0 / 3600.0);
    let changes = alerts.evaluate(&growth, at(0));
    let summary = fired(&changes)[0].summary();
    assert_eq!(summary, "train (pid 41) leaks at main.py:7 step: 4096/h (stream_objects)");
}

#[test]
fn interrupted_condition_restarts_the_hold_time() {
    let mut alerts = alerts(&Thresholds { leak_suspect: span(300), ..Thresholds::default() });
    let suspect = one(&catalog::SUSPECT_GROWTH, &SUSPECT, 1e9);
    alerts.evaluate(&suspect, at(0));
    alerts.evaluate(&MetricSet::default(), at(200));
    alerts.evaluate(&suspect, at(210));
    assert_eq!(alerts.evaluate(&suspect, at(400)), []);
    assert_eq!(alerts.evaluate(&suspect, at(510)).len(), 1);
}

#[test]
fn alert_resolves_when_its_series_disappears() {
    let mut alerts = alerts(&Thresholds { leak_suspect: span(0), ..Thresholds::default() });
    let suspect = one(&catalog::SUSPECT_GROWTH, &SUSPECT, 1e9);
    assert_eq!(alerts.evaluate(&suspect, at(0)).len(), 1);
    assert_eq!(alerts.evaluate(&MetricSet::default(), at(10)), []);
    assert_eq!(alerts.evaluate(&suspect, at(30)), [], "still firing");
    assert_eq!(alerts.evaluate(&MetricSet::default(), at(40)), []);
    assert_eq!(alerts.evaluate(&MetricSet::default(), at(99)), []);
    let changes = alerts.evaluate(&MetricSet::default(), at(100));
    let [alert] = resolved(&changes)[..] else { panic!("{changes:?}") };
    assert_eq!((alert.id, alert.resolved), (1, Some(at(100))));
    assert!(alerts.firing().is_empty());
    assert_eq!(alerts.resolved().count(), 1);
    let again = alerts.evaluate(&suspect, at(101));
    assert_eq!(fired(&again)[0].id, 2, "another one");
}

#[test]
fn resolved_alert_keeps_its_last_firing_value() {
    let mut alerts = alerts(&Thresholds { nearly_full: 0.95, ..Thresholds::default() });
    let used = |share: f64| MetricSet {
        families: vec![
            family(&catalog::GPU_TOTAL, &[(&["0", "GPU-a"], 1000.0)]),
            family(&catalog::GPU_USED, &[(&["0", "GPU-a"], 1000.0 * share)]),
        ],
    };
    alerts.evaluate(&used(0.96), at(0));
    alerts.evaluate(&used(0.96), at(600));
    alerts.evaluate(&used(0.98), at(601));
    alerts.evaluate(&used(0.1), at(602));
    let changes = alerts.evaluate(&used(0.1), at(700));
    assert_eq!(resolved(&changes)[0].summary(), "98 % of GPU 0 is used");
}

#[test]
fn late_names_do_not_create_a_second_alert() {
    let mut alerts = alerts(&Thresholds { leak_suspect: span(0), ..Thresholds::default() });
    let early = one(&catalog::SUSPECT_GROWTH, &SUSPECT, 1e9);
    let mut labels = SUSPECT;
    labels[5] = "trainer-0";
    let late = one(&catalog::SUSPECT_GROWTH, &labels, 1e9);
    assert_eq!(alerts.evaluate(&early, at(0)).len(), 1);
    assert_eq!(alerts.evaluate(&late, at(1)), []);
    let firing = alerts.firing();
    assert_eq!(firing.len(), 1);
    assert!(!firing[0].labels.iter().any(|(label, _)| *label == "pod"), "labels stay");
}

#[test]
fn nearly_full_gpu_fires_by_ratio_after_hold_time() {
    let mut alerts = alerts(&Thresholds { nearly_full: 0.95, ..Thresholds::default() });
    let used = |share: f64| MetricSet {
        families: vec![
            family(&catalog::GPU_TOTAL, &[(&["0", "GPU-a"], 1000.0), (&["1", "GPU-b"], 100.0)]),
            family(
                &catalog::GPU_USED,
                &[(&["0", "GPU-a"], 1000.0 * share), (&["1", "GPU-b"], 50.0)],
            ),
        ],
    };
    alerts.evaluate(&used(0.96), at(0));
    let changes = alerts.evaluate(&used(0.96), at(600));
    assert_eq!(fired(&changes)[0].summary(), "96 % of GPU 0 is used");
    // Below the threshold but within the hysteresis: the alert stays firing.
    for second in 601..1000 {
        assert_eq!(alerts.evaluate(&used(0.945), at(second)), []);
    }
    assert_eq!(alerts.evaluate(&used(0.92), at(1000)), []);
    assert_eq!(resolved(&alerts.evaluate(&used(0.92), at(1060))).len(), 1);
}

#[test]
fn gpu_with_zero_total_is_not_full() {
    let mut alerts = alerts(&Thresholds { nearly_full: 0.95, ..Thresholds::default() });
    let metrics = MetricSet {
        families: vec![
            family(&catalog::GPU_TOTAL, &[(&["0", ""], 0.0)]),
            family(&catalog::GPU_USED, &[(&["0", ""], 0.0)]),
        ],
    };
    for second in [0, 600, 1200] {
        assert_eq!(alerts.evaluate(&metrics, at(second)), []);
    }
}

#[test]
fn out_of_memory_fires_on_the_first_sample() {
    let mut alerts = alerts(&Thresholds::default());
    let count = |count: f64| one(&catalog::OUT_OF_MEMORY, &["0", "GPU-a"], count);
    let changes = alerts.evaluate(&count(2.0), at(0));
    assert_eq!(
        fired(&changes)[0].summary(),
        "out of memory on GPU 0: 2 failed calls in the last 10 minutes"
    );
    assert_eq!(fired(&changes)[0].rule.severity, Severity::Critical);
    let mut later = Vec::new();
    for second in 1..720 {
        let changes = alerts.evaluate(&count(2.0), at(second));
        later.extend(changes.into_iter().map(|change| (second, change)));
    }
    let [(second, Transition::Resolved(_))] = &later[..] else { panic!("{later:?}") };
    assert!((660..700).contains(second), "ten minutes plus the hold time: {second}");
    assert_eq!(alerts.evaluate(&count(3.0), at(800)).len(), 1, "another one");
}

#[test]
fn counter_reset_counts_from_zero() {
    let mut alerts = alerts(&Thresholds::default());
    let lost = |count: f64| one(&catalog::LOST, &["allocations"], count);
    assert_eq!(alerts.evaluate(&lost(0.0), at(0)), []);
    let changes = alerts.evaluate(&lost(7.0), at(1));
    assert_eq!(fired(&changes)[0].value, 7.0);
    alerts.evaluate(&lost(3.0), at(2));
    assert_eq!(alerts.firing()[0].value, 10.0);
}

const PROCESS: [&str; 9] = ["0", "GPU-a", "41", "python3", "train", "ann", "", "", ""];
const ALLOCATOR: [&str; 10] =
    ["0", "GPU-a", "41", "python3", "train", "ann", "", "", "", "pytorch"];

#[test]
fn untracked_growth_needs_a_sample_from_an_hour_ago() {
    let mut alerts =
        alerts(&Thresholds { untracked_growth: Bytes(1 << 30), ..Thresholds::default() });
    let mut found = Vec::new();
    for minute in 0..150_u64 {
        // 20 MiB a minute: 1.17 GiB an hour, on top of a context of 500 MiB.
        let bytes = ((500 + 20 * minute) << 20) as f64;
        let changes = alerts.evaluate(&one(&catalog::UNTRACKED, &PROCESS, bytes), at(minute * 60));
        found.extend(changes.into_iter().map(|change| (minute, change)));
    }
    let [(minute, Transition::Fired(alert))] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*minute, 60);
    assert_eq!(alert.value, (1200_u64 << 20) as f64);
}

#[test]
fn aggregated_series_are_not_growth() {
    let mut alerts = alerts(&Thresholds { untracked_growth: Bytes(1), ..Thresholds::default() });
    let mut labels = PROCESS;
    labels[2] = "other";
    for minute in 0..150_u64 {
        let metrics = one(&catalog::UNTRACKED, &labels, (minute << 30) as f64);
        assert_eq!(alerts.evaluate(&metrics, at(minute * 60)), []);
    }
}

#[test]
fn small_fragmented_caches_do_not_fire() {
    let mut alerts = alerts(&Thresholds { fragmentation: 0.4, ..Thresholds::default() });
    let cache = |reserved: u64| MetricSet {
        families: vec![
            family(&catalog::CACHE_RESERVED, &[(&ALLOCATOR, reserved as f64)]),
            family(&catalog::FRAGMENTATION, &[(&ALLOCATOR, 0.6)]),
        ],
    };
    for second in [0, 900, 1800] {
        assert_eq!(alerts.evaluate(&cache(200 << 20), at(second)), []);
    }
    alerts.evaluate(&cache(2 << 30), at(2000));
    assert_eq!(alerts.evaluate(&cache(2 << 30), at(2900)).len(), 1);
}

#[test]
fn missing_labels_are_question_marks() {
    let mut alerts = alerts(&Thresholds::default());
    let errors = |count: f64| one(&catalog::OUT_OF_MEMORY, &["", ""], count);
    alerts.evaluate(&errors(0.0), at(0));
    let changes = alerts.evaluate(&errors(2.0), at(1));
    let [alert] = fired(&changes)[..] else { panic!("{changes:?}") };
    assert_eq!(alert.summary(), "out of memory on GPU ?: 2 failed calls in the last 10 minutes");
    assert_eq!(alert.rule.alert_name(), "VramscopeOutOfMemory");
}

#[test]
fn alerts_are_bounded_and_dropped_ones_are_counted() {
    let mut alerts = alerts(&Thresholds { leak_suspect: span(0), ..Thresholds::default() });
    let pids: Vec<String> = (0..5000).map(|pid| pid.to_string()).collect();
    let labels: Vec<[&str; 12]> = pids
        .iter()
        .map(|pid| {
            let mut labels = SUSPECT;
            labels[0] = pid;
            labels
        })
        .collect();
    let samples: Vec<(&[&str], f64)> = labels.iter().map(|labels| (&labels[..], 1.0)).collect();
    let metrics = MetricSet { families: vec![family(&catalog::SUSPECT_GROWTH, &samples)] };
    let changes = alerts.evaluate(&metrics, at(0));
    assert_eq!(fired(&changes).len(), 64);
    assert_eq!(alerts.dropped_alerts(), 5000 - 64);
    // New alerts take the slots of resolved ones.
    assert_eq!(
        resolved(&{
            alerts.evaluate(&MetricSet::default(), at(1));
            alerts.evaluate(&MetricSet::default(), at(61))
        })
        .len(),
        64
    );
    assert_eq!(alerts.evaluate(&metrics, at(62)).len(), 64);
    assert!(alerts.resolved().count() <= 128);
}

#[test]
fn nan_and_infinite_values_do_not_fire() {
    let mut alerts = alerts(&Thresholds { leak_suspect: span(0), ..Thresholds::default() });
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(alerts.evaluate(&one(&catalog::SUSPECT_GROWTH, &SUSPECT, value), at(0)), []);
    }
}

#[test]
fn built_in_rules_use_labels_of_their_metric() {
    let rules = builtin::rules(&Thresholds::default());
    let mut names: Vec<&str> = rules.iter().map(|rule| rule.name).collect();
    names.dedup();
    assert_eq!(names, builtin::RULE_NAMES);
    for rule in &rules {
        let pieces = pieces(rule.summary).chain(pieces(rule.advice));
        for name in pieces.filter_map(|(_, name)| name) {
            let known =
                ["value", "threshold"].contains(&name) || rule.metric.labels.contains(&name);
            assert!(known, "{}: {name}", rule.name);
        }
    }
}

#[test]
fn forecast_is_formatted_in_hours() {
    let mut alerts = alerts(&Thresholds { full_soon: span(21_600), ..Thresholds::default() });
    let full = |seconds: f64| one(&catalog::GPU_FULL_IN, &["3", "GPU-d"], seconds);
    alerts.evaluate(&full(30_000.0), at(0));
    alerts.evaluate(&full(11_100.0), at(10));
    let changes = alerts.evaluate(&full(11_100.0), at(310));
    assert_eq!(fired(&changes)[0].summary(), "GPU 3 will be full in 3h 05m at its current growth");
    assert_eq!(
        resolved(&{
            alerts.evaluate(&full(30_000.0), at(320));
            alerts.evaluate(&full(30_000.0), at(380))
        })
        .len(),
        1
    );
}
