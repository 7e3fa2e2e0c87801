//! Alerts in the agent's log.

use engine::alert::Severity;

use super::notification::{Notification, NotificationState};
use crate::io::output;

/// Logs a notification, with a priority that the systemd journal understands.
pub(super) fn notify(notice: &Notification) {
    let level = match (notice.state, notice.severity) {
        (NotificationState::Resolved, _) => 5,
        (NotificationState::Firing, Severity::Info) => 6,
        (NotificationState::Firing, Severity::Warning) => 4,
        (NotificationState::Firing, Severity::Critical) => 2,
    };
    output::log_as(level, &line(notice));
}

/// `alert firing: leak_suspect (warning): …`.
pub(super) fn line(notice: &Notification) -> String {
    let prefix = if notice.is_repeated { " still" } else { "" };
    let advice = match notice.state {
        NotificationState::Firing if !notice.advice.is_empty() => format!(". {}", notice.advice),
        _ => String::new(),
    };
    format!(
        "alert{prefix} {}: {} ({}): {}{advice}",
        notice.state.name(),
        notice.rule,
        notice.severity.name(),
        notice.text(),
    )
}
