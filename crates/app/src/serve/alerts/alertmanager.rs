//! Alertmanager protocol: all firing alerts are sent repeatedly, and resolved ones for a while.
//! Alertmanager does the grouping, repeating and silencing.

use engine::alert::Alert;
use engine::model::units::{Nanos, Timestamp};

/// Minimum time between two messages after a change.
const CHANGED_SEND_INTERVAL: Nanos = Nanos::from_millis(5_000);

/// Time between two messages without a change.
const RESEND_INTERVAL: Nanos = Nanos::from_millis(60_000);

/// Time after which Alertmanager resolves an alert that is not sent again.
pub(super) const ALERT_TTL: Nanos = Nanos(4 * RESEND_INTERVAL.0);

/// How long resolved alerts are sent.
const RESOLVED_RESEND_PERIOD: Nanos = Nanos(15 * RESEND_INTERVAL.0);

/// Selects what to send to Alertmanager.
#[derive(Default)]
pub(super) struct AlertmanagerSync {
    last: Option<Timestamp>,
    sent: Vec<(u64, bool)>,
}

impl AlertmanagerSync {
    /// Returns the alerts of the next message, if one is due.
    pub(super) fn due(
        &mut self,
        firing: &[&Alert],
        resolved: &[&Alert],
        now: Timestamp,
    ) -> Option<Vec<Alert>> {
        let recent =
            |alert: &&&Alert| alert.resolved.is_some_and(|end| now - end <= RESOLVED_RESEND_PERIOD);
        // An alert that resolved before it was sent never fired for Alertmanager.
        let known = |alert: &&&Alert| self.sent.iter().any(|(id, _)| *id == alert.id);
        let resolved = resolved.iter().filter(recent).filter(known);
        let all: Vec<Alert> = firing.iter().chain(resolved).map(|alert| (*alert).clone()).collect();
        let state: Vec<_> = all.iter().map(|alert| (alert.id, alert.resolved.is_some())).collect();
        let wait = if state == self.sent { RESEND_INTERVAL } else { CHANGED_SEND_INTERVAL };
        let is_time = self.last.is_none_or(|last| now - last >= wait);
        if all.is_empty() {
            self.sent.clear();
            return None;
        }
        is_time.then(|| {
            self.last = Some(now);
            self.sent = state;
            all
        })
    }
}
