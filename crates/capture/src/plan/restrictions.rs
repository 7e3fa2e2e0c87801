//! Security settings that restrict tracing: the facts, and the effect of each as a pure function.

use std::fs;

use crate::plan::host_info::HostInfo;

/// Inode numbers that Linux reserves for the namespaces of the host itself.
const HOST_USER_NAMESPACE: &str = "user:[4026531837]";
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// The highest level of `perf_event_paranoid` that needs no `CAP_SYS_ADMIN`; Debian and Ubuntu add
/// levels above it.
const MAX_PERF_EVENT_PARANOID: i32 = 2;

/// The level of `ptrace_scope` that forbids access to the memory of processes, for root as well.
const PTRACE_SCOPE_NO_ATTACH: i32 = 3;

/// SELinux types that are not confined: of root's shell, of services without a policy of their own,
/// and of privileged containers.
const UNCONFINED_TYPES: &[&str] =
    &["unconfined_t", "unconfined_service_t", "initrc_t", "spc_t", "kernel_t"];

/// What runs the programs of this host, if it is not Linux on a machine of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Platform {
    /// Linux on hardware or in a virtual machine.
    #[default]
    Linux,
    /// Windows Subsystem for Linux 1, which has no Linux kernel.
    Wsl1,
    /// Windows Subsystem for Linux 2: a virtual machine whose driver is that of Windows.
    Wsl2,
    /// gVisor, which implements system calls in a process.
    Gvisor,
}

impl Platform {
    /// Detects the platform from `uname -r` and `/proc/version`.
    fn detect(release: &str, version: &str) -> Self {
        let release = release.to_ascii_lowercase();
        // Before it named itself, gVisor reported one fixed version and date.
        let is_old_gvisor = release == "4.4.0" && version.contains("Jan 10 15:06:54 PST 2016");
        if release.contains("gvisor") || is_old_gvisor {
            Self::Gvisor
        } else if !release.contains("microsoft") {
            Self::Linux
        } else if release.starts_with("4.4.") {
            Self::Wsl1
        } else {
            Self::Wsl2
        }
    }
}

/// Security settings of this host and of this process.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SecurityFacts {
    /// The platform.
    pub platform: Platform,
    /// The lockdown mode of the kernel, if any.
    pub lockdown: Option<String>,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Option<i32>,
    /// `kernel.yama.ptrace_scope`.
    pub ptrace_scope: Option<i32>,
    /// The SELinux type of this process, if SELinux enforces its policy.
    pub selinux_type: Option<String>,
    /// The AppArmor profile that is enforced for this process.
    pub apparmor_profile: Option<String>,
    /// A seccomp filter applies to this process.
    pub seccomp: bool,
    /// This process runs in a user namespace, as in rootless containers.
    pub user_namespace: bool,
    /// This process runs in a pid namespace, as in containers without `--pid=host`.
    pub pid_namespace: bool,
}

impl SecurityFacts {
    /// Reads the facts.
    pub(super) fn read(release: &str) -> Self {
        let text = |path: &str| {
            fs::read_to_string(path)
                .ok()
                .map(|text| text.trim_matches(['\0', '\n', ' ']).to_owned())
        };
        let number = |path: &str| text(path).and_then(|text| text.parse().ok());
        let is_in =
            |link: &str, host: &str| fs::read_link(link).is_ok_and(|link| link.as_os_str() != host);
        let label = text("/proc/self/attr/current").unwrap_or_default();
        let is_enforcing = number("/sys/fs/selinux/enforce") == Some(1);
        let apparmor = text("/proc/self/attr/apparmor/current").unwrap_or_else(|| label.clone());
        Self {
            platform: Platform::detect(release, &text("/proc/version").unwrap_or_default()),
            lockdown: text("/sys/kernel/security/lockdown").and_then(|text| lockdown(&text)),
            perf_event_paranoid: number("/proc/sys/kernel/perf_event_paranoid"),
            ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
            selinux_type: is_enforcing.then(|| selinux_type(&label)).flatten(),
            apparmor_profile: enforced_profile(&apparmor),
            seccomp: text("/proc/self/status").is_some_and(|text| text.contains("Seccomp:\t2")),
            user_namespace: is_in("/proc/self/ns/user", HOST_USER_NAMESPACE),
            pid_namespace: is_in("/proc/self/ns/pid", HOST_PID_NAMESPACE),
        }
    }
}

/// Parses `none [integrity] confidentiality`.
fn lockdown(text: &str) -> Option<String> {
    let active = text.split('[').nth(1)?.split(']').next()?;
    (active != "none").then(|| active.to_owned())
}

/// Parses `system_u:system_r:container_t:s0:c1,c2`.
fn selinux_type(context: &str) -> Option<String> {
    context.split(':').nth(2).map(str::to_owned)
}

/// Parses `docker-default (enforce)`.
fn enforced_profile(label: &str) -> Option<String> {
    label.strip_suffix(" (enforce)").map(str::to_owned)
}

/// How far a security setting restricts tracing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Tracing is not affected.
    None,
    /// Tracing works, and a part of its results is missing.
    Limited,
    /// Tracing may be refused.
    MayRefuse,
    /// Tracing is refused.
    Refused,
}

impl Effect {
    /// Returns the name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Limited => "limited",
            Self::MayRefuse => "may_refuse",
            Self::Refused => "refused",
        }
    }
}

/// A security setting that is active here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restriction {
    /// The setting.
    pub name: &'static str,
    /// Its effect.
    pub effect: Effect,
    /// The value, the consequence and the next step.
    pub message: String,
}

/// Returns the security settings that are active here, with their effect on tracing.
#[must_use]
pub fn restrictions(host: &HostInfo) -> Vec<Restriction> {
    let facts = &host.security;
    let admin = host.capabilities.admin;
    let found = [
        platform(facts.platform),
        facts.user_namespace.then(user_namespace),
        facts.lockdown.as_deref().map(lockdown_effect),
        facts.pid_namespace.then(pid_namespace),
        facts.perf_event_paranoid.and_then(|level| perf_event_paranoid(level, admin)),
        facts.ptrace_scope.and_then(ptrace_scope),
        facts.selinux_type.as_deref().map(selinux),
        facts.apparmor_profile.as_deref().map(apparmor),
        facts.seccomp.then(seccomp),
    ];
    found.into_iter().flatten().collect()
}

fn restriction(name: &'static str, effect: Effect, message: impl Into<String>) -> Restriction {
    Restriction { name, effect, message: message.into() }
}

fn platform(platform: Platform) -> Option<Restriction> {
    match platform {
        Platform::Linux => None,
        Platform::Wsl1 => Some(restriction(
            "wsl1",
            Effect::Refused,
            "WSL 1 has no Linux kernel, so it has neither BPF nor CUDA; convert the distribution \
             with `wsl --set-version NAME 2`",
        )),
        Platform::Wsl2 => Some(restriction(
            "wsl2",
            Effect::Limited,
            "on WSL 2 the driver reports no usage by process, so untracked memory is not shown; use \
             `vramscope run` if a kernel without BTF or uprobes refuses probes",
        )),
        Platform::Gvisor => Some(restriction(
            "gvisor",
            Effect::Refused,
            "gVisor has no BPF and no uprobes; trace on the host, or use `vramscope run` inside",
        )),
    }
}

fn user_namespace() -> Restriction {
    restriction(
        "user_namespace",
        Effect::Refused,
        "in a user namespace (a rootless or unprivileged container) the kernel grants no capability \
         for BPF, not even to root; trace as root of the host, or use `vramscope run` inside",
    )
}

fn lockdown_effect(mode: &str) -> Restriction {
    match mode {
        "confidentiality" => restriction(
            "lockdown",
            Effect::Refused,
            "mode `confidentiality` forbids BPF programs to read memory; boot without \
             lockdown=confidentiality, or use `vramscope run`",
        ),
        _ => restriction("lockdown", Effect::None, format!("mode `{mode}` allows tracing")),
    }
}

fn pid_namespace() -> Restriction {
    restriction(
        "pid_namespace",
        Effect::Limited,
        "in its own pid namespace vramscope cannot inspect processes outside of it, so they have no \
         names and stacks; start the container with --pid=host (hostPID in Kubernetes)",
    )
}

fn perf_event_paranoid(level: i32, admin: bool) -> Option<Restriction> {
    (level > MAX_PERF_EVENT_PARANOID).then(|| match admin {
        true => restriction(
            "perf_event_paranoid",
            Effect::None,
            format!("{level} does not restrict a process with CAP_SYS_ADMIN"),
        ),
        false => restriction(
            "perf_event_paranoid",
            Effect::Limited,
            format!(
                "{level} without CAP_SYS_ADMIN: new copies of the driver are found by a scan every \
                 few seconds, and the first allocations in them may be missed; set \
                 kernel.perf_event_paranoid=2"
            ),
        ),
    })
}

fn ptrace_scope(level: i32) -> Option<Restriction> {
    (level >= PTRACE_SCOPE_NO_ATTACH).then(|| {
        restriction(
            "ptrace_scope",
            Effect::Limited,
            format!(
                "{level} forbids reading the memory of processes, so Python frames and some kernels \
                 have no names; boot with kernel.yama.ptrace_scope=2 or less"
            ),
        )
    })
}

fn selinux(kind: &str) -> Restriction {
    if UNCONFINED_TYPES.contains(&kind) {
        return restriction("selinux", Effect::None, format!("type `{kind}` is not confined"));
    }
    restriction(
        "selinux",
        Effect::MayRefuse,
        format!(
            "type `{kind}` may lack the permissions `bpf` and `perf_event`; run a container with \
             --security-opt label=disable (Kubernetes: seLinuxOptions type spc_t), and see \
             `ausearch -m avc -c vramscope`"
        ),
    )
}

fn apparmor(profile: &str) -> Restriction {
    restriction(
        "apparmor",
        Effect::MayRefuse,
        format!(
            "profile `{profile}` may forbid access to processes outside of it and BPF; run a \
             container with --security-opt apparmor=unconfined"
        ),
    )
}

fn seccomp() -> Restriction {
    restriction(
        "seccomp",
        Effect::MayRefuse,
        "a filter applies to this process; it must allow bpf, perf_event_open and process_vm_readv \
         (containers: --security-opt seccomp=unconfined or a profile that allows them)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::host;
    use crate::plan::{AttachMode, plan};

    /// Returns the only restriction of a host with these facts.
    fn only(security: SecurityFacts, admin: bool) -> Restriction {
        let mut host = host((6, 18), &AttachMode::ALL);
        host.security = security;
        host.capabilities.admin = admin;
        let found = restrictions(&host);
        assert_eq!(found.len(), 1, "{found:?}");
        // A refusal is also the verdict of the plan, in the same words.
        let verdict = plan(&host).map_err(|error| error.to_string());
        match found[0].effect {
            Effect::Refused => assert!(verdict.unwrap_err().contains(&found[0].message)),
            _ => assert!(verdict.is_ok()),
        }
        found.into_iter().next().unwrap()
    }

    #[test]
    fn each_restriction_has_its_effect_and_next_step() {
        let none = SecurityFacts::default;
        let platform = |platform| SecurityFacts { platform, ..none() };
        let text = |text: &str| Some(text.to_owned());
        let cases = [
            (platform(Platform::Wsl1), "wsl1", Effect::Refused, "wsl --set-version"),
            (platform(Platform::Wsl2), "wsl2", Effect::Limited, "vramscope run"),
            (platform(Platform::Gvisor), "gvisor", Effect::Refused, "vramscope run"),
            (
                SecurityFacts { user_namespace: true, ..none() },
                "user_namespace",
                Effect::Refused,
                "root of the host",
            ),
            (
                SecurityFacts { pid_namespace: true, ..none() },
                "pid_namespace",
                Effect::Limited,
                "--pid=host",
            ),
            (
                SecurityFacts { lockdown: text("integrity"), ..none() },
                "lockdown",
                Effect::None,
                "allows",
            ),
            (
                SecurityFacts { lockdown: text("confidentiality"), ..none() },
                "lockdown",
                Effect::Refused,
                "vramscope run",
            ),
            (
                SecurityFacts { perf_event_paranoid: Some(3), ..none() },
                "perf_event_paranoid",
                Effect::Limited,
                "kernel.perf_event_paranoid=2",
            ),
            (
                SecurityFacts { ptrace_scope: Some(3), ..none() },
                "ptrace_scope",
                Effect::Limited,
                "kernel.yama.ptrace_scope=2",
            ),
            (
                SecurityFacts { selinux_type: text("container_t"), ..none() },
                "selinux",
                Effect::MayRefuse,
                "label=disable",
            ),
            (
                SecurityFacts { selinux_type: text("spc_t"), ..none() },
                "selinux",
                Effect::None,
                "not confined",
            ),
            (
                SecurityFacts { apparmor_profile: text("docker-default"), ..none() },
                "apparmor",
                Effect::MayRefuse,
                "apparmor=unconfined",
            ),
            (
                SecurityFacts { seccomp: true, ..none() },
                "seccomp",
                Effect::MayRefuse,
                "perf_event_open",
            ),
        ];
        for (facts, name, effect, step) in cases {
            let found = only(facts, false);
            assert_eq!((found.name, found.effect), (name, effect), "{found:?}");
            assert!(found.message.contains(step), "{found:?}");
        }
    }

    #[test]
    fn harmless_settings_are_not_listed() {
        let mut host = host((6, 18), &AttachMode::ALL);
        host.security = SecurityFacts {
            perf_event_paranoid: Some(2),
            ptrace_scope: Some(1),
            ..SecurityFacts::default()
        };
        assert_eq!(restrictions(&host), []);
        let facts = SecurityFacts { perf_event_paranoid: Some(4), ..SecurityFacts::default() };
        assert_eq!(only(facts, true).effect, Effect::None);
    }

    #[test]
    fn platforms_are_detected_by_kernel_release() {
        for (release, version, expected) in [
            ("6.18.44-generic", "", Platform::Linux),
            ("4.4.0-19041-Microsoft", "", Platform::Wsl1),
            ("5.15.167.4-microsoft-standard-WSL2", "", Platform::Wsl2),
            ("6.6.87.2-microsoft-standard-WSL2", "", Platform::Wsl2),
            ("4.19.0-gvisor", "", Platform::Gvisor),
            ("4.4.0", "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016", Platform::Gvisor),
            ("4.4.0", "Linux version 4.4.0 (build@host)", Platform::Linux),
        ] {
            assert_eq!(Platform::detect(release, version), expected, "{release}");
        }
    }

    #[test]
    fn labels_of_security_modules_are_parsed() {
        assert_eq!(lockdown("none [integrity] confidentiality"), Some("integrity".into()));
        assert_eq!(lockdown("[none] integrity confidentiality"), None);
        let context = "system_u:system_r:container_t:s0:c1,c2";
        assert_eq!(selinux_type(context), Some("container_t".into()));
        assert_eq!(enforced_profile("docker-default (enforce)"), Some("docker-default".into()));
        assert_eq!(enforced_profile("vramscope (complain)"), None);
        assert_eq!(enforced_profile("unconfined"), None);
    }
}
