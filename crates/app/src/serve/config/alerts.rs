//! `[alerts]`: built-in rules, custom rules and receivers.

mod action;
mod rule;
mod switch;

pub(crate) use action::{Action, Format, Kind, header};

use std::collections::BTreeSet;
use std::time::Duration;

use engine::alert::Rule;
use engine::alert::builtin::{self, Thresholds};
use serde::Deserialize;

use super::{Size, Span};
use rule::OwnRule;
use switch::{Always, Share, Switch};

/// `[alerts]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Alerts {
    /// Whether alerts are evaluated at all.
    pub(crate) enabled: bool,
    leak_suspect: Switch<Span>,
    full_soon: Switch<Span>,
    out_of_memory: Switch<Always>,
    nearly_full: Switch<Share>,
    fragmentation: Switch<Share>,
    untracked_growth: Switch<Size>,
    lost_events: Switch<Always>,
    degraded: Switch<Always>,
    not_ready: Switch<Always>,
    /// Time that a condition must be gone before its alert resolves.
    pub(crate) keep_firing_for: Span,
    rule: Vec<OwnRule>,
    receiver: Vec<Action>,
}

/// Maximum number of custom rules, and of receivers.
const MOST: usize = 64;

impl Default for Alerts {
    fn default() -> Self {
        Self {
            enabled: true,
            leak_suspect: Switch::Default,
            full_soon: Switch::Default,
            out_of_memory: Switch::Default,
            nearly_full: Switch::Default,
            fragmentation: Switch::Default,
            untracked_growth: Switch::Default,
            lost_events: Switch::Default,
            degraded: Switch::Default,
            not_ready: Switch::Default,
            keep_firing_for: Span(Duration::from_secs(60)),
            rule: Vec::new(),
            receiver: Vec::new(),
        }
    }
}

impl Alerts {
    /// Returns every enabled rule. Invalid rules are skipped here; [`AlertsConfig::check`] reports
    /// them.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let custom = self.rule.iter().filter_map(|rule| rule.compile().ok());
        builtin::rules(&self.thresholds()).into_iter().chain(custom).collect()
    }

    /// Returns the receivers; without one in the configuration, alerts are logged.
    pub(crate) fn receivers(&self) -> Vec<Action> {
        if self.receiver.is_empty() { vec![Action::log()] } else { self.receiver.clone() }
    }

    /// Whether a receiver runs a command.
    pub(crate) fn has_commands(&self) -> bool {
        self.receiver.iter().any(|receiver| receiver.kind == Kind::Command)
    }

    fn thresholds(&self) -> Thresholds {
        let default = Thresholds::default();
        Thresholds {
            leak_suspect: self.leak_suspect.or(default.leak_suspect, Span::nanos),
            full_within: self.full_soon.or(default.full_within, Span::nanos),
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
        for (what, number) in
            [("alerts.rule", self.rule.len()), ("alerts.receiver", self.receiver.len())]
        {
            if number > MOST {
                errors.push(format!("[[{what}]]: {number} are too many; at most {MOST}"));
            }
        }
        let mut names: BTreeSet<&str> = builtin::NAMES.into();
        for rule in &self.rule {
            if let Err(reasons) = rule.compile() {
                errors.extend(reasons);
            }
            if !names.insert(&rule.name) {
                errors.push(format!(
                    "[[alerts.rule]] {}: a rule of that name exists already; choose another name",
                    formats::plain::plain(&rule.name)
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
