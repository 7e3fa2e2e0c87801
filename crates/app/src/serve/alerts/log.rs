//! Alerts in the agent's log.

use engine::alert::Severity;

use super::notice::{Notice, State};
use crate::output;

/// Logs a notification, with a priority that the systemd journal understands.
pub(super) fn tell(notice: &Notice) {
    let level = match (notice.state, notice.severity) {
        (State::Resolved, _) => 5,
        (State::Firing, Severity::Info) => 6,
        (State::Firing, Severity::Warning) => 4,
        (State::Firing, Severity::Critical) => 2,
    };
    output::complain_as(level, &line(notice));
}

/// `alert firing: leak_suspect (warning): …`.
pub(super) fn line(notice: &Notice) -> String {
    let prefix = if notice.is_repeated { " still" } else { "" };
    let advice = match notice.state {
        State::Firing if !notice.advice.is_empty() => format!(". {}", notice.advice),
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
