//! Programs that the configuration names: no shell, a process group of their own in `/`, hardly any
//! environment, and an end to each, at the latest that of the agent. Of what they print on standard
//! error the beginning is kept.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use formats::plain::{plain, plain_up_to};
use rustix::process::{Pid, Signal, kill_process_group};

/// What a program keeps of the agent's environment.
const KEPT: [&str; 3] = ["PATH", "HOME", "LANG"];

/// What is kept of its words.
const WORDS: usize = 4 << 10;

/// What is read of its words at a time: the rest can wait, and so can the program.
const AT_A_TIME: usize = 1 << 20;

/// A program that runs, or has ended.
pub(crate) struct Running {
    child: Child,
    stderr: Option<ChildStderr>,
    said: Vec<u8>,
    /// There was more than is kept.
    is_cut: bool,
    end: Instant,
    is_over: bool,
}

impl Running {
    /// Starts a program with its arguments, these facts in its environment and this on its input. It
    /// has so long.
    pub(crate) fn start(
        command: &[String],
        facts: Vec<(String, String)>,
        input: &str,
        timeout: Duration,
    ) -> Result<Self, String> {
        let [program, arguments @ ..] = command else { return Err("no program is named".into()) };
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(KEPT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .envs(facts)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", plain(program)))?;
        // A message is smaller than a pipe, and whoever does not read it need not.
        if let Some(mut pipe) = child.stdin.take() {
            let _ = pipe.write_all(input.as_bytes());
        }
        // A pipe that could make the agent wait is not read.
        let stderr =
            child.stderr.take().filter(|pipe| rustix::io::ioctl_fionbio(pipe, true).is_ok());
        Ok(Self {
            child,
            stderr,
            said: Vec::new(),
            is_cut: false,
            end: Instant::now() + timeout,
            is_over: false,
        })
    }

    /// How it ended, once it has; by force, when its time is over.
    pub(crate) fn outcome(&mut self) -> Option<Result<(), String>> {
        self.listen();
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
        self.is_over = true;
        self.listen();
        Some(outcome)
    }

    /// It must end by then.
    pub(crate) fn hurry(&mut self, latest: Instant) {
        self.end = self.end.min(latest);
    }

    /// What it said on standard error, in a line; nothing where it was silent.
    pub(crate) fn words(&self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.said);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let more = if self.is_cut { " (and more)" } else { "" };
        let words = lines.join("; ");
        (!words.is_empty()).then(|| format!("{}{more}", plain_up_to(&words, WORDS)))
    }

    /// Reads what it has said since; what is not kept is read all the same, so that it can go on.
    fn listen(&mut self) {
        let Some(pipe) = &mut self.stderr else { return };
        let mut piece = vec![0; 64 << 10];
        let mut left = AT_A_TIME;
        while left > 0 {
            match pipe.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => {
                    self.stderr = None;
                    return;
                }
                Ok(read) => {
                    left = left.saturating_sub(read);
                    let kept = read.min(WORDS - self.said.len().min(WORDS));
                    self.said.extend(piece.iter().take(kept));
                    self.is_cut |= kept < read;
                }
            }
        }
    }

    /// Ends it and everything that it started, before its number can be anybody else's.
    fn kill(&mut self) {
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
        }
    }
}

/// What is wrong with a program and its arguments, as the settings have them.
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
    let shown = plain(&program.to_string_lossy()).into_owned();
    match std::fs::metadata(program) {
        Ok(facts) if !facts.is_file() => Err(format!("{shown} is not executable")),
        Ok(facts) if facts.permissions().mode() & 0o111 == 0 => {
            Err(format!("{shown} is not executable; run `chmod +x {shown}`"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(format!("no program {shown}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, timeout: Duration) -> Running {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        Running::start(&command, Vec::new(), "", timeout).unwrap()
    }

    fn wait(running: &mut Running) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(outcome) = running.outcome() {
                return outcome;
            }
            assert!(Instant::now() < deadline, "it never ended");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn of_a_flood_of_words_the_beginning_is_kept_in_plain_letters() {
        // Ten times what a pipe holds.
        let script = "printf 'a\\033[31mred\\nline\\n' >&2; head -c 655360 /dev/zero >&2; exit 3";
        let mut running = shell(script, Duration::from_secs(60));
        assert_eq!(wait(&mut running), Err("exit status: 3".into()));
        let words = running.words().unwrap();
        assert!(words.starts_with("a\\u{1b}[31mred; line; "), "{words}");
        assert!(words.ends_with("(and more)") && words.len() < 2 * WORDS, "{}", words.len());
        let mut silent = shell("exit 0", Duration::from_secs(60));
        assert_eq!((wait(&mut silent), silent.words()), (Ok(()), None));
    }

    #[test]
    fn whoever_lets_go_of_a_program_ends_it_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("child");
        let script =
            format!("sleep 300 & echo $! > {0}.part; mv {0}.part {0}; wait", file.display());
        let mut running = shell(&script, Duration::from_secs(300));
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
    fn a_program_that_cannot_be_run_is_told() {
        let wrong = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).into()).collect();
            check(&words).err().unwrap_or_default()
        };
        assert!(wrong(&[]).contains("no shell") && wrong(&["sh"]).contains("the absolute path"));
        assert!(wrong(&["/no/such"]).contains("no program /no/such"));
        assert!(wrong(&["/etc/passwd"]).contains("chmod +x"));
        assert!(wrong(&["/usr"]).contains("is not executable"));
        assert!(wrong(&["/bin/sh", "a\0b"]).contains("zero byte"));
        assert_eq!(wrong(&["/bin/sh", "-c"]), "");
    }
}
