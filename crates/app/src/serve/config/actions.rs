//! `[actions]`: automatic actions; none unless allowed here.

use engine::model::units::Bytes;
use serde::Deserialize;

use super::ByteSize;
use super::incidents::IncidentsConfig;
use crate::serve::child_program;

/// `[actions]`: automatic actions; none unless allowed here.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ActionsConfig {
    /// Actions are only logged.
    pub(crate) dry_run: bool,
    /// Maximum number of actions per hour.
    pub(crate) max_per_hour: usize,
    /// Allowed actions.
    pub(crate) allow: Vec<ActionRule>,
}

/// An allowed action: a process must match all conditions that are set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActionRule {
    /// Owner, by name or id.
    pub(crate) user: Option<String>,
    /// Cgroup of the process or one above it: a path, such as `/user.slice`.
    pub(crate) cgroup: Option<String>,
    /// Process name; a trailing `*` matches anything.
    pub(crate) name: Option<String>,
    /// The action.
    pub(crate) action: ActionKind,
    /// For `signal`: its name.
    pub(crate) signal: Option<String>,
    /// For `command`: the program and its arguments.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// The trigger.
    pub(crate) trigger: ActionTrigger,
    /// Minimum memory that its exit would free.
    #[serde(default = "nothing")]
    pub(crate) min_bytes: ByteSize,
}

const fn nothing() -> ByteSize {
    ByteSize(Bytes(0))
}

/// Kind of action.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ActionKind {
    /// SIGTERM.
    Stop,
    /// The signal in `signal`.
    Signal,
    /// Runs a program with details in its environment.
    Command,
}

/// Trigger of an action.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ActionTrigger {
    /// An allocation failed.
    OutOfMemory,
    /// Usage of a GPU is above `gpu_used_above` of `[incidents]`.
    NearlyFull,
    /// A process is a leak suspect.
    Leak,
}

impl ActionTrigger {
    /// Name in the configuration and the log.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::OutOfMemory => "out_of_memory",
            Self::NearlyFull => "nearly_full",
            Self::Leak => "leak",
        }
    }
}

/// Supported signals.
pub(crate) const SIGNALS: [(&str, i32); 6] =
    [("TERM", 15), ("INT", 2), ("HUP", 1), ("USR1", 10), ("USR2", 12), ("KILL", 9)];

impl ActionRule {
    /// Returns the signal to send.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self.action {
            ActionKind::Stop => Some(15),
            ActionKind::Signal => {
                let name = self.signal.as_deref()?.trim_start_matches("SIG");
                SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
            }
            ActionKind::Command => None,
        }
    }
}

impl ActionsConfig {
    /// Adds the errors of this section.
    pub(super) fn check(&self, incidents: &IncidentsConfig, errors: &mut Vec<String>) {
        for (number, allow) in self.allow.iter().enumerate() {
            let mut report = |problem: &str| {
                errors.push(format!("[[actions.allow]] number {}: {problem}", number + 1));
            };
            if allow.user.is_none() && allow.cgroup.is_none() && allow.name.is_none() {
                report("rule matches every process; set user, cgroup or name");
            }
            if allow.name.as_deref() == Some("*") && allow.user.is_none() && allow.cgroup.is_none()
            {
                report("name * matches every process; set user or cgroup");
            }
            if allow.cgroup.as_deref().is_some_and(|path| !is_below_root(path)) {
                report("cgroup must be a path below /, such as /user.slice");
            }
            if allow.name.as_deref() == Some("") {
                report("no process has an empty name; omit it or set one");
            }
            if allow.trigger != ActionTrigger::Leak && !incidents.enabled {
                report("never triggers with [incidents] enabled = false");
            } else if allow.trigger == ActionTrigger::NearlyFull
                && incidents.gpu_used_above.is_none()
            {
                report("trigger nearly_full requires gpu_used_above in [incidents]");
            }
            let is_signal = allow.action == ActionKind::Signal;
            if is_signal != allow.signal.is_some() {
                report("signal requires action = \"signal\", and vice versa");
            } else if is_signal && allow.signal().is_none() {
                report("signal must be one of TERM, INT, HUP, USR1, USR2 and KILL");
            }
            if (allow.action == ActionKind::Command) == allow.command.is_empty() {
                report("command requires action = \"command\", and vice versa");
            }
            if let Some(Err(reason)) =
                (!allow.command.is_empty()).then(|| child_program::check(&allow.command))
            {
                report(&reason);
            }
            if let Some(user) = &allow.user
                && super::super::actions::uid(user).is_none()
            {
                report(&format!("no such user: {user}; use the numeric id"));
            }
        }
    }
}

/// Whether a cgroup path is below the root and normalized.
fn is_below_root(path: &str) -> bool {
    let Some(path) = path.trim_end_matches('/').strip_prefix('/') else { return false };
    path.split('/').all(|part| !part.trim().is_empty() && part != "." && part != "..")
}

impl Default for ActionsConfig {
    fn default() -> Self {
        Self { dry_run: true, max_per_hour: 3, allow: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn errors(config: &str) -> Vec<String> {
        toml::from_str::<Config>(config).unwrap().check()
    }

    fn rule(config: &str) -> Vec<String> {
        let state = tempfile::tempdir().unwrap();
        let state = state.path().display();
        errors(&format!("state_dir = \"{state}\"\n[[actions.allow]]\naction = \"stop\"\n{config}"))
    }

    #[test]
    fn root_cgroup_is_rejected() {
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
    fn rules_that_never_trigger_are_rejected() {
        let found = rule("name = \"a\"\ntrigger = \"nearly_full\"");
        assert!(found.len() == 1 && found[0].contains("gpu_used_above"), "{found:?}");
        let disabled = |trigger: &str| {
            errors(&format!(
                "[incidents]\nenabled = false\ngpu_used_above = 0.9\n[[actions.allow]]\nname = \"a\"\n\
                 action = \"stop\"\ntrigger = \"{trigger}\""
            ))
        };
        for trigger in ["out_of_memory", "nearly_full"] {
            let found = disabled(trigger);
            assert!(
                found.len() == 1 && found[0].contains("enabled = false"),
                "{trigger}: {found:?}"
            );
        }
        let command = rule("name = \"\"\ntrigger = \"leak\"");
        assert!(command.len() == 1 && command[0].contains("empty name"), "{command:?}");
    }

    #[test]
    fn missing_program_is_reported() {
        let state = tempfile::tempdir().unwrap();
        let found = errors(&format!(
            "state_dir = \"{}\"\n[[actions.allow]]\nname = \"a\"\naction = \"command\"\n\
             trigger = \"leak\"\ncommand = [\"/no/such\"]",
            state.path().display()
        ));
        assert!(found.len() == 1 && found[0].contains("no program /no/such"), "{found:?}");
    }
}
