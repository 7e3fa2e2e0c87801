//! `[actions]`: what may be done without asking; nothing, unless it is allowed here.

use engine::units::Bytes;
use serde::Deserialize;

use super::Size;
use super::incidents::Incidents;
use crate::serve::program;

/// `[actions]`: what may be done without asking; nothing, unless it is allowed here.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Actions {
    /// Nothing is done, and what would be done is written down.
    pub(crate) dry_run: bool,
    /// The most that is done in an hour.
    pub(crate) max_per_hour: usize,
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
    pub(crate) trigger: When,
    /// Only if it gives back so much.
    #[serde(default = "nothing")]
    pub(crate) min_bytes: Size,
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
    /// A GPU is used to more than `gpu_used_above` of `[incidents]`.
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
    pub(super) fn check(&self, incidents: &Incidents, wrong: &mut Vec<String>) {
        for (number, allow) in self.allow.iter().enumerate() {
            let mut say = |what: &str| {
                wrong.push(format!("[[actions.allow]] number {}: {what}", number + 1));
            };
            if allow.user.is_none() && allow.cgroup.is_none() && allow.name.is_none() {
                say("rule matches every process; set user, cgroup or name");
            }
            if allow.name.as_deref() == Some("*") && allow.user.is_none() && allow.cgroup.is_none()
            {
                say("name * matches every process; set user or cgroup");
            }
            if allow.cgroup.as_deref().is_some_and(|path| !is_below_root(path)) {
                say("cgroup must be a path below /, such as /user.slice");
            }
            if allow.name.as_deref() == Some("") {
                say("no process has an empty name; omit it or set one");
            }
            if allow.trigger != When::Leak && !incidents.enabled {
                say("never triggers with [incidents] enabled = false");
            } else if allow.trigger == When::NearlyFull && incidents.gpu_used_above.is_none() {
                say("trigger nearly_full requires gpu_used_above in [incidents]");
            }
            let is_signal = allow.action == What::Signal;
            if is_signal != allow.signal.is_some() {
                say("signal requires action = \"signal\", and vice versa");
            } else if is_signal && allow.signal().is_none() {
                say("signal must be one of TERM, INT, HUP, USR1, USR2 and KILL");
            }
            if (allow.action == What::Command) == allow.command.is_empty() {
                say("command requires action = \"command\", and vice versa");
            }
            if let Some(Err(why)) =
                (!allow.command.is_empty()).then(|| program::check(&allow.command))
            {
                say(&why);
            }
            if let Some(user) = &allow.user
                && super::super::actions::uid(user).is_none()
            {
                say(&format!("no such user: {user}; use the numeric id"));
            }
        }
    }
}

/// Whether a cgroup is a path that leads somewhere below the root, and straight there.
fn is_below_root(path: &str) -> bool {
    let Some(path) = path.trim_end_matches('/').strip_prefix('/') else { return false };
    path.split('/').all(|part| !part.trim().is_empty() && part != "." && part != "..")
}

impl Default for Actions {
    fn default() -> Self {
        Self { dry_run: true, max_per_hour: 3, allow: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn wrong(settings: &str) -> Vec<String> {
        toml::from_str::<Config>(settings).unwrap().check()
    }

    fn rule(settings: &str) -> Vec<String> {
        let state = tempfile::tempdir().unwrap();
        let state = state.path().display();
        wrong(&format!("state_dir = \"{state}\"\n[[actions.allow]]\naction = \"stop\"\n{settings}"))
    }

    #[test]
    fn a_cgroup_that_is_everybody_is_refused() {
        for path in ["", "/", "//", "///", "//a", "/a//b", "/..", "/a/../", "/.", "/ ", "a"] {
            let found = rule(&format!("trigger = \"leak\"\ncgroup = \"{path}\""));
            assert!(found.len() == 1 && found[0].contains("below /"), "{path}: {found:?}");
        }
        for path in ["/user.slice", "/user.slice/", "/a/b..c"] {
            assert_eq!(
                rule(&format!("trigger = \"leak\"\ncgroup = \"{path}\"")),
                [""; 0],
                "{path}"
            );
        }
    }

    #[test]
    fn what_can_never_happen_is_refused() {
        let found = rule("name = \"a\"\ntrigger = \"nearly_full\"");
        assert!(found.len() == 1 && found[0].contains("gpu_used_above"), "{found:?}");
        let off = |when: &str| {
            wrong(&format!(
                "[incidents]\nenabled = false\ngpu_used_above = 0.9\n[[actions.allow]]\nname = \"a\"\n\
                 action = \"stop\"\ntrigger = \"{when}\""
            ))
        };
        for when in ["out_of_memory", "nearly_full"] {
            let found = off(when);
            assert!(found.len() == 1 && found[0].contains("enabled = false"), "{when}: {found:?}");
        }
        let command = rule("name = \"\"\ntrigger = \"leak\"");
        assert!(command.len() == 1 && command[0].contains("empty name"), "{command:?}");
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let state = tempfile::tempdir().unwrap();
        let found = wrong(&format!(
            "state_dir = \"{}\"\n[[actions.allow]]\nname = \"a\"\naction = \"command\"\n\
             trigger = \"leak\"\ncommand = [\"/no/such\"]",
            state.path().display()
        ));
        assert!(found.len() == 1 && found[0].contains("no program /no/such"), "{found:?}");
    }
}
