//! Messages for Slack's incoming webhooks and compatible services. `docs/operations/alerts.md` shows
//! one.

use engine::alert::Severity;
use serde_json::{Value, json};

use super::notification::{Notification, NotificationState};

/// Returns the message.
pub(super) fn message(notification: &Notification) -> Value {
    let color = match (notification.state, notification.severity) {
        (NotificationState::Resolved, _) => "good",
        (NotificationState::Firing, Severity::Critical) => "danger",
        (NotificationState::Firing, Severity::Warning) => "warning",
        (NotificationState::Firing, Severity::Info) => "#439fe0",
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
