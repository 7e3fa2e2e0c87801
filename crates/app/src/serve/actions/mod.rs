//! What the agent does without asking: nothing, unless the settings allow it to somebody, and then as
//! a dry run, unless they say otherwise. Every decision is written down.

mod log;
mod process;

pub(crate) use process::uid;

use std::collections::{HashSet, VecDeque};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use engine::ids::{Pid, ProcessKey};
use engine::units::{Bytes, Nanos};
use engine::verdict::{Subject, Sureness};
use formats::export::incident::Trigger;
use formats::plain::plain;

use self::log::{Entry, Log};
use self::process::Held;
use super::config::actions::{Actions, Allow, What, When};
use super::incidents::{History, Job};
use super::{Published, Shared};
use crate::{advising, output};

const HOUR: Duration = Duration::from_secs(3600);

/// Suspects that were dealt with are kept in mind.
const KNOWN: usize = 4096;

/// How long a program of a rule may run.
const PATIENCE: Duration = Duration::from_secs(60);

/// Programs of rules that run at the same time.
const CHILDREN: usize = 8;

/// Somebody to whom something might be done.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Candidate {
    pub(crate) key: ProcessKey,
    /// What its end would give back.
    pub(crate) bytes: Bytes,
    pub(crate) idle: Option<Nanos>,
}

/// Decides and acts.
pub(crate) struct Actor {
    config: Actions,
    log: Log,
    done: VecDeque<Instant>,
    /// Suspects that were decided about.
    suspects: HashSet<ProcessKey>,
    children: Vec<(Child, Instant)>,
}

impl Actor {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self::with(shared.config.actions.clone(), &shared.config.incidents.state)
    }

    fn with(config: Actions, state: &Path) -> Self {
        Self {
            config,
            log: Log::new(state),
            done: VecDeque::new(),
            suspects: HashSet::new(),
            children: Vec::new(),
        }
    }

    /// Memory ran out, or a GPU is nearly full.
    pub(crate) fn incident(&mut self, job: &Job, history: &History) {
        let when = match (job.trigger, job.gpu) {
            (Trigger::OutOfMemory, _) => When::OutOfMemory,
            (Trigger::Limit, Some(_)) if job.who.is_none() => When::NearlyFull,
            _ => return,
        };
        let asker = job.who.as_ref().map(|who| who.pid);
        let snapshot = &job.published.snapshot;
        let others = job.holders.iter().filter(|holder| Some(holder.key.pid) != asker);
        let mut candidates: Vec<Candidate> = others
            .filter_map(|holder| {
                let process = snapshot.processes.iter().find(|one| one.key == holder.key)?;
                let wanted = process.ended.is_none() && !advising::is_protected(process);
                wanted.then(|| Candidate {
                    key: holder.key,
                    bytes: holder.live_bytes,
                    idle: history.idle(process, snapshot.at),
                })
            })
            .collect();
        // Who has been idle for long comes first, then who holds most.
        let idle = |one: &Candidate| one.idle.is_some_and(|idle| idle >= engine::advice::IDLE);
        candidates.sort_by_key(|one| (!idle(one), std::cmp::Reverse(one.bytes)));
        self.decide(when, &candidates);
    }

    /// Somebody may be suspected of a leak.
    pub(crate) fn published(&mut self, published: &Published) {
        self.reap();
        if !self.config.allow.iter().any(|allow| allow.when == When::Leak) {
            return;
        }
        let snapshot = &published.snapshot;
        for judged in &snapshot.suspects {
            let counts =
                matches!(judged.subject, Subject::Memory(kind) if kind.takes_device_memory());
            let Some(pid) = judged.pid.filter(|_| counts && judged.sureness >= Sureness::Likely)
            else {
                continue;
            };
            let running = snapshot.processes.iter().find(|one| one.key.pid == pid);
            let Some(process) = running.filter(|one| one.ended.is_none()) else { continue };
            if advising::is_protected(process) || !self.suspects.insert(process.key) {
                continue;
            }
            let bytes = Bytes(judged.evidence.live);
            self.decide(When::Leak, &[Candidate { key: process.key, bytes, idle: None }]);
        }
        if self.suspects.len() > KNOWN {
            self.suspects.clear();
        }
    }

    /// Does what is allowed to the first who matches a rule; at most one of them.
    fn decide(&mut self, when: When, candidates: &[Candidate]) {
        let rules: Vec<Allow> =
            self.config.allow.iter().filter(|allow| allow.when == when).cloned().collect();
        if rules.is_empty() {
            return;
        }
        for candidate in candidates {
            let held = match Held::open(candidate.key) {
                Ok(held) => held,
                Err(why) => {
                    self.write_down(when, candidate, "", "passed_over", &why);
                    continue;
                }
            };
            let fits = |allow: &&Allow| held.matches(allow) && candidate.bytes >= allow.at_least.0;
            if let Some(allow) = rules.iter().find(fits) {
                self.act(when, candidate, allow, &held);
                return;
            }
            self.write_down(when, candidate, &held.name, "passed_over", "no rule allows it");
        }
    }

    fn act(&mut self, when: When, candidate: &Candidate, allow: &Allow, held: &Held) {
        let now = Instant::now();
        while self.done.front().is_some_and(|at| now.duration_since(*at) >= HOUR) {
            self.done.pop_front();
        }
        let what = match allow.action {
            What::Stop => "stop (SIGTERM)".to_owned(),
            What::Signal => format!("signal {}", allow.signal.as_deref().unwrap_or_default()),
            What::Command => format!("command {}", allow.command.join(" ")),
        };
        if self.done.len() >= self.config.at_most {
            let why = format!("{what}: {} were done in this hour already", self.done.len());
            self.write_down(when, candidate, &held.name, "held_back", &why);
            return;
        }
        if self.config.dry_run {
            let why = format!("{what}: dry_run is on, so nothing was done");
            self.write_down(when, candidate, &held.name, "dry_run", &why);
            return;
        }
        self.done.push_back(now);
        let outcome = match allow.signal() {
            Some(signal) => held.signal(signal),
            None => self.run(when, candidate, allow),
        };
        match outcome {
            Ok(()) => self.write_down(when, candidate, &held.name, "done", &what),
            Err(error) => {
                self.write_down(when, candidate, &held.name, "failed", &format!("{what}: {error}"));
            }
        }
    }

    fn run(&mut self, when: When, candidate: &Candidate, allow: &Allow) -> Result<(), String> {
        let [program, arguments @ ..] = &*allow.command else { return Err("no program".into()) };
        if self.children.len() >= CHILDREN {
            return Err(format!("{CHILDREN} programs of rules still run"));
        }
        let child = Command::new(program)
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("VRAMSCOPE_WHEN", when.name())
            .env("VRAMSCOPE_PID", candidate.key.pid.to_string())
            .env("VRAMSCOPE_START", candidate.key.start.to_string())
            .env("VRAMSCOPE_BYTES", candidate.bytes.0.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let child = child.map_err(|error| format!("cannot start {program}: {error}"))?;
        self.children.push((child, Instant::now()));
        Ok(())
    }

    /// Programs that ended are let go, and those that do not end are ended.
    fn reap(&mut self) {
        self.children.retain_mut(|(child, since)| {
            if since.elapsed() > PATIENCE {
                let _ = child.kill();
            }
            !matches!(child.try_wait(), Ok(Some(_)) | Err(_))
        });
    }

    fn write_down(&mut self, when: When, on: &Candidate, name: &str, outcome: &str, why: &str) {
        let pid: Pid = on.key.pid;
        let entry = Entry {
            when: when.name(),
            pid: pid.0,
            name: plain(name).into_owned(),
            bytes: on.bytes.0,
            outcome,
            why: plain(why).into_owned(),
        };
        if outcome != "passed_over" {
            output::complain(&format!(
                "action ({}): process {pid} ({}), which holds {}: {}: {}",
                when.name(),
                entry.name,
                on.bytes,
                outcome,
                entry.why
            ));
        }
        if let Err(error) = self.log.add(&entry) {
            output::complain(&format!("cannot write {}: {error}", self.log.path().display()));
        }
    }
}

#[cfg(test)]
mod tests;
