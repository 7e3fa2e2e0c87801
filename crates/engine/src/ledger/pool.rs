//! The memory pools of one process, and which of them stream-ordered memory comes from.
//!
//! Pools belong to the process: the end of a context does not touch them. A device has a default
//! pool from the beginning, whose handle may be told late or never; another pool can be made the one
//! that it takes from. Memory of a context whose device is not known (yet) is kept apart, by
//! context, until it is.

use hashbrown::HashMap;

use crate::event::{Allocate, Event, Place, PoolCall};
use crate::ids::{DeviceId, PoolId};
use crate::kind::Kind;
use crate::snapshot::{PoolView, Told};
use crate::units::{Bytes, Moment};

use super::allocation::{Entry, NIL};
use super::process::Process;
use super::totals::Sum;

/// One pool.
#[derive(Clone, Copy, Debug)]
struct Pool {
    id: Option<PoolId>,
    place: Option<Place>,
    /// Its creation was seen, so it is no default pool.
    created: bool,
    /// When it was created; a destruction that was entered earlier ended its predecessor.
    since: Moment,
    used: Sum,
    allocations: u64,
    reserved: Option<Told>,
    destroyed: bool,
    /// It is forgotten when nothing is allocated from it any more.
    passing: bool,
    /// The order in which pools became known.
    number: u64,
}

/// The pools of one device.
#[derive(Clone, Copy, Debug)]
struct OfDevice {
    device: DeviceId,
    /// Its default pool, or [`NIL`].
    default: u32,
    /// The pool it takes from where no other is named, or [`NIL`] for the default one.
    current: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pools {
    places: Vec<Option<Pool>>,
    vacant: Vec<u32>,
    by_id: HashMap<PoolId, u32>,
    devices: Vec<OfDevice>,
    /// By the context whose device is not known.
    unplaced: HashMap<u32, u32>,
    count: u64,
}

impl Pools {
    fn open(&mut self, id: Option<PoolId>, place: Option<Place>) -> u32 {
        self.count += 1;
        let pool = Some(Pool {
            id,
            place,
            created: false,
            since: Moment(0),
            used: Sum::default(),
            allocations: 0,
            reserved: None,
            destroyed: false,
            passing: false,
            number: self.count,
        });
        let index = if let Some(index) = self.vacant.pop() {
            self.places[index as usize] = pool;
            index
        } else {
            self.places.push(pool);
            self.places.len() as u32 - 1
        };
        if let Some(id) = id {
            self.by_id.insert(id, index);
        }
        index
    }

    fn get(&mut self, index: u32) -> Option<&mut Pool> {
        self.places.get_mut(index as usize)?.as_mut()
    }

    fn find(&mut self, id: PoolId) -> Option<&mut Pool> {
        let index = self.by_id.get(&id).copied()?;
        self.get(index)
    }

    /// The index of a pool, which may be one never heard of.
    pub(super) fn named(&mut self, id: PoolId) -> u32 {
        let known = self.by_id.get(&id).copied();
        known.unwrap_or_else(|| self.open(Some(id), None))
    }

    /// The pool that a device takes from where none is named.
    pub(super) fn taken_from(&mut self, device: DeviceId) -> u32 {
        let OfDevice { default, current, .. } = *self.of(device);
        if current != NIL {
            return current;
        }
        if default != NIL {
            return default;
        }
        let index = self.open(None, Some(Place::Device(device)));
        self.of(device).default = index;
        index
    }

    /// What a context takes from while its device is not known.
    pub(super) fn unplaced(&mut self, context: u32) -> u32 {
        if let Some(index) = self.unplaced.get(&context) {
            return *index;
        }
        let index = self.open(None, None);
        self.unplaced.insert(context, index);
        index
    }

    /// The driver's name for a pool, where it was told.
    pub(super) fn id(&self, index: u32) -> Option<PoolId> {
        self.places.get(index as usize)?.as_ref()?.id
    }

    /// Where a pool's memory lies.
    pub(super) fn place(&self, index: u32) -> Option<Place> {
        self.places.get(index as usize)?.as_ref()?.place
    }

    /// Where a pool's memory lies, by its handle.
    pub(super) fn place_of(&self, id: PoolId) -> Option<Place> {
        self.place(self.by_id.get(&id).copied()?)
    }

    /// The device of a context became known: gives the pool that its memory was in so far, and the
    /// one that it is in.
    fn placed(&mut self, context: u32, device: DeviceId) -> Option<(u32, u32)> {
        let from = self.unplaced.remove(&context)?;
        self.pass(from);
        Some((from, self.taken_from(device)))
    }

    /// The context is gone: nobody will tell its device any more.
    pub(super) fn orphan(&mut self, context: u32) {
        if let Some(index) = self.unplaced.remove(&context) {
            self.pass(index);
        }
    }

    fn create(&mut self, id: PoolId, place: Option<Place>, since: Moment) {
        if let Some(older) = self.by_id.remove(&id) {
            self.end(older);
        }
        let index = self.open(Some(id), place);
        if let Some(pool) = self.get(index) {
            pool.created = true;
            pool.since = since;
        }
    }

    fn destroy(&mut self, id: PoolId, entered: Moment) {
        if self.find(id).is_some_and(|pool| pool.since <= entered)
            && let Some(index) = self.by_id.remove(&id)
        {
            self.end(index);
        }
    }

    /// A pool stays for what is allocated from it, and nothing new is.
    fn end(&mut self, index: u32) {
        for of in &mut self.devices {
            for place in [&mut of.default, &mut of.current] {
                if *place == index {
                    *place = NIL;
                }
            }
        }
        if let Some(pool) = self.get(index) {
            pool.destroyed = true;
        }
        self.pass(index);
    }

    fn pass(&mut self, index: u32) {
        if let Some(pool) = self.get(index) {
            pool.passing = true;
        }
        self.tidy(index);
    }

    fn tidy(&mut self, index: u32) {
        if let Some(place) = self.places.get_mut(index as usize)
            && place.take_if(|pool| pool.passing && pool.allocations == 0).is_some()
        {
            self.vacant.push(index);
        }
    }

    /// A pool is a device's. Gives its index, and that of the nameless default pool that turns out
    /// to be this one.
    fn belongs(&mut self, id: PoolId, device: DeviceId, current: bool) -> (u32, Option<u32>) {
        let index = self.named(id);
        let mut created = false;
        if let Some(pool) = self.get(index) {
            pool.place = Some(Place::Device(device));
            created = pool.created;
        }
        let default = self.of(device).default;
        let nameless = self.get(default).is_some_and(|pool| pool.id.is_none());
        if current {
            self.of(device).current = index;
        }
        // What nobody created was there from the beginning, and only the default pool was.
        let is_default = !current || (!created && (default == NIL || nameless));
        if !is_default || default == index {
            return (index, None);
        }
        self.of(device).default = index;
        if nameless {
            self.pass(default);
        }
        (index, nameless.then_some(default))
    }

    fn of(&mut self, device: DeviceId) -> &mut OfDevice {
        let known = self.devices.iter().position(|of| of.device == device);
        let at = known.unwrap_or_else(|| {
            self.devices.push(OfDevice { device, default: NIL, current: NIL });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }

    /// An allocation began.
    pub(super) fn add(&mut self, entry: &Entry) {
        if entry.pool() != NIL
            && let Some(pool) = self.get(entry.pool())
        {
            pool.used.add(entry.bytes);
            pool.allocations += 1;
        }
    }

    /// An allocation ended.
    pub(super) fn take(&mut self, entry: &Entry) {
        if entry.pool() != NIL
            && let Some(pool) = self.get(entry.pool())
        {
            pool.used.take(entry.bytes);
            pool.allocations = pool.allocations.saturating_sub(1);
            if pool.passing {
                self.tidy(entry.pool());
            }
        }
    }

    /// Pools that are used or told something: by device, host memory and the unknown device last.
    pub(super) fn views(&self) -> Vec<PoolView> {
        let shown = |pool: &&Pool| pool.allocations > 0 || pool.reserved.is_some();
        let (named, unknown): (Vec<&Pool>, Vec<&Pool>) = (self.places.iter().flatten())
            .filter(shown)
            .partition(|pool| pool.id.is_some() || pool.place.is_some());
        let mut pools: Vec<_> = named.into_iter().map(|pool| (pool.number, pool.view())).collect();
        pools
            .sort_by_key(|(number, view)| (view.device.is_none(), view.device, view.pool, *number));
        let mut views: Vec<_> = pools.into_iter().map(|(_, view)| view).collect();
        // What contexts of unknown devices use is one row.
        let used = unknown.iter().fold(Sum::default(), |sum, pool| sum.plus(pool.used));
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
        let device = match self.place {
            Some(Place::Device(device)) => Some(device),
            Some(Place::Host) | None => None,
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
    /// A call about a pool.
    pub(super) fn pool(&mut self, event: &Event, call: PoolCall) {
        match call {
            PoolCall::Created { pool, place } => self.pools.create(pool, place, event.at),
            PoolCall::Destroyed { pool } => self.pools.destroy(pool, event.entered),
            PoolCall::Trimmed { pool, .. } => {
                // How much it gave back is not told.
                if let Some(pool) = self.pools.find(pool) {
                    pool.reserved = None;
                }
            }
            PoolCall::ToldReserved { pool, bytes } => {
                let index = self.pools.named(pool);
                if let Some(pool) = self.pools.get(index) {
                    pool.reserved = Some(Told { bytes: Bytes(bytes), at: event.at });
                }
            }
            PoolCall::OfDevice { pool, device, current } => {
                let (pool, nameless) = self.pools.belongs(pool, device, current);
                if let Some(nameless) = nameless {
                    self.move_pool(nameless, pool, device);
                }
                self.move_pool(pool, pool, device);
            }
        }
    }

    /// Where stream-ordered memory comes from: what it is, of which pool, on which device.
    pub(super) fn pooled(
        &mut self,
        allocate: &Allocate,
        context: u32,
    ) -> (Kind, u32, Option<DeviceId>) {
        let said = allocate.device.or_else(|| self.device_of(context));
        let named = allocate.pool.filter(|pool| pool.0 != 0);
        let pool = match (named, said) {
            (Some(pool), _) => self.pools.named(pool),
            (None, _) if allocate.kind == Kind::HostAsync => NIL,
            (None, Some(device)) => self.pools.taken_from(device),
            (None, None) => self.pools.unplaced(context),
        };
        match self.pools.place(pool) {
            Some(Place::Host) => (Kind::HostAsync, pool, None),
            Some(Place::Device(device)) => (Kind::Async, pool, Some(device)),
            None => (allocate.kind, pool, said),
        }
    }

    /// The device of a context became known that memory came from.
    pub(super) fn place_pool(&mut self, context: u32, device: DeviceId) {
        if let Some((from, to)) = self.pools.placed(context, device) {
            self.move_pool(from, to, device);
        }
    }

    /// What is in one pool is in another one, on a device. Looks at everything that is live.
    fn move_pool(&mut self, from: u32, to: u32, device: DeviceId) {
        if self.pools.get(from).is_none_or(|pool| pool.allocations == 0) {
            return;
        }
        for slot in self.allocations.select(|entry| entry.pool() == from) {
            let before = self.known(slot);
            let entry = &mut self.allocations.slab[slot];
            if from != to {
                self.pools.take(entry);
                entry.set_pool(to);
                self.pools.add(entry);
            }
            if entry.device() != Some(device) && entry.kind == Kind::Async {
                self.learn_device(slot, device);
            }
            self.tell_learned(slot, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::allocation::New;
    use super::*;
    use crate::ids::Key;

    const GPU: DeviceId = DeviceId(0);
    const P: PoolId = PoolId(7);

    fn entry(pool: u32, bytes: u64) -> Entry {
        let new = New { owner: pool, ..New::plain(Key::address(1), Kind::Async, bytes) };
        Entry::new(&new, Moment(1), 0)
    }

    #[test]
    fn a_device_takes_from_its_current_pool_else_from_its_default_one() {
        let mut pools = Pools::default();
        let nameless = pools.taken_from(GPU);
        assert_eq!(pools.taken_from(GPU), nameless);
        pools.create(P, Some(Place::Device(GPU)), Moment(1));
        assert_eq!(pools.belongs(P, GPU, true), (pools.named(P), None));
        assert_eq!(pools.taken_from(GPU), pools.named(P));
        pools.destroy(P, Moment(2));
        assert_eq!(pools.taken_from(GPU), nameless);
    }

    #[test]
    fn the_default_pool_gets_its_name_when_it_is_told() {
        for current in [false, true] {
            let mut pools = Pools::default();
            let nameless = pools.taken_from(GPU);
            pools.add(&entry(nameless, 8));
            let (index, was) = pools.belongs(P, GPU, current);
            assert_eq!((was, pools.taken_from(GPU)), (Some(nameless), index));
            assert_eq!(pools.belongs(P, GPU, current), (index, None));
        }
    }

    #[test]
    fn a_destroyed_pool_stays_for_what_is_allocated_from_it() {
        let mut pools = Pools::default();
        pools.create(P, Some(Place::Host), Moment(5));
        let old = pools.named(P);
        let held = entry(old, 8);
        pools.add(&held);
        pools.destroy(P, Moment(4));
        assert!(!pools.views()[0].destroyed);
        pools.destroy(P, Moment(6));
        assert!(pools.views()[0].destroyed);
        pools.create(P, Some(Place::Device(GPU)), Moment(7));
        assert_ne!(pools.named(P), old);
        pools.take(&held);
        assert!(pools.views().is_empty());
        assert_eq!(pools.open(None, None), old);
    }

    #[test]
    fn pools_of_unknown_devices_are_one_row() {
        let mut pools = Pools::default();
        for context in [1, 2, NIL] {
            let index = pools.unplaced(context);
            pools.add(&entry(index, 8));
        }
        pools.orphan(2);
        let [view] = pools.views()[..] else { panic!("{:?}", pools.views()) };
        assert_eq!((view.pool, view.device, view.used.0, view.allocations), (None, None, 24, 3));
    }
}
