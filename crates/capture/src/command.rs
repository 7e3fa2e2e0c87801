//! Starts a command suspended before its first instruction, so that the probes can be attached
//! before it does anything.
//!
//! The child first runs this program again as a *launcher*, which waits for a byte on a pipe and
//! then becomes the command: same pid, environment, standard streams and exit status.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use engine::model::ids::Pid;

use crate::error::Error;

/// The argument that makes this program a launcher; see [`run_launcher`].
pub const LAUNCHER_ARG: &str = "__launch";

/// A command that is suspended before its first instruction.
#[derive(Debug)]
pub struct SuspendedCommand {
    child: Child,
    start_pipe: File,
}

/// A running command.
#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
}

/// Standard streams of the command.
#[derive(Clone, Copy, Debug)]
pub enum StandardStreams<'a> {
    /// Those of this program.
    Same,
    /// The same, but output goes to standard error, because a program reads the standard output of
    /// this one.
    OutputToError,
    /// Output and errors go to a file and there is no input, because this program uses the terminal.
    File(&'a File),
}

impl StandardStreams<'_> {
    fn apply(self, launcher: &mut Command) -> io::Result<()> {
        match self {
            Self::Same => {}
            Self::OutputToError => {
                launcher.stdout(io::stderr().as_fd().try_clone_to_owned()?);
            }
            Self::File(file) => {
                launcher.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
            }
        }
        Ok(())
    }
}

/// User and environment of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunAs {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The whole environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// Starts `command` suspended before its first instruction, with additional environment variables;
/// as another user if `run_as` is given.
pub fn spawn_suspended(
    command: &[OsString],
    streams: StandardStreams<'_>,
    environment: &[(OsString, OsString)],
    run_as: Option<&RunAs>,
) -> Result<SuspendedCommand, Error> {
    let name = command.first().map_or_else(String::new, |c| c.to_string_lossy().into_owned());
    let failed = |source| Error::Command { command: name.clone(), source };
    let program = command.first().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let path = match run_as {
        Some(user) => {
            user.environment.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.clone())
        }
        None => std::env::var_os("PATH"),
    };
    find(program, &path.unwrap_or_default()).map_err(failed)?;
    let (reader, start_pipe) = pipe().map_err(failed)?;
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg(LAUNCHER_ARG).arg(reader.as_raw_fd().to_string()).args(command);
    streams.apply(&mut launcher).map_err(failed)?;
    if let Some(user) = run_as {
        become_user(&mut launcher, user);
    }
    launcher.envs(environment.iter().map(|(name, value)| (name, value)));
    let child = launcher.spawn().map_err(failed)?;
    Ok(SuspendedCommand { child, start_pipe: File::from(start_pipe) })
}

/// Makes a child another user. The launcher itself already runs as that user: its environment
/// must not reach a privileged process.
fn become_user(launcher: &mut Command, user: &RunAs) {
    launcher.env_clear().envs(user.environment.iter().cloned());
    let RunAs { uid, gid, groups, .. } = user.clone();
    let change = move || {
        // SAFETY: `groups` outlives the call, which reads as many ids as its length says.
        let grouped = unsafe { libc::setgroups(groups.len(), groups.as_ptr()) };
        // SAFETY: both change only the ids of the calling process.
        let changed = grouped == 0 && unsafe { libc::setgid(gid) == 0 && libc::setuid(uid) == 0 };
        if changed { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor takes locks.
    unsafe { launcher.pre_exec(change) };
}

/// The launcher: waits for a byte on the pipe, then executes the command. Returns only an error.
pub fn run_launcher(arguments: &[OsString]) -> Error {
    let name = arguments.get(1).map_or_else(String::new, |c| c.to_string_lossy().into_owned());
    let failed = |source| Error::Command { command: name.clone(), source };
    let start_pipe = arguments.first().and_then(|fd| fd.to_str()?.parse::<i32>().ok());
    let (Some(start_pipe), Some(program)) = (start_pipe, arguments.get(1)) else {
        return failed(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: `spawn_suspended` passed this descriptor to this process, which owns it.
    let mut start_pipe = unsafe { File::from_raw_fd(start_pipe) };
    let mut byte = [0];
    // No byte: the tracer failed or exited, and the command should not run untraced.
    if let Err(error) = start_pipe.read_exact(&mut byte) {
        return failed(error);
    }
    drop(start_pipe);
    failed(Command::new(program).args(&arguments[2..]).exec())
}

impl SuspendedCommand {
    /// Returns the pid, which the command keeps.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Resumes the command.
    pub fn release(mut self) -> io::Result<RunningCommand> {
        self.start_pipe.write_all(&[1])?;
        Ok(RunningCommand { child: self.child })
    }
}

impl RunningCommand {
    /// Returns the status of the command once it has exited.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }
}

/// Finds the file of a command as the shell does.
fn find(program: &OsStr, dirs: &OsStr) -> io::Result<PathBuf> {
    let path = Path::new(program);
    if path.components().count() > 1 || program.as_encoded_bytes().contains(&b'/') {
        return executable(path);
    }
    let mut denied = None;
    for dir in std::env::split_paths(dirs) {
        match executable(&dir.join(path)) {
            Ok(found) => return Ok(found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => denied = Some(error),
            Err(_) => {}
        }
    }
    Err(denied.unwrap_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, "no such program in PATH; check its spelling")
    }))
}

fn executable(path: &Path) -> io::Result<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = path.metadata()?;
    if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
        Ok(path.to_owned())
    } else {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "not an executable file"))
    }
}

/// Creates a pipe whose read end is inherited by children and whose write end is not.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: ends has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, both descriptors are new and ours.
    let (reader, writer) =
        unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: changes only the flags of our own descriptor.
    if unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((reader, writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_found_in_path() {
        let dirs = std::env::var_os("PATH").unwrap();
        assert!(find(OsStr::new("sh"), &dirs).is_ok());
        assert!(find(OsStr::new("sh"), OsStr::new("/nowhere")).is_err());
        assert!(find(OsStr::new("/bin/sh"), &dirs).is_ok());
        let kind = |name: &str| find(OsStr::new(name), &dirs).unwrap_err().kind();
        assert_eq!(kind("no-such-program-here"), io::ErrorKind::NotFound);
        assert_eq!(kind("/no/such/program"), io::ErrorKind::NotFound);
        assert_eq!(kind("/etc/passwd"), io::ErrorKind::PermissionDenied);
        assert_eq!(kind("/etc"), io::ErrorKind::PermissionDenied);
    }
}
