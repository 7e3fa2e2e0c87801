//! `[alerts]`: built-in rules, rules of one's own, and what they do.

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

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Alerts {
    /// Whether there are alerts at all.
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
    /// How long a figure must be back before its alert is over.
    pub(crate) keep_firing_for: Span,
    rule: Vec<OwnRule>,
    receiver: Vec<Action>,
}

/// Rules and receivers of one's own, each.
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
    /// Every rule that is on. What is wrong with one is told by [`Alerts::check`]; here it is left
    /// out.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        let own = self.rule.iter().filter_map(|rule| rule.compile().ok());
        builtin::rules(&self.thresholds()).into_iter().chain(own).collect()
    }

    /// What is done about alerts: without a receiver, they are logged.
    pub(crate) fn actions(&self) -> Vec<Action> {
        if self.receiver.is_empty() { vec![Action::log()] } else { self.receiver.clone() }
    }

    /// Whether a receiver runs a command.
    pub(crate) fn has_commands(&self) -> bool {
        self.receiver.iter().any(|action| action.kind == Kind::Command)
    }

    fn thresholds(&self) -> Thresholds {
        let usual = Thresholds::default();
        Thresholds {
            leak_suspect: self.leak_suspect.or(usual.leak_suspect, Span::nanos),
            full_within: self.full_soon.or(usual.full_within, Span::nanos),
            out_of_memory: self.out_of_memory.is_on(),
            nearly_full: self.nearly_full.or(usual.nearly_full, |share| share.0),
            fragmentation: self.fragmentation.or(usual.fragmentation, |share| share.0),
            untracked_growth: self.untracked_growth.or(usual.untracked_growth, |size| size.0),
            events_lost: self.lost_events.is_on(),
            degraded: self.degraded.is_on(),
            not_ready: self.not_ready.is_on(),
        }
    }

    /// What is wrong with it.
    pub(super) fn check(&self, wrong: &mut Vec<String>) {
        for (what, number) in
            [("alerts.rule", self.rule.len()), ("alerts.receiver", self.receiver.len())]
        {
            if number > MOST {
                wrong.push(format!("[[{what}]]: {number} are too many; at most {MOST}"));
            }
        }
        let mut names: BTreeSet<&str> = builtin::NAMES.into();
        for rule in &self.rule {
            if let Err(reasons) = rule.compile() {
                wrong.extend(reasons);
            }
            if !names.insert(&rule.name) {
                wrong.push(format!(
                    "[[alerts.rule]] {}: a rule of that name exists already; choose another name",
                    formats::plain::plain(&rule.name)
                ));
            }
        }
        for (index, action) in self.receiver.iter().enumerate() {
            action.check(index, &names, wrong);
        }
    }
}

#[cfg(test)]
mod tests;
