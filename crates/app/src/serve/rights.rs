//! Rights that are given up. Each thread of the agent keeps what it needs and no more: tracing needs to
//! load probes and to look into processes, answering requests needs nothing.

use std::fs;

use anyhow::{Context, Result};
use rustix::io::Result as IoResult;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// What tracing needs, from the start to the end: new copies of the driver are probed when they come.
/// - `BPF` and `PERFMON`: to load probes and attach them;
/// - `SYS_PTRACE` and `DAC_READ_SEARCH`: to see which processes use the driver, and their stacks;
/// - `SYS_RESOURCE`: memory of probes, on kernels that count it against a limit.
const TRACING: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::SYS_RESOURCE);

/// From this kernel on probes are attached all at once. Before, one by one, which needs `SYS_ADMIN`.
const AT_ONCE: (u32, u32) = (6, 6);

const fn tracing_on(kernel: (u32, u32)) -> CapabilitySet {
    if kernel.0 < AT_ONCE.0 || kernel.0 == AT_ONCE.0 && kernel.1 < AT_ONCE.1 {
        TRACING.union(CapabilitySet::SYS_ADMIN)
    } else {
        TRACING
    }
}

fn tracing() -> CapabilitySet {
    tracing_on(version(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()))
}

/// `6.12.107+deb13` → (6, 12). What cannot be read counts as old.
fn version(release: &str) -> (u32, u32) {
    let mut parts =
        release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

/// To be called before there are threads: keeps what is needed to start, and what the parts ask for.
/// Programs that are run have no more.
pub(crate) fn begin(more: CapabilitySet) -> Result<()> {
    let begin = || -> IoResult<()> {
        rustix::thread::set_no_new_privs(true)?;
        // Ports below 1024 are only needed to begin with.
        keep(tracing().union(CapabilitySet::NET_BIND_SERVICE).union(more))
    };
    begin().context("cannot drop capabilities")
}

/// Which right the parts of the agent need for what may be done without asking.
pub(crate) const fn to_signal(wanted: bool) -> CapabilitySet {
    if wanted { CapabilitySet::KILL } else { CapabilitySet::empty() }
}

/// Whether processes of other users can be sent signals.
pub(crate) fn may_signal() -> bool {
    capabilities(None).is_ok_and(|has| has.permitted.contains(CapabilitySet::KILL))
}

/// Of this thread and those that it starts: what tracing needs.
pub(crate) fn trace() -> Result<()> {
    keep(tracing()).context("cannot drop capabilities")
}

/// Of this thread and those that it starts: nothing but this.
pub(crate) fn only(kept: CapabilitySet) -> Result<()> {
    keep(kept).context("cannot drop capabilities")
}

fn keep(wanted: CapabilitySet) -> IoResult<()> {
    let has = capabilities(None)?;
    let kept = has.permitted & wanted;
    set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: has.inheritable & kept },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_known_by_the_beginning_of_their_names() {
        assert_eq!(version("6.12.107+deb13-cloud-amd64"), (6, 12));
        assert_eq!((version("5.15.0-1"), version("7.0")), ((5, 15), (7, 0)));
        assert_eq!((version("6"), version("rt6.1")), ((6, 0), (0, 0)));
    }

    #[test]
    fn old_kernels_need_more_to_attach_probes() {
        for (kernel, more) in [((5, 15), true), ((6, 5), true), ((6, 6), false), ((7, 0), false)] {
            let kept = tracing_on(kernel);
            assert_eq!(kept.contains(CapabilitySet::SYS_ADMIN), more, "{kernel:?}");
            assert!(kept.contains(TRACING), "{kernel:?}");
        }
    }

    #[test]
    fn a_thread_keeps_what_it_asks_for_and_others_are_not_touched() {
        let before = capabilities(None).unwrap();
        let inner = std::thread::spawn(|| {
            only(CapabilitySet::KILL).unwrap();
            capabilities(None).unwrap()
        });
        let kept = inner.join().unwrap();
        assert_eq!(kept.effective, before.permitted & CapabilitySet::KILL);
        assert_eq!(kept.permitted, kept.effective);
        assert_eq!(capabilities(None).unwrap(), before);
    }
}
