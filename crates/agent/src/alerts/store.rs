//! Current alerts, for the API and metrics.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use engine::alert::Alert;
use formats::WallClock;
use serde::Serialize;

use super::notification::{labels, summary};
use crate::OutcomeCounter;

/// A firing or resolved alert, as the API and metrics show it. All text is sanitized.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct AlertView {
    /// Name of the rule.
    pub(crate) rule: &'static str,
    /// Severity: `info`, `warning` or `critical`.
    pub(crate) severity: &'static str,
    /// Labels of the metric that fired.
    pub(crate) labels: BTreeMap<&'static str, String>,
    /// Description, one sentence.
    pub(crate) summary: String,
    /// Value of the metric.
    pub(crate) value: f64,
    /// Time of the first violation, RFC 3339.
    pub(crate) since: String,
    /// Time at which it resolved.
    pub(crate) resolved: Option<String>,
}

impl AlertView {
    pub(super) fn new(alert: &Alert, clock: &WallClock) -> Self {
        Self {
            rule: alert.rule.name,
            severity: alert.rule.severity.name(),
            labels: labels(alert),
            summary: summary(alert),
            value: alert.value,
            since: clock.precise(alert.since),
            resolved: alert.resolved.map(|time| clock.precise(time)),
        }
    }
}

/// Current alerts, followed by resolved ones.
#[derive(Default)]
pub(crate) struct AlertStore {
    alerts: Mutex<Vec<AlertView>>,
    /// Notifications by receiver (`log`, `webhook` or `command`) and outcome (`sent`, `failed`,
    /// `suppressed` or `dropped`).
    pub(crate) notified: OutcomeCounter,
}

impl AlertStore {
    /// Returns the alerts.
    pub(crate) fn list(&self) -> Vec<AlertView> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the alerts.
    pub(crate) fn show(&self, alerts: Vec<AlertView>) {
        *self.alerts.lock().unwrap_or_else(PoisonError::into_inner) = alerts;
    }
}
