//! Selects the notifications of one receiver: each alert and state once, repeated after a while if
//! it still fires, within a rate limit.

use std::collections::{HashMap, HashSet, VecDeque};

use engine::alert::Alert;
use engine::model::{Nanos, Timestamp};

use super::notification::NotificationState;

/// Repetition and rate limit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RateLimit {
    /// Time after which a firing alert is repeated.
    pub(super) repeat_every: Option<Nanos>,
    /// Maximum number of messages per `per`.
    pub(super) at_most: usize,
    pub(super) per: Nanos,
}

/// State of one receiver.
pub(super) struct NotificationThrottle {
    pace: RateLimit,
    /// Alerts notified as firing, and the time of the last notification.
    notified: HashMap<u64, Timestamp>,
    /// Times of the last messages.
    sent: VecDeque<Timestamp>,
    /// Notifications that wait for the rate limit.
    suppressed_keys: HashSet<(u64, NotificationState)>,
    /// How many of them no message has reported yet.
    unreported: u64,
}

/// A notification that is due.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct DueNotification {
    pub(super) alert: Alert,
    pub(super) is_repeated: bool,
    /// Messages that were suppressed since the last one.
    pub(super) suppressed: u64,
}

impl NotificationThrottle {
    pub(super) fn new(pace: RateLimit) -> Self {
        Self {
            pace,
            notified: HashMap::new(),
            sent: VecDeque::new(),
            suppressed_keys: HashSet::new(),
            unreported: 0,
        }
    }

    /// Returns what is due now, highest severity first, and the number of newly suppressed
    /// messages.
    pub(super) fn due_notifications(
        &mut self,
        firing: &[&Alert],
        resolved: &[&Alert],
        now: Timestamp,
    ) -> (Vec<DueNotification>, u64) {
        let firing_due = firing.iter().filter_map(|alert| {
            let is_repeated = match (self.notified.get(&alert.id), self.pace.repeat_every) {
                (None, _) => false,
                (Some(notified), Some(interval)) if now - *notified >= interval => true,
                _ => return None,
            };
            Some((*alert, NotificationState::Firing, is_repeated))
        });
        let resolved_due = resolved.iter().filter(|alert| self.notified.contains_key(&alert.id));
        let resolved_due = resolved_due.map(|alert| (*alert, NotificationState::Resolved, false));
        let mut candidates: Vec<_> = firing_due.chain(resolved_due).collect();
        candidates.sort_by_key(|(alert, state, _)| {
            (std::cmp::Reverse((alert.rule.severity, *state)), alert.id)
        });
        let mut due = Vec::new();
        let mut suppressed = 0;
        for (alert, state, is_repeated) in candidates {
            if !self.has_room(now) {
                if self.suppressed_keys.insert((alert.id, state)) {
                    suppressed += 1;
                    self.unreported += 1;
                }
                continue;
            }
            due.push(self.emit(alert, state, is_repeated, now));
        }
        self.prune(firing, resolved);
        (due, suppressed)
    }

    fn emit(
        &mut self,
        alert: &Alert,
        state: NotificationState,
        is_repeated: bool,
        now: Timestamp,
    ) -> DueNotification {
        if self.suppressed_keys.remove(&(alert.id, state)) {
            self.unreported = self.unreported.saturating_sub(1);
        }
        match state {
            NotificationState::Firing => _ = self.notified.insert(alert.id, now),
            NotificationState::Resolved => _ = self.notified.remove(&alert.id),
        }
        self.sent.push_back(now);
        let suppressed = std::mem::take(&mut self.unreported);
        DueNotification { alert: alert.clone(), is_repeated, suppressed }
    }

    /// Whether a message of another kind may be sent now; it counts.
    pub(super) fn admit(&mut self, now: Timestamp) -> bool {
        let has_room = self.has_room(now);
        if has_room {
            self.sent.push_back(now);
        }
        has_room
    }

    fn has_room(&mut self, now: Timestamp) -> bool {
        while self.sent.front().is_some_and(|sent| now - *sent >= self.pace.per) {
            self.sent.pop_front();
        }
        self.sent.len() < self.pace.at_most
    }

    /// Drops alerts that no longer exist.
    fn prune(&mut self, firing: &[&Alert], resolved: &[&Alert]) {
        let known: HashSet<u64> = firing.iter().chain(resolved).map(|alert| alert.id).collect();
        let firing_ids: HashSet<u64> = firing.iter().map(|alert| alert.id).collect();
        self.notified.retain(|id, _| known.contains(id));
        self.suppressed_keys.retain(|(id, state)| match state {
            NotificationState::Firing => firing_ids.contains(id),
            NotificationState::Resolved => known.contains(id),
        });
    }
}
