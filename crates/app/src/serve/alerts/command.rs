//! Command receivers: alert details in the environment and on standard input, no shell, with a
//! timeout.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use formats::sanitize::sanitize;

use super::AlertStore;
use super::notification::Notification;
use super::notifier::OutgoingMessage;
use crate::fault;
use crate::io::output;
use crate::serve::child_program::ChildProgram;
use crate::serve::config::alerts::ReceiverConfig;

/// Poll interval while commands run.
const CHILD_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Poll interval while no command runs.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Time for commands to end at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs the command of a receiver.
pub(super) struct CommandRunner {
    command: Vec<String>,
    timeout: Duration,
    max_concurrent: usize,
}

/// A running command.
struct RunningCommand {
    running: ChildProgram,
    label: String,
}

impl CommandRunner {
    pub(super) fn new(receiver: &ReceiverConfig) -> Self {
        Self {
            command: receiver.command.clone(),
            timeout: receiver.timeout(),
            max_concurrent: receiver.max_concurrent(),
        }
    }

    /// Runs the command for each incoming message until the queue is closed and all commands have
    /// ended.
    pub(super) fn run(
        &self,
        inbox: &Receiver<OutgoingMessage>,
        store: &AlertStore,
        stop: &AtomicBool,
    ) {
        let mut running: Vec<RunningCommand> = Vec::new();
        let mut is_open = true;
        while is_open || !running.is_empty() {
            fault::point();
            running.retain_mut(|command| !self.reap(command, store));
            if stop.load(Ordering::Relaxed) {
                let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
                running.iter_mut().for_each(|command| command.running.set_deadline(deadline));
            }
            if !is_open || running.len() >= self.max_concurrent {
                std::thread::sleep(CHILD_POLL_INTERVAL);
                continue;
            }
            let interval =
                if running.is_empty() { IDLE_POLL_INTERVAL } else { CHILD_POLL_INTERVAL };
            match inbox.recv_timeout(interval) {
                Ok(message) => running.extend(self.start(message, store)),
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => is_open = false,
            }
        }
    }

    fn start(&self, message: OutgoingMessage, store: &AlertStore) -> Option<RunningCommand> {
        let env = message.notification.as_ref().map(environment).unwrap_or_default();
        match ChildProgram::start(&self.command, env, &message.body, self.timeout) {
            Ok(running) => Some(RunningCommand { running, label: message.label }),
            Err(reason) => {
                self.failed(&message.label, &reason, store);
                None
            }
        }
    }

    /// Returns whether the command has ended, and logs and counts its outcome.
    fn reap(&self, command: &mut RunningCommand, store: &AlertStore) -> bool {
        let Some(outcome) = command.running.outcome() else { return false };
        if let Some(stderr) = command.running.stderr_excerpt() {
            output::log(&format!("command {} ({}): {stderr}", self.program(), command.label));
        }
        match outcome {
            Ok(()) => store.count("command", "sent"),
            Err(reason) => self.failed(&command.label, &reason, store),
        }
        true
    }

    fn failed(&self, label: &str, reason: &str, store: &AlertStore) {
        store.count("command", "failed");
        output::log(&format!("command {} failed ({label}): {reason}", self.program()));
    }

    fn program(&self) -> String {
        self.command.first().map(|program| sanitize(program).into_owned()).unwrap_or_default()
    }
}

/// Returns the environment variables of an alert. The text is sanitized, so no value contains a
/// zero byte.
fn environment(notification: &Notification) -> Vec<(String, String)> {
    let fields = [
        ("RULE", notification.rule.clone()),
        ("STATE", notification.state.name().into()),
        ("SEVERITY", notification.severity.name().into()),
        ("SUMMARY", notification.summary.clone()),
        ("ADVICE", notification.advice.clone()),
        ("VALUE", notification.value.to_string()),
        ("THRESHOLD", notification.threshold.to_string()),
        ("SINCE", notification.since.clone()),
        ("RESOLVED", notification.resolved.clone().unwrap_or_default()),
        ("HOST", notification.host.to_string()),
        ("REPEATED", notification.is_repeated.to_string()),
        ("SUPPRESSED", notification.suppressed.to_string()),
    ];
    let fields = fields.into_iter().map(|(name, value)| (format!("VRAMSCOPE_{name}"), value));
    let labels = notification.labels.iter();
    let labels = labels
        .map(|(name, value)| (format!("VRAMSCOPE_LABEL_{}", name.to_uppercase()), value.clone()));
    fields.chain(labels).collect()
}
