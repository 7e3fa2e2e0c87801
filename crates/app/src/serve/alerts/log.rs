//! Alerts in the agent's own messages.

use engine::alert::Severity;

use super::notice::{Notice, State};
use crate::output;

/// Tells it on stderr; the journal of systemd is told how bad it is.
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
    let again = if notice.is_repeated { " still" } else { "" };
    let advice = match notice.state {
        State::Firing if !notice.advice.is_empty() => format!(". {}", notice.advice),
        _ => String::new(),
    };
    format!(
        "alert{again} {}: {} ({}): {}{advice}",
        notice.state.name(),
        notice.rule,
        notice.severity.name(),
        notice.text(),
    )
}
