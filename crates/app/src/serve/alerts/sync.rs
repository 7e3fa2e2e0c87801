//! What Alertmanager wants: all alerts that fire, again and again, and for a while those that are over.
//! It does the grouping, repeating and silencing itself.

use engine::alert::Alert;
use engine::units::{Moment, Nanos};

/// Between two messages when something changed.
const SOON: Nanos = Nanos::from_millis(5_000);

/// Between two messages when nothing did.
const REFRESH: Nanos = Nanos::from_millis(60_000);

/// How long an alert fires there when no further message comes.
pub(super) const VALID: Nanos = Nanos(4 * REFRESH.0);

/// How long alerts that are over are told.
const REMEMBER: Nanos = Nanos(15 * REFRESH.0);

/// See the module.
#[derive(Default)]
pub(super) struct Sync {
    last: Option<Moment>,
    told: Vec<(u64, bool)>,
}

impl Sync {
    /// The alerts of the next message, if it is time for one.
    pub(super) fn due(
        &mut self,
        firing: &[&Alert],
        over: &[&Alert],
        now: Moment,
    ) -> Option<Vec<Alert>> {
        let recent = |alert: &&&Alert| alert.resolved.is_some_and(|end| now - end <= REMEMBER);
        // What was over before anything was told of it never fired for Alertmanager.
        let known = |alert: &&&Alert| self.told.iter().any(|(id, _)| *id == alert.id);
        let over = over.iter().filter(recent).filter(known);
        let all: Vec<Alert> = firing.iter().chain(over).map(|alert| (*alert).clone()).collect();
        let state: Vec<_> = all.iter().map(|alert| (alert.id, alert.resolved.is_some())).collect();
        let wait = if state == self.told { REFRESH } else { SOON };
        let is_time = self.last.is_none_or(|last| now - last >= wait);
        if all.is_empty() {
            self.told.clear();
            return None;
        }
        is_time.then(|| {
            self.last = Some(now);
            self.told = state;
            all
        })
    }
}
