//! Frees and allocations of the same address whose calls overlap: allocations that were ended by the
//! reuse of their address, and whose free call is in progress (or lost); frees that returned
//! before the call that made the allocation; and frees that overlap with the end of a context.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::model::{AllocationKey, ContextId, DeviceId, Timestamp};

use super::super::driver::reuse::existed;
use super::allocation::AllocationEntry;

/// Limit of keys; beyond it, pending frees are only counted.
const MAX_PENDING_KEYS: usize = 65_536;

/// Limit of listed released memory: less than a megabyte.
const MAX_RELEASED: usize = 4096;

/// An allocation that was ended by reuse.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingFree {
    /// Its context.
    pub(crate) context: Option<ContextId>,
    /// Its device.
    pub(crate) device: Option<DeviceId>,
    /// Return time of the call that allocated it.
    pub(crate) allocated_at: Timestamp,
    /// When the reuse of its key was seen.
    pub(crate) at: Timestamp,
    /// Entry time of the call that reused the key.
    pub(crate) entered: Timestamp,
    /// Device memory that it used.
    pub(crate) bytes: u64,
}

/// Memory that ended with a context, or a free call that was in progress then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleasedMemory {
    /// Its device.
    pub(crate) device: Option<DeviceId>,
    /// Device memory that it used.
    pub(crate) bytes: u64,
    /// Return time of the call that allocated it.
    pub(crate) allocated_at: Timestamp,
    /// Entry and return time of the call that ended the context.
    pub(crate) call: (Timestamp, Timestamp),
    /// The allocation, if it was live at the end of the context.
    pub(crate) entry: Option<AllocationEntry>,
}

/// Pending frees of one process.
#[derive(Debug, Default)]
pub(crate) struct PendingFrees {
    by_key: HashMap<AllocationKey, Vec<PendingFree>>,
    /// Number of pending frees.
    pub(crate) count: u64,
    /// Return times of frees whose allocating call may be in progress.
    early: HashMap<AllocationKey, Timestamp>,
    /// Number of frees that may be of memory whose allocating call overlaps with them.
    pub(crate) racing: u64,
    /// Return time of the last call that released memory without a free.
    pub(crate) released_at: Timestamp,
    /// The memory that was released last.
    released: VecDeque<(AllocationKey, ReleasedMemory)>,
    /// Return time of the last such call whose memory is not all in this list.
    pub(crate) unlisted_until: Option<Timestamp>,
}

impl PendingFrees {
    /// Records that a live allocation was ended by reuse, with the number of frees that are pending
    /// for it.
    pub(crate) fn add(&mut self, key: AllocationKey, frees: u64, pending: PendingFree) {
        self.count += frees;
        let known = self.by_key.contains_key(&key);
        if known || self.by_key.len() < MAX_PENDING_KEYS {
            self.by_key.entry(key).or_default().extend((0..frees).map(|_| pending));
        }
    }

    /// Matches a free that is not for a live allocation: returns the youngest pending one that
    /// existed when the free was entered.
    pub(crate) fn match_free(
        &mut self,
        key: AllocationKey,
        entered: Timestamp,
    ) -> Option<PendingFree> {
        let position = self.pending_position(key, entered)?;
        let all = self.by_key.get_mut(&key)?;
        let pending = all.remove(position);
        if all.is_empty() {
            self.by_key.remove(&key);
        }
        self.count -= 1;
        Some(pending)
    }

    fn pending_position(&self, key: AllocationKey, entered: Timestamp) -> Option<usize> {
        let all = self.by_key.get(&key)?;
        all.iter().rposition(|pending| existed(pending.allocated_at, entered))
    }

    /// Returns whether a free is of released memory rather than of memory whose free is pending: of
    /// the youngest that existed when it was entered.
    pub(crate) fn prefers_released(&self, key: AllocationKey, entered: Timestamp) -> bool {
        let pending = self.pending_position(key, entered);
        let pending = pending.and_then(|position| self.by_key.get(&key)?.get(position));
        let released = self.released_position(key, entered);
        let released = released.and_then(|position| self.released.get(position));
        released.map(|(_, memory)| memory.allocated_at) > pending.map(|memory| memory.allocated_at)
    }

    /// Records a free of unknown memory that returned at this time.
    pub(crate) fn add_early(&mut self, key: AllocationKey, returned: Timestamp) {
        if self.early.len() < MAX_PENDING_KEYS {
            self.early.insert(key, returned);
        }
    }

    /// Whether memory that was allocated by a call entered at this time may have been freed already:
    /// another thread freed the address while the call was in progress.
    pub(crate) fn match_early(&mut self, key: AllocationKey, entered: Timestamp) -> bool {
        let early = if self.early.is_empty() { None } else { self.early.remove(&key) };
        let is_racing = early.is_some_and(|returned| returned >= entered);
        self.racing += u64::from(is_racing);
        is_racing
    }

    /// Records memory that was released without a free: a free that has not returned yet may have
    /// ended it before.
    pub(crate) fn add_released(&mut self, key: AllocationKey, memory: ReleasedMemory) {
        if self.released.len() >= MAX_RELEASED
            && let Some((_, oldest)) = self.released.pop_front()
        {
            self.unlisted_until = self.unlisted_until.max(Some(oldest.call.1));
        }
        self.released.push_back((key, memory));
    }

    /// Returns the memory that a successful free must have ended before it was released: the
    /// driver would have rejected a later free.
    pub(crate) fn match_released(
        &mut self,
        key: AllocationKey,
        entered: Timestamp,
    ) -> Option<ReleasedMemory> {
        let position = self.released_position(key, entered)?;
        self.released.remove(position).map(|(_, memory)| memory)
    }

    fn released_position(&self, key: AllocationKey, entered: Timestamp) -> Option<usize> {
        if self.released_at < entered {
            return None;
        }
        self.released.iter().rposition(|(released, memory)| {
            *released == key && existed(memory.allocated_at, entered) && entered <= memory.call.1
        })
    }

    /// Removes allocations that may have ended with a context, in a call entered at that time,
    /// without a free: they existed then and were ended by reuse since. Returns them.
    pub(crate) fn release_context(
        &mut self,
        context: ContextId,
        entered: Timestamp,
    ) -> Vec<(AllocationKey, PendingFree)> {
        let mut ended = Vec::new();
        let released = |pending: &PendingFree| {
            pending.context == Some(context)
                && existed(pending.allocated_at, entered)
                && entered <= pending.at
        };
        self.by_key.retain(|key, pending| {
            ended.extend(pending.extract_if(.., |pending| released(pending)).map(|it| (*key, it)));
            !pending.is_empty()
        });
        self.count -= ended.len() as u64;
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Timestamp = Timestamp(1000);

    fn pending(context: u64, at: u64) -> PendingFree {
        let (allocated_at, at) = (Timestamp(at / 2), Timestamp(at));
        PendingFree {
            context: Some(ContextId(context)),
            device: None,
            allocated_at,
            at,
            entered: at,
            bytes: 1,
        }
    }

    #[test]
    fn free_matches_one_pending_free_of_its_key() {
        let mut pending_frees = PendingFrees::default();
        pending_frees.add(AllocationKey::address(1), 1, pending(0, 1));
        pending_frees.add(AllocationKey::address(1), 1, pending(0, 1));
        assert!(pending_frees.match_free(AllocationKey::address(2), LATER).is_none());
        assert!(pending_frees.match_free(AllocationKey::address(1), LATER).is_some());
        assert!(pending_frees.match_free(AllocationKey::address(1), LATER).is_some());
        assert!(pending_frees.match_free(AllocationKey::address(1), LATER).is_none());
        assert_eq!(pending_frees.count, 0);
    }

    #[test]
    fn free_does_not_match_later_allocations() {
        let mut pending_frees = PendingFrees::default();
        pending_frees.add(AllocationKey::address(1), 1, pending(0, 10));
        pending_frees.add(AllocationKey::address(1), 1, pending(0, 40));
        let ends = |pending: Option<PendingFree>| pending.map(|pending| pending.at);
        assert_eq!(
            ends(pending_frees.match_free(AllocationKey::address(1), Timestamp(15))),
            Some(Timestamp(10))
        );
        assert_eq!(ends(pending_frees.match_free(AllocationKey::address(1), Timestamp(15))), None);
        assert_eq!(
            ends(pending_frees.match_free(AllocationKey::address(1), Timestamp(35))),
            Some(Timestamp(40))
        );
    }

    #[test]
    fn early_free_matches_only_an_overlapping_allocation() {
        let mut pending_frees = PendingFrees::default();
        let key = AllocationKey::address(1);
        for (entered, expected) in [(9, true), (10, true), (11, false)] {
            pending_frees.add_early(key, Timestamp(10));
            assert_eq!(pending_frees.match_early(key, Timestamp(entered)), expected, "{entered}");
            assert!(!pending_frees.match_early(key, Timestamp(entered)));
        }
    }

    #[test]
    fn context_end_releases_pending_frees() {
        let mut pending_frees = PendingFrees::default();
        pending_frees.add(AllocationKey::address(1), 1, pending(7, 10));
        pending_frees.add(AllocationKey::address(2), 1, pending(7, 20));
        pending_frees.add(AllocationKey::address(3), 1, pending(8, 20));
        pending_frees.add(AllocationKey::address(4), 1, pending(7, 40));
        // One was reused before the end of the context, one was allocated after it.
        assert_eq!(pending_frees.release_context(ContextId(7), Timestamp(15)).len(), 1);
        assert_eq!(pending_frees.count, 3);
        assert!(pending_frees.match_free(AllocationKey::address(2), LATER).is_none());
        assert!(pending_frees.match_free(AllocationKey::address(1), LATER).is_some());
        assert!(pending_frees.match_free(AllocationKey::address(3), LATER).is_some());
    }

    #[test]
    fn pending_frees_beyond_the_limit_are_only_counted() {
        let mut pending_frees = PendingFrees::default();
        for value in 0..MAX_PENDING_KEYS as u64 + 10 {
            pending_frees.add(AllocationKey::address(value), 1, pending(0, 1));
        }
        assert_eq!(pending_frees.by_key.len(), MAX_PENDING_KEYS);
        assert_eq!(pending_frees.count, MAX_PENDING_KEYS as u64 + 10);
        assert!(
            pending_frees
                .match_free(AllocationKey::address(MAX_PENDING_KEYS as u64 + 1), LATER)
                .is_none()
        );
    }

    #[test]
    fn free_matches_released_memory_only_if_the_calls_overlap() {
        let mut pending_frees = PendingFrees::default();
        let key = AllocationKey::address(1);
        let memory = ReleasedMemory {
            device: None,
            bytes: 1,
            allocated_at: Timestamp(5),
            call: (Timestamp(10), Timestamp(20)),
            entry: None,
        };
        pending_frees.released_at = memory.call.1;
        for (entered, expected) in [(4, false), (5, true), (15, true), (20, true), (21, false)] {
            pending_frees.add_released(key, memory);
            let found = pending_frees.match_released(key, Timestamp(entered));
            assert_eq!(found.is_some(), expected, "{entered}");
            pending_frees.released.clear();
        }
        // Two contexts had memory at the address.
        let newer = ReleasedMemory { allocated_at: Timestamp(16), ..memory };
        pending_frees.add_released(key, memory);
        pending_frees.add_released(key, newer);
        let mut ends = |entered| {
            let found = pending_frees.match_released(key, Timestamp(entered));
            found.map(|memory| memory.allocated_at.0)
        };
        assert_eq!((ends(15), ends(18), ends(18)), (Some(5), Some(16), None));
    }

    #[test]
    fn released_memory_beyond_the_limit_is_marked() {
        let mut pending_frees = PendingFrees::default();
        for value in 0..=MAX_RELEASED as u64 {
            assert_eq!(pending_frees.unlisted_until, None);
            let memory = ReleasedMemory {
                device: None,
                bytes: 1,
                allocated_at: Timestamp(0),
                call: (Timestamp(value), Timestamp(value + 5)),
                entry: None,
            };
            pending_frees.add_released(AllocationKey::address(value), memory);
        }
        assert_eq!(pending_frees.unlisted_until, Some(Timestamp(5)));
        assert_eq!(pending_frees.released.len(), MAX_RELEASED);
    }
}
