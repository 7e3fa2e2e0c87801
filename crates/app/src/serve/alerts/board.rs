//! Alerts as they stand, for the API and metrics.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::serve::Tally;

/// An alert that fires or fired, as the API and metrics tell it. All text is clean.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct AlertView {
    /// The rule.
    pub(crate) rule: String,
    /// How bad it is: `info`, `warning`, `critical`.
    pub(crate) severity: String,
    /// Whom or what it is about: labels of the metric.
    pub(crate) labels: Vec<(String, String)>,
    /// What is the matter, in a sentence.
    pub(crate) summary: String,
    /// The figure that did it.
    pub(crate) value: f64,
    /// Since when, RFC 3339.
    pub(crate) since: String,
    /// When it was over.
    pub(crate) resolved: Option<String>,
}

/// The alerts as they stand, those that are over at the end.
#[derive(Default)]
pub(crate) struct Board {
    alerts: Mutex<Vec<AlertView>>,
    /// Notifications by receiver and outcome.
    pub(crate) notified: Tally,
}

impl Board {
    /// The alerts.
    pub(crate) fn list(&self) -> Vec<AlertView> {
        self.alerts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes the place of what was there.
    pub(crate) fn show(&self, alerts: Vec<AlertView>) {
        *self.alerts.lock().unwrap_or_else(PoisonError::into_inner) = alerts;
    }

    /// Counts a notification: `log`, `webhook` or `command`; `sent`, `failed`, `suppressed` or
    /// `dropped`.
    pub(crate) fn count(&self, action: &'static str, outcome: &'static str) {
        self.notified.count(action, outcome, 1);
    }
}
