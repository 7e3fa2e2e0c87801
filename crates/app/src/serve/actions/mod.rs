//! What the agent does without asking: nothing, unless the configuration allows it, and then as
//! a dry run, unless they say otherwise. Every decision is written down.

mod choose;
mod log;
mod process;

pub(crate) use process::uid;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use engine::diagnosis::Cause;
use engine::holding::Where;
use engine::ids::{GpuId, Pid, ProcessKey};
use engine::snapshot::Snapshot;
use engine::units::Bytes;
use engine::verdict::{Subject, Sureness};
use formats::export::incident::{Trigger, Who};
use formats::plain::plain;

use self::choose::{Candidate, candidates};
use self::log::{Entry, Log};
use self::process::Held;
use super::Shared;
use super::config::actions::{Actions, Allow, What, When};
use super::incidents::{History, Job};
use super::program::Running;
use crate::{advising, output};

const HOUR: Duration = Duration::from_secs(3600);

/// From here on suspects that are gone are forgotten.
const KNOWN: usize = 4096;

/// Refusals of which it is not clear yet what came of them.
const WAITING: usize = 64;

/// How long a program of a rule may run, and how long when the agent ends.
const PATIENCE: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(1);

/// Programs of rules that run at the same time.
const CHILDREN: usize = 8;

/// Decides and acts.
pub(crate) struct Actor {
    config: Actions,
    log: Log,
    done: VecDeque<Instant>,
    /// What was decided about suspects.
    suspects: HashMap<ProcessKey, Answer>,
    refusals: VecDeque<Refusal>,
    children: Vec<(Running, String)>,
}

/// What was decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// Something was done, or nothing ever will be.
    Final,
    /// It holds too little, so far.
    TooLittle,
    /// Too much was done in this hour.
    HeldBack,
}

/// Memory that was refused because the device is full.
struct Refusal {
    number: u64,
    who: Who,
    place: Where,
    gpu: Option<GpuId>,
    asked: Bytes,
    /// There was time for the program to get it after all, and it did not.
    is_settled: bool,
}

impl Actor {
    pub(crate) fn new(shared: &Shared) -> Self {
        Self::with(shared.config.actions.clone(), &shared.config.state_dir)
    }

    fn with(config: Actions, state: &Path) -> Self {
        Self {
            config,
            log: Log::new(state),
            done: VecDeque::new(),
            suspects: HashMap::new(),
            refusals: VecDeque::new(),
            children: Vec::new(),
        }
    }

    /// Memory ran out, or a GPU is nearly full.
    pub(crate) fn incident(&mut self, job: &Job, cause: Option<Cause>, history: &History) {
        let place = match (job.device, job.gpu) {
            (Some(device), gpu) => Where::Device(device, gpu),
            (None, Some(gpu)) => Where::Gpu(gpu),
            (None, None) => Where::Anywhere,
        };
        match (job.trigger, &job.who) {
            (Trigger::OutOfMemory, Some(who)) => {
                let asked = job.call.as_ref().and_then(|call| call.failed.asked);
                let refusal = Refusal {
                    number: job.number,
                    who: who.clone(),
                    place,
                    gpu: job.gpu,
                    asked: Bytes(asked.map_or(0, |(_, bytes)| bytes)),
                    is_settled: false,
                };
                self.refused(refusal, cause.unwrap_or(Cause::Unknown));
            }
            (Trigger::Limit, None) if job.gpu.is_some() => {
                let snapshot = &job.published.snapshot;
                let idle = |process: &_| history.idle(process, snapshot.at);
                self.decide(When::NearlyFull, &candidates(snapshot, place, None, &idle), None);
            }
            _ => {}
        }
    }

    /// Others can help only where the device is full. Whether that is needed shows soon: PyTorch gives
    /// its cache back and asks again.
    fn refused(&mut self, refusal: Refusal, cause: Cause) {
        if !self.is_allowed(When::OutOfMemory) {
            return;
        }
        if cause != Cause::DeviceExhausted {
            let why =
                format!("the cause is {}: stopping other processes would not help", cause.name());
            return self.pass_over(&refusal, &why);
        }
        if refusal.place == Where::Anywhere {
            return self.pass_over(&refusal, "GPU unknown");
        }
        if self.refusals.len() >= WAITING
            && let Some(oldest) = self.refusals.pop_front()
        {
            self.pass_over(&oldest, "too many failures at once");
        }
        self.refusals.push_back(refusal);
    }

    /// The time is over in which a program that was refused memory could get it after all.
    pub(crate) fn settled(&mut self, number: u64, recovered: bool) {
        let Some(at) = self.refusals.iter().position(|one| one.number == number) else { return };
        if recovered && let Some(refusal) = self.refusals.remove(at) {
            self.pass_over(&refusal, "recovered: no action needed");
        } else if let Some(refusal) = self.refusals.get_mut(at) {
            refusal.is_settled = true;
        }
    }

    /// Somebody may be suspected of a leak, or still be without memory.
    pub(crate) fn look(&mut self, snapshot: &Snapshot, history: &History) {
        let (due, waiting): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.refusals).into_iter().partition(|one| one.is_settled);
        self.refusals = waiting;
        for refusal in due {
            let free = snapshot.gpus.iter().find(|view| Some(view.gpu) == refusal.gpu);
            match free.map(|view| view.free_bytes).filter(|_| refusal.asked.0 > 0) {
                Some(free) if free >= refusal.asked => {
                    self.pass_over(&refusal, &format!("{free} is free now: no action needed"));
                }
                _ => {
                    let idle = |process: &_| history.idle(process, snapshot.at);
                    let but = Some(refusal.who.pid);
                    let all = candidates(snapshot, refusal.place, but, &idle);
                    self.decide(When::OutOfMemory, &all, None);
                }
            }
        }
        if self.is_allowed(When::Leak) {
            self.suspect(snapshot);
        }
    }

    fn suspect(&mut self, snapshot: &Snapshot) {
        for judged in &snapshot.suspects {
            let counts =
                matches!(judged.subject, Subject::Memory(kind) if kind.takes_device_memory());
            let Some(pid) = judged.pid.filter(|_| counts && judged.sureness >= Sureness::Likely)
            else {
                continue;
            };
            let running = snapshot.processes.iter().find(|one| one.key.pid == pid);
            let Some(process) = running.filter(|one| one.ended.is_none()) else { continue };
            let told = self.suspects.get(&process.key).copied();
            if told == Some(Answer::Final) || advising::is_protected(process) {
                continue;
            }
            let bytes = Bytes(judged.evidence.live);
            let candidate = Candidate { key: process.key, bytes, idle: None };
            let answer = self.decide(When::Leak, &[candidate], told);
            self.suspects.insert(process.key, answer);
        }
        if self.suspects.len() > KNOWN {
            let runs = |key: &ProcessKey| snapshot.processes.iter().any(|one| one.key == *key);
            self.suspects.retain(|key, _| runs(key));
        }
    }

    fn is_allowed(&self, when: When) -> bool {
        self.config.allow.iter().any(|allow| allow.trigger == when)
    }

    /// Does what is allowed to the first who matches a rule; at most one of them. What was told before
    /// is not told again.
    fn decide(&mut self, when: When, candidates: &[Candidate], told: Option<Answer>) -> Answer {
        let mut answer = Answer::Final;
        let rules: Vec<Allow> =
            self.config.allow.iter().filter(|allow| allow.trigger == when).cloned().collect();
        if rules.is_empty() {
            return answer;
        }
        for candidate in candidates {
            let held = match Held::open(candidate.key) {
                Ok(held) => held,
                Err(why) => {
                    self.write_down(when, candidate, "", "skipped", &why);
                    continue;
                }
            };
            let matching: Vec<&Allow> = rules.iter().filter(|allow| held.matches(allow)).collect();
            if let Some(allow) = matching.iter().find(|allow| candidate.bytes >= allow.min_bytes.0)
            {
                return self.act(when, candidate, allow, &held, told);
            }
            let why = match matching.iter().map(|allow| allow.min_bytes.0).min() {
                None => "no rule allows it".to_owned(),
                Some(least) => {
                    answer = Answer::TooLittle;
                    format!("{} is less than min_bytes ({least})", candidate.bytes)
                }
            };
            if told != Some(Answer::TooLittle) {
                self.write_down(when, candidate, &held.name, "skipped", &why);
            }
        }
        answer
    }

    fn act(
        &mut self,
        when: When,
        candidate: &Candidate,
        allow: &Allow,
        held: &Held,
        told: Option<Answer>,
    ) -> Answer {
        let now = Instant::now();
        while self.done.front().is_some_and(|at| now.duration_since(*at) >= HOUR) {
            self.done.pop_front();
        }
        let what = match allow.action {
            What::Stop => "stop (SIGTERM)".to_owned(),
            What::Signal => format!("signal {}", allow.signal.as_deref().unwrap_or_default()),
            What::Command => format!("command {}", allow.command.join(" ")),
        };
        if self.done.len() >= self.config.max_per_hour {
            if told != Some(Answer::HeldBack) {
                let why = format!("{what}: {} actions in the last hour already", self.done.len());
                self.write_down(when, candidate, &held.name, "rate_limited", &why);
            }
            return Answer::HeldBack;
        }
        if self.config.dry_run {
            let why = format!("{what}: not done (dry_run)");
            self.write_down(when, candidate, &held.name, "dry_run", &why);
            return Answer::Final;
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
        Answer::Final
    }

    fn run(&mut self, when: When, candidate: &Candidate, allow: &Allow) -> Result<(), String> {
        if self.children.len() >= CHILDREN {
            return Err(format!("{CHILDREN} commands are still running"));
        }
        let facts = [
            ("TRIGGER", when.name().to_owned()),
            ("PID", candidate.key.pid.to_string()),
            ("PROCESS_START_NS", candidate.key.start.to_string()),
            ("BYTES", candidate.bytes.0.to_string()),
        ];
        let facts = facts.map(|(name, fact)| (format!("VRAMSCOPE_{name}"), fact)).into();
        let running = Running::start(&allow.command, facts, "", PATIENCE)?;
        let program = allow.command.first().map(|word| plain(word)).unwrap_or_default();
        let about = format!("{program} ({}, process {})", when.name(), candidate.key.pid);
        self.children.push((running, about));
        Ok(())
    }

    /// Programs that ended are let go, and those that do not end are ended.
    pub(crate) fn tend(&mut self) {
        self.children.retain_mut(|(running, about)| {
            let Some(outcome) = running.outcome() else { return true };
            if let Some(words) = running.words() {
                output::complain(&format!("command {about}: {words}"));
            }
            if let Err(why) = outcome {
                output::complain(&format!("command {about} failed: {why}"));
            }
            false
        });
    }

    /// Nothing is done about a refusal: told of the one who was refused.
    fn pass_over(&mut self, refusal: &Refusal, why: &str) {
        let key = ProcessKey { pid: refusal.who.pid, start: 0 };
        let asker = Candidate { key, bytes: refusal.asked, idle: None };
        self.write_down(When::OutOfMemory, &asker, &refusal.who.name, "skipped", why);
    }

    fn write_down(&mut self, when: When, on: &Candidate, name: &str, outcome: &str, why: &str) {
        let pid: Pid = on.key.pid;
        let entry = Entry {
            trigger: when.name(),
            pid: pid.0,
            name: plain(name).into_owned(),
            bytes: on.bytes.0,
            outcome,
            reason: plain(why).into_owned(),
        };
        if outcome != "skipped" {
            output::complain(&format!(
                "action ({}): {} (pid {pid}), {} held: {}: {}",
                when.name(),
                entry.name,
                on.bytes,
                outcome,
                entry.reason
            ));
        }
        if let Err(error) = self.log.add(&entry) {
            output::complain(&format!("cannot write {}: {error}", self.log.path().display()));
        }
    }
}

impl Drop for Actor {
    /// What still runs has a moment; then it is ended.
    fn drop(&mut self) {
        let end = Instant::now() + GRACE;
        self.children.iter_mut().for_each(|(running, _)| running.hurry(end));
        while !self.children.is_empty() {
            self.tend();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What to say at the start of an agent that may not do what the configuration allows.
pub(crate) fn powerless(config: &Actions, may_signal: bool, own: u32) -> Option<String> {
    let signals = |allow: &&Allow| allow.action != What::Command;
    let others = |allow: &&Allow| allow.user.as_deref().and_then(uid) != Some(own);
    let is_in_vain = config.allow.iter().filter(signals).any(|allow| others(&allow));
    (is_in_vain && !config.dry_run && !may_signal).then(|| {
        "[actions] allows signals, but the agent has no CAP_KILL: signals to processes of other users \
         will fail; give it that capability (under systemd in AmbientCapabilities= and \
         CapabilityBoundingSet=)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests;
