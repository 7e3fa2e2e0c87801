//! Decides how to attach: a pure function of the facts in [`crate::host`]. `doctor` prints it.

use std::fmt;

use crate::host::{Host, Limits, Rights};

/// Ways to attach, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// One program and one link for both sides of all calls (Linux 6.13).
    Session,
    /// One link for all entries, one for all returns (6.6).
    Multi,
    /// A link per function and side (5.15).
    Single,
    /// The same without cookies: the programs are loaded once per function (5.8).
    Constant,
}

impl Tier {
    /// Every tier, best first.
    pub const ALL: [Self; 4] = [Self::Session, Self::Multi, Self::Single, Self::Constant];

    /// The word for it on the command line and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Multi => "multi",
            Self::Single => "single",
            Self::Constant => "single-no-cookie",
        }
    }

    /// One sentence for `doctor`.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Session => "one link, one program for both sides of a call (Linux 6.13 or newer)",
            Self::Multi => "two links for all functions (Linux 6.6 or newer)",
            Self::Single => "two links per function (Linux 5.15 or newer); detaching takes seconds",
            Self::Constant => {
                "two programs and links per function (Linux 5.8 or newer); detaching takes seconds"
            }
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What will be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How to attach.
    pub tier: Tier,
    /// Whether state of threads is kept in their tasks (6.2), not in a table.
    pub task_storage: bool,
    /// Whether probes read stacks through a buffer in the task (5.11), not word by word.
    pub stack_windows: bool,
    /// Whether a link may be limited to one process. Kernels before 6.10 then saw its first
    /// thread only.
    pub link_per_process: bool,
    /// Whether probes can loop (5.17): without, stacks are shorter and Python has none.
    pub loops: bool,
    /// What the user should know, a sentence each.
    pub warnings: Vec<String>,
}

/// Why tracing is impossible here: what is missing and how to get it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Impossible {
    /// Not enough rights.
    #[error(
        "tracing needs root, or the capabilities CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE and \
         CAP_DAC_READ_SEARCH (this is user {uid} without {}); try it with sudo, or in a container \
         with --privileged --pid=host",
        missing.join(", ")
    )]
    Rights {
        /// The user.
        uid: u32,
        /// The capabilities that are missing.
        missing: Vec<&'static str>,
    },
    /// Too old.
    #[error(
        "Linux {release} is too old for tracing: the BPF ring buffer came with Linux 5.8; reading \
         files works here all the same"
    )]
    Kernel {
        /// The running kernel.
        release: String,
    },
    /// No type information.
    #[error(
        "the kernel has no BTF (/sys/kernel/btf/vmlinux); use a kernel built with \
         CONFIG_DEBUG_INFO_BTF=y"
    )]
    Btf,
    /// Locked down.
    #[error(
        "the kernel is in lockdown mode `{mode}`, which forbids BPF programs to read memory; boot \
         without lockdown=confidentiality to trace"
    )]
    Lockdown {
        /// The mode.
        mode: String,
    },
    /// Another processor, whose machine code and calling convention the probes do not know.
    #[error(
        "live tracing supports x86-64 only, and this machine is {machine}; the verbs that read files, \
         such as `report`, work here"
    )]
    Machine {
        /// `uname -m`.
        machine: String,
    },
    /// Too few files may be open.
    #[error(
        "this process may have {limit} files open, and tracing needs {needed}; raise the limit with \
         `ulimit -n {needed}` or more (LimitNOFILE= in a systemd unit)"
    )]
    OpenFiles {
        /// `RLIMIT_NOFILE`.
        limit: u64,
        /// What is needed here.
        needed: u64,
    },
    /// The address space is too small.
    #[error(
        "the address space of this process is limited to {} MiB, and tracing needs {} MiB; raise the \
         limit with `ulimit -v unlimited` (LimitAS= in a systemd unit)",
        limit >> 20,
        needed >> 20
    )]
    AddressSpace {
        /// `RLIMIT_AS`.
        limit: u64,
        /// What is needed.
        needed: u64,
    },
    /// Nothing worked.
    #[error("no attach mode works on this host:{}{}", list(tiers), advice(*admin))]
    Tiers {
        /// Each tier with its error.
        tiers: Vec<(Tier, String)>,
        /// `CAP_SYS_ADMIN` is there.
        admin: bool,
    },
}

fn list(tiers: &[(Tier, String)]) -> String {
    tiers.iter().map(|(tier, reason)| format!("\n  {tier}: {reason}")).collect()
}

const fn advice(admin: bool) -> &'static str {
    if admin {
        ""
    } else {
        "\nwith CAP_SYS_ADMIN others may work: before Linux 6.6 it is needed instead of CAP_BPF and \
         CAP_PERFMON, and filters of system calls in containers may ask for it, too; another filter \
         can allow bpf and perf_event_open to those"
    }
}

/// Facts that rule tracing out before anything is tried.
pub fn preconditions(host: &Host) -> Result<(), Impossible> {
    // The second is what `linux32` makes of an x86-64 kernel.
    if !["x86_64", "i686"].contains(&host.machine.as_str()) {
        return Err(Impossible::Machine { machine: host.machine.clone() });
    }
    let Rights { bpf, perfmon, uid, .. } = host.rights;
    if !(bpf && perfmon) {
        return Err(Impossible::Rights { uid, missing: host.rights.missing() });
    }
    if host.kernel < (5, 8) {
        return Err(Impossible::Kernel { release: host.release.clone() });
    }
    if !host.btf {
        return Err(Impossible::Btf);
    }
    limits(host)?;
    match &host.lockdown {
        Some(mode) if mode == "confidentiality" => Err(Impossible::Lockdown { mode: mode.clone() }),
        _ => Ok(()),
    }
}

/// Files that are open at a time with the fewest links, besides one for each CPU: programs, maps,
/// rings, libraries.
const OPEN_FILES: u64 = 48;

/// The rings, which are mapped twice in a row each, the program, its threads and what they allocate:
/// 353 MiB were measured for one process with call stacks.
const ADDRESS_SPACE: u64 = 384 << 20;

/// Limits of this process under which tracing fails sooner or later, with messages that do not name
/// them.
fn limits(host: &Host) -> Result<(), Impossible> {
    let Limits { open_files, address_space } = host.limits;
    let needed = OPEN_FILES + host.cpus;
    if let Some(limit) = open_files.filter(|limit| *limit < needed) {
        return Err(Impossible::OpenFiles { limit, needed });
    }
    let needed = ADDRESS_SPACE;
    match address_space.filter(|limit| *limit < needed) {
        Some(limit) => Err(Impossible::AddressSpace { limit, needed }),
        None => Ok(()),
    }
}

/// The plan for a host whose tiers were tried.
pub fn plan(host: &Host) -> Result<Plan, Impossible> {
    preconditions(host)?;
    let Some((tier, _)) = host.tiers.iter().find(|(_, outcome)| outcome.is_ok()) else {
        let tiers = host.tiers.iter().filter_map(|(tier, outcome)| {
            outcome.as_ref().err().map(|reason| (*tier, reason.clone()))
        });
        return Err(Impossible::Tiers { tiers: tiers.collect(), admin: host.rights.admin });
    };
    Ok(Plan {
        tier: *tier,
        task_storage: task_storage(host),
        stack_windows: stack_windows(host),
        link_per_process: link_per_process(host, *tier),
        loops: host.kernel >= (5, 17),
        warnings: warnings(host, *tier),
    })
}

/// Whether a link can be limited to one process without losing its threads.
#[must_use]
pub fn link_per_process(host: &Host, tier: Tier) -> bool {
    tier <= Tier::Multi && host.kernel >= (6, 10)
}

/// Whether tracing programs can keep the state of threads in their tasks. Before Linux 6.2 the state
/// cannot be read while a preempted thread uses the storage on the same CPU, so calls would be missed.
#[must_use]
pub fn task_storage(host: &Host) -> bool {
    host.kernel >= (6, 2)
}

/// Whether tracing programs can keep in the task what they can do without.
fn stack_windows(host: &Host) -> bool {
    host.kernel >= (5, 11)
}

fn warnings(host: &Host, tier: Tier) -> Vec<String> {
    let mut warnings = Vec::new();
    let missing = host.rights.missing();
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
    if tier > Tier::Multi {
        warnings.push(
            "with single links detaching takes about 0.1 s per function, also when killed".into(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHTS: Rights = Rights {
        bpf: true,
        perfmon: true,
        admin: false,
        look_into_processes: true,
        read_files: true,
        uid: 0,
    };

    fn host(kernel: (u32, u32), works: &[Tier]) -> Host {
        Host {
            release: format!("{}.{}.0", kernel.0, kernel.1),
            kernel,
            machine: "x86_64".into(),
            rights: RIGHTS,
            limits: Limits::default(),
            cpus: 2,
            btf: true,
            lockdown: None,
            tiers: Tier::ALL
                .iter()
                .map(|tier| (*tier, works.contains(tier).then_some(()).ok_or("no".to_owned())))
                .collect(),
        }
    }

    #[test]
    fn the_best_tier_that_works_is_taken() {
        let all = &Tier::ALL[..];
        for (kernel, works, tier, storage, per_process) in [
            ((6, 18), all, Tier::Session, true, true),
            ((6, 12), &all[1..], Tier::Multi, true, true),
            ((6, 6), &all[1..], Tier::Multi, true, false),
            ((6, 2), &all[2..], Tier::Single, true, false),
            ((6, 1), &all[2..], Tier::Single, false, false),
            ((5, 12), &all[3..], Tier::Constant, false, false),
            ((5, 10), &all[3..], Tier::Constant, false, false),
        ] {
            let plan = plan(&host(kernel, works)).unwrap();
            assert_eq!(
                (plan.tier, plan.task_storage, plan.link_per_process),
                (tier, storage, per_process),
                "{kernel:?}"
            );
        }
    }

    #[test]
    fn every_obstacle_has_its_own_message() {
        let good = host((6, 18), &Tier::ALL);
        let limits = |open_files, address_space| Limits { open_files, address_space };
        let cases: [(Host, &str); 8] = [
            (Host { machine: "aarch64".into(), ..good.clone() }, "x86-64 only"),
            (Host { limits: limits(Some(16), None), ..good.clone() }, "ulimit -n 50"),
            (Host { limits: limits(None, Some(100 << 20)), ..good.clone() }, "ulimit -v unlimited"),
            (Host { rights: Rights { uid: 1000, ..Rights::default() }, ..good.clone() }, "sudo"),
            (host((5, 4), &Tier::ALL), "too old"),
            (Host { btf: false, ..good.clone() }, "CONFIG_DEBUG_INFO_BTF"),
            (Host { lockdown: Some("confidentiality".into()), ..good }, "lockdown"),
            (host((6, 18), &[]), "session: no"),
        ];
        for (host, word) in cases {
            let message = plan(&host).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn missing_capabilities_are_named_whoever_the_user_is() {
        let with = |rights| plan(&Host { rights, ..host((6, 18), &Tier::ALL) });
        let message = with(Rights { perfmon: false, ..RIGHTS }).unwrap_err().to_string();
        assert!(message.contains("user 0 without CAP_PERFMON)"), "{message}");
        let plan = with(Rights { look_into_processes: false, uid: 7, ..RIGHTS }).unwrap();
        assert!(plan.warnings[0].contains("without CAP_SYS_PTRACE drivers"), "{plan:?}");
        assert!(with(Rights { uid: 7, ..RIGHTS }).unwrap().warnings.is_empty());
        let on_old = |admin| {
            let rights = Rights { admin, ..RIGHTS };
            super::plan(&Host { rights, ..host((6, 1), &[]) }).unwrap_err().to_string()
        };
        assert!(on_old(false).contains("CAP_SYS_ADMIN"));
        assert!(!on_old(true).contains("CAP_SYS_ADMIN"));
    }

    #[test]
    fn kernels_with_the_seccomp_trap_are_warned_about() {
        let warned = |kernel| {
            let plan = plan(&host(kernel, &Tier::ALL)).unwrap();
            plan.warnings.iter().any(|warning| warning.contains("seccomp"))
        };
        assert!(warned((6, 11)) && warned((6, 13)));
        assert!(!warned((6, 10)) && !warned((6, 14)));
    }
}
