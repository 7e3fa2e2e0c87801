//! Current alerts, for the API and metrics.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::serve::OutcomeCounter;

/// A firing or resolved alert, as the API and metrics show it. All text is sanitized.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct AlertView {
    /// Name of the rule.
    pub(crate) rule: String,
    /// Severity: `info`, `warning` or `critical`.
    pub(crate) severity: String,
    /// Labels of the metric that fired.
    pub(crate) labels: Vec<(String, String)>,
    /// Description, one sentence.
    pub(crate) summary: String,
    /// Value of the metric.
    pub(crate) value: f64,
    /// Time of the first violation, RFC 3339.
    pub(crate) since: String,
    /// Time at which it resolved.
    pub(crate) resolved: Option<String>,
}

/// Current alerts, followed by resolved ones.
#[derive(Default)]
pub(crate) struct AlertStore {
    alerts: Mutex<Vec<AlertView>>,
    /// Notifications by receiver and outcome.
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

    /// Counts a notification. Receiver: `log`, `webhook` or `command`; outcome: `sent`, `failed`,
    /// `suppressed` or `dropped`.
    pub(crate) fn count(&self, receiver: &'static str, outcome: &'static str) {
        self.notified.count(receiver, outcome, 1);
    }
}
