//! Capabilities of the agent's threads. Each thread keeps only what it needs: tracing must load
//! probes and inspect processes, serving requests needs none.

use std::fs;

use anyhow::{Context, Result};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Capabilities of tracing, from start to exit, because new copies of the driver are probed when
/// they appear:
/// - `BPF` and `PERFMON`: to load probes and attach them;
/// - `SYS_PTRACE` and `DAC_READ_SEARCH`: to see which processes use the driver, and their stacks;
/// - `SYS_RESOURCE`: memory of probes, on kernels that count it against a limit.
const TRACING_CAPABILITIES: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::SYS_RESOURCE);

/// Context of errors.
const FAILED: &str = "cannot drop capabilities";

/// First kernel with multi-uprobe links. Before it, probes are attached one by one, which needs
/// `SYS_ADMIN`.
const UPROBE_MULTI_KERNEL: (u32, u32) = (6, 6);

fn tracing_on(kernel: (u32, u32)) -> CapabilitySet {
    if kernel < UPROBE_MULTI_KERNEL {
        TRACING_CAPABILITIES.union(CapabilitySet::SYS_ADMIN)
    } else {
        TRACING_CAPABILITIES
    }
}

fn tracing() -> CapabilitySet {
    tracing_on(version(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()))
}

/// `6.12.107+deb13` → (6, 12). An unreadable version counts as old.
fn version(release: &str) -> (u32, u32) {
    let mut parts =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// Drops the capabilities of the process that start-up does not need. Must be called before threads
/// are started. Child programs get no more either.
///
/// # Errors
/// The kernel refuses it.
pub fn init_process() -> Result<()> {
    rustix::thread::set_no_new_privs(true).context(FAILED)?;
    // Ports below 1024 are only bound at start-up.
    keep_only(tracing().union(CapabilitySet::NET_BIND_SERVICE))
}

/// Keeps only the capabilities of tracing, for this thread and threads that it starts.
///
/// # Errors
/// The kernel refuses it.
pub fn keep_tracing() -> Result<()> {
    keep_only(tracing())
}

/// Keeps only these capabilities, for this thread and threads that it starts.
pub(crate) fn keep_only(needed: CapabilitySet) -> Result<()> {
    let has = capabilities(None).context(FAILED)?;
    let caps = has.permitted & needed;
    let inheritable = has.inheritable & caps;
    let sets = CapabilitySets { effective: caps, permitted: caps, inheritable };
    set_capabilities(None, sets).context(FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_parsed() {
        assert_eq!(version("6.12.107+deb13-cloud-amd64"), (6, 12));
        assert_eq!((version("5.15.0-1"), version("7.0")), ((5, 15), (7, 0)));
        assert_eq!((version("6"), version("rt6.1")), ((6, 0), (0, 0)));
    }

    #[test]
    fn old_kernels_need_sys_admin() {
        for (kernel, more) in [((5, 15), true), ((6, 5), true), ((6, 6), false), ((7, 0), false)] {
            let caps = tracing_on(kernel);
            assert_eq!(caps.contains(CapabilitySet::SYS_ADMIN), more, "{kernel:?}");
            assert!(caps.contains(TRACING_CAPABILITIES), "{kernel:?}");
        }
    }

    #[test]
    fn keep_only_affects_the_calling_thread() {
        let before = capabilities(None).unwrap();
        let inner = std::thread::spawn(|| {
            keep_only(CapabilitySet::KILL).unwrap();
            capabilities(None).unwrap()
        });
        let caps = inner.join().unwrap();
        assert_eq!(caps.effective, before.permitted & CapabilitySet::KILL);
        assert_eq!(caps.permitted, caps.effective);
        assert_eq!(capabilities(None).unwrap(), before);
    }
}
