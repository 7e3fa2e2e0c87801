//! Memory pools of one process, and which of them stream-ordered memory is allocated from.
//!
//! Pools belong to the process: the end of a context does not affect them. A device always has a
//! default pool, whose handle may become known late or never; another pool can be set as its
//! current pool. Memory of a context whose device is unknown is kept in a separate pool per context
//! until the device is known.

use hashbrown::HashMap;

use crate::model::{
    Allocate, Bytes, DeviceId, Event, MemoryKind, MemoryLocation, PoolCall, PoolId, Timestamp,
};
use crate::snapshot::{DriverReported, PoolView};

use super::super::memory::allocation::{AllocationEntry, NIL};
use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::reuse::existed;
use super::slots::Slots;

/// One pool.
#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    id: Option<PoolId>,
    location: Option<MemoryLocation>,
    /// Whether its creation was seen, so that it is not a default pool.
    created: bool,
    /// Creation time.
    since: Timestamp,
    used: ByteSum,
    allocations: u64,
    reserved: Option<DriverReported>,
    destroyed: bool,
    /// Whether it is removed once it has no allocations.
    closing: bool,
    /// Sequence number, in the order in which pools became known.
    number: u64,
}

/// Pools of one device.
#[derive(Clone, Copy, Debug)]
struct DevicePools {
    device: DeviceId,
    /// Default pool, or [`NIL`].
    default: u32,
    /// Pool for allocations that do not name one, or [`NIL`] for the default pool.
    current: u32,
}

/// Memory pools of one process.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    slots: Slots<Pool>,
    by_id: HashMap<PoolId, u32>,
    devices: Vec<DevicePools>,
    /// Pools by context, for contexts whose device is unknown.
    unplaced: HashMap<u32, u32>,
    count: u64,
}

impl Pools {
    fn open(&mut self, id: Option<PoolId>, location: Option<MemoryLocation>) -> u32 {
        self.count += 1;
        let new = Pool { id, location, number: self.count, ..Pool::default() };
        let index = self.slots.insert(new);
        if let Some(id) = id {
            self.by_id.insert(id, index);
        }
        index
    }

    fn find(&mut self, id: PoolId) -> Option<&mut Pool> {
        let index = self.by_id.get(&id).copied()?;
        self.slots.get_mut(index)
    }

    /// Index of a pool; adds it if it is new.
    pub(crate) fn index_of(&mut self, id: PoolId) -> u32 {
        let known = self.by_id.get(&id).copied();
        known.unwrap_or_else(|| self.open(Some(id), None))
    }

    /// Pool of a device for allocations that do not name one.
    pub(crate) fn current_pool_of(&mut self, device: DeviceId) -> u32 {
        let DevicePools { default, current, .. } = *self.of(device);
        if current != NIL {
            return current;
        }
        if default != NIL {
            return default;
        }
        let index = self.open(None, Some(MemoryLocation::Device(device)));
        self.of(device).default = index;
        index
    }

    /// Pool of a context whose device is unknown.
    pub(crate) fn pool_of_context(&mut self, context: u32) -> u32 {
        if let Some(index) = self.unplaced.get(&context) {
            return *index;
        }
        let index = self.open(None, None);
        self.unplaced.insert(context, index);
        index
    }

    /// Handle of a pool, if known.
    pub(crate) fn id(&self, index: u32) -> Option<PoolId> {
        self.slots.get(index)?.id
    }

    /// Location of a pool's memory.
    pub(crate) fn location(&self, index: u32) -> Option<MemoryLocation> {
        self.slots.get(index)?.location
    }

    /// Location of a pool's memory, by its handle.
    pub(crate) fn location_of(&self, id: PoolId) -> Option<MemoryLocation> {
        self.location(self.by_id.get(&id).copied()?)
    }

    /// Called when the device of a context becomes known: returns the pool that its memory was
    /// assigned to so far, and the one that it belongs to.
    fn remove_unplaced(&mut self, context: u32, device: DeviceId) -> Option<(u32, u32)> {
        let from = self.unplaced.remove(&context)?;
        self.close(from);
        Some((from, self.current_pool_of(device)))
    }

    /// Called when the context has ended: its device will never become known.
    pub(crate) fn forget_context(&mut self, context: u32) {
        if let Some(index) = self.unplaced.remove(&context) {
            self.close(index);
        }
    }

    fn create(&mut self, id: PoolId, location: Option<MemoryLocation>, since: Timestamp) {
        if let Some(older) = self.by_id.remove(&id) {
            self.end(older);
        }
        let index = self.open(Some(id), location);
        if let Some(pool) = self.slots.get_mut(index) {
            pool.created = true;
            pool.since = since;
        }
    }

    fn destroy(&mut self, id: PoolId, entered: Timestamp) {
        if self.find(id).is_some_and(|pool| existed(pool.since, entered))
            && let Some(index) = self.by_id.remove(&id)
        {
            self.end(index);
        }
    }

    /// Ends a pool. It stays while it has allocations, but gets no new ones.
    fn end(&mut self, index: u32) {
        for of in &mut self.devices {
            for slot in [&mut of.default, &mut of.current] {
                if *slot == index {
                    *slot = NIL;
                }
            }
        }
        if let Some(pool) = self.slots.get_mut(index) {
            pool.destroyed = true;
        }
        self.close(index);
    }

    fn close(&mut self, index: u32) {
        if let Some(pool) = self.slots.get_mut(index) {
            pool.closing = true;
        }
        self.remove_if_unused(index);
    }

    fn remove_if_unused(&mut self, index: u32) {
        self.slots.remove_if(index, |pool| pool.closing && pool.allocations == 0);
    }

    /// Assigns a pool to a device. Returns its index, and that of the unnamed default pool that
    /// turns out to be this one.
    fn assign_device(&mut self, id: PoolId, device: DeviceId, current: bool) -> (u32, Option<u32>) {
        let index = self.index_of(id);
        let mut created = false;
        if let Some(pool) = self.slots.get_mut(index) {
            pool.location = Some(MemoryLocation::Device(device));
            created = pool.created;
        }
        let default = self.of(device).default;
        let unnamed = self.slots.get_mut(default).is_some_and(|pool| pool.id.is_none());
        if current {
            self.of(device).current = index;
        }
        // A pool that was never created existed from the start, so it must be the default pool.
        let is_default = !current || (!created && (default == NIL || unnamed));
        if !is_default || default == index {
            return (index, None);
        }
        self.of(device).default = index;
        if unnamed {
            self.close(default);
        }
        (index, unnamed.then_some(default))
    }

    fn of(&mut self, device: DeviceId) -> &mut DevicePools {
        let known = self.devices.iter().position(|of| of.device == device);
        let at = known.unwrap_or_else(|| {
            self.devices.push(DevicePools { device, default: NIL, current: NIL });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }

    /// Counts a new allocation.
    pub(crate) fn add(&mut self, entry: &AllocationEntry) {
        if entry.pool() != NIL
            && let Some(pool) = self.slots.get_mut(entry.pool())
        {
            pool.used.add(entry.bytes);
            pool.allocations += 1;
        }
    }

    /// Removes an allocation from the count.
    pub(crate) fn subtract(&mut self, entry: &AllocationEntry) {
        if entry.pool() != NIL
            && let Some(pool) = self.slots.get_mut(entry.pool())
        {
            pool.used.subtract(entry.bytes);
            pool.allocations = pool.allocations.saturating_sub(1);
            if pool.closing {
                self.remove_if_unused(entry.pool());
            }
        }
    }

    /// Pools with allocations or a known reserve, by device; host memory and unknown devices last.
    pub(crate) fn views(&self) -> Vec<PoolView> {
        let shown = |pool: &&Pool| pool.allocations > 0 || pool.reserved.is_some();
        let (named, unknown): (Vec<&Pool>, Vec<&Pool>) = self
            .slots
            .iter()
            .filter(shown)
            .partition(|pool| pool.id.is_some() || pool.location.is_some());
        let mut pools: Vec<_> = named.into_iter().map(|pool| (pool.number, pool.view())).collect();
        pools
            .sort_by_key(|(number, view)| (view.device.is_none(), view.device, view.pool, *number));
        let mut views: Vec<_> = pools.into_iter().map(|(_, view)| view).collect();
        // All pools of unknown devices are shown as one row.
        let used = unknown.iter().fold(ByteSum::default(), |sum, pool| sum.plus(pool.used));
        views.extend(unknown.first().map(|pool| PoolView {
            used: used.bytes(),
            allocations: unknown.iter().map(|pool| pool.allocations).sum(),
            ..pool.view()
        }));
        views
    }
}

impl Pool {
    fn view(&self) -> PoolView {
        let device = match self.location {
            Some(MemoryLocation::Device(device)) => Some(device),
            Some(MemoryLocation::Host) | None => None,
        };
        PoolView {
            pool: self.id,
            device,
            used: self.used.bytes(),
            allocations: self.allocations,
            reserved: self.reserved,
            destroyed: self.destroyed,
        }
    }
}

impl Process {
    /// Applies a call on a pool.
    pub(crate) fn pool(&mut self, event: &Event, call: PoolCall) {
        match call {
            PoolCall::Created { pool, location } => self.pools.create(pool, location, event.time),
            PoolCall::Destroyed { pool } => self.pools.destroy(pool, event.entry_time),
            PoolCall::Trimmed { pool, .. } => {
                self.overhead.pool_trims += 1;
                // The call does not report how much was freed.
                if let Some(pool) = self.pools.find(pool) {
                    pool.reserved = None;
                }
            }
            PoolCall::ReservedReported { pool, bytes } => {
                let index = self.pools.index_of(pool);
                if let Some(pool) = self.pools.slots.get_mut(index) {
                    pool.reserved = Some(DriverReported { bytes: Bytes(bytes), at: event.time });
                }
            }
            PoolCall::OfDevice { pool, device, current } => {
                let (pool, unnamed) = self.pools.assign_device(pool, device, current);
                if let Some(unnamed) = unnamed {
                    self.move_pool(unnamed, pool, device);
                }
                self.move_pool(pool, pool, device);
            }
        }
    }

    /// Returns kind, pool and device of a stream-ordered allocation.
    pub(crate) fn pooled(
        &mut self,
        allocate: &Allocate,
        context: u32,
    ) -> (MemoryKind, u32, Option<DeviceId>) {
        let known_device = allocate.device.or_else(|| self.device_of(context));
        let named = allocate.pool.filter(|pool| pool.0 != 0);
        let pool = match (named, known_device) {
            (Some(pool), _) => self.pools.index_of(pool),
            (None, _) if allocate.kind == MemoryKind::HostAsync => NIL,
            (None, Some(device)) => self.pools.current_pool_of(device),
            (None, None) => self.pools.pool_of_context(context),
        };
        match self.pools.location(pool) {
            Some(MemoryLocation::Host) => (MemoryKind::HostAsync, pool, None),
            Some(MemoryLocation::Device(device)) => (MemoryKind::Async, pool, Some(device)),
            None => (allocate.kind, pool, known_device),
        }
    }

    /// Called when the device of a context becomes known.
    pub(crate) fn set_pool_device(&mut self, context: u32, device: DeviceId) {
        if let Some((from, to)) = self.pools.remove_unplaced(context, device) {
            self.move_pool(from, to, device);
        }
    }

    /// Moves all allocations of a pool to another pool and device. Visits all live allocations.
    fn move_pool(&mut self, from: u32, to: u32, device: DeviceId) {
        if self.pools.slots.get(from).is_none_or(|pool| pool.allocations == 0) {
            return;
        }
        for slot in self.allocations.select(|entry| entry.pool() == from) {
            let before = self.late_fields(slot);
            let entry = &mut self.allocations.slab[slot];
            if from != to {
                self.pools.subtract(entry);
                entry.set_pool(to);
                self.pools.add(entry);
            }
            if entry.device() != Some(device) && entry.kind == MemoryKind::Async {
                self.learn_device(slot, device);
            }
            self.log_update(slot, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::memory::allocation::NewAllocation;
    use crate::model::ids::AllocationKey;

    const GPU: DeviceId = DeviceId(0);
    const P: PoolId = PoolId(7);

    fn entry(pool: u32, bytes: u64) -> AllocationEntry {
        let new = NewAllocation {
            owner: pool,
            ..NewAllocation::plain(AllocationKey::address(1), MemoryKind::Async, bytes)
        };
        AllocationEntry::new(&new, Timestamp(1), 0)
    }

    #[test]
    fn device_uses_current_pool_else_default() {
        let mut pools = Pools::default();
        let unnamed = pools.current_pool_of(GPU);
        assert_eq!(pools.current_pool_of(GPU), unnamed);
        pools.create(P, Some(MemoryLocation::Device(GPU)), Timestamp(1));
        assert_eq!(pools.assign_device(P, GPU, true), (pools.index_of(P), None));
        assert_eq!(pools.current_pool_of(GPU), pools.index_of(P));
        pools.destroy(P, Timestamp(2));
        assert_eq!(pools.current_pool_of(GPU), unnamed);
    }

    #[test]
    fn default_pool_gets_its_handle_when_reported() {
        for current in [false, true] {
            let mut pools = Pools::default();
            let unnamed = pools.current_pool_of(GPU);
            pools.add(&entry(unnamed, 8));
            let (index, replaced) = pools.assign_device(P, GPU, current);
            assert_eq!((replaced, pools.current_pool_of(GPU)), (Some(unnamed), index));
            assert_eq!(pools.assign_device(P, GPU, current), (index, None));
        }
    }

    #[test]
    fn destroyed_pool_stays_while_in_use() {
        let mut pools = Pools::default();
        pools.create(P, Some(MemoryLocation::Host), Timestamp(5));
        let old = pools.index_of(P);
        let allocation = entry(old, 8);
        pools.add(&allocation);
        pools.destroy(P, Timestamp(4));
        assert!(!pools.views()[0].destroyed);
        pools.destroy(P, Timestamp(6));
        assert!(pools.views()[0].destroyed);
        pools.create(P, Some(MemoryLocation::Device(GPU)), Timestamp(7));
        assert_ne!(pools.index_of(P), old);
        pools.subtract(&allocation);
        assert!(pools.views().is_empty());
        assert_eq!(pools.open(None, None), old);
    }

    #[test]
    fn pools_of_unknown_devices_are_one_row() {
        let mut pools = Pools::default();
        for context in [1, 2, NIL] {
            let index = pools.pool_of_context(context);
            pools.add(&entry(index, 8));
        }
        pools.forget_context(2);
        let [view] = pools.views()[..] else { panic!("{:?}", pools.views()) };
        assert_eq!((view.pool, view.device, view.used.0, view.allocations), (None, None, 24, 3));
    }
}
