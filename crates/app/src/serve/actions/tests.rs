//! Tests of actions on real processes.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use engine::ledger::Ledger;
use engine::model::event::{Allocate, Event, EventKind, ProcessInfo};
use engine::model::ids::{AllocationKey, DeviceId, Pid, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::SiteName;
use engine::model::units::Timestamp;
use engine::snapshot::SnapshotOptions;
use engine::verdict::{Evidence, SiteVerdict, Verdict};

use super::*;
use crate::serve::config::ByteSize;

/// A process that can be stopped; killed with the test.
struct TargetProcess(Child);

impl TargetProcess {
    fn new() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn candidate(&self, bytes: u64) -> Candidate {
        let pid = self.0.id();
        // Before its exec the process has another name.
        let named = || std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        while named() != "sleep\n" {
            std::thread::yield_now();
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let ticks: u64 =
            stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().parse().unwrap();
        let key = ProcessKey { pid: Pid(pid), start: ticks * 10_000_000 + 123 };
        Candidate { key, bytes: Bytes(bytes), idle: None }
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn ended_by(&mut self) -> Option<i32> {
        self.0.wait().unwrap().signal()
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn allow(name: Option<&str>, user: Option<&str>) -> ActionRule {
    ActionRule {
        user: user.map(str::to_owned),
        cgroup: None,
        name: name.map(str::to_owned),
        action: ActionKind::Stop,
        signal: None,
        command: Vec::new(),
        trigger: ActionTrigger::OutOfMemory,
        min_bytes: ByteSize(Bytes(100)),
    }
}

fn own_uid() -> String {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid().to_string()
}

struct Fixture {
    dir: tempfile::TempDir,
    runner: ActionRunner,
}

impl Fixture {
    fn new(dry_run: bool, allow: Vec<ActionRule>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runner =
            ActionRunner::with(ActionsConfig { dry_run, max_per_hour: 2, allow }, dir.path());
        Self { dir, runner }
    }

    /// Returns the logged reasons.
    fn reasons(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.path().join("actions.log")).unwrap_or_default();
        let one = |line: &str| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            value["reason"].as_str().unwrap().to_owned()
        };
        text.lines().map(one).collect()
    }

    /// Returns the logged outcomes.
    fn outcomes(&self) -> Vec<(u32, String)> {
        let text = std::fs::read_to_string(self.dir.path().join("actions.log")).unwrap_or_default();
        let one = |line: &str| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            let pid = value["pid"].as_u64().unwrap() as u32;
            (pid, value["outcome"].as_str().unwrap().to_owned())
        };
        text.lines().map(one).collect()
    }
}

#[test]
fn only_the_matching_process_is_stopped() {
    let (mut allowed, mut small) = (TargetProcess::new(), TargetProcess::new());
    let rules = vec![allow(Some("no-such-name"), None), allow(Some("sle*"), Some(&own_uid()))];
    let mut fixture = Fixture::new(false, rules);
    fixture.runner.decide(
        ActionTrigger::OutOfMemory,
        &[small.candidate(99), allowed.candidate(100)],
        None,
    );
    assert_eq!(allowed.ended_by(), Some(15));
    assert!(small.is_running(), "it holds less than min_bytes");
    let expected = [(small.0.id(), "skipped".to_owned()), (allowed.0.id(), "done".to_owned())];
    assert_eq!(fixture.outcomes(), expected);
}

#[test]
fn partial_matches_are_left_alone() {
    let mut target = TargetProcess::new();
    let mut elsewhere = allow(Some("sleep"), None);
    elsewhere.cgroup = Some("/nowhere.slice".into());
    let mut other_trigger = allow(Some("sleep"), None);
    other_trigger.trigger = ActionTrigger::NearlyFull;
    let rules = vec![
        allow(Some("slee"), Some(&own_uid())),
        allow(Some("sleep"), Some("4294967294")),
        allow(None, None),
        elsewhere,
        other_trigger,
    ];
    let mut fixture = Fixture::new(false, rules);
    fixture.runner.decide(ActionTrigger::OutOfMemory, &[target.candidate(1000)], None);
    assert!(target.is_running());
    assert_eq!(fixture.outcomes(), [(target.0.id(), "skipped".to_owned())]);
}

#[test]
fn dry_run_only_logs() {
    let mut target = TargetProcess::new();
    let mut fixture = Fixture::new(true, vec![allow(Some("sleep"), None)]);
    fixture.runner.decide(ActionTrigger::OutOfMemory, &[target.candidate(1000)], None);
    assert!(target.is_running());
    assert_eq!(fixture.outcomes(), [(target.0.id(), "dry_run".to_owned())]);
}

#[test]
fn reused_pids_and_the_agent_itself_are_left_alone() {
    let mut target = TargetProcess::new();
    let mut fixture = Fixture::new(false, vec![allow(Some("*"), Some(&own_uid()))]);
    let mut later = target.candidate(1000);
    later.key.start += 10_000_000;
    let mut unknown = target.candidate(1000);
    unknown.key.start = 0;
    let mut own_process = later.clone();
    own_process.key.pid = Pid(std::process::id());
    let mut first = later.clone();
    first.key.pid = Pid(1);
    fixture.runner.decide(ActionTrigger::OutOfMemory, &[later, unknown, own_process, first], None);
    assert!(target.is_running());
    assert!(fixture.outcomes().iter().all(|(_, outcome)| outcome == "skipped"));
    assert_eq!(fixture.outcomes().len(), 4);
}

#[test]
fn hourly_limit_is_enforced() {
    let mut targets: Vec<TargetProcess> = (0..3).map(|_| TargetProcess::new()).collect();
    let mut fixture = Fixture::new(false, vec![allow(Some("sleep"), None)]);
    for target in &targets {
        fixture.runner.decide(ActionTrigger::OutOfMemory, &[target.candidate(1000)], None);
    }
    assert_eq!((targets[0].ended_by(), targets[1].ended_by()), (Some(15), Some(15)));
    assert!(targets[2].is_running());
    assert_eq!(fixture.outcomes()[2].1, "rate_limited");
}

#[test]
fn command_gets_a_minimal_environment() {
    let mut target = TargetProcess::new();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut rule = allow(Some("sleep"), None);
    rule.action = ActionKind::Command;
    let script = format!("env | sort > {}.part; mv {0}.part {0}", out.display());
    rule.command = vec!["/bin/sh".into(), "-c".into(), script];
    let mut fixture = Fixture::new(false, vec![rule]);
    fixture.runner.decide(ActionTrigger::OutOfMemory, &[target.candidate(1000)], None);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !out.exists() {
        assert!(Instant::now() < deadline, "the command wrote nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(text.contains(&format!("VRAMSCOPE_PID={}\n", target.0.id())), "{text}");
    assert!(text.contains("VRAMSCOPE_TRIGGER=out_of_memory\n"), "{text}");
    assert!(text.contains("VRAMSCOPE_PROCESS_START_NS="), "{text}");
    assert!(text.contains("VRAMSCOPE_BYTES=1000\n") && !text.contains("CARGO"), "{text}");
    assert!(target.is_running());
}

/// Adds a process that holds memory on the first GPU: `traced` bytes seen by the agent, `driver`
/// bytes reported by the driver.
fn add_holder(ledger: &mut Ledger, target: &TargetProcess, traced: u64, driver: u64) {
    let key = target.candidate(0).key;
    let info = ProcessInfo { start: key.start, uid: 1, name: "sleep".into(), before_trace: true };
    let allocate = Allocate {
        key: AllocationKey::address(u64::from(key.pid.0) << 8),
        kind: MemoryKind::Device,
        bytes: traced,
        context: None,
        device: Some(DeviceId(0)),
        pool: None,
        stream: None,
        site: None,
    };
    let mut all = vec![EventKind::Process(info), EventKind::Gpus([Some(GpuId(0))].into())];
    if traced > 0 {
        all.push(EventKind::Allocate(allocate));
    }
    all.push(EventKind::DriverUsage { gpu: GpuId(0), bytes: driver, only: false });
    for kind in all {
        let at = Timestamp(1_000_000_000);
        ledger.apply(&Event { pid: key.pid, tid: Tid(key.pid.0), entry_time: at, time: at, kind });
    }
}

fn snapshot(ledger: &mut Ledger) -> Snapshot {
    ledger.snapshot(Timestamp(2_000_000_000), &SnapshotOptions::default())
}

/// Returns an out-of-memory error of process 7 on the first GPU.
fn oom(number: u64) -> OomEvent {
    OomEvent {
        number,
        requester: Requester { pid: Pid(7), tid: None, name: "requester".into() },
        device: DeviceFilter::Device(DeviceId(0), Some(GpuId(0))),
        gpu: Some(GpuId(0)),
        requested: Bytes(5000),
        is_settled: false,
    }
}

#[test]
fn only_unrecovered_errors_on_a_full_device_trigger_actions() {
    let mut target = TargetProcess::new();
    let mut ledger = Ledger::new();
    add_holder(&mut ledger, &target, 1000, 1500);
    let snapshot = snapshot(&mut ledger);
    let mut fixture = Fixture::new(false, vec![allow(Some("sleep"), None)]);
    let others = OomCause::ALL.into_iter().filter(|cause| *cause != OomCause::DeviceExhausted);
    for (number, cause) in others.clone().enumerate() {
        fixture.runner.queue_oom(oom(number as u64), cause);
        fixture.runner.incident_settled(number as u64, false);
    }
    fixture.runner.poll(&snapshot, &HolderHistory::default());
    assert!(target.is_running());
    assert_eq!(fixture.outcomes(), vec![(7, "skipped".to_owned()); OomCause::ALL.len() - 1]);
    for (reason, cause) in fixture.reasons().iter().zip(others) {
        assert!(reason.contains(cause.name()), "{reason}");
    }
    // The process may recover, and then it does.
    fixture.runner.queue_oom(oom(100), OomCause::DeviceExhausted);
    fixture.runner.poll(&snapshot, &HolderHistory::default());
    fixture.runner.incident_settled(100, true);
    fixture.runner.poll(&snapshot, &HolderHistory::default());
    assert!(target.is_running());
    assert!(fixture.reasons().last().unwrap().contains("recovered"), "{:?}", fixture.reasons());
    // Another process freed memory.
    let mut freed = snapshot.clone();
    freed.gpus.push(engine::snapshot::GpuView { gpu: GpuId(0), free_bytes: Bytes(5000) });
    fixture.runner.queue_oom(oom(101), OomCause::DeviceExhausted);
    fixture.runner.incident_settled(101, false);
    fixture.runner.poll(&freed, &HolderHistory::default());
    assert!(target.is_running());
    assert!(fixture.reasons().last().unwrap().contains("is free now"), "{:?}", fixture.reasons());
    fixture.runner.queue_oom(oom(102), OomCause::DeviceExhausted);
    fixture.runner.incident_settled(102, false);
    fixture.runner.poll(&snapshot, &HolderHistory::default());
    assert_eq!(target.ended_by(), Some(15));
    assert_eq!(fixture.outcomes().last().unwrap(), &(target.0.id(), "done".to_owned()));
}

#[test]
fn untracked_memory_counts() {
    let (mut traced, mut untraced) = (TargetProcess::new(), TargetProcess::new());
    let mut ledger = Ledger::new();
    add_holder(&mut ledger, &traced, 700, 800);
    // Allocated before the agent started.
    add_holder(&mut ledger, &untraced, 0, 2000);
    let mut rule = allow(Some("sleep"), None);
    rule.min_bytes = ByteSize(Bytes(1500));
    let mut fixture = Fixture::new(false, vec![rule]);
    fixture.runner.queue_oom(oom(1), OomCause::DeviceExhausted);
    fixture.runner.incident_settled(1, false);
    fixture.runner.poll(&snapshot(&mut ledger), &HolderHistory::default());
    assert_eq!(untraced.ended_by(), Some(15));
    assert!(traced.is_running());
}

#[test]
fn suspect_below_min_bytes_is_logged_once_until_it_grows() {
    let mut target = TargetProcess::new();
    let mut ledger = Ledger::new();
    add_holder(&mut ledger, &target, 10, 10);
    let mut snapshot = snapshot(&mut ledger);
    snapshot.suspects.push(SiteVerdict {
        pid: Some(Pid(target.0.id())),
        process: "sleep".into(),
        site: SiteName::Unknown,
        frames: [].into(),
        resource: Resource::Memory(MemoryKind::Device),
        device: Some(DeviceId(0)),
        thread: None,
        verdict: Verdict::Leak,
        confidence: Confidence::Certain,
        evidence: Evidence { live: 99, ..Evidence::default() },
    });
    let mut rule = allow(Some("sleep"), None);
    rule.trigger = ActionTrigger::Leak;
    let mut fixture = Fixture::new(false, vec![rule]);
    for _ in 0..3 {
        fixture.runner.poll(&snapshot, &HolderHistory::default());
    }
    assert!(target.is_running());
    assert_eq!(fixture.outcomes(), [(target.0.id(), "skipped".to_owned())]);
    assert_eq!(fixture.reasons(), ["99 B is less than min_bytes (100 B)"]);
    snapshot.suspects[0].evidence.live = 100;
    for _ in 0..3 {
        fixture.runner.poll(&snapshot, &HolderHistory::default());
    }
    assert_eq!(target.ended_by(), Some(15));
    assert_eq!(fixture.outcomes().len(), 2, "{:?}", fixture.outcomes());
}

#[test]
fn missing_cap_kill_is_reported() {
    let rules = |dry_run, allow| ActionsConfig { dry_run, max_per_hour: 1, allow };
    let stop = rules(false, vec![allow(Some("python"), Some("1234"))]);
    assert!(missing_capability_warning(&stop, false, 65534).unwrap().contains("CAP_KILL"));
    assert_eq!(missing_capability_warning(&stop, true, 65534), None);
    assert_eq!(
        missing_capability_warning(&stop, false, 1234),
        None,
        "its own processes need no capability"
    );
    assert_eq!(missing_capability_warning(&rules(true, stop.allow.clone()), false, 65534), None);
    assert_eq!(missing_capability_warning(&rules(false, Vec::new()), false, 65534), None);
    let mut command = allow(Some("python"), None);
    command.action = ActionKind::Command;
    assert_eq!(missing_capability_warning(&rules(false, vec![command]), false, 65534), None);
}

#[test]
fn command_runs_in_root_dir_and_ends_with_the_agent() {
    let target = TargetProcess::new();
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let mut rule = allow(Some("sleep"), None);
    rule.action = ActionKind::Command;
    let script =
        format!("sleep 300 & (pwd; echo $!; env) > {}.part; mv {0}.part {0}; wait", out.display());
    rule.command = vec!["/bin/sh".into(), "-c".into(), script];
    let mut fixture = Fixture::new(false, vec![rule]);
    fixture.runner.decide(ActionTrigger::OutOfMemory, &[target.candidate(1000)], None);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !out.exists() {
        assert!(Instant::now() < deadline, "the command wrote nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = std::fs::read_to_string(&out).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("/"));
    let child = lines.next().unwrap();
    let names = lines.filter_map(|line| line.split_once('=')).map(|(name, _)| name);
    for name in names.filter(|name| !name.starts_with("VRAMSCOPE_")) {
        assert!(["PATH", "HOME", "LANG", "PWD", "SHLVL", "_", "OLDPWD"].contains(&name), "{name}");
    }
    drop(fixture);
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "its child is still running: {stat}");
}
