//! The contexts of one process: which device they are on, how much lives in them, and how many
//! users a primary context has.

use hashbrown::HashMap;

use crate::ids::{ContextId, DeviceId};
use crate::units::Moment;

use super::allocation::{Entry, NIL};

/// One context.
#[derive(Clone, Copy, Debug)]
struct Context {
    id: ContextId,
    device: Option<DeviceId>,
    /// When it was made; a destruction that was entered earlier ended its predecessor.
    since: Moment,
    /// It was made by `cuCtxCreate`, so it is no primary context.
    created: bool,
    /// Live allocations in it, and those of them whose device is unknown.
    live: u64,
    unplaced: u64,
}

/// A device's primary context.
#[derive(Clone, Copy, Debug)]
struct Primary {
    device: DeviceId,
    context: u32,
    /// Retains less releases.
    users: u64,
}

/// What the release of a primary context means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Release {
    /// The last user is gone: everything in this context is freed.
    Last(u32),
    /// There are others.
    Shared,
    /// Not all retains were seen, so nobody can tell.
    Unknown,
}

/// The contexts of one process.
#[derive(Debug)]
pub(super) struct Contexts {
    places: Vec<Context>,
    vacant: Vec<u32>,
    by_id: HashMap<ContextId, u32>,
    primaries: Vec<Primary>,
    /// Every retain was seen.
    counted: bool,
    /// A context may have ended since the process is traced.
    ended: bool,
}

impl Contexts {
    /// `counted`: the process is traced from its beginning.
    pub(super) fn new(counted: bool) -> Self {
        Self {
            places: Vec::new(),
            vacant: Vec::new(),
            by_id: HashMap::new(),
            primaries: Vec::new(),
            counted,
            ended: false,
        }
    }

    /// A call ended a context, or may have.
    pub(super) fn note_end(&mut self) {
        self.ended = true;
    }

    /// Whether a context may have ended: what was in it may have been on any device.
    pub(super) fn any_ended(&self) -> bool {
        self.ended
    }

    fn known(&self) -> impl Iterator<Item = (u32, &Context)> {
        let known = self.by_id.values().copied();
        known.filter_map(|index| Some((index, self.places.get(index as usize)?)))
    }

    /// Devices that contexts are on.
    pub(super) fn devices(&self) -> impl Iterator<Item = DeviceId> {
        self.known().filter_map(|(_, context)| context.device)
    }

    /// Contexts whose device is not known.
    pub(super) fn without_device(&self) -> Vec<u32> {
        let waiting = self.known().filter(|(_, context)| context.device.is_none());
        waiting.map(|(index, _)| index).collect()
    }

    /// Whether every context there ever was is on this device.
    pub(super) fn all_on(&self, device: DeviceId) -> bool {
        !self.ended && self.known().all(|(_, context)| context.device == Some(device))
    }

    /// Records about contexts were lost, or the process turned out to be older than the trace: how
    /// many users a primary context has is not known any more.
    pub(super) fn lose_count(&mut self) {
        self.counted = false;
    }

    pub(super) fn find(&self, id: ContextId) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The index of a context, which may be one never heard of.
    pub(super) fn of(&mut self, id: ContextId) -> u32 {
        if let Some(index) = self.find(id) {
            return index;
        }
        let context =
            Context { id, device: None, since: Moment(0), created: false, live: 0, unplaced: 0 };
        let index = if let Some(index) = self.vacant.pop() {
            self.places[index as usize] = context;
            index
        } else {
            self.places.push(context);
            self.places.len() as u32 - 1
        };
        self.by_id.insert(id, index);
        index
    }

    /// The driver's name for a context; none for [`NIL`].
    pub(super) fn id(&self, index: u32) -> Option<ContextId> {
        self.places.get(index as usize).map(|context| context.id)
    }

    /// The device of a context, where it is known; none for [`NIL`].
    pub(super) fn device(&self, index: u32) -> Option<DeviceId> {
        self.places.get(index as usize)?.device
    }

    /// Live allocations in the context.
    pub(super) fn live(&self, index: u32) -> u64 {
        self.places[index as usize].live
    }

    /// Sets the device; says whether there are allocations that waited for it.
    pub(super) fn place(&mut self, index: u32, device: DeviceId) -> bool {
        let context = &mut self.places[index as usize];
        context.device = Some(device);
        context.unplaced > 0
    }

    /// All allocations of the context have a device now.
    pub(super) fn placed(&mut self, index: u32) {
        self.places[index as usize].unplaced = 0;
    }

    /// The context was made by `cuCtxCreate` at that moment.
    pub(super) fn create(&mut self, index: u32, at: Moment) {
        let context = &mut self.places[index as usize];
        context.created = true;
        context.since = at;
        self.primaries.retain(|primary| primary.context != index);
    }

    /// The context that a destruction ends: none if it was entered before the context was made.
    pub(super) fn destroyed(&self, id: ContextId, entered: Moment) -> Option<u32> {
        self.find(id).filter(|&index| entered >= self.places[index as usize].since)
    }

    /// Forgets a destroyed context. One that holds allocations stays, with its device unknown: they
    /// came from a newer context of the same name, whose beginning was not seen.
    pub(super) fn forget(&mut self, index: u32) {
        if self.primaries.iter().any(|primary| primary.context == index) {
            return;
        }
        let context = &mut self.places[index as usize];
        context.device = None;
        context.created = false;
        if context.live == 0 {
            self.by_id.remove(&context.id);
            self.vacant.push(index);
        }
    }

    /// One more user of a device's primary context. Gives the context that was the primary one
    /// before, if it was another: it must be gone.
    pub(super) fn retain(&mut self, device: DeviceId, context: u32) -> Option<u32> {
        let known = self.primaries.iter_mut().find(|primary| primary.device == device);
        let Some(primary) = known else {
            self.primaries.push(Primary { device, context, users: 1 });
            return None;
        };
        if primary.context == context {
            primary.users += 1;
            return None;
        }
        let old = primary.context;
        *primary = Primary { device, context, users: 1 };
        Some(old)
    }

    /// Whether a release of a device's primary context leaves it to other users.
    pub(super) fn is_shared(&self, device: DeviceId) -> bool {
        let known = self.primaries.iter().find(|primary| primary.device == device);
        self.counted && known.is_some_and(|primary| primary.users > 1)
    }

    /// Whether a device has no primary context: every retain was seen, and there was none.
    pub(super) fn has_no_primary(&self, device: DeviceId) -> bool {
        self.counted && self.primary(device).is_none() && self.guess_primary(device).is_none()
    }

    /// One user less of a device's primary context.
    pub(super) fn release(&mut self, device: DeviceId) -> Release {
        if !self.counted {
            return Release::Unknown;
        }
        let known = self.primaries.iter_mut().find(|primary| primary.device == device);
        match known {
            Some(primary) if primary.users > 1 => {
                primary.users -= 1;
                Release::Shared
            }
            Some(primary) if primary.users == 1 => {
                primary.users = 0;
                Release::Last(primary.context)
            }
            _ => Release::Unknown,
        }
    }

    /// The primary context of a device, as its retains told.
    pub(super) fn primary(&self, device: DeviceId) -> Option<u32> {
        let known = self.primaries.iter().find(|primary| primary.device == device);
        known.map(|primary| primary.context)
    }

    /// What must be the primary context of a device of which no retain was seen: the one context
    /// known to be on it that was not made by `cuCtxCreate`, if there is exactly one.
    pub(super) fn guess_primary(&self, device: DeviceId) -> Option<u32> {
        let mut candidates = self.by_id.values().copied().filter(|&index| {
            let context = &self.places[index as usize];
            context.device == Some(device) && !context.created
        });
        candidates.next().filter(|_| candidates.next().is_none())
    }

    /// An allocation began.
    pub(super) fn add(&mut self, entry: &Entry) {
        if entry.context() != NIL {
            let context = &mut self.places[entry.context() as usize];
            context.live += 1;
            context.unplaced += u64::from(entry.device().is_none());
        }
    }

    /// An allocation ended.
    pub(super) fn take(&mut self, entry: &Entry) {
        if entry.context() != NIL {
            let context = &mut self.places[entry.context() as usize];
            context.live = context.live.saturating_sub(1);
            let unplaced = u64::from(entry.device().is_none());
            context.unplaced = context.unplaced.saturating_sub(unplaced);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: DeviceId = DeviceId(0);

    #[test]
    fn the_last_of_two_releases_is_the_last() {
        let mut contexts = Contexts::new(true);
        let context = contexts.of(ContextId(1));
        assert_eq!(contexts.retain(GPU, context), None);
        assert_eq!(contexts.retain(GPU, context), None);
        assert_eq!(contexts.release(GPU), Release::Shared);
        assert_eq!(contexts.release(GPU), Release::Last(context));
        assert_eq!(contexts.release(GPU), Release::Unknown);
    }

    #[test]
    fn a_release_means_nothing_where_retains_may_be_missing() {
        let mut contexts = Contexts::new(false);
        let context = contexts.of(ContextId(1));
        contexts.retain(GPU, context);
        assert_eq!(contexts.release(GPU), Release::Unknown);
    }

    #[test]
    fn two_candidates_for_the_primary_context_are_none() {
        let mut contexts = Contexts::new(false);
        let first = contexts.of(ContextId(1));
        contexts.place(first, GPU);
        assert_eq!(contexts.guess_primary(GPU), Some(first));
        let second = contexts.of(ContextId(2));
        contexts.place(second, GPU);
        assert_eq!(contexts.guess_primary(GPU), None);
        contexts.create(second, Moment(1));
        assert_eq!(contexts.guess_primary(GPU), Some(first));
    }

    #[test]
    fn a_destroyed_context_is_forgotten() {
        let mut contexts = Contexts::new(true);
        for id in 1..=100 {
            let context = contexts.of(ContextId(id));
            contexts.create(context, Moment(id));
            contexts.forget(context);
        }
        assert_eq!(contexts.places.len(), 1);
        assert_eq!(contexts.find(ContextId(100)), None);
    }
}
