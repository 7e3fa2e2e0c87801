//! With real processes.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};

use engine::ids::Pid;

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
        when: When::OutOfMemory,
        at_least: Size(Bytes(100)),
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
        let actor = Actor::with(Actions { dry_run, at_most: 2, allow }, folder.path());
        Self { folder, actor }
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
    scene.actor.decide(When::OutOfMemory, &[small.candidate(99), allowed.candidate(100)]);
    assert_eq!(allowed.ended_by(), Some(15));
    assert!(small.runs(), "it would give back too little");
    let expected = [(small.0.id(), "passed_over".to_owned()), (allowed.0.id(), "done".to_owned())];
    assert_eq!(scene.outcomes(), expected);
}

#[test]
fn who_does_not_match_everything_is_left_alone() {
    let mut victim = Victim::new();
    let mut elsewhere = allow(Some("sleep"), None);
    elsewhere.cgroup = Some("/nowhere.slice".into());
    let mut another_time = allow(Some("sleep"), None);
    another_time.when = When::NearlyFull;
    let rules = vec![
        allow(Some("slee"), Some(&me())),
        allow(Some("sleep"), Some("4294967294")),
        allow(None, None),
        elsewhere,
        another_time,
    ];
    let mut scene = Scene::new(false, rules);
    scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)]);
    assert!(victim.runs());
    assert_eq!(scene.outcomes(), [(victim.0.id(), "passed_over".to_owned())]);
}

#[test]
fn a_dry_run_touches_nobody_and_writes_down_what_it_would_do() {
    let mut victim = Victim::new();
    let mut scene = Scene::new(true, vec![allow(Some("sleep"), None)]);
    scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)]);
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
    scene.actor.decide(When::OutOfMemory, &[later, unknown, ourselves, first]);
    assert!(victim.runs());
    assert!(scene.outcomes().iter().all(|(_, outcome)| outcome == "passed_over"));
    assert_eq!(scene.outcomes().len(), 4);
}

#[test]
fn no_more_is_done_in_an_hour_than_is_allowed() {
    let mut victims: Vec<Victim> = (0..3).map(|_| Victim::new()).collect();
    let mut scene = Scene::new(false, vec![allow(Some("sleep"), None)]);
    for victim in &victims {
        scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)]);
    }
    assert_eq!((victims[0].ended_by(), victims[1].ended_by()), (Some(15), Some(15)));
    assert!(victims[2].runs());
    assert_eq!(scene.outcomes()[2].1, "held_back");
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
    scene.actor.decide(When::OutOfMemory, &[victim.candidate(1000)]);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !out.exists() {
        assert!(Instant::now() < deadline, "the command wrote nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(text.contains(&format!("VRAMSCOPE_PID={}\n", victim.0.id())), "{text}");
    assert!(text.contains("VRAMSCOPE_BYTES=1000\n") && !text.contains("CARGO"), "{text}");
    assert!(victim.runs());
}
