//! `[actions]`: what may be done without asking; nothing, unless it is allowed here.

use engine::units::Bytes;
use serde::Deserialize;

use super::Size;

/// `[actions]`: what may be done without asking; nothing, unless it is allowed here.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Actions {
    /// Nothing is done, and what would be done is written down.
    pub(crate) dry_run: bool,
    /// The most that is done in an hour.
    pub(crate) at_most: usize,
    /// What may be done, and to whom.
    pub(crate) allow: Vec<Allow>,
}

/// What may be done, and to whom: a process has to match everything that is given.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Allow {
    /// The owner, by name or number.
    pub(crate) user: Option<String>,
    /// The cgroup, or one above it: a path, such as `/user.slice`.
    pub(crate) cgroup: Option<String>,
    /// The name; a `*` at the end stands for anything.
    pub(crate) name: Option<String>,
    /// What to do.
    pub(crate) action: What,
    /// Of `signal`: which.
    pub(crate) signal: Option<String>,
    /// Of `command`: the program and its arguments.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// When.
    pub(crate) when: When,
    /// Only if it gives back so much.
    #[serde(default = "nothing")]
    pub(crate) at_least: Size,
}

const fn nothing() -> Size {
    Size(Bytes(0))
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// SIGTERM.
    Stop,
    /// Another signal.
    Signal,
    /// A program is run, with the facts in its environment.
    Command,
}

/// When something is done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum When {
    /// A process was refused memory.
    OutOfMemory,
    /// A GPU is used to more than `used_above` of `[incidents]`.
    NearlyFull,
    /// A process is suspected of a leak.
    Leak,
}

impl When {
    /// The word for it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::NearlyFull => "nearly_full",
            Self::Leak => "leak",
        }
    }
}

/// Signals that may be named.
pub(crate) const SIGNALS: [(&str, i32); 6] =
    [("TERM", 15), ("INT", 2), ("HUP", 1), ("USR1", 10), ("USR2", 12), ("KILL", 9)];

impl Allow {
    /// The signal that is sent.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self.action {
            What::Stop => Some(15),
            What::Signal => {
                let name = self.signal.as_deref()?.trim_start_matches("SIG");
                SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
            }
            What::Command => None,
        }
    }
}

impl Actions {
    /// What is wrong with it.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        for (number, allow) in self.allow.iter().enumerate() {
            let mut say = |what: &str| {
                wrong.push(format!("[actions] allow, entry {}: {what}", number + 1));
            };
            if allow.user.is_none() && allow.cgroup.is_none() && allow.name.is_none() {
                say("it would allow everybody; give a user, a cgroup or a name");
            }
            if allow.name.as_deref() == Some("*") && allow.user.is_none() && allow.cgroup.is_none()
            {
                say("the name * is everybody; give a user or a cgroup");
            }
            if allow.cgroup.as_deref().is_some_and(|path| !path.starts_with('/') || path == "/") {
                say("a cgroup is a path below /, such as /user.slice");
            }
            let is_signal = allow.action == What::Signal;
            if is_signal != allow.signal.is_some() {
                say("signal goes with action = \"signal\", and that needs one");
            } else if is_signal && allow.signal().is_none() {
                say("the signal is one of TERM, INT, HUP, USR1, USR2 and KILL");
            }
            if (allow.action == What::Command) == allow.command.is_empty() {
                say("command goes with action = \"command\", and that needs one");
            }
            if allow.command.first().is_some_and(|program| !program.starts_with('/')) {
                say("write the whole path of the program");
            }
            if let Some(user) = &allow.user
                && super::super::actions::uid(user).is_none()
            {
                say(&format!("there is no user {user} here; give the number"));
            }
        }
    }
}

impl Default for Actions {
    fn default() -> Self {
        Self { dry_run: true, at_most: 3, allow: Vec::new() }
    }
}
