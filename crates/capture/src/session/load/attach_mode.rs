//! Chooses how the probes are attached, by trying.

use super::self_test::test_attach_mode;
use crate::error::Error;
use crate::plan::host_info::HostInfo;
use crate::plan::{self, AttachMode, AttachPlan};

/// Gathers facts about this host and tries each attach mode, for `doctor`.
#[must_use]
pub fn probe_host() -> HostInfo {
    let mut host = HostInfo::read();
    if plan::preconditions(&host).is_ok() {
        host.attach_modes = AttachMode::ALL
            .iter()
            .map(|attach_mode| (*attach_mode, test_attach_mode(&host, *attach_mode)))
            .collect();
    }
    host
}

/// Finds the best attach mode that works, trying no more than needed.
pub(crate) fn choose(only: Option<AttachMode>) -> Result<AttachPlan, Error> {
    let mut host = HostInfo::read();
    plan::preconditions(&host)?;
    let candidates = only.map_or(AttachMode::ALL.to_vec(), |attach_mode| vec![attach_mode]);
    for attach_mode in candidates {
        let outcome = test_attach_mode(&host, attach_mode);
        let works = outcome.is_ok();
        host.attach_modes.push((attach_mode, outcome));
        if works {
            break;
        }
    }
    Ok(plan::plan(&host)?)
}
