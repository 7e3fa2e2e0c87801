//! With real processes.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use engine::event::{Allocate, Event, ProcessFacts, What as Happened};
use engine::ids::{DeviceId, Key, Pid, Tid};
use engine::kind::Kind;
use engine::ledger::Ledger;
use engine::snapshot::View;
use engine::stack::SiteName;
use engine::units::Moment;
use engine::verdict::{Evidence, Judgement, Verdict};

use super::*;
use crate::serve::config::Size;

/// A process that can be stopped. Ended with the test.
struct Victim(Child);

impl Victim {
    fn new() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn candidate(&self, bytes: u64) -> Candidate {
        let pid = self.0.id();
        // A process is another program before its exec.
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

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn ended_by(&mut self) -> Option<i32> {
        self.0.wait().unwrap().signal()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn allow(name: Option<&str>, user: Option<&str>) -> Allow {
    Allow {
        user: user.map(str::to_owned),
        cgroup: None,
        name: name.map(str::to_owned),
        action: What::Stop,
        signal: None,
        command: Vec::new(),
        trigger: When::OutOfMemory,
        min_bytes: Size(Bytes(100)),
    }
}

fn me() -> String {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid().to_string()
}

struct Scene {
    folder: tempfile::TempDir,
    actor: Actor,
}

impl Scene {
    fn new(dry_run: bool, allow: Vec<Allow>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let actor = Actor::with(Actions { dry_run, max_per_hour: 2, allow }, folder.path());
        Self { folder, actor }
    }

    /// The reasons that were written down.
    fn reasons(&self) -> Vec<String> {
        let text =
            std::fs::read_to_string(self.folder.path().join("actions.log")).unwrap_or_default();
        let one = |line: &str| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            value["reason"].as_str().unwrap().to_owned()
        };
        text.lines().map(one).collect()
    }

    /// The outcomes that were written down.
    fn outcomes(&self) -> Vec<(u32, String)> {
        let text =
            std::fs::read_to_string(self.folder.path().join("actions.log")).unwrap_or_default();
        let one = |line: &str| {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            let pid = value["pid"].as_u64().unwrap() as u32;
            (pid, value["outcome"].as_str().unwrap().to_owned())
        };
        text.lines().map(one).collect()
    }
}

#[test]
fn the_allowed_one_is_stopped_and_the_others_are_not() {
    let (mut allowed, mut small) = (Victim::new(), Victim::new());
    let rules = vec![allow(Some("nothing-is-called-this"), None), allow(Some("sle*"), Some(&me()))];
    let mut scene = Scene::new(false, rules);
    scene.actor.decide(When::OutOfMemory, &[small.candidate(99), allowed.candidate(100)], None);
    assert_eq!(allowed.ended_by(), Some(15));
    assert!(small.runs(), "it would give back too little");
    let expected = [(small.0.id(), "skipped".to_owned()), (allowed.0.id(), "done".to_owned())];
    assert_eq!(scene.outcomes(), expected);
}

#[test]
fn who_does_not_match_everything_is_left_alone() {
    let mut victim = Victim::new();
    let mut elsewhere = allow(Some("sleep"), None);
    elsewhere.cgroup = Some("/nowhere.slice".into());
    let mut another_time = allow(Some("sleep"), None);
    another_time.trigger = When::NearlyFull;
    let rules = vec![
        allow(Some("slee"), Some(&me())),
        allow(Some("sleep"), Some("4294967294")),
        allow(None, None),
        elsewhere,
        another_time,
    ];
    let mut scene = Scene::new(false, rules);
    scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)], None);
    assert!(victim.runs());
    assert_eq!(scene.outcomes(), [(victim.0.id(), "skipped".to_owned())]);
}

#[test]
fn a_dry_run_touches_nobody_and_writes_down_what_it_would_do() {
    let mut victim = Victim::new();
    let mut scene = Scene::new(true, vec![allow(Some("sleep"), None)]);
    scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)], None);
    assert!(victim.runs());
    assert_eq!(scene.outcomes(), [(victim.0.id(), "dry_run".to_owned())]);
}

#[test]
fn another_process_with_the_same_pid_is_left_alone_and_so_are_we() {
    let mut victim = Victim::new();
    let mut scene = Scene::new(false, vec![allow(Some("*"), Some(&me()))]);
    let mut later = victim.candidate(1000);
    later.key.start += 10_000_000;
    let mut unknown = victim.candidate(1000);
    unknown.key.start = 0;
    let mut ourselves = later.clone();
    ourselves.key.pid = Pid(std::process::id());
    let mut first = later.clone();
    first.key.pid = Pid(1);
    scene.actor.decide(When::OutOfMemory, &[later, unknown, ourselves, first], None);
    assert!(victim.runs());
    assert!(scene.outcomes().iter().all(|(_, outcome)| outcome == "skipped"));
    assert_eq!(scene.outcomes().len(), 4);
}

#[test]
fn no_more_is_done_in_an_hour_than_is_allowed() {
    let mut victims: Vec<Victim> = (0..3).map(|_| Victim::new()).collect();
    let mut scene = Scene::new(false, vec![allow(Some("sleep"), None)]);
    for victim in &victims {
        scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)], None);
    }
    assert_eq!((victims[0].ended_by(), victims[1].ended_by()), (Some(15), Some(15)));
    assert!(victims[2].runs());
    assert_eq!(scene.outcomes()[2].1, "rate_limited");
}

#[test]
fn a_command_gets_the_facts_and_nothing_else_of_the_environment() {
    let mut victim = Victim::new();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut rule = allow(Some("sleep"), None);
    rule.action = What::Command;
    let script = format!("env | sort > {}.part; mv {0}.part {0}", out.display());
    rule.command = vec!["/bin/sh".into(), "-c".into(), script];
    let mut scene = Scene::new(false, vec![rule]);
    scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)], None);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !out.exists() {
        assert!(Instant::now() < deadline, "the command wrote nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(text.contains(&format!("VRAMSCOPE_PID={}\n", victim.0.id())), "{text}");
    assert!(text.contains("VRAMSCOPE_TRIGGER=out_of_memory\n"), "{text}");
    assert!(text.contains("VRAMSCOPE_PROCESS_START_NS="), "{text}");
    assert!(text.contains("VRAMSCOPE_BYTES=1000\n") && !text.contains("CARGO"), "{text}");
    assert!(victim.runs());
}

/// A ledger in which somebody holds memory of the first GPU: of so much the agent saw the allocation,
/// and of so much the driver tells.
fn holds(ledger: &mut Ledger, victim: &Victim, traced: u64, driver: u64) {
    let key = victim.candidate(0).key;
    let facts = ProcessFacts { start: key.start, uid: 1, name: "sleep".into(), before_trace: true };
    let allocate = Allocate {
        key: Key::address(u64::from(key.pid.0) << 8),
        kind: Kind::Device,
        bytes: traced,
        context: None,
        device: Some(DeviceId(0)),
        pool: None,
        stream: None,
        site: None,
    };
    let mut all = vec![Happened::Process(facts), Happened::Gpus([Some(GpuId(0))].into())];
    if traced > 0 {
        all.push(Happened::Allocate(allocate));
    }
    all.push(Happened::DriverAccount { gpu: GpuId(0), bytes: driver, only: false });
    for what in all {
        let at = Moment(1_000_000_000);
        ledger.apply(&Event { pid: key.pid, tid: Tid(key.pid.0), entered: at, at, what });
    }
}

fn snapshot(ledger: &mut Ledger) -> Snapshot {
    ledger.snapshot(Moment(2_000_000_000), &View::default())
}

/// Process 7 was refused memory of the first GPU.
fn refusal(number: u64) -> Refusal {
    Refusal {
        number,
        who: Who { pid: Pid(7), tid: None, name: "asker".into() },
        place: Where::Device(DeviceId(0), Some(GpuId(0))),
        gpu: Some(GpuId(0)),
        asked: Bytes(5000),
        is_settled: false,
    }
}

#[test]
fn only_a_full_device_is_a_reason_to_act_and_only_when_the_asker_got_nothing() {
    let mut victim = Victim::new();
    let mut ledger = Ledger::new();
    holds(&mut ledger, &victim, 1000, 1500);
    let snapshot = snapshot(&mut ledger);
    let mut scene = Scene::new(false, vec![allow(Some("sleep"), None)]);
    let others = Cause::ALL.into_iter().filter(|cause| *cause != Cause::DeviceExhausted);
    for (number, cause) in others.clone().enumerate() {
        scene.actor.refused(refusal(number as u64), cause);
        scene.actor.settled(number as u64, false);
    }
    scene.actor.look(&snapshot, &History::default());
    assert!(victim.runs());
    assert_eq!(scene.outcomes(), vec![(7, "skipped".to_owned()); Cause::ALL.len() - 1]);
    for (why, cause) in scene.reasons().iter().zip(others) {
        assert!(why.contains(cause.name()), "{why}");
    }
    // It may get its memory yet, and then it does.
    scene.actor.refused(refusal(100), Cause::DeviceExhausted);
    scene.actor.look(&snapshot, &History::default());
    scene.actor.settled(100, true);
    scene.actor.look(&snapshot, &History::default());
    assert!(victim.runs());
    assert!(scene.reasons().last().unwrap().contains("recovered"), "{:?}", scene.reasons());
    // Somebody else made room.
    let mut roomy = snapshot.clone();
    roomy.gpus.push(engine::snapshot::GpuView { gpu: GpuId(0), free_bytes: Bytes(5000) });
    scene.actor.refused(refusal(101), Cause::DeviceExhausted);
    scene.actor.settled(101, false);
    scene.actor.look(&roomy, &History::default());
    assert!(victim.runs());
    assert!(scene.reasons().last().unwrap().contains("is free now"), "{:?}", scene.reasons());
    scene.actor.refused(refusal(102), Cause::DeviceExhausted);
    scene.actor.settled(102, false);
    scene.actor.look(&snapshot, &History::default());
    assert_eq!(victim.ended_by(), Some(15));
    assert_eq!(scene.outcomes().last().unwrap(), &(victim.0.id(), "done".to_owned()));
}

#[test]
fn memory_that_only_the_driver_knows_of_counts() {
    let (mut traced, mut untraced) = (Victim::new(), Victim::new());
    let mut ledger = Ledger::new();
    holds(&mut ledger, &traced, 700, 800);
    // From before the agent began.
    holds(&mut ledger, &untraced, 0, 2000);
    let mut rule = allow(Some("sleep"), None);
    rule.min_bytes = Size(Bytes(1500));
    let mut scene = Scene::new(false, vec![rule]);
    scene.actor.refused(refusal(1), Cause::DeviceExhausted);
    scene.actor.settled(1, false);
    scene.actor.look(&snapshot(&mut ledger), &History::default());
    assert_eq!(untraced.ended_by(), Some(15));
    assert!(traced.runs());
}

#[test]
fn a_suspect_that_holds_too_little_is_told_once_and_met_when_it_holds_enough() {
    let mut victim = Victim::new();
    let mut ledger = Ledger::new();
    holds(&mut ledger, &victim, 10, 10);
    let mut snapshot = snapshot(&mut ledger);
    snapshot.suspects.push(Judgement {
        pid: Some(Pid(victim.0.id())),
        process: "sleep".into(),
        site: SiteName::Unknown,
        frames: [].into(),
        subject: Subject::Memory(Kind::Device),
        device: Some(DeviceId(0)),
        thread: None,
        verdict: Verdict::Leak,
        sureness: Sureness::Certain,
        evidence: Evidence { live: 99, ..Evidence::default() },
    });
    let mut rule = allow(Some("sleep"), None);
    rule.trigger = When::Leak;
    let mut scene = Scene::new(false, vec![rule]);
    for _ in 0..3 {
        scene.actor.look(&snapshot, &History::default());
    }
    assert!(victim.runs());
    assert_eq!(scene.outcomes(), [(victim.0.id(), "skipped".to_owned())]);
    assert_eq!(scene.reasons(), ["99 B is less than min_bytes (100 B)"]);
    snapshot.suspects[0].evidence.live = 100;
    for _ in 0..3 {
        scene.actor.look(&snapshot, &History::default());
    }
    assert_eq!(victim.ended_by(), Some(15));
    assert_eq!(scene.outcomes().len(), 2, "{:?}", scene.outcomes());
}

#[test]
fn an_agent_that_may_not_signal_others_says_so() {
    let rules = |dry_run, allow| Actions { dry_run, max_per_hour: 1, allow };
    let stop = rules(false, vec![allow(Some("python"), Some("1234"))]);
    assert!(powerless(&stop, false, 65534).unwrap().contains("CAP_KILL"));
    assert_eq!(powerless(&stop, true, 65534), None);
    assert_eq!(powerless(&stop, false, 1234), None, "its own processes are nobody else's");
    assert_eq!(powerless(&rules(true, stop.allow.clone()), false, 65534), None);
    assert_eq!(powerless(&rules(false, Vec::new()), false, 65534), None);
    let mut command = allow(Some("python"), None);
    command.action = What::Command;
    assert_eq!(powerless(&rules(false, vec![command]), false, 65534), None);
}

#[test]
fn a_program_of_a_rule_runs_in_the_root_and_ends_with_the_agent() {
    let victim = Victim::new();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut rule = allow(Some("sleep"), None);
    rule.action = What::Command;
    let script =
        format!("sleep 300 & (pwd; echo $!; env) > {}.part; mv {0}.part {0}; wait", out.display());
    rule.command = vec!["/bin/sh".into(), "-c".into(), script];
    let mut scene = Scene::new(false, vec![rule]);
    scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)], None);
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
    drop(scene);
    let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    assert!(stat.is_empty() || stat.contains(") Z "), "its child still runs: {stat}");
}
