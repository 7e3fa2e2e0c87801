//! Alerts in the agent's log.

use engine::alert::Severity;

use super::notification::{Notification, NotificationState};
use crate::io::output;

/// Logs a notification, with a priority that the systemd journal understands.
pub(super) fn notify(notification: &Notification) {
    let level = match (notification.state, notification.severity) {
        (NotificationState::Resolved, _) => 5,
        (NotificationState::Firing, Severity::Info) => 6,
        (NotificationState::Firing, Severity::Warning) => 4,
        (NotificationState::Firing, Severity::Critical) => 2,
    };
    output::log_as(level, &line(notification));
}

/// `alert firing: leak_suspect (warning): …`.
pub(super) fn line(notification: &Notification) -> String {
    let prefix = if notification.is_repeated { " still" } else { "" };
    let advice = match notification.state {
        NotificationState::Firing if !notification.advice.is_empty() => {
            format!(". {}", notification.advice)
        }
        _ => String::new(),
    };
    format!(
        "alert{prefix} {}: {} ({}): {}{advice}",
        notification.state.name(),
        notification.rule,
        notification.severity.name(),
        notification.text(),
    )
}
