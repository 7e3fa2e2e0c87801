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
use engine::model::{Nanos, Timestamp};
use formats::WallClock;

use super::AlertWorker;
use super::notifier::Notifier;
use crate::config::Config;
use crate::incidents::IncidentNotice;
use crate::{AgentState, Worker};

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
        "python3",
        "tr<ain>\u{1b}[2J",
        "ann",
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
fn worker(shared: &Arc<AgentState>) -> TestWorker {
    let host: Arc<str> = "node-1".into();
    let receivers = shared.config.alerts.receivers().into_iter();
    let started = receivers.map(|receiver| Notifier::start(receiver, &host, shared).unwrap());
    let (notifiers, threads): (Vec<_>, Vec<_>) = started.unzip();
    let worker = AlertWorker::new(&shared.config.alerts, notifiers);
    let threads = threads.into_iter().flatten().collect();
    TestWorker { worker, shared: Arc::clone(shared), threads }
}

/// The alert worker and the threads of its receivers.
struct TestWorker {
    worker: AlertWorker,
    shared: Arc<AgentState>,
    threads: Vec<Worker>,
}

impl TestWorker {
    fn evaluate(&mut self, metrics: &MetricSet, now: Timestamp) {
        self.worker.evaluate(metrics, now, &clock(), &self.shared.alerts);
    }

    /// Ends the agent.
    fn finish(self) {
        drop(self.worker);
        self.shared.feed.close();
        for thread in self.threads {
            thread.join_until(Instant::now() + Duration::from_secs(20)).unwrap();
        }
    }
}

/// Waits until a condition holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "{what} never came");
        std::thread::sleep(Duration::from_millis(10));
    }
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
        worker.evaluate(metrics, at(second));
        shared.alerts.list()
    };
    assert_eq!(evaluate(&leak("41"), 0), []);
    let firing = evaluate(&leak("41"), 10);
    let [alert] = &firing[..] else { panic!("{firing:?}") };
    assert_eq!((alert.rule, alert.severity), ("leak_suspect", "warning"));
    assert_eq!(alert.since, "2023-11-14T22:13:20.000+00:00");
    assert_eq!(alert.resolved, None);
    assert_eq!(alert.labels["program"], "tr<ain>\\u{1b}[2J");
    assert_eq!(
        alert.summary,
        "tr<ain>\\u{1b}[2J (pid 41) leaks at step main.py:7: 3.52 GiB/h (device)"
    );
    evaluate(&MetricSet::default(), 11);
    let resolved = evaluate(&MetricSet::default(), 16);
    assert_eq!(resolved[0].resolved.as_deref(), Some("2023-11-14T22:13:36.000+00:00"));
    assert_eq!(count(&shared, "log", "sent"), 2);
    worker.finish();
}

#[test]
fn alerts_can_be_disabled() {
    let shared = settings("[alerts]\nenabled = false");
    assert_eq!(super::start(&shared).unwrap().len(), 0);
}

#[test]
fn incident_is_sent_to_receivers_that_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("env");
    let shared = settings(&format!(
        "[[alerts.receiver]]\ntype = \"command\"\nrules = [\"incident\"]\n\
         command = [\"/bin/sh\", \"-c\", \"env > {0}.part; cat > {0}.json; mv {0}.part {0}\"]\n\
         [[alerts.receiver]]\ntype = \"log\"\n",
        file.display()
    ));
    let mut worker = worker(&shared);
    let notice = IncidentNotice {
        id: "2026-1".into(),
        dir: "/var/lib/vramscope/incidents/2026-1".into(),
        trigger: "out_of_memory",
        cause: Some("device_exhausted".into()),
        recovered: false,
        gpu: Some(0),
        pid: Some(41),
        uid: Some(1000),
        process: Some("train".into()),
        requested_bytes: Some(1 << 30),
        time: "2026-01-01T00:00:00Z".into(),
        title: "out of memory on GPU 0".into(),
    };
    worker.worker.announce(&[notice], at(0), &shared.alerts);
    until("the command", || file.exists());
    let env = std::fs::read_to_string(&file).unwrap();
    for variable in [
        "VRAMSCOPE_RULE=incident",
        "VRAMSCOPE_SEVERITY=critical",
        "VRAMSCOPE_INCIDENT_DIR=/var/lib/vramscope/incidents/2026-1",
        "VRAMSCOPE_CAUSE=device_exhausted",
        "VRAMSCOPE_RECOVERED=false",
        "VRAMSCOPE_PID=41",
        "VRAMSCOPE_UID=1000",
        "VRAMSCOPE_PROCESS=train",
        "VRAMSCOPE_BYTES=1073741824",
        "VRAMSCOPE_LABEL_GPU=0",
    ] {
        assert!(env.lines().any(|line| line == variable), "{variable} is not in {env}");
    }
    let input = std::fs::read_to_string(file.with_extension("json")).unwrap();
    let input: serde_json::Value = serde_json::from_str(&input).unwrap();
    assert_eq!(input["incident"]["requested_bytes"], 1 << 30);
    assert_eq!((&input["rule"], &input["labels"]["pid"]), (&"incident".into(), &"41".into()));
    worker.finish();
    assert_eq!((count(&shared, "command", "sent"), count(&shared, "log", "sent")), (1, 0));
}
