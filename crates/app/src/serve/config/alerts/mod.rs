//! `[alerts]`: built-in rules, custom rules and receivers.

mod receiver;
mod rule;
mod toggle;

pub(crate) use receiver::{PayloadFormat, ReceiverConfig, ReceiverType, header};

use std::collections::BTreeSet;
use std::time::Duration;

use engine::alert::Rule;
use engine::alert::builtin::{self, Thresholds};
use serde::Deserialize;

use super::{ByteSize, DurationValue};
use rule::CustomRuleConfig;
use toggle::{NoThreshold, Ratio, Toggle};

/// `[alerts]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AlertsConfig {
    /// Whether alerts are evaluated at all.
    pub(crate) enabled: bool,
    leak_suspect: Toggle<DurationValue>,
    full_soon: Toggle<DurationValue>,
    out_of_memory: Toggle<NoThreshold>,
    nearly_full: Toggle<Ratio>,
    fragmentation: Toggle<Ratio>,
    untracked_growth: Toggle<ByteSize>,
    lost_events: Toggle<NoThreshold>,
    degraded: Toggle<NoThreshold>,
    not_ready: Toggle<NoThreshold>,
    /// Time that a condition must be gone before its alert resolves.
    pub(crate) keep_firing_for: DurationValue,
    rule: Vec<CustomRuleConfig>,
    receiver: Vec<ReceiverConfig>,
}

/// Maximum number of custom rules, and of receivers.
const MAX_ENTRIES: usize = 64;

impl Default for AlertsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            leak_suspect: Toggle::Default,
            full_soon: Toggle::Default,
            out_of_memory: Toggle::Default,
            nearly_full: Toggle::Default,
            fragmentation: Toggle::Default,
            untracked_growth: Toggle::Default,
            lost_events: Toggle::Default,
            degraded: Toggle::Default,
            not_ready: Toggle::Default,
            keep_firing_for: DurationValue(Duration::from_secs(60)),
            rule: Vec::new(),
            receiver: Vec::new(),
        }
    }
}

impl AlertsConfig {
    /// Returns every enabled rule. Invalid rules are skipped here; [`AlertsConfig::check`] reports
    /// them.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let custom = self.rule.iter().filter_map(|rule| rule.compile().ok());
        builtin::rules(&self.thresholds()).into_iter().chain(custom).collect()
    }

    /// Returns the receivers; without one in the configuration, alerts are logged.
    pub(crate) fn receivers(&self) -> Vec<ReceiverConfig> {
        if self.receiver.is_empty() { vec![ReceiverConfig::log()] } else { self.receiver.clone() }
    }

    /// Whether a receiver runs a command.
    pub(crate) fn has_commands(&self) -> bool {
        self.receiver.iter().any(|receiver| receiver.kind == ReceiverType::Command)
    }

    fn thresholds(&self) -> Thresholds {
        let default = Thresholds::default();
        Thresholds {
            leak_suspect: self.leak_suspect.or(default.leak_suspect, DurationValue::nanos),
            full_within: self.full_soon.or(default.full_within, DurationValue::nanos),
            out_of_memory: self.out_of_memory.is_on(),
            nearly_full: self.nearly_full.or(default.nearly_full, |share| share.0),
            fragmentation: self.fragmentation.or(default.fragmentation, |share| share.0),
            untracked_growth: self.untracked_growth.or(default.untracked_growth, |size| size.0),
            events_lost: self.lost_events.is_on(),
            degraded: self.degraded.is_on(),
            not_ready: self.not_ready.is_on(),
        }
    }

    /// Adds the errors of this section.
    pub(super) fn check(&self, errors: &mut Vec<String>) {
        for (section, number) in
            [("alerts.rule", self.rule.len()), ("alerts.receiver", self.receiver.len())]
        {
            if number > MAX_ENTRIES {
                errors.push(format!("[[{section}]]: {number} are too many; at most {MAX_ENTRIES}"));
            }
        }
        let mut names: BTreeSet<&str> = builtin::RULE_NAMES.into();
        for rule in &self.rule {
            if let Err(reasons) = rule.compile() {
                errors.extend(reasons);
            }
            if !names.insert(&rule.name) {
                errors.push(format!(
                    "[[alerts.rule]] {}: a rule of that name exists already; choose another name",
                    formats::sanitize::sanitize(&rule.name)
                ));
            }
        }
        for (index, receiver) in self.receiver.iter().enumerate() {
            receiver.check(index, &names, errors);
        }
    }
}

#[cfg(test)]
mod tests;
