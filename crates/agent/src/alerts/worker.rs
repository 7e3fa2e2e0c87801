//! Evaluates the rules on metrics and passes the alerts to the notifiers and the API.

use engine::alert::{Alert, AlertEvaluator};
use engine::metrics::MetricSet;
use engine::model::units::Timestamp;
use formats::WallClock;
use formats::sanitize::sanitize;

use super::notifier::Notifier;
use super::{AlertStore, AlertView};
use crate::config::alerts::AlertsConfig;
use crate::incidents::IncidentNotice;

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

    /// Sends messages about incidents.
    pub(super) fn announce(
        &mut self,
        notices: &[IncidentNotice],
        now: Timestamp,
        store: &AlertStore,
    ) {
        for notifier in &mut self.notifiers {
            for notice in notices {
                notifier.notify_incident(notice, now, store);
            }
        }
    }

    /// Number of alerts dropped because there were too many.
    pub(super) const fn dropped(&self) -> u64 {
        self.evaluator.dropped_alerts()
    }
}

fn view(alert: &Alert, clock: &WallClock) -> AlertView {
    let labels = alert.labels.iter();
    AlertView {
        rule: alert.rule.name,
        severity: alert.rule.severity.name(),
        labels: labels.map(|(name, value)| (*name, sanitize(value).into_owned())).collect(),
        summary: super::notification::summary(alert),
        value: alert.value,
        since: clock.precise(alert.since),
        resolved: alert.resolved.map(|time| clock.precise(time)),
    }
}
