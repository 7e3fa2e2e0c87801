//! Notification about an alert, independent of the receiver. All text is sanitized.

use std::sync::Arc;

use engine::alert::{Alert, Severity};
use formats::WallClock;
use formats::sanitize::sanitize;

/// State that a notification reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum NotificationState {
    Firing,
    Resolved,
}

impl NotificationState {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Resolved => "resolved",
        }
    }
}

/// A notification.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Notification {
    pub(super) state: NotificationState,
    /// Rule name, as in the configuration.
    pub(super) rule: String,
    /// Rule name in the Prometheus style.
    pub(super) alert_name: String,
    pub(super) severity: Severity,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) summary: String,
    pub(super) advice: String,
    pub(super) value: f64,
    pub(super) threshold: f64,
    /// The value with its unit.
    pub(super) value_text: String,
    /// Time since which the value is beyond the threshold, RFC 3339.
    pub(super) since: String,
    /// Time at which the alert started firing.
    pub(super) fired: String,
    pub(super) resolved: Option<String>,
    /// The alert was notified before and is still firing.
    pub(super) is_repeated: bool,
    /// Messages that the rate limit suppressed since the last one.
    pub(super) suppressed: u64,
    pub(super) host: Arc<str>,
}

impl Notification {
    pub(super) fn new(alert: &Alert, clock: &WallClock, host: &Arc<str>) -> Self {
        let clean = |text: &str| sanitize(text).into_owned();
        Self {
            state: if alert.resolved.is_some() {
                NotificationState::Resolved
            } else {
                NotificationState::Firing
            },
            rule: clean(&alert.rule.name),
            alert_name: clean(&alert.rule.alert_name()),
            severity: alert.rule.severity,
            labels: alert.labels.iter().map(|(name, value)| (*name, clean(value))).collect(),
            summary: summary(alert),
            advice: sentence(&alert.advice()),
            value: alert.value,
            threshold: alert.rule.threshold.threshold_value(),
            value_text: clean(&alert.formatted_value()),
            since: clock.precise(alert.since),
            fired: clock.precise(alert.fired),
            resolved: alert.resolved.map(|time| clock.precise(time)),
            is_repeated: false,
            suppressed: 0,
            host: Arc::clone(host),
        }
    }

    /// Returns the summary, and the number of suppressed messages.
    pub(super) fn text(&self) -> String {
        match self.suppressed {
            0 => self.summary.clone(),
            1 => format!("{} (1 other message suppressed)", self.summary),
            more => format!("{} ({more} other messages suppressed)", self.summary),
        }
    }
}

/// Maximum length of a text; it may contain several labels.
const MAX_SUMMARY_CHARS: usize = 1024;

/// Returns the summary of an alert; marked if it has resolved.
pub(super) fn summary(alert: &Alert) -> String {
    match alert.resolved {
        None => sentence(&alert.summary()),
        Some(_) => sentence(&format!("no longer so: {}", alert.summary())),
    }
}

fn sentence(text: &str) -> String {
    formats::sanitize::sanitize_up_to(text, MAX_SUMMARY_CHARS).into_owned()
}

/// Returns the name of this host.
pub(super) fn host() -> Arc<str> {
    match &*crate::host::name() {
        "" => "localhost".into(),
        name => sanitize(name).as_ref().into(),
    }
}
