//! Chooses how the probes are attached, and loads them, by trying.

use libbpf_rs::Link;

use super::bpf_object::{LoadConfig, LoadedObject};
use super::self_test::{load_and_test, test_attach_mode};
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

/// Probes that are loaded in the best attach mode that works.
pub(crate) struct LoadedProbes {
    pub(crate) plan: AttachPlan,
    pub(crate) object: LoadedObject,
    pub(crate) lifecycle_links: Vec<Link>,
}

/// Loads the probes in the best attach mode that works, trying no more than needed. `config` returns
/// their configuration for a plan.
pub(crate) fn load(
    only: Option<AttachMode>,
    config: impl Fn(&AttachPlan) -> LoadConfig,
) -> Result<LoadedProbes, Error> {
    let mut host = HostInfo::read();
    plan::preconditions(&host)?;
    let candidates = only.map_or(AttachMode::ALL.to_vec(), |attach_mode| vec![attach_mode]);
    for attach_mode in candidates {
        host.attach_modes.push((attach_mode, Ok(())));
        let plan = plan::plan(&host)?;
        match load_and_test(config(&plan), plan.link_per_process) {
            Ok((object, lifecycle_links)) => {
                return Ok(LoadedProbes { plan, object, lifecycle_links });
            }
            Err(reason) => {
                host.attach_modes.pop();
                host.attach_modes.push((attach_mode, Err(reason)));
            }
        }
    }
    Err(plan::no_attach_mode(&host).into())
}
