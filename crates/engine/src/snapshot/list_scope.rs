//! Which processes a snapshot lists in detail.

use crate::model::Pid;

/// Processes whose sites and allocations a snapshot lists. Verdicts and totals are of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ListScope {
    /// All processes, and the list of all sites.
    #[default]
    All,
    /// One process, and its sites of tensors.
    Process(Pid),
    /// None: the snapshot costs the least.
    None,
}

impl ListScope {
    /// Whether the lists of a process are included.
    pub fn includes(self, pid: Pid) -> bool {
        match self {
            Self::All => true,
            Self::Process(only) => only == pid,
            Self::None => false,
        }
    }
}
