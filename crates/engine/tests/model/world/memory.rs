//! Memory by address, and pools.

use std::collections::BTreeMap;

use engine::model::event::{Allocate, EventKind, Free, FreeFunction, MemoryLocation, PoolCall};
use engine::model::ids::{
    AddressType, AllocationKey, ContextId, DeviceId, Pid, PoolId, StreamId, Tid,
};
use engine::model::memory_kind::MemoryKind;

use super::{DEVICES, Dice, Program, World, pick, thread};

/// Returns the default pool of a device.
fn default_of(device: DeviceId) -> PoolId {
    PoolId(50 + u64::from(device.0))
}

pub(super) struct Memory {
    pub(super) key: AllocationKey,
    pub(super) kind: MemoryKind,
    pub(super) bytes: u64,
    /// The context that releases it.
    pub(super) context: Option<ContextId>,
    pub(super) device: DeviceId,
    pub(super) pool: Option<PoolId>,
    pub(super) openings: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Pool {
    id: PoolId,
    location: MemoryLocation,
    destroyed: bool,
}

impl Program {
    /// Returns the bytes allocated from pools that the program created.
    pub(super) fn used(&self) -> BTreeMap<PoolId, u64> {
        let mut used = BTreeMap::new();
        for memory in &self.live {
            if let Some(pool) = memory.pool.filter(|pool| pool.0 < 50) {
                *used.entry(pool).or_default() += memory.bytes;
            }
        }
        used
    }

    /// Returns one of a few addresses, so that they are reused soon.
    fn unused_address(&self, die: u8) -> Option<AllocationKey> {
        (1..=12).map(AllocationKey::address).find(|key| {
            key.value % 4 >= u64::from(die % 4) && self.live.iter().all(|m| m.key != *key)
        })
    }

    /// Removes destroyed pools without allocations.
    fn tidy_pools(&mut self) {
        let used = self.used();
        self.pools.retain(|pool| !pool.destroyed || used.contains_key(&pool.id));
    }
}

impl World {
    pub(super) fn allocate(&mut self, pid: Pid, dice: Dice) {
        let (_, a, b, _) = dice;
        if a >= 250 {
            return self.open_again(pid, dice);
        }
        let fresh = AllocationKey::address(self.unique());
        let program = self.program(pid);
        let contexts = program.contexts();
        let Some(index) = pick(contexts.len(), a) else { return };
        let (context, device) = contexts[index];
        let Some(mut key) = program.unused_address(b) else { return };
        let kinds = [
            MemoryKind::Device,
            MemoryKind::Device,
            MemoryKind::Device,
            MemoryKind::Array,
            MemoryKind::Pinned,
            MemoryKind::Managed,
            MemoryKind::Imported,
        ];
        let kind = kinds[usize::from(a / 3) % kinds.len()];
        if kind == MemoryKind::Imported {
            // At a reused address it could not be distinguished from a second open.
            key = fresh;
        }
        if kind == MemoryKind::Array {
            key.space = AddressType::Array;
            if program.live.iter().any(|memory| memory.key == key) {
                return;
            }
        }
        let bytes = 1 << (b % 10);
        let context = Some(context);
        let memory = Memory { key, kind, bytes, context, device, pool: None, openings: 1 };
        program.live.push(memory);
        program.totals.allocations += 1;
        let context = context.filter(|_| dice.0.wrapping_mul(31) >= self.unknown_below);
        let (pool, stream, site) = (None, None, None);
        let allocate = Allocate { key, kind, bytes, context, device: None, pool, stream, site };
        self.called(pid, dice, EventKind::Allocate(allocate));
    }

    /// Opens imported memory once more.
    fn open_again(&mut self, pid: Pid, dice: Dice) {
        let program = self.program(pid);
        let imported = program.live.iter_mut().find(|memory| memory.kind == MemoryKind::Imported);
        let Some(memory) = imported else { return };
        memory.openings += 1;
        let allocate = Allocate {
            key: memory.key,
            kind: memory.kind,
            bytes: memory.bytes,
            context: memory.context,
            device: None,
            pool: None,
            stream: None,
            site: None,
        };
        program.totals.allocations += 1;
        self.called(pid, dice, EventKind::Allocate(allocate));
    }

    pub(super) fn free(&mut self, pid: Pid, dice: Dice, slowly: bool) {
        let tid = thread(dice);
        let program = self.program(pid);
        let Some(index) = pick(program.live.len(), dice.2) else {
            program.totals.unknown_frees += 1;
            let free =
                Free { key: AllocationKey::address(99), by: FreeFunction::Free, stream: None };
            self.called(pid, dice, EventKind::Free(free));
            return;
        };
        let key = program.live[index].key;
        let (by, stream) = program.free_function(index, tid, dice);
        program.live[index].openings -= 1;
        if program.live[index].openings == 0 {
            program.live.remove(index);
        }
        program.totals.frees += 1;
        program.tidy_pools();
        let kind = EventKind::Free(Free { key, by, stream });
        if slowly {
            self.begin_slowly(pid, dice, kind);
        } else {
            self.called(pid, dice, kind);
        }
    }

    pub(super) fn stream_ordered(&mut self, pid: Pid, dice: Dice) {
        let (_, a, b, _) = dice;
        let tid = thread(dice);
        let stream = StreamId(3 + u64::from(b % 3));
        let fresh = AllocationKey::address(self.unique());
        let program = self.program(pid);
        let contexts = program.contexts();
        let Some(index) = pick(contexts.len(), a) else { return };
        let (context, device) = contexts[index];
        let bytes = 1 << (b / 3 % 10);
        let mut allocate = Allocate {
            key: fresh,
            kind: MemoryKind::Async,
            bytes,
            context: Some(context),
            device: None,
            pool: None,
            stream: Some(stream),
            site: None,
        };
        if let Some(capture) = program.capture(stream, tid) {
            capture.add(fresh.value, bytes, device);
            self.called_by(pid, tid, dice, EventKind::Allocate(allocate));
            return;
        }
        let Some(key) = program.unused_address(a) else { return };
        allocate.key = key;
        let usable: Vec<_> = program.pools.iter().filter(|pool| !pool.destroyed).collect();
        let named = pick(usable.len(), b).filter(|_| a % 2 == 0).map(|index| *usable[index]);
        allocate.pool = named.map(|pool| pool.id);
        let current = program.current.get(&device).copied().unwrap_or(default_of(device));
        let location = named.map_or(MemoryLocation::Device(device), |pool| pool.location);
        let (kind, device) = match location {
            MemoryLocation::Device(device) => (MemoryKind::Async, device),
            MemoryLocation::Host => (MemoryKind::HostAsync, device),
        };
        let pool = Some(named.map_or(current, |pool| pool.id));
        program.live.push(Memory { key, kind, bytes, context: None, device, pool, openings: 1 });
        program.totals.allocations += 1;
        self.called_by(pid, tid, dice, EventKind::Allocate(allocate));
    }

    pub(super) fn change_pools(&mut self, pid: Pid, dice: Dice) {
        let (_, a, b, _) = dice;
        let device = DeviceId(u16::from(b / 8 % DEVICES));
        let program = self.program(pid);
        let usable: Vec<_> = program.pools.iter().filter(|pool| !pool.destroyed).collect();
        let chosen = pick(usable.len(), a).map(|index| *usable[index]);
        let call = match (b % 8, chosen) {
            (0..=2, _) => {
                let unused = |id: &u64| program.pools.iter().all(|pool| pool.id.0 != *id);
                let Some(id) = (5..8).find(unused) else { return };
                let location = if a.is_multiple_of(3) {
                    MemoryLocation::Host
                } else {
                    MemoryLocation::Device(device)
                };
                let id = PoolId(id);
                program.pools.push(Pool { id, location, destroyed: false });
                PoolCall::Created { pool: id, location: Some(location) }
            }
            (3, Some(Pool { id, .. })) => {
                program.pools.iter_mut().filter(|p| p.id == id).for_each(|p| p.destroyed = true);
                program.current.retain(|_, current| *current != id);
                program.tidy_pools();
                PoolCall::Destroyed { pool: id }
            }
            (4, Some(Pool { id, location: MemoryLocation::Device(device), .. })) => {
                program.current.insert(device, id);
                PoolCall::OfDevice { pool: id, device, current: true }
            }
            (5, _) => PoolCall::OfDevice { pool: default_of(device), device, current: false },
            (6, _) => {
                let pool = program.current.get(&device).copied().unwrap_or(default_of(device));
                PoolCall::OfDevice { pool, device, current: true }
            }
            (7, Some(Pool { id, .. })) => PoolCall::ReservedReported { pool: id, bytes: 7 },
            _ => return,
        };
        self.called(pid, dice, EventKind::Pool(call));
    }
}

impl Program {
    /// Returns a matching free function and a stream without a capture.
    fn free_function(
        &self,
        index: usize,
        tid: Tid,
        dice: Dice,
    ) -> (FreeFunction, Option<StreamId>) {
        let stream = StreamId(3 + u64::from(dice.2 % 3));
        match self.live[index].kind {
            MemoryKind::Pinned => (FreeFunction::FreeHost, None),
            MemoryKind::Array => (FreeFunction::DestroyArray, None),
            MemoryKind::Imported => (FreeFunction::CloseImport, None),
            MemoryKind::Async | MemoryKind::HostAsync | MemoryKind::Graph
                if dice.1.is_multiple_of(2) && !self.captures(stream, tid) =>
            {
                (FreeFunction::FreeAsync, Some(stream))
            }
            _ => (FreeFunction::Free, None),
        }
    }
}
