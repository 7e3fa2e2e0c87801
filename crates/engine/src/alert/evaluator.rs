//! Evaluates alert rules and tracks alerts through their states: pending, firing, resolved.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::metrics::{MetricSet, Sample};
use crate::model::{Nanos, Timestamp};

use super::series_history::{SeriesHistory, SeriesKey};
use super::{Rule, template};

/// Limit of alerts per rule, so that one rule does not use up [`MAX_ALERTS`].
const MAX_ALERTS_PER_RULE: usize = 64;

/// Limit of pending and firing alerts, all rules together.
const MAX_ALERTS: usize = 512;

/// Resolved alerts that are kept.
const MAX_RESOLVED_ALERTS: usize = 128;

/// A firing or resolved alert.
#[derive(Clone, PartialEq, Debug)]
pub struct Alert {
    /// Unique among the alerts of an evaluator.
    pub id: u64,
    /// Rule that raised it.
    pub rule: Arc<Rule>,
    /// Labels at the time it fired, without empty ones. They never change, because receivers
    /// identify an alert by them.
    pub labels: Vec<(&'static str, Box<str>)>,
    /// Latest value that crossed the threshold.
    pub value: f64,
    /// Time since which the value has been beyond the threshold.
    pub since: Timestamp,
    /// Time it fired.
    pub fired: Timestamp,
    /// Time it was resolved.
    pub resolved: Option<Timestamp>,
}

impl Alert {
    /// One-sentence summary.
    pub fn summary(&self) -> String {
        template::render(self.rule.summary, self)
    }

    /// Recommended action.
    pub fn advice(&self) -> String {
        template::render(self.rule.advice, self)
    }
}

/// State change of an alert.
#[derive(Clone, PartialEq, Debug)]
pub enum Transition {
    /// The alert fired.
    Fired(Alert),
    /// The alert was resolved.
    Resolved(Alert),
}

/// Evaluates all rules and holds their alerts.
pub struct AlertEvaluator {
    rules: Vec<Arc<Rule>>,
    resolve_after: Nanos,
    open: HashMap<SeriesKey, AlertState>,
    resolved: VecDeque<Alert>,
    history: SeriesHistory,
    next: u64,
    dropped: u64,
}

enum AlertState {
    /// Beyond the threshold, but not yet for [`Rule::hold`].
    Pending { since: Timestamp },
    /// Firing; `ok_since` is the time since which the value has been back within the threshold.
    Firing { alert: Alert, ok_since: Option<Timestamp> },
}

impl AlertEvaluator {
    /// Creates an evaluator. An alert is resolved when its value has been within the threshold for
    /// `resolve_after`, so that a flapping value is reported once.
    pub fn new(rules: Vec<Rule>, resolve_after: Nanos) -> Self {
        Self {
            rules: rules.into_iter().map(Arc::new).collect(),
            resolve_after,
            open: HashMap::new(),
            resolved: VecDeque::new(),
            history: SeriesHistory::default(),
            next: 1,
            dropped: 0,
        }
    }

    /// Evaluates all rules and returns the state changes, in the order of the rules.
    pub fn evaluate(&mut self, metrics: &MetricSet, now: Timestamp) -> Vec<Transition> {
        let mut changes = Vec::new();
        let mut seen = HashSet::new();
        for (index, rule) in self.rules.clone().iter().enumerate() {
            for (sample, value) in rule.evaluate(index, metrics, &mut self.history, now) {
                let series = (index, rule.identity(sample));
                changes.extend(self.step(rule, &series, sample, value, now));
                seen.insert(series);
            }
        }
        self.history.drop_stale(now);
        self.mark_missing(&seen, now);
        let mut resolved = self.resolve(now);
        resolved.sort_by_key(|alert| alert.id);
        changes.extend(resolved.into_iter().map(Transition::Resolved));
        changes
    }

    /// Firing alerts, oldest first.
    pub fn firing(&self) -> Vec<&Alert> {
        let mut firing: Vec<_> = self.open.values().filter_map(AlertState::alert).collect();
        firing.sort_by_key(|alert| alert.id);
        firing
    }

    /// Resolved alerts, newest first; at most 128 are kept.
    pub fn resolved(&self) -> impl Iterator<Item = &Alert> {
        self.resolved.iter()
    }

    /// Number of alerts dropped because a limit was reached.
    pub const fn dropped_alerts(&self) -> u64 {
        self.dropped
    }

    fn step(
        &mut self,
        rule: &Arc<Rule>,
        series: &SeriesKey,
        sample: &Sample,
        value: f64,
        now: Timestamp,
    ) -> Option<Transition> {
        if let Some(AlertState::Firing { alert, ok_since }) = self.open.get_mut(series) {
            if rule.threshold.is_crossed(value, rule.slack) {
                *ok_since = None;
                // Keep the last value beyond the threshold: the summary would be wrong with the
                // current one.
                alert.value = value;
            } else {
                ok_since.get_or_insert(now);
            }
            return None;
        }
        if !rule.threshold.is_crossed(value, 0.0) {
            self.open.remove(series);
            return None;
        }
        let since = match self.open.get(series) {
            Some(AlertState::Pending { since }) => *since,
            _ if !self.has_room(series.0) => {
                self.dropped += 1;
                return None;
            }
            _ => now,
        };
        if now - since < rule.hold {
            self.open.insert(series.clone(), AlertState::Pending { since });
            return None;
        }
        let alert = self.alert(rule, sample, value, since, now);
        let state = AlertState::Firing { alert: alert.clone(), ok_since: None };
        self.open.insert(series.clone(), state);
        Some(Transition::Fired(alert))
    }

    fn alert(
        &mut self,
        rule: &Arc<Rule>,
        sample: &Sample,
        value: f64,
        since: Timestamp,
        now: Timestamp,
    ) -> Alert {
        let id = self.next;
        self.next += 1;
        let labels = rule.metric.labels.iter().copied().zip(sample.labels.iter().cloned());
        let labels = labels.filter(|(_, value)| !value.is_empty()).collect();
        Alert { id, rule: Arc::clone(rule), labels, value, since, fired: now, resolved: None }
    }

    fn has_room(&self, rule: usize) -> bool {
        let of_rule = self.open.keys().filter(|(index, _)| *index == rule).count();
        self.open.len() < MAX_ALERTS && of_rule < MAX_ALERTS_PER_RULE
    }

    /// A series without a value counts as within the threshold.
    fn mark_missing(&mut self, seen: &HashSet<SeriesKey>, now: Timestamp) {
        self.open.retain(|series, state| match state {
            _ if seen.contains(series) => true,
            AlertState::Pending { .. } => false,
            AlertState::Firing { ok_since, .. } => {
                ok_since.get_or_insert(now);
                true
            }
        });
    }

    fn resolve(&mut self, now: Timestamp) -> Vec<Alert> {
        let resolve_after = self.resolve_after;
        let mut resolved = Vec::new();
        self.open.retain(|_, state| match state {
            AlertState::Firing { alert, ok_since: Some(since) }
                if now - *since >= resolve_after =>
            {
                alert.resolved = Some(now);
                resolved.push(alert.clone());
                false
            }
            _ => true,
        });
        for alert in &resolved {
            self.resolved.push_front(alert.clone());
        }
        self.resolved.truncate(MAX_RESOLVED_ALERTS);
        resolved
    }
}

impl AlertState {
    const fn alert(&self) -> Option<&Alert> {
        match self {
            Self::Pending { .. } => None,
            Self::Firing { alert, .. } => Some(alert),
        }
    }
}
