//! Alerts from their beginning to their end: pending, firing, resolved.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::metrics::{Figures, Sample};
use crate::units::{Moment, Nanos};

use super::history::{History, Series};
use super::{Rule, words};

/// Alerts of one rule at a time, so that one rule leaves room for the others.
const MOST_OF_A_RULE: usize = 64;

/// Alerts of all rules at a time.
const MOST: usize = 512;

/// Alerts that are over and remembered.
const PAST: usize = 128;

/// An alert that fires or fired.
#[derive(Clone, PartialEq, Debug)]
pub struct Alert {
    /// A number that no other alert of this book has.
    pub id: u64,
    /// The rule.
    pub rule: Arc<Rule>,
    /// Labels as they were when it began to fire, those without a value left out. They stay the same,
    /// for receivers recognise an alert by them.
    pub labels: Vec<(&'static str, Box<str>)>,
    /// The newest figure that was beyond the limit.
    pub value: f64,
    /// Since when the figure is beyond the limit.
    pub since: Moment,
    /// When it began to fire.
    pub fired: Moment,
    /// When it was over.
    pub resolved: Option<Moment>,
}

impl Alert {
    /// What is the matter, in a sentence.
    #[must_use]
    pub fn summary(&self) -> String {
        words::fill(&self.rule.summary, self)
    }

    /// What to do about it.
    #[must_use]
    pub fn advice(&self) -> String {
        words::fill(&self.rule.advice, self)
    }

    /// The figure in words: `1.50 GiB`, `96 %`.
    #[must_use]
    pub fn value_in_words(&self) -> String {
        words::figure(self, self.value)
    }
}

/// What became of an alert.
#[derive(Clone, PartialEq, Debug)]
pub enum Transition {
    /// It fires.
    Fired(Alert),
    /// It is over.
    Resolved(Alert),
}

/// All rules and their alerts.
pub struct Book {
    rules: Vec<Arc<Rule>>,
    resolve_after: Nanos,
    open: HashMap<Series, State>,
    past: VecDeque<Alert>,
    history: History,
    next: u64,
    passed_over: u64,
}

enum State {
    /// Beyond the limit, but not for long enough.
    Pending { since: Moment },
    /// It fires; `fine` is since when the figure is back.
    Firing { alert: Alert, fine: Option<Moment> },
}

impl Book {
    /// An alert is over when its figure has been back for `resolve_after`, so that one that goes to
    /// and fro is told once.
    #[must_use]
    pub fn new(rules: Vec<Rule>, resolve_after: Nanos) -> Self {
        Self {
            rules: rules.into_iter().map(Arc::new).collect(),
            resolve_after,
            open: HashMap::new(),
            past: VecDeque::new(),
            history: History::default(),
            next: 1,
            passed_over: 0,
        }
    }

    /// Looks at the figures; tells what changed, in the order of the rules.
    pub fn look(&mut self, figures: &Figures, now: Moment) -> Vec<Transition> {
        let mut changes = Vec::new();
        let mut seen = HashSet::new();
        for (index, rule) in self.rules.clone().iter().enumerate() {
            for (sample, value) in rule.look(index, figures, &mut self.history, now) {
                let series = (index, rule.identity(sample));
                changes.extend(self.step(rule, &series, sample, value, now));
                seen.insert(series);
            }
        }
        self.history.forget(now);
        self.miss(&seen, now);
        let mut over = self.end(now);
        over.sort_by_key(|alert| alert.id);
        changes.extend(over.into_iter().map(Transition::Resolved));
        changes
    }

    /// Alerts that fire, the oldest first.
    #[must_use]
    pub fn firing(&self) -> Vec<&Alert> {
        let mut firing: Vec<_> = self.open.values().filter_map(State::alert).collect();
        firing.sort_by_key(|alert| alert.id);
        firing
    }

    /// Alerts that are over, the last one first; only so many are remembered.
    pub fn past(&self) -> impl Iterator<Item = &Alert> {
        self.past.iter()
    }

    /// How often an alert was passed over because there were too many.
    #[must_use]
    pub const fn passed_over(&self) -> u64 {
        self.passed_over
    }

    fn step(
        &mut self,
        rule: &Arc<Rule>,
        series: &Series,
        sample: &Sample,
        value: f64,
        now: Moment,
    ) -> Option<Transition> {
        if let Some(State::Firing { alert, fine }) = self.open.get_mut(series) {
            if rule.limit.is_crossed(value, rule.slack) {
                *fine = None;
                // A figure that is back would make a sentence that is not true.
                alert.value = value;
            } else {
                fine.get_or_insert(now);
            }
            return None;
        }
        if !rule.limit.is_crossed(value, 0.0) {
            self.open.remove(series);
            return None;
        }
        let since = match self.open.get(series) {
            Some(State::Pending { since }) => *since,
            _ if !self.has_room(series.0) => {
                self.passed_over += 1;
                return None;
            }
            _ => now,
        };
        if now - since < rule.hold {
            self.open.insert(series.clone(), State::Pending { since });
            return None;
        }
        let alert = self.alert(rule, sample, value, since, now);
        let state = State::Firing { alert: alert.clone(), fine: None };
        self.open.insert(series.clone(), state);
        Some(Transition::Fired(alert))
    }

    fn alert(
        &mut self,
        rule: &Arc<Rule>,
        sample: &Sample,
        value: f64,
        since: Moment,
        now: Moment,
    ) -> Alert {
        let id = self.next;
        self.next += 1;
        let labels = rule.metric.labels.iter().copied().zip(sample.labels.iter().cloned());
        let labels = labels.filter(|(_, value)| !value.is_empty()).collect();
        Alert { id, rule: Arc::clone(rule), labels, value, since, fired: now, resolved: None }
    }

    fn has_room(&self, rule: usize) -> bool {
        let of_rule = self.open.keys().filter(|(index, _)| *index == rule).count();
        self.open.len() < MOST && of_rule < MOST_OF_A_RULE
    }

    /// What has no figure any more is not beyond the limit.
    fn miss(&mut self, seen: &HashSet<Series>, now: Moment) {
        self.open.retain(|series, state| match state {
            _ if seen.contains(series) => true,
            State::Pending { .. } => false,
            State::Firing { fine, .. } => {
                fine.get_or_insert(now);
                true
            }
        });
    }

    fn end(&mut self, now: Moment) -> Vec<Alert> {
        let resolve_after = self.resolve_after;
        let mut over = Vec::new();
        self.open.retain(|_, state| match state {
            State::Firing { alert, fine: Some(fine) } if now - *fine >= resolve_after => {
                alert.resolved = Some(now);
                over.push(alert.clone());
                false
            }
            _ => true,
        });
        for alert in &over {
            self.past.push_front(alert.clone());
        }
        self.past.truncate(PAST);
        over
    }
}

impl State {
    const fn alert(&self) -> Option<&Alert> {
        match self {
            Self::Pending { .. } => None,
            Self::Firing { alert, .. } => Some(alert),
        }
    }
}
