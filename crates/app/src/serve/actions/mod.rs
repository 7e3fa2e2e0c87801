//! Automatic actions. Nothing is done unless the configuration allows it, and by default only as a
//! dry run. Every decision is logged.

mod candidates;
mod log;
mod pidfd;

pub(crate) use pidfd::uid;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

use engine::model::holder::DeviceFilter;
use engine::model::ids::{GpuId, Pid, ProcessKey};
use engine::model::units::Bytes;
use engine::oom::OomCause;
use engine::snapshot::Snapshot;
use engine::verdict::{Confidence, Resource};
use formats::report::incident::{Requester, Trigger};
use formats::sanitize::sanitize;

use self::candidates::{Candidate, candidates};
use self::log::{ActionLog, LogEntry};
use self::pidfd::PidfdProcess;
use super::AgentState;
use super::child_program::ChildProgram;
use super::config::actions::{ActionKind, ActionRule, ActionTrigger, ActionsConfig};
use super::incidents::{HolderHistory, IncidentJob};
use crate::advise_snapshot;
use crate::io::output;

const HOUR: Duration = Duration::from_secs(3600);

/// Number of suspects beyond which those of exited processes are forgotten.
const MAX_KNOWN_SUSPECTS: usize = 4096;

/// Maximum number of out-of-memory errors that may still recover.
const MAX_PENDING_OOMS: usize = 64;

/// Timeout of a rule's command, and its timeout at shutdown.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of concurrent commands.
const MAX_CHILDREN: usize = 8;

/// Decides on actions and runs them.
pub(crate) struct ActionRunner {
    config: ActionsConfig,
    log: ActionLog,
    done: VecDeque<Instant>,
    /// Decisions about suspects.
    suspects: HashMap<ProcessKey, Decision>,
    ooms: VecDeque<OomEvent>,
    children: Vec<(ChildProgram, String)>,
}

/// A decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    /// An action was taken, or none ever will be.
    Final,
    /// It holds less than `min_bytes`, so far.
    TooLittle,
    /// The hourly limit is reached.
    RateLimited,
}

/// An allocation that failed because the device is full.
struct OomEvent {
    number: u64,
    requester: Requester,
    device: DeviceFilter,
    gpu: Option<GpuId>,
    requested: Bytes,
    /// The program had time to recover and did not.
    is_settled: bool,
}

impl ActionRunner {
    pub(crate) fn new(shared: &AgentState) -> Self {
        Self::with(shared.config.actions.clone(), &shared.config.state_dir)
    }

    fn with(config: ActionsConfig, state: &Path) -> Self {
        Self {
            config,
            log: ActionLog::new(state),
            done: VecDeque::new(),
            suspects: HashMap::new(),
            ooms: VecDeque::new(),
            children: Vec::new(),
        }
    }

    /// Handles an out-of-memory error or a nearly full GPU.
    pub(crate) fn incident(
        &mut self,
        job: &IncidentJob,
        cause: Option<OomCause>,
        history: &HolderHistory,
    ) {
        let device = match (job.device, job.gpu) {
            (Some(ordinal), gpu) => DeviceFilter::Device(ordinal, gpu),
            (None, Some(gpu)) => DeviceFilter::Gpu(gpu),
            (None, None) => DeviceFilter::AllDevices,
        };
        match (job.trigger, &job.requester) {
            (Trigger::OutOfMemory, Some(requester)) => {
                let requested = job.call.as_ref().and_then(|call| call.failed.requested);
                let oom = OomEvent {
                    number: job.number,
                    requester: requester.clone(),
                    device,
                    gpu: job.gpu,
                    requested: Bytes(requested.map_or(0, |(_, bytes)| bytes)),
                    is_settled: false,
                };
                self.queue_oom(oom, cause.unwrap_or(OomCause::Unknown));
            }
            (Trigger::Threshold, None) if job.gpu.is_some() => {
                let snapshot = &job.published.snapshot;
                let idle = |process: &_| history.idle(process, snapshot.at);
                self.decide(
                    ActionTrigger::NearlyFull,
                    &candidates(snapshot, device, None, &idle),
                    None,
                );
            }
            _ => {}
        }
    }

    /// Queues an error if stopping another process can help, which requires a full device. It may
    /// recover: PyTorch frees its cache and retries.
    fn queue_oom(&mut self, oom: OomEvent, cause: OomCause) {
        if !self.is_allowed(ActionTrigger::OutOfMemory) {
            return;
        }
        if cause != OomCause::DeviceExhausted {
            let reason =
                format!("the cause is {}: stopping other processes would not help", cause.name());
            return self.skip(&oom, &reason);
        }
        if oom.device == DeviceFilter::AllDevices {
            return self.skip(&oom, "GPU unknown");
        }
        if self.ooms.len() >= MAX_PENDING_OOMS
            && let Some(oldest) = self.ooms.pop_front()
        {
            self.skip(&oldest, "too many failures at once");
        }
        self.ooms.push_back(oom);
    }

    /// Ends the time in which the program could recover from the error.
    pub(crate) fn incident_settled(&mut self, number: u64, recovered: bool) {
        let Some(index) = self.ooms.iter().position(|one| one.number == number) else { return };
        if recovered && let Some(oom) = self.ooms.remove(index) {
            self.skip(&oom, "recovered: no action needed");
        } else if let Some(oom) = self.ooms.get_mut(index) {
            oom.is_settled = true;
        }
    }

    /// Acts on unrecovered errors and on leak suspects.
    pub(crate) fn poll(&mut self, snapshot: &Snapshot, history: &HolderHistory) {
        let (due, waiting): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.ooms).into_iter().partition(|one| one.is_settled);
        self.ooms = waiting;
        for oom in due {
            let free = snapshot.gpus.iter().find(|view| Some(view.gpu) == oom.gpu);
            match free.map(|view| view.free_bytes).filter(|_| oom.requested.0 > 0) {
                Some(free) if free >= oom.requested => {
                    self.skip(&oom, &format!("{free} is free now: no action needed"));
                }
                _ => {
                    let idle = |process: &_| history.idle(process, snapshot.at);
                    let exclude = Some(oom.requester.pid);
                    let all = candidates(snapshot, oom.device, exclude, &idle);
                    self.decide(ActionTrigger::OutOfMemory, &all, None);
                }
            }
        }
        if self.is_allowed(ActionTrigger::Leak) {
            self.check_suspects(snapshot);
        }
    }

    fn check_suspects(&mut self, snapshot: &Snapshot) {
        for suspect in &snapshot.suspects {
            let counts =
                matches!(suspect.resource, Resource::Memory(kind) if kind.takes_device_memory());
            let Some(pid) =
                suspect.pid.filter(|_| counts && suspect.confidence >= Confidence::Likely)
            else {
                continue;
            };
            let running = snapshot.processes.iter().find(|one| one.key.pid == pid);
            let Some(process) = running.filter(|one| one.ended.is_none()) else { continue };
            let previous = self.suspects.get(&process.key).copied();
            if previous == Some(Decision::Final) || advise_snapshot::is_protected(process) {
                continue;
            }
            let bytes = Bytes(suspect.evidence.live);
            let candidate = Candidate { key: process.key, bytes, idle: None };
            let decision = self.decide(ActionTrigger::Leak, &[candidate], previous);
            self.suspects.insert(process.key, decision);
        }
        if self.suspects.len() > MAX_KNOWN_SUSPECTS {
            let runs = |key: &ProcessKey| snapshot.processes.iter().any(|one| one.key == *key);
            self.suspects.retain(|key, _| runs(key));
        }
    }

    fn is_allowed(&self, trigger: ActionTrigger) -> bool {
        self.config.allow.iter().any(|allow| allow.trigger == trigger)
    }

    /// Acts on the first candidate that matches a rule; at most one. A previous decision is not
    /// logged again.
    fn decide(
        &mut self,
        trigger: ActionTrigger,
        candidates: &[Candidate],
        previous: Option<Decision>,
    ) -> Decision {
        let mut decision = Decision::Final;
        let rules: Vec<ActionRule> =
            self.config.allow.iter().filter(|allow| allow.trigger == trigger).cloned().collect();
        if rules.is_empty() {
            return decision;
        }
        for candidate in candidates {
            let process = match PidfdProcess::open(candidate.key) {
                Ok(process) => process,
                Err(reason) => {
                    self.record(trigger, candidate, "", "skipped", &reason);
                    continue;
                }
            };
            let matching: Vec<&ActionRule> =
                rules.iter().filter(|rule| process.matches(rule)).collect();
            if let Some(allow) = matching.iter().find(|allow| candidate.bytes >= allow.min_bytes.0)
            {
                return self.act(trigger, candidate, allow, &process, previous);
            }
            let reason = match matching.iter().map(|allow| allow.min_bytes.0).min() {
                None => "no rule allows it".to_owned(),
                Some(minimum) => {
                    decision = Decision::TooLittle;
                    format!("{} is less than min_bytes ({minimum})", candidate.bytes)
                }
            };
            if previous != Some(Decision::TooLittle) {
                self.record(trigger, candidate, &process.name, "skipped", &reason);
            }
        }
        decision
    }

    fn act(
        &mut self,
        trigger: ActionTrigger,
        candidate: &Candidate,
        allow: &ActionRule,
        process: &PidfdProcess,
        previous: Option<Decision>,
    ) -> Decision {
        let now = Instant::now();
        while self.done.front().is_some_and(|at| now.duration_since(*at) >= HOUR) {
            self.done.pop_front();
        }
        let action = match allow.action {
            ActionKind::Stop => "stop (SIGTERM)".to_owned(),
            ActionKind::Signal => format!("signal {}", allow.signal.as_deref().unwrap_or_default()),
            ActionKind::Command => format!("command {}", allow.command.join(" ")),
        };
        if self.done.len() >= self.config.max_per_hour {
            if previous != Some(Decision::RateLimited) {
                let reason =
                    format!("{action}: {} actions in the last hour already", self.done.len());
                self.record(trigger, candidate, &process.name, "rate_limited", &reason);
            }
            return Decision::RateLimited;
        }
        if self.config.dry_run {
            let reason = format!("{action}: not done (dry_run)");
            self.record(trigger, candidate, &process.name, "dry_run", &reason);
            return Decision::Final;
        }
        self.done.push_back(now);
        let outcome = match allow.signal() {
            Some(signal) => process.signal(signal),
            None => self.run(trigger, candidate, allow),
        };
        match outcome {
            Ok(()) => self.record(trigger, candidate, &process.name, "done", &action),
            Err(error) => {
                let reason = format!("{action}: {error}");
                self.record(trigger, candidate, &process.name, "failed", &reason);
            }
        }
        Decision::Final
    }

    fn run(
        &mut self,
        trigger: ActionTrigger,
        candidate: &Candidate,
        allow: &ActionRule,
    ) -> Result<(), String> {
        if self.children.len() >= MAX_CHILDREN {
            return Err(format!("{MAX_CHILDREN} commands are still running"));
        }
        let variables = [
            ("TRIGGER", trigger.name().to_owned()),
            ("PID", candidate.key.pid.to_string()),
            ("PROCESS_START_NS", candidate.key.start.to_string()),
            ("BYTES", candidate.bytes.0.to_string()),
        ];
        let variables = variables.map(|(name, value)| (format!("VRAMSCOPE_{name}"), value)).into();
        let running = ChildProgram::start(&allow.command, variables, "", COMMAND_TIMEOUT)?;
        let program = allow.command.first().map(|word| sanitize(word)).unwrap_or_default();
        let label = format!("{program} ({}, process {})", trigger.name(), candidate.key.pid);
        self.children.push((running, label));
        Ok(())
    }

    /// Drops commands that ended, and kills those that exceed their timeout.
    pub(crate) fn reap_children(&mut self) {
        self.children.retain_mut(|(running, label)| {
            let Some(outcome) = running.outcome() else { return true };
            if let Some(stderr) = running.stderr_excerpt() {
                output::log(&format!("command {label}: {stderr}"));
            }
            if let Err(reason) = outcome {
                output::log(&format!("command {label} failed: {reason}"));
            }
            false
        });
    }

    /// Logs that no action is taken for an error, under the process that requested the memory.
    fn skip(&mut self, oom: &OomEvent, reason: &str) {
        let key = ProcessKey { pid: oom.requester.pid, start: 0 };
        let requester = Candidate { key, bytes: oom.requested, idle: None };
        self.record(ActionTrigger::OutOfMemory, &requester, &oom.requester.name, "skipped", reason);
    }

    fn record(
        &mut self,
        trigger: ActionTrigger,
        candidate: &Candidate,
        name: &str,
        outcome: &str,
        reason: &str,
    ) {
        let pid: Pid = candidate.key.pid;
        let entry = LogEntry {
            trigger: trigger.name(),
            pid: pid.0,
            name: sanitize(name).into_owned(),
            bytes: candidate.bytes.0,
            outcome,
            reason: sanitize(reason).into_owned(),
        };
        if outcome != "skipped" {
            output::log(&format!(
                "action ({}): {} (pid {pid}), {} held: {}: {}",
                trigger.name(),
                entry.name,
                candidate.bytes,
                outcome,
                entry.reason
            ));
        }
        if let Err(error) = self.log.add(&entry) {
            output::log(&format!("cannot write {}: {error}", self.log.path().display()));
        }
    }
}

impl Drop for ActionRunner {
    /// Gives running commands a short time, then kills them.
    fn drop(&mut self) {
        let end = Instant::now() + SHUTDOWN_TIMEOUT;
        self.children.iter_mut().for_each(|(running, _)| running.set_deadline(end));
        while !self.children.is_empty() {
            self.reap_children();
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Returns a warning if the agent lacks the capability for the configured actions.
pub(crate) fn missing_capability_warning(
    config: &ActionsConfig,
    may_signal: bool,
    own: u32,
) -> Option<String> {
    let signals = |allow: &&ActionRule| allow.action != ActionKind::Command;
    let is_foreign = |allow: &&ActionRule| allow.user.as_deref().and_then(uid) != Some(own);
    let would_fail = config.allow.iter().filter(signals).any(|allow| is_foreign(&allow));
    (would_fail && !config.dry_run && !may_signal).then(|| {
        "[actions] allows signals, but the agent has no CAP_KILL: signals to processes of other users \
         will fail; give it that capability (under systemd in AmbientCapabilities= and \
         CapabilityBoundingSet=)"
            .to_owned()
    })
}

#[cfg(test)]
mod tests;
