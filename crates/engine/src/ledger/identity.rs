//! Program, user and group of a process.

use crate::model::{AllocationKey, ProcessGroup, ProcessIdentity, SiteRegistry, program_of_stack};

use super::allocators::cache::CachedBlock;
use super::process::Process;
use super::sites::table::SiteRef;

/// Limit of sites that are searched for the program of a process.
const MAX_SITES_FOR_PROGRAM: usize = 16;

/// Limit of sites per process whose Python references are kept.
const MAX_KEPT_BY: usize = 1024;

impl Process {
    /// Sets the Python references that keep the memory at an address alive. Verdicts on its site have
    /// them as evidence.
    pub(super) fn set_kept_by(&mut self, address: u64, text: &str, registry: &SiteRegistry) {
        let allocation = || self.allocations.find(AllocationKey::address(address));
        let site = self
            .allocators
            .block(address)
            .map(CachedBlock::site)
            .or_else(|| allocation().map(|slot| self.allocations.slab[slot].site()));
        let Some(site) = site.flatten().map(|site| registry.name(Some(site))) else { return };
        if self.kept_by.len() < MAX_KEPT_BY || self.kept_by.contains_key(&site) {
            self.kept_by.insert(site, text.into());
        }
    }

    /// Sets program and user. What is already known and now missing stays.
    pub(super) fn set_identity(&mut self, identity: &ProcessIdentity) {
        let ProcessIdentity { program, user, group } = identity.clone();
        self.identity.program = program.or(self.identity.program.take());
        self.identity.user = user.or(self.identity.user.take());
        let known = std::mem::take(&mut self.identity.group);
        self.identity.group = ProcessGroup {
            job: group.job.or(known.job),
            release: group.release.or(known.release),
            rank: group.rank.or(known.rank),
            tree: group.tree.or(known.tree),
        };
    }

    /// Returns the program, or else the name of the process.
    pub(super) fn program(&self) -> &str {
        self.identity.program_or(&self.name)
    }

    /// Takes the program from a call stack, if the command line did not name it.
    pub(super) fn find_program(&mut self, registry: &SiteRegistry) {
        if self.identity.program.is_some() {
            return;
        }
        let sites = self.sites.rows().iter().filter_map(|row| match row.source {
            SiteRef::Site(site) => Some(site),
            SiteRef::Unknown | SiteRef::Other => None,
        });
        let stacks = sites.take(MAX_SITES_FOR_PROGRAM).filter_map(|site| registry.frames(site));
        self.identity.program = stacks.into_iter().find_map(|frames| program_of_stack(&frames));
    }
}
