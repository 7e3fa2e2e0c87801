//! Contexts of one process: their device, the number of live allocations, and the users of primary
//! contexts.

pub(crate) mod ends;
mod lifetime;
mod reused;

use hashbrown::HashMap;

use crate::model::{ContextId, DeviceId, Timestamp};

use super::super::memory::allocation::AllocationEntry;
use super::reuse::existed;
use super::slots::Slots;
use reused::ReusedContexts;

/// One context.
#[derive(Clone, Copy, Debug)]
struct Context {
    id: ContextId,
    device: Option<DeviceId>,
    /// Creation time.
    since: Timestamp,
    /// Whether it was created by `cuCtxCreate`, so that it is not a primary context.
    created: bool,
    /// Number of live allocations, and of those whose device is unknown.
    live: u64,
    waiting: u64,
}

/// A device's primary context.
#[derive(Clone, Copy, Debug)]
struct PrimaryContext {
    device: DeviceId,
    context: u32,
    /// Retains minus releases.
    users: u64,
}

/// Effect of releasing a primary context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PrimaryRelease {
    /// No user is left: all memory of this context is freed.
    Last(u32),
    /// There are other users.
    Shared,
    /// Not all retains were seen, so the effect is unknown.
    Unknown,
}

/// The contexts of one process.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    slots: Slots<Context>,
    by_id: HashMap<ContextId, u32>,
    primaries: Vec<PrimaryContext>,
    /// Whether every retain was seen.
    counted: bool,
    /// Number of contexts that were seen, and of calls that ended one, or may have.
    began: u64,
    ended: u64,
    /// Contexts whose handle was used again.
    pub(crate) reused: ReusedContexts,
}

impl Contexts {
    /// `counted`: the process has been traced since its start.
    pub(crate) fn new(counted: bool) -> Self {
        Self { counted, ..Self::default() }
    }

    /// Records that a call ended a context, or may have.
    pub(crate) fn record_end(&mut self) {
        self.ended += 1;
    }

    /// Number of contexts that were seen, and of calls that ended one, or may have.
    pub(crate) const fn began_and_ended(&self) -> (u64, u64) {
        (self.began, self.ended)
    }

    /// Whether a context may have ended; its memory may have been on any device.
    pub(crate) fn any_ended(&self) -> bool {
        self.ended > 0
    }

    fn known(&self) -> impl Iterator<Item = (u32, &Context)> {
        let known = self.by_id.values().copied();
        known.filter_map(|index| Some((index, self.slots.get(index)?)))
    }

    /// Devices of all known contexts.
    pub(crate) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.known().filter_map(|(_, context)| context.device)
    }

    /// Contexts whose device is unknown.
    pub(crate) fn without_device(&self) -> Vec<u32> {
        let waiting = self.known().filter(|(_, context)| context.device.is_none());
        waiting.map(|(index, _)| index).collect()
    }

    /// Whether every context so far is on this device.
    pub(crate) fn all_on(&self, device: DeviceId) -> bool {
        self.ended == 0 && self.known().all(|(_, context)| context.device == Some(device))
    }

    /// Marks the number of users of primary contexts as unknown: records about contexts were lost,
    /// or the process is older than the trace.
    pub(crate) fn mark_count_unknown(&mut self) {
        self.counted = false;
    }

    pub(crate) fn find(&self, id: ContextId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// Index of a context; adds it if it is new.
    pub(crate) fn of(&mut self, id: ContextId) -> u32 {
        if let Some(index) = self.find(id) {
            return index;
        }
        let (device, since) = (None, Timestamp(0));
        let index =
            self.slots.insert(Context { id, device, since, created: false, live: 0, waiting: 0 });
        self.by_id.insert(id, index);
        self.began += 1;
        index
    }

    /// Handle of a context; `None` for `NIL`.
    pub(crate) fn id(&self, index: u32) -> Option<ContextId> {
        self.slots.get(index).map(|context| context.id)
    }

    /// Device of a context, if known; `None` for `NIL`.
    pub(crate) fn device(&self, index: u32) -> Option<DeviceId> {
        self.slots.get(index)?.device
    }

    /// Number of live allocations in the context.
    pub(crate) fn live(&self, index: u32) -> u64 {
        self.slots.get(index).map_or(0, |context| context.live)
    }

    /// Sets the device; returns whether allocations were waiting for it.
    pub(crate) fn set_device(&mut self, index: u32, device: DeviceId) -> bool {
        self.slots.get_mut(index).is_some_and(|context| {
            context.device = Some(device);
            context.waiting > 0
        })
    }

    /// Records that all allocations of the context have a device now.
    pub(crate) fn clear_waiting(&mut self, index: u32) {
        if let Some(context) = self.slots.get_mut(index) {
            context.waiting = 0;
        }
    }

    /// Records that `cuCtxCreate` created the context at that time.
    pub(crate) fn create(&mut self, index: u32, at: Timestamp) {
        if let Some(context) = self.slots.get_mut(index) {
            (context.created, context.since) = (true, at);
        }
        self.primaries.retain(|primary| primary.context != index);
    }

    /// When a context was created.
    pub(crate) fn since(&self, index: u32) -> Timestamp {
        self.slots.get(index).map_or(Timestamp(0), |context| context.since)
    }

    /// Context that a destroy call ends; `None` if the call was entered before the context was
    /// created.
    pub(crate) fn destroyed(&self, id: ContextId, entered: Timestamp) -> Option<u32> {
        self.find(id).filter(|&index| existed(self.since(index), entered))
    }

    /// Removes a destroyed context. A context with allocations is kept, with an unknown device:
    /// they belong to a newer context with the same handle, whose creation was not seen.
    pub(crate) fn remove_destroyed(&mut self, index: u32) {
        if self.primaries.iter().any(|primary| primary.context == index) {
            return;
        }
        let ended = self.slots.remove_if(index, |context| {
            (context.device, context.created) = (None, false);
            context.live == 0
        });
        if let Some(context) = ended {
            self.by_id.remove(&context.id);
        }
    }

    /// Adds a user of a device's primary context. Returns the previous primary context if it was a
    /// different one: that one must have ended.
    pub(crate) fn retain(&mut self, device: DeviceId, context: u32) -> Option<u32> {
        let known = self.primaries.iter_mut().find(|primary| primary.device == device);
        let Some(primary) = known else {
            self.primaries.push(PrimaryContext { device, context, users: 1 });
            return None;
        };
        if primary.context == context {
            primary.users += 1;
            return None;
        }
        let old = primary.context;
        *primary = PrimaryContext { device, context, users: 1 };
        Some(old)
    }

    /// Whether a device's primary context has other users after a release.
    pub(crate) fn is_shared(&self, device: DeviceId) -> bool {
        let known = self.primaries.iter().find(|primary| primary.device == device);
        self.counted && known.is_some_and(|primary| primary.users > 1)
    }

    /// Whether a device has no primary context: every retain was seen, and there was none.
    pub(crate) fn has_no_primary(&self, device: DeviceId) -> bool {
        self.counted && self.primary(device).is_none() && self.guess_primary(device).is_none()
    }

    /// Drops a user of a device's primary context.
    pub(crate) fn release(&mut self, device: DeviceId) -> PrimaryRelease {
        if !self.counted {
            return PrimaryRelease::Unknown;
        }
        let known = self.primaries.iter_mut().find(|primary| primary.device == device);
        match known {
            Some(primary) if primary.users > 1 => {
                primary.users -= 1;
                PrimaryRelease::Shared
            }
            Some(primary) if primary.users == 1 => {
                primary.users = 0;
                PrimaryRelease::Last(primary.context)
            }
            _ => PrimaryRelease::Unknown,
        }
    }

    /// Primary context of a device, according to its retains.
    pub(crate) fn primary(&self, device: DeviceId) -> Option<u32> {
        let known = self.primaries.iter().find(|primary| primary.device == device);
        known.map(|primary| primary.context)
    }

    /// Guesses the primary context of a device without a known retain: the only context on it that
    /// was not created by `cuCtxCreate`.
    pub(crate) fn guess_primary(&self, device: DeviceId) -> Option<u32> {
        let is_candidate = |context: &Context| context.device == Some(device) && !context.created;
        let mut candidates = self.known().filter(|(_, context)| is_candidate(context));
        candidates.next().filter(|_| candidates.next().is_none()).map(|(index, _)| index)
    }

    /// Counts a new allocation.
    pub(crate) fn add(&mut self, entry: &AllocationEntry) {
        if let Some(context) = self.slots.get_mut(entry.context()) {
            context.live += 1;
            context.waiting += u64::from(entry.device().is_none());
        }
    }

    /// Removes an allocation from the count.
    pub(crate) fn remove(&mut self, entry: &AllocationEntry) {
        if let Some(context) = self.slots.get_mut(entry.context()) {
            context.live = context.live.saturating_sub(1);
            let waiting = u64::from(entry.device().is_none());
            context.waiting = context.waiting.saturating_sub(waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: DeviceId = DeviceId(0);

    #[test]
    fn second_of_two_releases_is_the_last() {
        let mut contexts = Contexts::new(true);
        let context = contexts.of(ContextId(1));
        assert_eq!(contexts.retain(GPU, context), None);
        assert_eq!(contexts.retain(GPU, context), None);
        assert_eq!(contexts.release(GPU), PrimaryRelease::Shared);
        assert_eq!(contexts.release(GPU), PrimaryRelease::Last(context));
        assert_eq!(contexts.release(GPU), PrimaryRelease::Unknown);
    }

    #[test]
    fn release_is_unknown_if_retains_may_be_missing() {
        let mut contexts = Contexts::new(false);
        let context = contexts.of(ContextId(1));
        contexts.retain(GPU, context);
        assert_eq!(contexts.release(GPU), PrimaryRelease::Unknown);
    }

    #[test]
    fn ambiguous_primary_context_is_not_guessed() {
        let mut contexts = Contexts::new(false);
        let first = contexts.of(ContextId(1));
        contexts.set_device(first, GPU);
        assert_eq!(contexts.guess_primary(GPU), Some(first));
        let second = contexts.of(ContextId(2));
        contexts.set_device(second, GPU);
        assert_eq!(contexts.guess_primary(GPU), None);
        contexts.create(second, Timestamp(1));
        assert_eq!(contexts.guess_primary(GPU), Some(first));
    }

    #[test]
    fn destroyed_context_is_removed() {
        let mut contexts = Contexts::new(true);
        for id in 1..=100 {
            let context = contexts.of(ContextId(id));
            contexts.create(context, Timestamp(id));
            contexts.remove_destroyed(context);
        }
        assert_eq!(contexts.slots.indices(), 1);
        assert_eq!(contexts.find(ContextId(100)), None);
    }
}
