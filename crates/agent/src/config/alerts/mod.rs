//! `[alerts]`: thresholds of the built-in rules, and receivers.

mod receiver;
#[cfg(test)]
mod tests;

pub(crate) use receiver::INCIDENT_RULE;
pub use receiver::{PayloadFormat, ReceiverConfig, ReceiverType};

use engine::alert::Rule;
use engine::alert::builtin::{self, RULE_NAMES, Thresholds};
use formats::sanitize::sanitize;

use super::section::section;
use super::{ByteSize, DurationValue, Ratio};

section! {
    /// Built-in alerts: alerts.md.
    AlertsConfig {
        /// Evaluate the rules.
        enabled: bool = true, default "true";
        /// Rules to switch off.
        disabled_rules: Vec<String> = Vec::new(), default "[]";
        /// How long a site is a leak suspect before the alert fires.
        leak_suspect: DurationValue = DurationValue::secs(300), default "\"5m\"";
        /// Fires if a GPU will be full within this time.
        full_soon: DurationValue = DurationValue::secs(6 * 3600), default "\"6h\"";
        /// Used share of a GPU.
        nearly_full: Ratio = Ratio(0.95), default "0.95";
        /// Fragmented share of a PyTorch cache; requires `torch` in `[trace]`.
        fragmentation: Ratio = Ratio(0.4), default "0.4";
        /// Growth of the untracked memory of a process in one hour.
        untracked_growth: ByteSize = ByteSize::mib(1024), default "\"1G\"";
        /// How long a value must be back before its alert is resolved.
        keep_firing_for: DurationValue = DurationValue::secs(60), default "\"1m\"";
        /// Receivers of alerts, at most 64. Without any, alerts are logged.
        receiver: Vec<ReceiverConfig> = Vec::new(), section "";
    }
}

/// Maximum number of receivers.
const MAX_RECEIVERS: usize = 64;

impl AlertsConfig {
    /// Returns every enabled rule.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let is_enabled = |rule: &Rule| !self.disabled_rules.iter().any(|name| name == rule.name);
        let thresholds = Thresholds {
            leak_suspect: self.leak_suspect.nanos(),
            full_soon: self.full_soon.nanos(),
            nearly_full: self.nearly_full.0,
            fragmentation: self.fragmentation.0,
            untracked_growth: self.untracked_growth.0,
        };
        builtin::rules(&thresholds).into_iter().filter(is_enabled).collect()
    }

    /// Returns the receivers; without one in the configuration, alerts are logged.
    pub(crate) fn receivers(&self) -> Vec<ReceiverConfig> {
        match self.receiver.is_empty() {
            true => vec![ReceiverConfig::default()],
            false => self.receiver.clone(),
        }
    }

    /// Whether a receiver runs a command.
    pub(crate) fn has_commands(&self) -> bool {
        self.receiver.iter().any(|receiver| receiver.kind == ReceiverType::Command)
    }

    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        if self.receiver.len() > MAX_RECEIVERS {
            let number = self.receiver.len();
            errors.push(format!(
                "[[alerts.receiver]]: {number} are too many; at most {MAX_RECEIVERS}"
            ));
        }
        for name in &self.disabled_rules {
            errors.extend(unknown_rule(name, &RULE_NAMES).map(|it| format!("[alerts] {it}")));
        }
        for (index, receiver) in self.receiver.iter().enumerate() {
            let section = format!("[[alerts.receiver]] number {}", index + 1);
            let problems = receiver.problems();
            errors.extend(problems.iter().map(|problem| format!("{section}: {problem}")));
        }
    }
}

/// Returns the problem of a rule name that does not exist.
fn unknown_rule(name: &str, known: &[&str]) -> Option<String> {
    let message = || format!("unknown rule `{}`; available: {}", sanitize(name), known.join(", "));
    (!known.contains(&name)).then(message)
}
