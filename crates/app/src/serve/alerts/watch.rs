//! Evaluates the rules on metrics and passes the alerts to the notifiers and the API.

use std::time::{Duration, Instant};

use engine::alert::{Alert, Book};
use engine::metrics::Figures;
use engine::units::Moment;
use formats::WallClock;
use formats::plain::plain;

use super::outlet::Outlet;
use super::{AlertView, Board};
use crate::serve::config::alerts::Alerts;

/// Rules and receivers.
pub(super) struct Watch {
    evaluator: Book,
    notifiers: Vec<Outlet>,
}

impl Watch {
    pub(super) fn new(config: &Alerts, notifiers: Vec<Outlet>) -> Self {
        Self { evaluator: Book::new(config.rules(), config.keep_firing_for.nanos()), notifiers }
    }

    /// Evaluates the rules at one time.
    pub(super) fn look(
        &mut self,
        metrics: &Figures,
        now: Moment,
        clock: &WallClock,
        store: &Board,
    ) {
        self.evaluator.look(metrics, now);
        let firing = self.evaluator.firing();
        let resolved: Vec<&Alert> = self.evaluator.past().collect();
        for notifier in &mut self.notifiers {
            notifier.tell(&firing, &resolved, now, clock, store);
        }
        store.show(firing.into_iter().chain(resolved).map(|alert| view(alert, clock)).collect());
    }

    /// Number of alerts dropped because there were too many.
    pub(super) const fn dropped(&self) -> u64 {
        self.evaluator.passed_over()
    }

    /// Returns the reason why the thread of a receiver exited, if one did.
    pub(super) fn failure(&mut self) -> Option<anyhow::Error> {
        self.notifiers.iter_mut().find_map(Outlet::failure)
    }

    /// Ends the notifiers; queued messages may take up to `timeout`.
    pub(super) fn finish(self, timeout: Duration) {
        let end = Instant::now() + timeout;
        for notifier in &self.notifiers {
            notifier.close();
        }
        for notifier in self.notifiers {
            notifier.finish(end);
        }
    }
}

fn view(alert: &Alert, clock: &WallClock) -> AlertView {
    let labels = alert.labels.iter();
    AlertView {
        rule: plain(&alert.rule.name).into_owned(),
        severity: alert.rule.severity.name().into(),
        labels: labels.map(|(name, value)| ((*name).into(), plain(value).into_owned())).collect(),
        summary: super::notice::summary(alert),
        value: alert.value,
        since: clock.precise(alert.since),
        resolved: alert.resolved.map(|time| clock.precise(time)),
    }
}
