//! What one action has told, and what it should tell now: each alert and state once, again after a
//! while where it goes on, and never too much in a short time.

use std::collections::{HashMap, HashSet, VecDeque};

use engine::alert::Alert;
use engine::units::{Moment, Nanos};

use super::notice::State;

/// How often, and how much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Pace {
    /// Alerts that go on are told again.
    pub(super) repeat_every: Option<Nanos>,
    /// Messages in the time `per`.
    pub(super) at_most: usize,
    pub(super) per: Nanos,
}

/// See the module.
pub(super) struct Teller {
    pace: Pace,
    /// Alerts that were told to fire, and when last.
    told: HashMap<u64, Moment>,
    /// When the last messages went out.
    sent: VecDeque<Moment>,
    /// What waits for the limit.
    held: HashSet<(u64, State)>,
    /// How much of that no message told yet.
    held_untold: u64,
}

/// A message that is due.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Due {
    pub(super) alert: Alert,
    pub(super) is_repeated: bool,
    /// Messages that were held back since the last one.
    pub(super) held_back: u64,
}

impl Teller {
    pub(super) fn new(pace: Pace) -> Self {
        Self {
            pace,
            told: HashMap::new(),
            sent: VecDeque::new(),
            held: HashSet::new(),
            held_untold: 0,
        }
    }

    /// What is due now, the worst first, and how many messages the limit held back that it did not
    /// hold back before.
    pub(super) fn due(
        &mut self,
        firing: &[&Alert],
        over: &[&Alert],
        now: Moment,
    ) -> (Vec<Due>, u64) {
        let firing_due = firing.iter().filter_map(|alert| {
            let again = match (self.told.get(&alert.id), self.pace.repeat_every) {
                (None, _) => false,
                (Some(told), Some(every)) if now - *told >= every => true,
                _ => return None,
            };
            Some((*alert, State::Firing, again))
        });
        let over_due = over.iter().filter(|alert| self.told.contains_key(&alert.id));
        let over_due = over_due.map(|alert| (*alert, State::Resolved, false));
        let mut candidates: Vec<_> = firing_due.chain(over_due).collect();
        candidates.sort_by_key(|(alert, state, _)| {
            (std::cmp::Reverse((alert.rule.severity, *state)), alert.id)
        });
        let mut due = Vec::new();
        let mut held_back = 0;
        for (alert, state, is_repeated) in candidates {
            if !self.has_room(now) {
                if self.held.insert((alert.id, state)) {
                    held_back += 1;
                    self.held_untold += 1;
                }
                continue;
            }
            due.push(self.tell(alert, state, is_repeated, now));
        }
        self.forget(firing, over);
        (due, held_back)
    }

    fn tell(&mut self, alert: &Alert, state: State, is_repeated: bool, now: Moment) -> Due {
        if self.held.remove(&(alert.id, state)) {
            self.held_untold = self.held_untold.saturating_sub(1);
        }
        match state {
            State::Firing => _ = self.told.insert(alert.id, now),
            State::Resolved => _ = self.told.remove(&alert.id),
        }
        self.sent.push_back(now);
        let held_back = std::mem::take(&mut self.held_untold);
        Due { alert: alert.clone(), is_repeated, held_back }
    }

    fn has_room(&mut self, now: Moment) -> bool {
        while self.sent.front().is_some_and(|sent| now - *sent >= self.pace.per) {
            self.sent.pop_front();
        }
        self.sent.len() < self.pace.at_most
    }

    /// Alerts that nobody remembers any more.
    fn forget(&mut self, firing: &[&Alert], over: &[&Alert]) {
        let known: HashSet<u64> = firing.iter().chain(over).map(|alert| alert.id).collect();
        let burning: HashSet<u64> = firing.iter().map(|alert| alert.id).collect();
        self.told.retain(|id, _| known.contains(id));
        self.held.retain(|(id, state)| match state {
            State::Firing => burning.contains(id),
            State::Resolved => known.contains(id),
        });
    }
}
