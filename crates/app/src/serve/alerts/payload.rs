//! Payload formats of receivers. `docs/operations/alerts.md` shows each.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::notification::{Notification, NotificationState};

/// Version of [`json()`]: fields are added, never renamed.
const VERSION: u32 = 1;

/// The native format: one alert per message.
pub(super) fn json(notification: &Notification) -> String {
    #[derive(Serialize)]
    struct JsonPayload<'n> {
        version: u32,
        state: &'static str,
        rule: &'n str,
        severity: &'static str,
        summary: &'n str,
        advice: &'n str,
        labels: BTreeMap<&'n str, &'n str>,
        value: f64,
        threshold: f64,
        since: &'n str,
        resolved: Option<&'n str>,
        host: &'n str,
        repeated: bool,
        suppressed: u64,
    }
    let message = JsonPayload {
        version: VERSION,
        state: notification.state.name(),
        rule: &notification.rule,
        severity: notification.severity.name(),
        summary: &notification.summary,
        advice: &notification.advice,
        labels: notification.labels.iter().map(|(name, value)| (*name, value.as_str())).collect(),
        value: notification.value,
        threshold: notification.threshold,
        since: &notification.since,
        resolved: notification.resolved.as_deref(),
        host: &notification.host,
        repeated: notification.is_repeated,
        suppressed: notification.suppressed,
    };
    serde_json::to_string(&message).unwrap_or_default()
}

/// The format of Alertmanager's `/api/v2/alerts`: alerts, each with the time until which it is
/// valid.
pub(super) fn alertmanager(
    notifications: &[Notification],
    valid_until: &str,
    source: &str,
) -> String {
    let alerts: Vec<Value> = notifications
        .iter()
        .map(|notification| {
            let mut labels: BTreeMap<&str, &str> =
                notification.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            labels.insert("alertname", &notification.alert_name);
            labels.insert("severity", notification.severity.name());
            labels.insert("job", "vramscope");
            labels.insert("instance", &notification.host);
            json!({
                "labels": labels,
                "annotations": {
                    "summary": notification.summary,
                    "description": format!("Current value: {}.", notification.value_text),
                    "action": notification.advice,
                },
                "startsAt": notification.fired,
                "endsAt": notification.resolved.as_deref().unwrap_or(valid_until),
                "generatorURL": source,
            })
        })
        .collect();
    Value::from(alerts).to_string()
}

/// The format of Slack's incoming webhooks and compatible services.
pub(super) fn slack(notification: &Notification) -> String {
    let color = match (notification.state, notification.severity.name()) {
        (NotificationState::Resolved, _) => "good",
        (NotificationState::Firing, "critical") => "danger",
        (NotificationState::Firing, "warning") => "warning",
        (NotificationState::Firing, _) => "#439fe0",
    };
    let head = match notification.state {
        NotificationState::Firing => {
            format!("[{}] {}", notification.severity.name().to_uppercase(), notification.rule)
        }
        NotificationState::Resolved => format!("[RESOLVED] {}", notification.rule),
    };
    let fields: Vec<Value> = notification
        .labels
        .iter()
        .map(|(name, value)| json!({"title": name, "value": escape(value), "short": value.len() < 40}))
        .collect();
    let text = escape(&notification.text());
    json!({
        "text": format!("{head} on {}: {text}", escape(&notification.host)),
        "attachments": [{
            "color": color,
            "fallback": text,
            "title": head,
            "text": neutralize(&notification.advice),
            "fields": fields,
            "footer": format!("vramscope on {}", escape(&notification.host)),
        }],
    })
    .to_string()
}

/// Escapes Slack's control characters and markup of compatible services, so that `<!channel>` and
/// `@all` notify no user and nothing becomes bold, code or a link. Look-alike characters replace
/// them.
fn escape(text: &str) -> String {
    neutralize(text).replace('`', "\u{2cb}")
}

/// The same without backticks, for the agent's own advice, which contains commands.
fn neutralize(text: &str) -> String {
    let mut out = String::new();
    let mut previous = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let is_word_char = |neighbor: Option<&char>| neighbor.is_some_and(|c| c.is_alphanumeric());
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '@' => out.push('\u{ff20}'),
            '*' => out.push('\u{2217}'),
            '~' => out.push('\u{223c}'),
            // Inside a word it is not markup.
            '_' if !is_word_char(previous.as_ref()) || !is_word_char(chars.peek()) => {
                out.push('\u{ff3f}');
            }
            '(' if previous == Some(']') => out.push_str(" ("),
            _ => out.push(c),
        }
        previous = Some(c);
    }
    out
}
