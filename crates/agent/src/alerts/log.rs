//! Alerts in the agent's log.

use engine::alert::Severity;

use super::notification::{Notification, NotificationState};

/// Logs a notification at the level of its severity.
pub(super) fn notify(notification: &Notification) {
    let line = line(notification);
    match (notification.state, notification.severity) {
        (NotificationState::Firing, Severity::Critical) => tracing::error!("{line}"),
        (NotificationState::Firing, Severity::Warning) => tracing::warn!("{line}"),
        _ => tracing::info!("{line}"),
    }
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
