//! Commands: the facts in the environment and on standard input, no shell, and an end to each.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use formats::plain::plain;

use super::Board;
use super::notice::Notice;
use super::outlet::Message;
use crate::serve::config::alerts::Action;
use crate::serve::program::Running;
use crate::{fault, output};

/// How soon the end of a command is noticed.
const ATTENTION: Duration = Duration::from_millis(20);

/// How soon the next message is noticed while nothing runs.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long commands may go on when the agent ends.
const GRACE: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Runner {
    command: Vec<String>,
    timeout: Duration,
    at_once: usize,
}

/// A command that runs.
struct One {
    running: Running,
    about: String,
}

impl Runner {
    pub(super) fn new(action: &Action) -> Self {
        Self {
            command: action.command.clone(),
            timeout: action.timeout(),
            at_once: action.max_concurrent(),
        }
    }

    /// Runs the command for what comes in until nothing more can, and all have ended.
    pub(super) fn run(&self, inbox: &Receiver<Message>, board: &Board, stop: &AtomicBool) {
        let mut running: Vec<One> = Vec::new();
        let mut is_open = true;
        while is_open || !running.is_empty() {
            fault::point();
            running.retain_mut(|one| !self.is_over(one, board));
            if stop.load(Ordering::Relaxed) {
                let latest = Instant::now() + GRACE;
                running.iter_mut().for_each(|one| one.running.hurry(latest));
            }
            if !is_open || running.len() >= self.at_once {
                std::thread::sleep(ATTENTION);
                continue;
            }
            let patience = if running.is_empty() { PATIENCE } else { ATTENTION };
            match inbox.recv_timeout(patience) {
                Ok(message) => running.extend(self.start(message, board)),
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => is_open = false,
            }
        }
    }

    fn start(&self, message: Message, board: &Board) -> Option<One> {
        let facts = message.notice.as_ref().map(facts).unwrap_or_default();
        match Running::start(&self.command, facts, &message.body, self.timeout) {
            Ok(running) => Some(One { running, about: message.about }),
            Err(why) => {
                self.failed(&message.about, &why, board);
                None
            }
        }
    }

    /// Whether it has ended.
    fn is_over(&self, one: &mut One, board: &Board) -> bool {
        let Some(outcome) = one.running.outcome() else { return false };
        if let Some(words) = one.running.words() {
            output::complain(&format!("command {} ({}): {words}", self.program(), one.about));
        }
        match outcome {
            Ok(()) => board.count("command", "sent"),
            Err(why) => self.failed(&one.about, &why, board),
        }
        true
    }

    fn failed(&self, about: &str, why: &str, board: &Board) {
        board.count("command", "failed");
        output::complain(&format!("command {} failed ({about}): {why}", self.program()));
    }

    fn program(&self) -> String {
        self.command.first().map(|program| plain(program).into_owned()).unwrap_or_default()
    }
}

/// What the environment tells. Nothing in it holds a zero byte, for it is clean.
fn facts(notice: &Notice) -> Vec<(String, String)> {
    let own = [
        ("RULE", notice.rule.clone()),
        ("STATE", notice.state.name().into()),
        ("SEVERITY", notice.severity.name().into()),
        ("SUMMARY", notice.summary.clone()),
        ("ADVICE", notice.advice.clone()),
        ("VALUE", notice.value.to_string()),
        ("THRESHOLD", notice.limit.to_string()),
        ("SINCE", notice.since.clone()),
        ("RESOLVED", notice.resolved.clone().unwrap_or_default()),
        ("HOST", notice.host.to_string()),
        ("REPEATED", notice.is_repeated.to_string()),
        ("SUPPRESSED", notice.held_back.to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (format!("VRAMSCOPE_{name}"), value));
    let labels = notice.labels.iter();
    let labels = labels
        .map(|(name, value)| (format!("VRAMSCOPE_LABEL_{}", name.to_uppercase()), value.clone()));
    own.chain(labels).collect()
}
