//! Facts about this host, gathered without changing it. [`crate::plan`] makes decisions from them.

use std::ffi::CStr;
use std::fs;

use crate::plan::restrictions::SecurityFacts;

/// Effective capabilities of this process that tracing uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Capabilities {
    /// `CAP_BPF` or `CAP_SYS_ADMIN`: can load probes.
    pub bpf: bool,
    /// `CAP_PERFMON` or `CAP_SYS_ADMIN`: can attach probes.
    pub perfmon: bool,
    /// `CAP_SYS_ADMIN`: can attach single uprobes, the only attach mode before Linux 6.6.
    pub admin: bool,
    /// `CAP_SYS_PTRACE`: can inspect processes of other users.
    pub ptrace: bool,
    /// `CAP_DAC_READ_SEARCH` or `CAP_DAC_OVERRIDE`: can read files of other users, such as drivers
    /// in containers.
    pub read_files: bool,
    /// The user id.
    pub uid: u32,
}

impl Capabilities {
    /// Returns the missing capabilities among those that tracing uses.
    #[must_use]
    pub fn missing_capabilities(&self) -> Vec<&'static str> {
        let all = [
            (self.bpf, "CAP_BPF"),
            (self.perfmon, "CAP_PERFMON"),
            (self.ptrace, "CAP_SYS_PTRACE"),
            (self.read_files, "CAP_DAC_READ_SEARCH"),
        ];
        all.into_iter().filter(|(has, _)| !has).map(|(_, name)| name).collect()
    }
}

/// Resource limits of this process that tracing can reach; `None`: unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Maximum number of open files (`RLIMIT_NOFILE`).
    pub open_files: Option<u64>,
    /// Maximum size of the address space (`RLIMIT_AS`).
    pub address_space: Option<u64>,
}

impl Limits {
    /// Reads the limits of this process.
    #[must_use]
    pub fn gather() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/limits").unwrap_or_default())
    }

    /// Parses lines of a name, the soft limit, the hard limit and a unit.
    fn parse(text: &str) -> Self {
        let soft = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse().ok()
        };
        Self { open_files: soft("Max open files"), address_space: soft("Max address space") }
    }
}

/// Facts about this host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostInfo {
    /// `uname -r`.
    pub release: String,
    /// Major and minor kernel version.
    pub kernel: (u32, u32),
    /// `uname -m`.
    pub machine: String,
    /// Capabilities of this process.
    pub capabilities: Capabilities,
    /// Resource limits of this process.
    pub limits: Limits,
    /// Number of possible CPUs.
    pub cpus: u64,
    /// The kernel has BTF.
    pub btf: bool,
    /// Security settings of this host and of this process.
    pub security: SecurityFacts,
    /// The result of each attach mode that was tried, best first.
    pub attach_modes: Vec<(crate::plan::AttachMode, Result<(), String>)>,
}

impl HostInfo {
    /// Reads the facts; `attach_modes` stays empty until [`crate::session`] tries the attach modes.
    #[must_use]
    pub fn read() -> Self {
        let (release, machine) = uname();
        Self {
            kernel: version(&release),
            security: SecurityFacts::read(&release),
            release,
            machine,
            capabilities: capabilities(),
            limits: Limits::gather(),
            cpus: libbpf_rs::num_possible_cpus().unwrap_or(1) as u64,
            btf: fs::metadata("/sys/kernel/btf/vmlinux").is_ok(),
            attach_modes: Vec::new(),
        }
    }
}

fn uname() -> (String, String) {
    // SAFETY: all-zero is a valid utsname.
    let mut name: libc::utsname = unsafe { std::mem::zeroed() };
    // SAFETY: name is writable and outlives the call.
    if unsafe { libc::uname(&raw mut name) } != 0 {
        return (String::new(), String::new());
    }
    let text = |field: &[libc::c_char]| {
        // SAFETY: the kernel terminates each field, and the array was zeroed.
        let text = unsafe { CStr::from_ptr(field.as_ptr()) };
        text.to_string_lossy().into_owned()
    };
    (text(&name.release), text(&name.machine))
}

/// Parses `6.18.44-fc` to (6, 18).
fn version(release: &str) -> (u32, u32) {
    let mut parts =
        release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn capabilities() -> Capabilities {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim().to_owned()
    };
    let effective = u64::from_str_radix(&value("CapEff:"), 16).unwrap_or(0);
    let has = |bit: u32| effective >> bit & 1 == 1;
    let (override_access, read_search) = (has(1), has(2));
    let (ptrace, admin, perfmon, bpf) = (has(19), has(21), has(38), has(39));
    Capabilities {
        bpf: admin || bpf,
        perfmon: admin || perfmon,
        admin,
        ptrace,
        read_files: override_access || read_search,
        uid: value("Uid:").split_whitespace().nth(1).and_then(|v| v.parse().ok()).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_parsed() {
        assert_eq!(version("6.18.44-generic"), (6, 18));
        assert_eq!(version("5.10.0-28-amd64"), (5, 10));
        assert_eq!(version("odd"), (0, 0));
    }

    #[test]
    fn soft_limits_are_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max open files            1024                 524288               files     \n\
                    Max address space         unlimited            unlimited            bytes     \n";
        let limits = Limits { open_files: Some(1024), address_space: None };
        assert_eq!(Limits::parse(text), limits);
        assert_eq!(Limits::parse(""), Limits::default());
        assert!(Limits::gather().open_files.is_some());
    }
}
