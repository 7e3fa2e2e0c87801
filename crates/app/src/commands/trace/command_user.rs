//! The user that `-- CMD` runs as. Tracing requires root, but the command does not: with sudo it
//! runs as the user who called it, with that user's environment, so that its virtual environment
//! is found and its files belong to that user.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, bail};
use capture::command::RunAs;
use capture::users::{self, User};

/// Ancestors that are searched for sudo.
const MAX_ANCESTORS: usize = 8;

/// A user, with what the command needs to run as that user.
pub(super) struct CommandUser {
    /// Name.
    pub(super) name: String,
    pub(super) run_as: RunAs,
}

/// Returns the user of a command: the requested one, or else the one who called sudo. `None` if
/// this process already runs as that user.
pub(super) fn of_command(requested: Option<&str>) -> Result<Option<CommandUser>> {
    let own = fs::metadata("/proc/self").map(|own| own.uid()).ok();
    let is_root = own == Some(0);
    let caller = caller().filter(|_| is_root);
    let user = match requested {
        Some(name) => {
            let user = users::find(name);
            user.with_context(|| format!("unknown user `{name}`; --user takes a name or an id"))?
        }
        None => match &caller {
            Some(user) => user.clone(),
            None => return Ok(None),
        },
    };
    if user.uid == own.unwrap_or(0) {
        return Ok(None);
    }
    if !is_root {
        bail!("only root can run a command as {}", user.name);
    }
    let is_caller = caller.is_some_and(|caller| caller.uid == user.uid);
    let environment = if is_caller { sudo_environment() } else { None };
    let environment = environment.unwrap_or_else(|| login_environment(&user));
    let User { name, uid, gid, groups, .. } = user;
    Ok(Some(CommandUser { name, run_as: RunAs { uid, gid, groups, environment } }))
}

/// Returns the user who called sudo, if that is not root.
fn caller() -> Option<User> {
    let id = std::env::var("SUDO_UID").ok().filter(|id| id != "0")?;
    let gid = std::env::var("SUDO_GID").ok().and_then(|gid| gid.parse().ok());
    users::find(&id).or_else(|| {
        // A user of a directory service.
        let uid: u32 = id.parse().ok()?;
        Some(User {
            name: std::env::var("SUDO_USER").unwrap_or(id),
            uid,
            gid: gid?,
            home: std::env::var("SUDO_HOME").unwrap_or_else(|_| "/".to_owned()),
            shell: "/bin/sh".to_owned(),
            groups: Vec::new(),
        })
    })
}

/// Returns the environment that sudo was called with: sudo itself replaces most of it.
fn sudo_environment() -> Option<Vec<(OsString, OsString)>> {
    let mut pid = std::os::unix::process::parent_id();
    for _ in 0..MAX_ANCESTORS {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        if name.trim_end() == "sudo" {
            let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
            return Some(parse_environment(&bytes)).filter(|variables| !variables.is_empty());
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        pid = parent.trim().parse().ok().filter(|pid| *pid > 1)?;
    }
    None
}

/// Parses `name=value` pairs that end with zero bytes.
fn parse_environment(bytes: &[u8]) -> Vec<(OsString, OsString)> {
    let pairs = bytes.split(|byte| *byte == 0).filter_map(|pair| {
        let end = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (pair.get(..end)?, pair.get(end + 1..)?);
        let owned = |text: &[u8]| OsStr::from_bytes(text).to_os_string();
        (!name.is_empty()).then(|| (owned(name), owned(value)))
    });
    pairs.collect()
}

/// Returns the environment of this process with the variables of another user.
fn login_environment(user: &User) -> Vec<(OsString, OsString)> {
    let own = [
        ("HOME", &user.home),
        ("USER", &user.name),
        ("LOGNAME", &user.name),
        ("SHELL", &user.shell),
    ];
    let is_kept = |name: &OsString| {
        !own.iter().any(|(other, _)| name == other) && !name.as_bytes().starts_with(b"SUDO_")
    };
    let kept = std::env::vars_os().filter(|(name, _)| is_kept(name));
    kept.chain(own.map(|(name, value)| (name.into(), value.into()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_is_parsed_pair_by_pair() {
        let found = parse_environment(b"PATH=/a:/b\0EMPTY=\0=x\0broken\0A=b=c\0");
        let want = [("PATH", "/a:/b"), ("EMPTY", ""), ("A", "b=c")];
        assert_eq!(found, want.map(|(name, value)| (name.into(), value.into())));
    }

    #[test]
    fn login_environment_names_the_other_user() {
        let user = User {
            name: "ann".into(),
            uid: 1000,
            gid: 1000,
            home: "/home/ann".into(),
            shell: "/bin/zsh".into(),
            groups: Vec::new(),
        };
        let found = login_environment(&user);
        let value = |name: &str| found.iter().filter(|(own, _)| own == name).collect::<Vec<_>>();
        assert_eq!(value("HOME"), [&("HOME".into(), "/home/ann".into())]);
        assert_eq!(value("PATH").len(), 1);
    }
}
