//! A process held by a pidfd, so that its pid cannot be reused between the check and the signal.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use engine::model::ids::ProcessKey;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::serve::config::actions::ActionRule;

/// Nanoseconds per tick of the start times in `/proc`.
const CLOCK_TICK_NS: u64 = 10_000_000;

/// A process, as read from `/proc`.
pub(super) struct PidfdProcess {
    descriptor: OwnedFd,
    pub(super) name: String,
    uid: u32,
    cgroups: Vec<String>,
}

impl PidfdProcess {
    /// Opens a process, if it is still the expected one.
    pub(super) fn open(key: ProcessKey) -> Result<Self, String> {
        let pid = key.pid;
        if pid.0 <= 1 || pid.0 == std::process::id() {
            return Err("protected process".into());
        }
        let raw = i32::try_from(pid.0).ok().and_then(Pid::from_raw).ok_or("no such process")?;
        let descriptor = pidfd_open(raw, PidfdFlags::empty())
            .map_err(|error| format!("process exited: {error}"))?;
        // The pidfd refers to the current owner of the pid; the following reads identify it.
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{pid}/{file}"))
                .map_err(|error| format!("process exited: {error}"))
        };
        let start = start_ticks(&read("stat")?).ok_or("cannot read its start time")?;
        match key.start {
            // A process older than the agent has kept its pid since the agent started.
            0 if start < own_start()? => {}
            0 => {
                return Err("start time unknown: the pid may have been reused".into());
            }
            known if start != known / CLOCK_TICK_NS => {
                return Err("pid was reused".into());
            }
            _ => {}
        }
        let uid = fs::metadata(format!("/proc/{pid}")).map_err(|error| error.to_string())?.uid();
        let name = read("comm")?.trim_end_matches('\n').to_owned();
        let cgroups = read("cgroup").unwrap_or_default();
        let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        let cgroups = paths.map(str::to_owned).collect();
        Ok(Self { descriptor, name, uid, cgroups })
    }

    /// Whether a rule allows the action: all of its conditions must match.
    pub(super) fn matches(&self, allow: &ActionRule) -> bool {
        let user = allow.user.as_deref().is_none_or(|user| uid(user) == Some(self.uid));
        let name = allow.name.as_deref().is_none_or(|name| name_matches(name, &self.name));
        let cgroup = allow
            .cgroup
            .as_deref()
            .is_none_or(|expected| self.cgroups.iter().any(|path| is_in(path, expected)));
        let has_condition = allow.user.is_some() || allow.name.is_some() || allow.cgroup.is_some();
        has_condition && user && name && cgroup
    }

    /// Sends a signal.
    pub(super) fn signal(&self, number: i32) -> Result<(), String> {
        let signal = Signal::from_named_raw(number).ok_or("no such signal")?;
        pidfd_send_signal(&self.descriptor, signal).map_err(|error| error.to_string())
    }
}

/// Returns the start time of the agent, in ticks since boot.
fn own_start() -> Result<u64, String> {
    let stat = fs::read_to_string("/proc/self/stat").map_err(|error| error.to_string())?;
    start_ticks(&stat).ok_or_else(|| "cannot read the start time of the agent".into())
}

/// Returns the start time of a process, in ticks since boot: field 22, after a name that may
/// contain anything.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

/// Whether a name matches; a trailing `*` matches anything.
fn name_matches(expected: &str, name: &str) -> bool {
    expected.strip_suffix('*').map_or(expected == name, |begin| name.starts_with(begin))
}

/// Whether a cgroup is the expected one or below it.
fn is_in(path: &str, expected: &str) -> bool {
    let expected = expected.trim_end_matches('/');
    // The root contains every process.
    if expected.is_empty() {
        return false;
    }
    path.strip_prefix(expected).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the id of a user, by name or number.
pub(crate) fn uid(user: &str) -> Option<u32> {
    if let Ok(number) = user.parse() {
        return Some(number);
    }
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let line = users.lines().find(|line| line.split(':').next() == Some(user))?;
    line.split(':').nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_cgroups_match_as_written() {
        assert!(name_matches("python", "python") && name_matches("pyth*", "python3"));
        assert!(!name_matches("python", "python3") && !name_matches("pyth*", "cpython"));
        assert!(is_in("/user.slice/a", "/user.slice") && is_in("/user.slice", "/user.slice/"));
        assert!(!is_in("/user.slice", "//") && !is_in("/user.slice", ""));
        assert!(!is_in("/user.slice2", "/user.slice") && !is_in("/", "/user.slice"));
    }

    #[test]
    fn start_time_is_found_after_any_name() {
        let stat = "12 (a) b) (c) S 1 1 1 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1";
        assert_eq!(start_ticks(stat), Some(777));
        assert_eq!(start_ticks("12 (a"), None);
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        assert_eq!((uid("root"), uid("1234")), (Some(0), Some(1234)));
        assert_eq!(uid("no-such-user-name"), None);
    }
}
