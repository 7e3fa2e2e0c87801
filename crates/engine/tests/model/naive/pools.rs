//! Pools, and which of them an allocation comes from.

use engine::model::event::{Event, MemoryLocation, PoolCall};
use engine::model::ids::{DeviceId, PoolId};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::DriverReported;

use super::{Live, Process};

#[derive(Clone, Copy, Default)]
pub(super) struct Pool {
    pub(super) id: Option<PoolId>,
    pub(super) location: Option<MemoryLocation>,
    pub(super) reserved: Option<DriverReported>,
    pub(super) destroyed: bool,
    created_at: Option<Timestamp>,
}

impl Process {
    pub(super) fn pool(&mut self, event: &Event, call: PoolCall) {
        match call {
            PoolCall::Created { pool, location } => {
                self.end_pool(pool);
                let number = self.name(pool);
                self.pools[number].location = location;
                self.pools[number].created_at = Some(event.time);
            }
            PoolCall::Destroyed { pool } => {
                if let Some(number) = self.named.get(&pool)
                    && self.pools[*number].created_at.is_none_or(|at| at <= event.entry_time)
                {
                    self.end_pool(pool);
                }
            }
            PoolCall::Trimmed { pool, .. } => {
                if let Some(number) = self.named.get(&pool) {
                    self.pools[*number].reserved = None;
                }
            }
            PoolCall::ReservedReported { pool, bytes } => {
                let number = self.name(pool);
                self.pools[number].reserved =
                    Some(DriverReported { bytes: Bytes(bytes), at: event.time });
            }
            PoolCall::OfDevice { pool, device, current } => self.own(pool, device, current),
        }
    }

    fn name(&mut self, id: PoolId) -> usize {
        *self.named.entry(id).or_insert_with(|| {
            self.pools.push(Pool { id: Some(id), ..Pool::default() });
            self.pools.len() - 1
        })
    }

    fn end_pool(&mut self, id: PoolId) {
        if let Some(number) = self.named.remove(&id) {
            self.pools[number].destroyed = true;
            self.defaults.retain(|_, default| *default != number);
            self.current.retain(|_, current| *current != number);
        }
    }

    fn own(&mut self, id: PoolId, device: DeviceId, current: bool) {
        let number = self.name(id);
        self.pools[number].location = Some(MemoryLocation::Device(device));
        let default = self.defaults.get(&device).copied();
        let unnamed = default.filter(|default| self.pools[*default].id.is_none());
        let first = default.is_none() || unnamed.is_some();
        if current {
            self.current.insert(device, number);
        }
        if !current || (self.pools[number].created_at.is_none() && first) {
            self.defaults.insert(device, number);
            for live in self.live.iter_mut().filter(|live| live.pool.is_some()) {
                if live.pool == unnamed {
                    live.pool = Some(number);
                }
            }
        }
        for live in self.live.iter_mut().filter(|live| live.pool == Some(number)) {
            if live.kind == MemoryKind::Async {
                live.device = Some(device);
            }
        }
    }

    pub(super) fn current_pool(&mut self, device: DeviceId) -> usize {
        if let Some(number) = self.current.get(&device).or_else(|| self.defaults.get(&device)) {
            return *number;
        }
        let location = Some(MemoryLocation::Device(device));
        self.pools.push(Pool { location, ..Pool::default() });
        self.defaults.insert(device, self.pools.len() - 1);
        self.pools.len() - 1
    }

    /// Finds the pool of an allocation, and sets the fields that follow from it.
    pub(super) fn find_pool(&mut self, live: &mut Live, named: Option<PoolId>) {
        live.pool = match (named.filter(|id| id.0 != 0), live.device) {
            (Some(id), _) => Some(self.name(id)),
            (None, Some(device)) if live.kind == MemoryKind::Async => {
                Some(self.current_pool(device))
            }
            (None, _) => None,
        };
        match live.pool.and_then(|number| self.pools[number].location) {
            Some(MemoryLocation::Device(device)) => {
                live.kind = MemoryKind::Async;
                live.device = Some(device);
            }
            Some(MemoryLocation::Host) => {
                live.kind = MemoryKind::HostAsync;
                live.device = None;
            }
            None => {}
        }
    }
}
