//! Notification about an alert or an incident, independent of the receiver. All text is sanitized.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::alert::{Alert, Severity};
use formats::WallClock;
use formats::sanitize::{sanitize, sanitize_up_to};
use serde::{Serialize, Serializer};

use crate::config::alerts::INCIDENT_RULE;
use crate::incidents::IncidentNotice;

/// Version of the JSON format: fields are added, never renamed.
const VERSION: u32 = 1;

/// State that a notification reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
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

/// A notification; serialized it is the JSON message.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Notification {
    pub(super) version: u32,
    pub(super) state: NotificationState,
    pub(super) rule: &'static str,
    #[serde(serialize_with = "severity_name")]
    pub(super) severity: Severity,
    pub(super) summary: String,
    pub(super) advice: String,
    pub(super) labels: BTreeMap<&'static str, String>,
    pub(super) value: f64,
    pub(super) threshold: f64,
    /// Time since which the value is beyond the threshold, RFC 3339.
    pub(super) since: String,
    pub(super) resolved: Option<String>,
    pub(super) host: String,
    /// The alert was notified before and is still firing.
    #[serde(rename = "repeated")]
    pub(super) is_repeated: bool,
    /// Messages that the rate limit suppressed since the last one.
    pub(super) suppressed: u64,
    /// The incident, if the notification is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) incident: Option<IncidentNotice>,
}

fn severity_name<S: Serializer>(severity: &Severity, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(severity.name())
}

impl Notification {
    pub(super) fn new(alert: &Alert, clock: &WallClock, host: &Arc<str>) -> Self {
        Self {
            version: VERSION,
            state: match alert.resolved {
                Some(_) => NotificationState::Resolved,
                None => NotificationState::Firing,
            },
            rule: alert.rule.name,
            severity: alert.rule.severity,
            summary: summary(alert),
            advice: sentence(&alert.advice()),
            labels: labels(alert),
            value: alert.value,
            threshold: alert.rule.threshold.threshold_value(),
            since: clock.precise(alert.since),
            resolved: alert.resolved.map(|time| clock.precise(time)),
            host: host.to_string(),
            is_repeated: false,
            suppressed: 0,
            incident: None,
        }
    }

    /// Returns the notification about an incident.
    pub(super) fn of_incident(notice: &IncidentNotice, host: &Arc<str>) -> Self {
        let labels = [
            ("trigger", Some(notice.trigger.to_owned())),
            ("cause", notice.cause.clone()),
            ("gpu", notice.gpu.map(|gpu| gpu.to_string())),
            ("pid", notice.pid.map(|pid| pid.to_string())),
            ("process", notice.process.clone()),
        ];
        Self {
            version: VERSION,
            state: NotificationState::Firing,
            rule: INCIDENT_RULE,
            severity: notice.severity(),
            summary: sentence(&notice.title),
            advice: format!("Read summary.txt in {}.", notice.dir),
            labels: labels.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
            value: notice.requested_bytes.unwrap_or_default() as f64,
            threshold: 0.0,
            since: notice.time.clone(),
            resolved: None,
            host: host.to_string(),
            is_repeated: false,
            suppressed: 0,
            incident: Some(notice.clone()),
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

    /// Returns the environment variables of a command. The text is sanitized, so no value contains
    /// a zero byte.
    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let fields = [
            ("RULE", self.rule.into()),
            ("STATE", self.state.name().into()),
            ("SEVERITY", self.severity.name().into()),
            ("SUMMARY", self.summary.clone()),
            ("ADVICE", self.advice.clone()),
            ("VALUE", self.value.to_string()),
            ("THRESHOLD", self.threshold.to_string()),
            ("SINCE", self.since.clone()),
            ("RESOLVED", self.resolved.clone().unwrap_or_default()),
            ("HOST", self.host.clone()),
            ("REPEATED", self.is_repeated.to_string()),
            ("SUPPRESSED", self.suppressed.to_string()),
        ];
        let incident = self.incident.as_ref().map(IncidentNotice::environment);
        let fields = fields.into_iter().chain(incident.into_iter().flatten());
        let fields = fields.map(|(name, value)| (format!("VRAMSCOPE_{name}"), value));
        let labels = self.labels.iter().map(|(name, value)| {
            (format!("VRAMSCOPE_LABEL_{}", name.to_uppercase()), value.clone())
        });
        fields.chain(labels).collect()
    }
}

/// Maximum length of a text; it may contain several labels.
const MAX_SUMMARY_CHARS: usize = 1024;

/// Returns the labels of an alert.
pub(super) fn labels(alert: &Alert) -> BTreeMap<&'static str, String> {
    alert.labels.iter().map(|(name, value)| (*name, sanitize(value).into_owned())).collect()
}

/// Returns the summary of an alert; marked if it has resolved.
pub(super) fn summary(alert: &Alert) -> String {
    match alert.resolved {
        None => sentence(&alert.summary()),
        Some(_) => sentence(&format!("no longer so: {}", alert.summary())),
    }
}

fn sentence(text: &str) -> String {
    sanitize_up_to(text, MAX_SUMMARY_CHARS).into_owned()
}

/// Returns the name of this host.
pub(super) fn host() -> Arc<str> {
    match &*formats::hostname::name() {
        "" => "localhost".into(),
        name => sanitize(name).as_ref().into(),
    }
}
