//! What is told of an alert, whoever it is told to. All text is clean.

use std::sync::Arc;

use engine::alert::{Alert, Severity};
use formats::WallClock;
use formats::plain::plain;

/// What became of an alert.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum State {
    Firing,
    Resolved,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Firing => "firing",
            Self::Resolved => "resolved",
        }
    }
}

/// One message.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Notice {
    pub(super) state: State,
    /// The rule, as the configuration has it.
    pub(super) rule: String,
    /// The rule in the form of Prometheus.
    pub(super) alert_name: String,
    pub(super) severity: Severity,
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) summary: String,
    pub(super) advice: String,
    pub(super) value: f64,
    pub(super) limit: f64,
    /// The value in words.
    pub(super) figure: String,
    /// Since when the figure is beyond the limit, RFC 3339.
    pub(super) since: String,
    /// When it began to fire.
    pub(super) fired: String,
    pub(super) resolved: Option<String>,
    /// It was told before, and goes on.
    pub(super) is_repeated: bool,
    /// Messages that the limit held back since the last one.
    pub(super) held_back: u64,
    pub(super) host: Arc<str>,
}

impl Notice {
    pub(super) fn new(alert: &Alert, clock: &WallClock, host: &Arc<str>) -> Self {
        let clean = |text: &str| plain(text).into_owned();
        Self {
            state: if alert.resolved.is_some() { State::Resolved } else { State::Firing },
            rule: clean(&alert.rule.name),
            alert_name: clean(&alert.rule.alert_name()),
            severity: alert.rule.severity,
            labels: alert.labels.iter().map(|(name, value)| (*name, clean(value))).collect(),
            summary: summary(alert),
            advice: sentence(&alert.advice()),
            value: alert.value,
            limit: alert.rule.limit.number(),
            figure: clean(&alert.value_in_words()),
            since: clock.precise(alert.since),
            fired: clock.precise(alert.fired),
            resolved: alert.resolved.map(|moment| clock.precise(moment)),
            is_repeated: false,
            held_back: 0,
            host: Arc::clone(host),
        }
    }

    /// The summary, and what the limit held back.
    pub(super) fn text(&self) -> String {
        match self.held_back {
            0 => self.summary.clone(),
            1 => format!("{} (1 other message suppressed)", self.summary),
            more => format!("{} ({more} other messages suppressed)", self.summary),
        }
    }
}

/// The longest sentence: several labels may be in it.
const LONGEST: usize = 1024;

/// What is the matter; of an alert that is over, what was.
pub(super) fn summary(alert: &Alert) -> String {
    match alert.resolved {
        None => sentence(&alert.summary()),
        Some(_) => sentence(&format!("no longer so: {}", alert.summary())),
    }
}

fn sentence(text: &str) -> String {
    formats::plain::plain_up_to(text, LONGEST).into_owned()
}

/// The name of this host.
pub(super) fn host() -> Arc<str> {
    match &*crate::host::name() {
        "" => "localhost".into(),
        name => plain(name).as_ref().into(),
    }
}
