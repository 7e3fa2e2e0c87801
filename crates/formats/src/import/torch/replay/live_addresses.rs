//! Addresses that are live in any trace. A process has one block at an address; in a damaged file
//! the traces of two devices can both have one there.

use engine::model::{AllocationChange, AllocationKey, ChangeKind, EndReason};
use hashbrown::HashMap;

/// The live allocation at each address, with the number of its trace.
#[derive(Default)]
pub(crate) struct LiveAddresses(HashMap<AllocationKey, (usize, AllocationChange)>);

impl LiveAddresses {
    /// Adds an allocation. Returns the end of the one that it replaces.
    pub(super) fn add(
        &mut self,
        trace: usize,
        change: &AllocationChange,
    ) -> Option<AllocationChange> {
        let (_, older) = self.0.insert(change.key, (trace, *change))?;
        let action = ChangeKind::Ended { allocated_at: older.at, reason: EndReason::Replaced };
        Some(AllocationChange { at: change.at, action, ..older })
    }

    /// Removes an allocation. Returns whether it was live: not if another trace has replaced it.
    pub(super) fn remove(&mut self, trace: usize, key: AllocationKey) -> bool {
        let is_live = self.0.get(&key).is_some_and(|(owner, _)| *owner == trace);
        if is_live {
            self.0.remove(&key);
        }
        is_live
    }
}
