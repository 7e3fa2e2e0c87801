//! Contexts whose handle was used again before the call that destroyed them returned. Their memory
//! seemed to end with the reuse; once the call is known, it may have ended at its entry.

use crate::model::{ContextId, DeviceId, Timestamp};

use super::super::reuse::existed;

/// Maximum number of contexts; the oldest are dropped.
const MAX_REUSED: usize = 64;

/// Device memory that seemed to end in a call entered at `until`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndedMemory {
    pub(crate) device: Option<DeviceId>,
    pub(crate) bytes: u64,
    pub(crate) until: Timestamp,
}

#[derive(Debug)]
struct ReusedContext {
    id: ContextId,
    /// From its creation to the return of the call that created the next one.
    since: Timestamp,
    at: Timestamp,
    memory: Vec<EndedMemory>,
}

/// Contexts of one process whose destroy call has not returned.
#[derive(Debug, Default)]
pub(crate) struct ReusedContexts(Vec<ReusedContext>);

impl ReusedContexts {
    /// Records that the handle of a context, created at `since`, was used again by a call that
    /// returned at `at`.
    pub(crate) fn add(
        &mut self,
        id: ContextId,
        (since, at): (Timestamp, Timestamp),
        memory: Vec<EndedMemory>,
    ) {
        if memory.is_empty() {
            return;
        }
        if self.0.len() == MAX_REUSED {
            self.0.remove(0);
        }
        self.0.push(ReusedContext { id, since, at, memory });
    }

    /// Returns the memory of the context that a destroy call entered at this time has ended.
    pub(crate) fn destroyed(&mut self, id: ContextId, entered: Timestamp) -> Vec<EndedMemory> {
        let is_ended =
            |one: &ReusedContext| one.id == id && existed(one.since, entered) && entered <= one.at;
        let found = self.0.iter().position(is_ended);
        found.map_or_else(Vec::new, |index| self.0.remove(index).memory)
    }
}
