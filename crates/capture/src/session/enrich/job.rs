//! Job, release, rank and process tree of a process, from its cgroup, a few variables of its environment, and
//! its ancestors.
//!
//! ```text
//! 0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0     Slurm, cgroups of version 2
//! 4:memory:/slurm/uid_1000/job_4711/step_batch                      Slurm, cgroups of version 1
//! ```

use std::fs::{self, File};
use std::io::Read;

use engine::model::ids::Pid;
use engine::model::program::{ProcessGroup, program_of_arguments};

/// Maximum bytes that are read of a file in `/proc`.
const MAX_PROC_FILE_BYTES: u64 = 64 * 1024;

/// Limits of ancestors that are searched, and of the length of an id.
const MAX_ANCESTORS: usize = 32;
const MAX_ID_CHARS: usize = 64;

/// Variables with the id of a job, and the name of the system that sets it. Only these, those of
/// [`RANKS`] and those of [`release`] are read: other variables may be confidential.
const JOBS: [(&str, &str); 4] =
    [("SLURM_JOB_ID", "slurm"), ("PBS_JOBID", "pbs"), ("LSB_JOBID", "lsf"), ("RAY_JOB_ID", "ray")];

/// Variables with the rank of a process: torchrun, Open MPI, MPICH and Slurm.
const RANKS: [&str; 5] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];

/// Programs that start unrelated programs: their children are roots of process trees.
const SUPERVISORS: [&str; 20] = [
    "systemd",
    "init",
    "sshd",
    "sshd-session",
    "login",
    "su",
    "sudo",
    "cron",
    "crond",
    "atd",
    "dockerd",
    "containerd-shim",
    "conmon",
    "slurmstepd",
    "tmux: server",
    "screen",
    "supervisord",
    "runsvdir",
    "kubelet",
    "raylet",
];

/// Shells: one with a terminal starts unrelated programs, too.
const SHELLS: [&str; 6] = ["bash", "sh", "dash", "zsh", "fish", "ksh"];

/// Returns the job, the release, the rank and the tree of a process, as far as they are known.
pub(super) fn group_of(pid: Pid) -> ProcessGroup {
    let environment = read(pid, "environ");
    let variable = |name: &str| {
        let variables = environment.split('\0').filter_map(|entry| entry.split_once('='));
        variables.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    };
    let of_variables = || {
        JOBS.iter().find_map(|(name, system)| Some(format!("{system} {}", id(variable(name)?)?)))
    };
    ProcessGroup {
        release: release(variable).map(Into::into),
        job: slurm(&read(pid, "cgroup")).or_else(of_variables).map(Into::into),
        rank: RANKS.iter().find_map(|name| variable(name)?.parse().ok()),
        tree: tree(pid),
    }
}

/// Returns the release that the variables of OpenTelemetry, Sentry or Datadog name.
fn release<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Option<&'a str> {
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default().split(',');
    let version =
        attributes.into_iter().find_map(|one| one.trim().strip_prefix("service.version="));
    let found = version.or_else(|| variable("SENTRY_RELEASE")).or_else(|| variable("DD_VERSION"));
    // Releases of Sentry are `package@version+build`.
    found.filter(|text| text.split(['@', '+', ':', '/']).all(|part| id(part).is_some()))
}

/// Finds the job and step of Slurm in the text of a `cgroup` file.
fn slurm(cgroup: &str) -> Option<String> {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.into_iter().find_map(|path| {
        let part = |prefix: &str| path.split('/').find_map(|name| id(name.strip_prefix(prefix)?));
        let job = part("job_").filter(|job| job.bytes().all(|byte| byte.is_ascii_digit()))?;
        Some(match part("step_") {
            Some(step) => format!("slurm {job}.{step}"),
            None => format!("slurm {job}"),
        })
    })
}

/// Returns an id of letters, digits and a few separators.
fn id(text: &str) -> Option<&str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '[' | ']');
    (!text.is_empty() && text.len() <= MAX_ID_CHARS && text.chars().all(is_plain)).then_some(text)
}

/// Returns the outermost ancestor of a process below a supervisor or an interactive shell.
fn tree(pid: Pid) -> Option<(Pid, Box<str>)> {
    let mut root = pid;
    for _ in 0..MAX_ANCESTORS {
        let parent = Ancestor::read(Ancestor::read(root)?.parent)?;
        if parent.pid.0 <= 1 || parent.starts_unrelated_programs() {
            break;
        }
        root = parent.pid;
    }
    let arguments = read(root, "cmdline");
    let arguments: Vec<&str> = arguments.trim_end_matches('\0').split('\0').collect();
    let program = program_of_arguments(&arguments);
    Some((root, program.or_else(|| Some(Ancestor::read(root)?.name.into()))?))
}

/// Fields of `/proc/PID/stat`.
struct Ancestor {
    pid: Pid,
    name: String,
    parent: Pid,
    has_terminal: bool,
}

impl Ancestor {
    fn read(pid: Pid) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        let text = String::from_utf8_lossy(&text);
        // The name may contain anything, so fields are counted from its end.
        let (head, rest) = text.rsplit_once(") ")?;
        let (_, name) = head.split_once('(')?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
        let parent = Pid(u32::try_from(number(1)?).ok()?);
        Some(Self { pid, name: name.to_owned(), parent, has_terminal: number(4)? != 0 })
    }

    fn starts_unrelated_programs(&self) -> bool {
        let is = |names: &[&str]| names.iter().any(|name| self.name.starts_with(name));
        is(&SUPERVISORS) || (self.has_terminal && SHELLS.contains(&&*self.name))
    }
}

/// Reads a file of a process; empty if it exited or cannot be read.
fn read(pid: Pid, file: &str) -> String {
    let mut bytes = Vec::new();
    let open = File::open(format!("/proc/{pid}/{file}"));
    let _ = open.and_then(|open| open.take(MAX_PROC_FILE_BYTES).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn slurm_job_and_step_are_in_the_cgroup() {
        for (text, job) in [
            ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", Some("slurm 4711.0")),
            ("4:memory:/slurm/uid_1000/job_12/step_batch\n0::/", Some("slurm 12.batch")),
            ("0::/slurm_node1/uid_0/job_7", Some("slurm 7")),
            ("0::/job_x/step_0", None),
            ("0::/job_\u{1b}/step_0", None),
            ("0::/user.slice", None),
            ("", None),
        ] {
            assert_eq!(slurm(text).as_deref(), job, "{text}");
        }
    }

    #[test]
    fn job_and_rank_come_from_known_variables_only() {
        let mut child = Command::new("sleep")
            .arg("60")
            .env_clear()
            .envs([("RAY_JOB_ID", "01000000"), ("RANK", "3"), ("SECRET", "x")])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        // The environment is that of the program after its exec.
        let group = (0..200).map(|_| group_of(Pid(child.id()))).find(|group| group.rank.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        let group = group.unwrap();
        assert_eq!((group.job.as_deref(), group.rank), (Some("ray 01000000"), Some(3)));
    }

    #[test]
    fn release_comes_from_known_variables() {
        let of = |name: &str, value: &str| {
            release(|asked| (asked == name).then_some(value)).map(str::to_owned)
        };
        let attributes = "service.name=train, service.version=1.4.2,team=x";
        assert_eq!(of("OTEL_RESOURCE_ATTRIBUTES", attributes).as_deref(), Some("1.4.2"));
        assert_eq!(of("SENTRY_RELEASE", "train@1.4.2+7").as_deref(), Some("train@1.4.2+7"));
        assert_eq!(of("DD_VERSION", "1.4.2").as_deref(), Some("1.4.2"));
        assert_eq!(of("DD_VERSION", "a\u{1b}b"), None);
        assert_eq!(of("VERSION", "1"), None);
    }

    #[test]
    fn children_are_in_the_tree_of_their_program() {
        let own = tree(Pid(std::process::id())).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let found = tree(Pid(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Some(own));
        assert_eq!(tree(Pid(u32::MAX)), None);
    }
}
