//! Rights that are given up. Each thread of the agent keeps what it needs and no more: tracing needs to
//! load probes and to look into processes, answering requests needs nothing.

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

/// What is needed besides, to begin with: ports below 1024.
const STARTING: CapabilitySet = TRACING.union(CapabilitySet::NET_BIND_SERVICE);

/// To be called before there are threads: keeps what is needed to start, and what the parts ask for.
/// Programs that are run have no more.
pub(crate) fn begin(more: CapabilitySet) -> Result<()> {
    let begin = || -> IoResult<()> {
        rustix::thread::set_no_new_privs(true)?;
        keep(STARTING.union(more))
    };
    begin().context("cannot give up rights that are not needed")
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
    keep(TRACING).context("cannot give up rights that are not needed")
}

/// Of this thread and those that it starts: nothing but this.
pub(crate) fn only(kept: CapabilitySet) -> Result<()> {
    keep(kept).context("cannot give up rights that are not needed")
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
