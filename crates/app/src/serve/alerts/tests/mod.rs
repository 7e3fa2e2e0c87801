//! Notifications and their receivers, with synthetic alerts and test servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod commands;
mod pace;
mod receiver;
mod shapes;
mod webhooks;

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::alert::{Alert, AlertEvaluator, Transition};
use engine::metrics::{Metric, MetricFamily, MetricSet, Sample, SampleValue, catalog};
use engine::model::units::{Nanos, Timestamp};
use formats::WallClock;

use super::notifier::Notifier;
use super::worker::AlertWorker;
use crate::serve::AgentState;
use crate::serve::config::Config;

fn at(seconds: u64) -> Timestamp {
    Timestamp((1000 + seconds) * 1_000_000_000)
}

/// `at(0)` is the evening of 14 November 2023.
fn clock() -> WallClock {
    WallClock::fixed(at(0), 1_700_000_000)
}

fn settings(text: &str) -> Arc<AgentState> {
    let config: Config = toml::from_str(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.check(), [""; 0]);
    AgentState::new(config)
}

fn metrics(metric: &'static Metric, labels: &[&str], value: f64) -> MetricSet {
    let labels = labels.iter().map(|label| (*label).into()).collect();
    let sample = Sample { labels, value: SampleValue::Real(value) };
    MetricSet { families: vec![MetricFamily { metric, samples: vec![sample] }] }
}

/// Metrics of a leak in a process with a hostile name.
fn leak(pid: &str) -> MetricSet {
    let labels = [
        pid,
        "tr<ain>\u{1b}[2J",
        "",
        "",
        "",
        "0",
        "GPU-a",
        "0123456789abcdef",
        "step main.py:7",
        "device",
    ];
    metrics(&catalog::SUSPECT_GROWTH, &labels, 1_048_576.0)
}

/// Returns firing alerts of the built-in rule, one per pid.
fn alerts(pids: &[&str]) -> Vec<Alert> {
    let rules = settings("[alerts]\nleak_suspect = \"0s\"").config.alerts.rules();
    let mut evaluator = AlertEvaluator::new(rules, Nanos(0));
    let mut all = MetricSet {
        families: vec![MetricFamily { metric: &catalog::SUSPECT_GROWTH, samples: vec![] }],
    };
    for pid in pids {
        all.families[0].samples.append(&mut leak(pid).families[0].samples);
    }
    let fired = evaluator.evaluate(&all, at(0)).into_iter().map(|change| match change {
        Transition::Fired(alert) => alert,
        Transition::Resolved(alert) => panic!("{alert:?}"),
    });
    fired.collect()
}

/// Returns the alert worker without its thread, with the rules and receivers of the configuration.
fn worker(shared: &Arc<AgentState>) -> AlertWorker {
    let host: Arc<str> = "node-1".into();
    let receivers = shared.config.alerts.receivers().into_iter();
    let notifiers = receivers.map(|receiver| Notifier::start(receiver, &host, shared).unwrap());
    AlertWorker::new(&shared.config.alerts, notifiers.collect())
}

/// Waits until a condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the thread of that name is sleeping.
fn is_sleeping(name: &str) -> bool {
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.any(|task| {
        let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
        stat.is_ok_and(|stat| stat.contains(&format!("({name}) S ")))
    })
}

fn count(shared: &AgentState, receiver: &str, outcome: &str) -> u64 {
    let notified = shared.alerts.notified.counts();
    notified.iter().find(|(key, _)| *key == (receiver, outcome)).map_or(0, |(_, count)| *count)
}

#[test]
fn alerts_are_listed_while_firing_and_after() {
    let shared = settings("[alerts]\nleak_suspect = \"10s\"\nkeep_firing_for = \"5s\"");
    let mut worker = worker(&shared);
    let mut evaluate = |metrics: &MetricSet, second| {
        worker.evaluate(metrics, at(second), &clock(), &shared.alerts);
        shared.alerts.list()
    };
    assert_eq!(evaluate(&leak("41"), 0), []);
    let firing = evaluate(&leak("41"), 10);
    let [alert] = &firing[..] else { panic!("{firing:?}") };
    assert_eq!((alert.rule.as_str(), alert.severity.as_str()), ("leak_suspect", "warning"));
    assert_eq!(alert.since, "2023-11-14T22:13:20.000+00:00");
    assert_eq!(alert.resolved, None);
    let process = alert.labels.iter().find(|(name, _)| name == "process").unwrap();
    assert_eq!(process.1, "tr<ain>\\u{1b}[2J");
    assert_eq!(
        alert.summary,
        "tr<ain>\\u{1b}[2J (pid 41) leaks at step main.py:7: 3.52 GiB/h (device)"
    );
    evaluate(&MetricSet::default(), 11);
    let resolved = evaluate(&MetricSet::default(), 16);
    assert_eq!(resolved[0].resolved.as_deref(), Some("2023-11-14T22:13:36.000+00:00"));
    assert_eq!(count(&shared, "log", "sent"), 2);
    worker.finish(Duration::ZERO);
}

#[test]
fn alerts_can_be_disabled() {
    let shared = settings("[alerts]\nenabled = false");
    let worker = super::start(&shared).unwrap();
    until("that it waits or ends", || is_sleeping("alerts") || worker.is_finished());
    assert!(!worker.is_finished(), "a worker that exits ends the agent");
    shared.feed.close();
    worker.join_until(Instant::now() + Duration::from_secs(60)).unwrap();
}
