//! Commands: the facts in the environment and on standard input, no shell, and an end to each.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use formats::plain::plain;
use rustix::process::{Pid, Signal, kill_process_group};

use super::Board;
use super::notice::Notice;
use super::outlet::Message;
use crate::output;
use crate::serve::config::alerts::Action;

/// How soon the end of a command is noticed.
const ATTENTION: Duration = Duration::from_millis(20);

/// How soon the next message is noticed while nothing runs.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long commands may go on when the agent ends.
const GRACE: Duration = Duration::from_secs(1);

/// What a command keeps of the agent's environment.
const KEPT: [&str; 3] = ["PATH", "HOME", "LANG"];

/// See the module.
pub(super) struct Runner {
    program: String,
    arguments: Vec<String>,
    timeout: Duration,
    at_once: usize,
}

/// A command that runs.
struct Running {
    child: Child,
    about: String,
    end: Instant,
}

impl Runner {
    pub(super) fn new(action: &Action) -> Self {
        let mut words = action.command.iter().cloned();
        Self {
            program: words.next().unwrap_or_default(),
            arguments: words.collect(),
            timeout: action.timeout(),
            at_once: action.at_once(),
        }
    }

    /// Runs the command for what comes in until nothing more can, and all have ended.
    pub(super) fn run(&self, inbox: &Receiver<Message>, board: &Board, stop: &AtomicBool) {
        let mut running: Vec<Running> = Vec::new();
        let mut is_open = true;
        while is_open || !running.is_empty() {
            running.retain_mut(|one| !self.is_over(one, board));
            if stop.load(Ordering::Relaxed) {
                let latest = Instant::now() + GRACE;
                running.iter_mut().for_each(|one| one.end = one.end.min(latest));
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

    fn start(&self, message: Message, board: &Board) -> Option<Running> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0);
        if let Some(notice) = &message.notice {
            command.envs(facts(notice));
        }
        match command.spawn() {
            Ok(mut child) => {
                // A message is smaller than a pipe, and whoever does not read it need not.
                if let Some(mut input) = child.stdin.take() {
                    let _ = input.write_all(message.body.as_bytes());
                }
                Some(Running { child, about: message.about, end: Instant::now() + self.timeout })
            }
            Err(error) => {
                self.failed(&message.about, &format!("cannot start it: {error}"), board);
                None
            }
        }
    }

    /// Whether it has ended; by force, when its time is over.
    fn is_over(&self, one: &mut Running, board: &Board) -> bool {
        match one.child.try_wait() {
            Ok(Some(status)) if status.success() => board.count("command", "sent"),
            Ok(Some(status)) => self.failed(&one.about, &status.to_string(), board),
            Ok(None) if Instant::now() < one.end => return false,
            Ok(None) => {
                self.kill(&mut one.child);
                self.failed(&one.about, "it took too long and was killed", board);
            }
            Err(error) => self.failed(&one.about, &error.to_string(), board),
        }
        true
    }

    /// Ends it and everything that it started, before its number can be anybody else's.
    fn kill(&self, child: &mut Child) {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        let _ = child.kill();
        let _ = child.wait();
    }

    fn failed(&self, about: &str, why: &str, board: &Board) {
        board.count("command", "failed");
        output::complain(&format!("the command {} failed ({about}): {why}", plain(&self.program)));
    }
}

/// What the environment tells. Nothing in it holds a zero byte, for it is clean.
fn facts(notice: &Notice) -> Vec<(String, String)> {
    let own = [
        ("ALERT", notice.rule.clone()),
        ("STATE", notice.state.name().into()),
        ("SEVERITY", notice.severity.name().into()),
        ("SUMMARY", notice.summary.clone()),
        ("ADVICE", notice.advice.clone()),
        ("VALUE", notice.value.to_string()),
        ("LIMIT", notice.limit.to_string()),
        ("SINCE", notice.since.clone()),
        ("RESOLVED", notice.resolved.clone().unwrap_or_default()),
        ("HOST", notice.host.to_string()),
        ("REPEATED", notice.is_repeated.to_string()),
        ("HELD_BACK", notice.held_back.to_string()),
    ];
    let own = own.into_iter().map(|(name, value)| (format!("VRAMSCOPE_{name}"), value));
    let labels = notice.labels.iter();
    let labels = labels
        .map(|(name, value)| (format!("VRAMSCOPE_LABEL_{}", name.to_uppercase()), value.clone()));
    own.chain(labels).collect()
}
