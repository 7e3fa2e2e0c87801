//! Decides how to attach, as a pure function of the facts in [`host_info`]. `doctor` prints it.

pub mod entry;
pub mod host_info;
pub mod restrictions;

use std::fmt;

use crate::plan::host_info::{Capabilities, HostInfo, Limits};
use crate::plan::restrictions::{Effect, restrictions};

/// Attach modes, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AttachMode {
    /// One program and one link for both sides of all calls (Linux 6.13).
    Session,
    /// One link for all entries, one for all returns (6.6).
    Multi,
    /// A link per function and side (5.15).
    Single,
}

impl AttachMode {
    /// All attach modes, best first.
    pub const ALL: [Self; 3] = [Self::Session, Self::Multi, Self::Single];

    /// Returns the name on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Multi => "multi",
            Self::Single => "single",
        }
    }

    /// Returns the description for `doctor`.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Session => "one link, one program for both sides of a call (Linux 6.13 or newer)",
            Self::Multi => "two links for all functions (Linux 6.6 or newer)",
            Self::Single => "two links per function (Linux 5.15 or newer); detaching takes seconds",
        }
    }
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How the probes are attached on this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachPlan {
    /// The attach mode.
    pub attach_mode: AttachMode,
    /// Thread state is kept in task storage (Linux 6.2), not in a map.
    pub task_storage: bool,
    /// Stacks are read through a buffer in task storage (Linux 5.11), not word by word.
    pub stack_windows: bool,
    /// A link can be limited to one process. Before Linux 6.10 such a link only covers the main
    /// thread.
    pub link_per_process: bool,
    /// The kernel has `bpf_loop` (5.17). Without it stacks are shorter and there are no Python
    /// stacks.
    pub loops: bool,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Reason why tracing is impossible here, and the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// Capabilities are missing.
    #[error(
        "tracing needs root, or the capabilities CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and \
         CAP_DAC_READ_SEARCH (this is user {uid} without {}); try it with sudo, in a container with \
         --privileged --pid=host, or start the program with `vramscope run`, which needs no root",
        missing.join(", ")
    )]
    Capabilities {
        /// The user.
        uid: u32,
        /// The missing capabilities.
        missing: Vec<&'static str>,
    },
    /// The kernel is too old.
    #[error(
        "Linux {release} is too old for tracing: attach cookies came with Linux 5.15; `vramscope run` \
         and reading files work here all the same"
    )]
    Kernel {
        /// The running kernel.
        release: String,
    },
    /// The kernel has no BTF.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux); use a kernel built with \
         CONFIG_DEBUG_INFO_BTF=y"
    )]
    Btf,
    /// A security setting of the host forbids it.
    #[error("{name}: {message}")]
    Refused {
        /// The setting.
        name: &'static str,
        /// The value, the consequence and the next step.
        message: String,
    },
    /// The limit of open files is too low.
    #[error(
        "this process may have {limit} files open, and tracing needs {needed}; raise the limit with \
         `ulimit -n {needed}` or more (LimitNOFILE= in a systemd unit)"
    )]
    OpenFiles {
        /// `RLIMIT_NOFILE`.
        limit: u64,
        /// The required number.
        needed: u64,
    },
    /// The limit of the address space is too low.
    #[error(
        "the address space of this process is limited to {} MiB, and tracing needs {} MiB; raise the \
         limit with `ulimit -v unlimited` (LimitAS= in a systemd unit)",
        limit >> 20,
        needed >> 20
    )]
    AddressSpace {
        /// `RLIMIT_AS`.
        limit: u64,
        /// The required bytes.
        needed: u64,
    },
    /// No attach mode works.
    #[error("no attach mode works on this host:{}{}{suspects}", list(attach_modes), advice(*admin))]
    NoAttachMode {
        /// Each attach mode with its error.
        attach_modes: Vec<(AttachMode, String)>,
        /// This process has `CAP_SYS_ADMIN`.
        admin: bool,
        /// Security settings that may be the cause, a line each.
        suspects: String,
    },
}

fn list(attach_modes: &[(AttachMode, String)]) -> String {
    attach_modes
        .iter()
        .map(|(attach_mode, reason)| format!("\n  {attach_mode}: {reason}"))
        .collect()
}

/// Lists the security settings that may refuse tracing.
fn suspects(host: &HostInfo) -> String {
    let found = restrictions(host).into_iter().filter(|found| found.effect == Effect::MayRefuse);
    found.map(|found| format!("\n{}: {}", found.name, found.message)).collect()
}

const fn advice(admin: bool) -> &'static str {
    if admin {
        ""
    } else {
        "\nwith CAP_SYS_ADMIN others may work: before Linux 6.6 it is needed instead of CAP_BPF and \
         CAP_PERFMON, and seccomp profiles of containers may require it; another profile can allow \
         bpf and perf_event_open without it"
    }
}

/// Checks the facts that rule out tracing before any attach mode is tried.
pub fn preconditions(host: &HostInfo) -> Result<(), PlanError> {
    // Before capabilities: a user namespace shows capabilities that do not count.
    let refused = restrictions(host).into_iter().find(|found| found.effect == Effect::Refused);
    if let Some(found) = refused {
        return Err(PlanError::Refused { name: found.name, message: found.message });
    }
    let Capabilities { bpf, perfmon, uid, .. } = host.capabilities;
    if !(bpf && perfmon) {
        let missing = host.capabilities.missing_capabilities();
        return Err(PlanError::Capabilities { uid, missing });
    }
    if host.kernel < (5, 15) {
        return Err(PlanError::Kernel { release: host.release.clone() });
    }
    if !host.btf {
        return Err(PlanError::Btf);
    }
    limits(host)
}

/// Open files in the attach mode with the fewest links, plus one per CPU: programs, maps, rings,
/// libraries.
const OPEN_FILES: u64 = 64;

/// The rings, each mapped twice in a row, the program, 64 MiB that `malloc` reserves for each of its
/// threads, and mapped files: 421 MiB measured for one process with call stacks.
const ADDRESS_SPACE: u64 = 512 << 20;

/// Checks the resource limits below which tracing would fail later, with messages that do not name
/// the limit.
fn limits(host: &HostInfo) -> Result<(), PlanError> {
    let Limits { open_files, address_space } = host.limits;
    let needed = OPEN_FILES + host.cpus;
    if let Some(limit) = open_files.filter(|limit| *limit < needed) {
        return Err(PlanError::OpenFiles { limit, needed });
    }
    let needed = ADDRESS_SPACE;
    match address_space.filter(|limit| *limit < needed) {
        Some(limit) => Err(PlanError::AddressSpace { limit, needed }),
        None => Ok(()),
    }
}

/// Returns the plan for a host whose attach modes were tried.
pub fn plan(host: &HostInfo) -> Result<AttachPlan, PlanError> {
    preconditions(host)?;
    let Some((attach_mode, _)) = host.attach_modes.iter().find(|(_, outcome)| outcome.is_ok())
    else {
        return Err(no_attach_mode(host));
    };
    Ok(AttachPlan {
        attach_mode: *attach_mode,
        task_storage: task_storage(host),
        stack_windows: stack_windows(host),
        link_per_process: link_per_process(host, *attach_mode),
        loops: host.kernel >= (5, 17),
        warnings: warnings(host, *attach_mode),
    })
}

/// Returns the error that no attach mode works.
pub(crate) fn no_attach_mode(host: &HostInfo) -> PlanError {
    let attach_modes = host.attach_modes.iter().filter_map(|(attach_mode, outcome)| {
        outcome.as_ref().err().map(|reason| (*attach_mode, reason.clone()))
    });
    PlanError::NoAttachMode {
        attach_modes: attach_modes.collect(),
        admin: host.capabilities.admin,
        suspects: suspects(host),
    }
}

/// Returns whether a link can be limited to one process with all its threads.
#[must_use]
pub fn link_per_process(host: &HostInfo, attach_mode: AttachMode) -> bool {
    attach_mode <= AttachMode::Multi && host.kernel >= (6, 10)
}

/// Returns whether thread state can be kept in task storage. Before Linux 6.2 the storage cannot be
/// read while a preempted thread uses it on the same CPU, so calls would be missed.
#[must_use]
pub fn task_storage(host: &HostInfo) -> bool {
    host.kernel >= (6, 2)
}

/// Whether tracing programs can keep in the task what they can do without.
fn stack_windows(host: &HostInfo) -> bool {
    host.kernel >= (5, 11)
}

fn warnings(host: &HostInfo, attach_mode: AttachMode) -> Vec<String> {
    let mut warnings = Vec::new();
    let missing = host.capabilities.missing_capabilities();
    if !missing.is_empty() {
        warnings.push(format!(
            "without {} drivers of other users and in containers are not found; run as root or \
             grant it",
            missing.join(" and ")
        ));
    }
    if host.machine == "x86_64" && ((6, 11)..(6, 14)).contains(&host.kernel) {
        warnings.push(
            "on Linux 6.11 to 6.13 return probes use a system call that old seccomp filters kill: \
             programs in containers with their own seccomp profile may be at risk"
                .into(),
        );
    }
    if attach_mode > AttachMode::Multi {
        warnings.push(
            "with single links detaching takes about 0.1 s per function, also when killed".into(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::restrictions::SecurityFacts;

    const GRANTED: Capabilities = Capabilities {
        bpf: true,
        perfmon: true,
        admin: false,
        ptrace: true,
        read_files: true,
        uid: 0,
    };

    /// Returns a host with this kernel where these attach modes work.
    pub(super) fn host(kernel: (u32, u32), works: &[AttachMode]) -> HostInfo {
        HostInfo {
            release: format!("{}.{}.0", kernel.0, kernel.1),
            kernel,
            machine: "x86_64".into(),
            capabilities: GRANTED,
            limits: Limits::default(),
            cpus: 2,
            btf: true,
            security: SecurityFacts::default(),
            attach_modes: AttachMode::ALL
                .iter()
                .map(|attach_mode| {
                    (*attach_mode, works.contains(attach_mode).then_some(()).ok_or("no".to_owned()))
                })
                .collect(),
        }
    }

    #[test]
    fn best_working_attach_mode_is_used() {
        let all = &AttachMode::ALL[..];
        for (kernel, works, attach_mode, storage, per_process) in [
            ((6, 18), all, AttachMode::Session, true, true),
            ((6, 12), &all[1..], AttachMode::Multi, true, true),
            ((6, 6), &all[1..], AttachMode::Multi, true, false),
            ((6, 2), &all[2..], AttachMode::Single, true, false),
            ((6, 1), &all[2..], AttachMode::Single, false, false),
            ((5, 15), &all[2..], AttachMode::Single, false, false),
        ] {
            let plan = plan(&host(kernel, works)).unwrap();
            assert_eq!(
                (plan.attach_mode, plan.task_storage, plan.link_per_process),
                (attach_mode, storage, per_process),
                "{kernel:?}"
            );
        }
    }

    #[test]
    fn every_precondition_has_its_own_message() {
        let good = host((6, 18), &AttachMode::ALL);
        let limits = |open_files, address_space| Limits { open_files, address_space };
        let none = SecurityFacts::default;
        let cases: [(HostInfo, &str); 7] = [
            (HostInfo { limits: limits(Some(16), None), ..good.clone() }, "ulimit -n 66"),
            (
                HostInfo { limits: limits(None, Some(100 << 20)), ..good.clone() },
                "ulimit -v unlimited",
            ),
            (
                HostInfo {
                    capabilities: Capabilities { uid: 1000, ..Capabilities::default() },
                    ..good.clone()
                },
                "sudo",
            ),
            (host((5, 14), &AttachMode::ALL), "too old"),
            (HostInfo { btf: false, ..good.clone() }, "CONFIG_DEBUG_INFO_BTF"),
            (
                HostInfo {
                    security: SecurityFacts { seccomp: true, ..none() },
                    ..host((6, 18), &[])
                },
                "seccomp: a filter",
            ),
            (host((6, 18), &[]), "session: no"),
        ];
        for (host, word) in cases {
            let message = plan(&host).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn missing_capabilities_are_named_for_any_user() {
        let with =
            |capabilities| plan(&HostInfo { capabilities, ..host((6, 18), &AttachMode::ALL) });
        let message = with(Capabilities { perfmon: false, ..GRANTED }).unwrap_err().to_string();
        assert!(message.contains("user 0 without CAP_PERFMON)"), "{message}");
        let plan = with(Capabilities { ptrace: false, uid: 7, ..GRANTED }).unwrap();
        assert!(plan.warnings[0].contains("without CAP_SYS_PTRACE drivers"), "{plan:?}");
        assert!(with(Capabilities { uid: 7, ..GRANTED }).unwrap().warnings.is_empty());
        let on_old = |admin| {
            let capabilities = Capabilities { admin, ..GRANTED };
            super::plan(&HostInfo { capabilities, ..host((6, 1), &[]) }).unwrap_err().to_string()
        };
        assert!(on_old(false).contains("CAP_SYS_ADMIN"));
        assert!(!on_old(true).contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn kernels_with_the_seccomp_problem_give_a_warning() {
        let warned = |kernel| {
            let plan = plan(&host(kernel, &AttachMode::ALL)).unwrap();
            plan.warnings.iter().any(|warning| warning.contains("seccomp"))
        };
        assert!(warned((6, 11)) && warned((6, 13)));
        assert!(!warned((6, 10)) && !warned((6, 14)));
    }
}
