//! Programs that the configuration names: no shell, a process group of their own, working directory
//! `/`, a minimal environment and a timeout; all are killed when the agent exits. The beginning of
//! their standard error is kept.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use formats::sanitize::{sanitize, sanitize_up_to};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::SnapshotFeed;

/// Environment variables that a program inherits from the agent.
const INHERITED_ENV_VARS: [&str; 3] = ["PATH", "HOME", "LANG"];

/// Maximum bytes of standard error that are kept.
const MAX_STDERR_BYTES: usize = 4 << 10;

/// Maximum bytes of standard error read per poll, so a flood of output cannot block the agent.
const MAX_READ_BYTES: usize = 1 << 20;

/// A running or ended program.
struct ChildProgram {
    child: Child,
    stderr: Option<ChildStderr>,
    stderr_start: Vec<u8>,
    /// More output followed than is kept.
    is_truncated: bool,
    end: Instant,
    has_ended: bool,
}

impl ChildProgram {
    /// Starts a program with arguments, additional environment variables and an input, to be killed
    /// after `timeout`.
    fn start(
        command: &[String],
        variables: Vec<(String, String)>,
        input: &str,
        timeout: Duration,
    ) -> Result<Self, String> {
        let [program, arguments @ ..] = command else { return Err("no program given".into()) };
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(
                INHERITED_ENV_VARS.iter().filter_map(|name| Some((name, std::env::var_os(name)?))),
            )
            .envs(variables)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", sanitize(program)))?;
        // The input is smaller than a pipe, and the program need not read it.
        if let Some(mut pipe) = child.stdin.take() {
            let _ = pipe.write_all(input.as_bytes());
        }
        // A pipe that could block the agent is not read.
        let stderr =
            child.stderr.take().filter(|pipe| rustix::io::ioctl_fionbio(pipe, true).is_ok());
        Ok(Self {
            child,
            stderr,
            stderr_start: Vec::new(),
            is_truncated: false,
            end: Instant::now() + timeout,
            has_ended: false,
        })
    }

    /// Returns the outcome once the program has ended; kills it after its timeout.
    fn outcome(&mut self) -> Option<Result<(), String>> {
        self.read_stderr();
        let outcome = match self.child.try_wait() {
            Ok(None) if Instant::now() < self.end => return None,
            Ok(None) => {
                self.kill();
                Err("timed out and was killed".into())
            }
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        };
        self.has_ended = true;
        self.read_stderr();
        Some(outcome)
    }

    /// Returns its standard error in one line, if there is any.
    fn stderr_excerpt(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.stderr_start);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let more = if self.is_truncated { " (and more)" } else { "" };
        let excerpt = lines.join("; ");
        (!excerpt.is_empty())
            .then(|| format!("{}{more}", sanitize_up_to(&excerpt, MAX_STDERR_BYTES)))
    }

    /// Reads new output; bytes that are not kept are read as well, so that the program is not
    /// blocked.
    fn read_stderr(&mut self) {
        let Some(pipe) = &mut self.stderr else { return };
        let mut buffer = vec![0; 64 << 10];
        let mut remaining = MAX_READ_BYTES;
        while remaining > 0 {
            match pipe.read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    self.stderr = None;
                    return;
                }
                Ok(read) => {
                    remaining = remaining.saturating_sub(read);
                    let kept =
                        read.min(MAX_STDERR_BYTES - self.stderr_start.len().min(MAX_STDERR_BYTES));
                    self.stderr_start.extend(buffer.iter().take(kept));
                    self.is_truncated |= kept < read;
                }
            }
        }
    }

    /// Kills the process group, before the pid can be reused.
    fn kill(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ChildProgram {
    fn drop(&mut self) {
        if !self.has_ended {
            self.kill();
        }
    }
}

/// Poll interval while a program runs.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time to end when the agent exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs a program to its end. Returns the outcome, and the beginning of its standard error. It is
/// killed after `timeout`, or soon after the feed is closed.
pub(crate) fn run(
    command: &[String],
    variables: Vec<(String, String)>,
    input: &str,
    timeout: Duration,
    feed: &SnapshotFeed,
) -> (Result<(), String>, Option<String>) {
    let mut program = match ChildProgram::start(command, variables, input, timeout) {
        Ok(program) => program,
        Err(reason) => return (Err(reason), None),
    };
    loop {
        if let Some(outcome) = program.outcome() {
            return (outcome, program.stderr_excerpt());
        }
        if feed.is_closed() {
            program.end = program.end.min(Instant::now() + SHUTDOWN_TIMEOUT);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Checks a program and its arguments from the configuration.
pub(crate) fn check(command: &[String]) -> Result<(), String> {
    let program = command.first().map(Path::new);
    let Some(program) = program.filter(|program| program.is_absolute()) else {
        return Err(
            "command must be a list: the absolute path of a program, then its arguments; no \
             shell is used"
                .into(),
        );
    };
    if command.iter().any(|argument| argument.contains('\0')) {
        return Err("an argument of the command holds a zero byte".into());
    }
    let shown = sanitize(&program.to_string_lossy()).into_owned();
    match std::fs::metadata(program) {
        Ok(metadata) if !metadata.is_file() => Err(format!("{shown} is not executable")),
        Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => {
            Err(format!("{shown} is not executable; run `chmod +x {shown}`"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(format!("no program {shown}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: Duration) -> ChildProgram {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        ChildProgram::start(&command, Vec::new(), "", timeout).unwrap()
    }

    fn wait(running: &mut ChildProgram) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(outcome) = running.outcome() {
                return outcome;
            }
            assert!(Instant::now() < deadline, "it never exited");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn start_of_long_stderr_is_kept_and_escaped() {
        // Ten times the size of a pipe.
        let script = "printf 'a\\033[31mred\\nline\\n' >&2; head -c 655360 /dev/zero >&2; exit 3";
        let mut running = shell(script, Duration::from_mins(1));
        assert_eq!(wait(&mut running), Err("exit status: 3".into()));
        let excerpt = running.stderr_excerpt().unwrap();
        assert!(excerpt.starts_with("a\\u{1b}[31mred; line; "), "{excerpt}");
        assert!(
            excerpt.ends_with("(and more)") && excerpt.len() < 2 * MAX_STDERR_BYTES,
            "{}",
            excerpt.len()
        );
        let mut silent = shell("exit 0", Duration::from_mins(1));
        assert_eq!((wait(&mut silent), silent.stderr_excerpt()), (Ok(()), None));
    }

    #[test]
    fn drop_kills_the_process_group() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("child");
        let script =
            format!("sleep 300 & echo $! > {0}.part; mv {0}.part {0}; wait", file.display());
        let mut running = shell(&script, Duration::from_mins(5));
        while !file.exists() {
            assert_eq!(running.outcome(), None);
            std::thread::sleep(Duration::from_millis(2));
        }
        let child = std::fs::read_to_string(&file).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        drop(running);
        let deadline = Instant::now() + Duration::from_secs(30);
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < deadline, "it still runs");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn invalid_programs_are_rejected() {
        let error = |command: &[&str]| {
            let command: Vec<String> = command.iter().map(|word| (*word).into()).collect();
            check(&command).err().unwrap_or_default()
        };
        assert!(error(&[]).contains("no shell") && error(&["sh"]).contains("the absolute path"));
        assert!(error(&["/no/such"]).contains("no program /no/such"));
        assert!(error(&["/etc/passwd"]).contains("chmod +x"));
        assert!(error(&["/usr"]).contains("is not executable"));
        assert!(error(&["/bin/sh", "a\0b"]).contains("zero byte"));
        assert_eq!(error(&["/bin/sh", "-c"]), "");
    }
}
