//! Evaluates the rules on metrics and passes the alerts to the notifiers and the API.

use std::time::{Duration, Instant};

use engine::alert::{Alert, AlertEvaluator};
use engine::metrics::MetricSet;
use engine::model::units::Timestamp;
use formats::WallClock;
use formats::sanitize::sanitize;

use super::notifier::Notifier;
use super::{AlertStore, AlertView};
use crate::serve::config::alerts::AlertsConfig;

/// Rules and receivers.
pub(super) struct AlertWorker {
    evaluator: AlertEvaluator,
    notifiers: Vec<Notifier>,
}

impl AlertWorker {
    pub(super) fn new(config: &AlertsConfig, notifiers: Vec<Notifier>) -> Self {
        Self {
            evaluator: AlertEvaluator::new(config.rules(), config.keep_firing_for.nanos()),
            notifiers,
        }
    }

    /// Evaluates the rules at one time.
    pub(super) fn evaluate(
        &mut self,
        metrics: &MetricSet,
        now: Timestamp,
        clock: &WallClock,
        store: &AlertStore,
    ) {
        self.evaluator.evaluate(metrics, now);
        let firing = self.evaluator.firing();
        let resolved: Vec<&Alert> = self.evaluator.resolved().collect();
        for notifier in &mut self.notifiers {
            notifier.notify(&firing, &resolved, now, clock, store);
        }
        store.show(firing.into_iter().chain(resolved).map(|alert| view(alert, clock)).collect());
    }

    /// Number of alerts dropped because there were too many.
    pub(super) const fn dropped(&self) -> u64 {
        self.evaluator.dropped_alerts()
    }

    /// Returns the reason why the thread of a receiver exited, if one did.
    pub(super) fn failure(&mut self) -> Option<anyhow::Error> {
        self.notifiers.iter_mut().find_map(Notifier::failure)
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
        rule: sanitize(&alert.rule.name).into_owned(),
        severity: alert.rule.severity.name().into(),
        labels: labels
            .map(|(name, value)| ((*name).into(), sanitize(value).into_owned()))
            .collect(),
        summary: super::notification::summary(alert),
        value: alert.value,
        since: clock.precise(alert.since),
        resolved: alert.resolved.map(|time| clock.precise(time)),
    }
}
