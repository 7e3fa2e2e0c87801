//! Physical memory.

use engine::model::event::{EventKind, MemoryLocation, VmmCall};
use engine::model::ids::{DeviceId, PhysicalHandleId, Pid};

use super::{DEVICES, Dice, Program, World, pick};

/// Distance of mapping slots, and size of a mapping.
const STRIDE: u64 = 16;

/// Number of mapping slots.
const SLOTS: u64 = 6;

pub(super) struct Handle {
    id: u64,
    pub(super) bytes: u64,
    /// The device whose memory it uses, if any.
    pub(super) device: Option<DeviceId>,
    references: u64,
    /// False for a multicast object.
    memory: bool,
}

impl Program {
    /// Ends handles without references and mappings.
    fn tidy_handles(&mut self) {
        let mapped: Vec<_> = self.mapped.values().copied().collect();
        let is_used = |handle: &Handle| handle.references > 0 || mapped.contains(&handle.id);
        let ended = self.handles.iter().filter(|handle| handle.memory && !is_used(handle)).count();
        self.totals.frees += ended as u64;
        self.handles.retain(is_used);
    }
}

impl World {
    pub(super) fn physical(&mut self, pid: Pid, dice: Dice) {
        let (_, a, b, _) = dice;
        let program = self.program(pid);
        let slot = u64::from(b) % SLOTS;
        let good = program.handles.iter_mut().filter(|handle| handle.references > 0);
        let mut good: Vec<_> = good.collect();
        let chosen = pick(good.len(), a);
        match a / 3 % 16 {
            0..=4 => self.create(pid, dice),
            5..=8 => {
                let Some(index) = chosen else { return };
                if program.mapped.contains_key(&slot) {
                    return;
                }
                let id = good[index].id;
                program.mapped.insert(slot, id);
                let (address, bytes, handle) = (slot * STRIDE, STRIDE, PhysicalHandleId(id));
                self.called(pid, dice, EventKind::Vmm(VmmCall::Map { address, bytes, handle }));
            }
            9 => {
                let Some(id) = program.mapped.get(&slot).copied() else { return };
                let handle = program.handles.iter_mut().find(|handle| handle.id == id);
                let Some(handle) = handle else { return };
                handle.references += 1;
                let handle = PhysicalHandleId(id);
                self.called(pid, dice, EventKind::Vmm(VmmCall::Retain { handle }));
            }
            10..=12 => {
                let Some(index) = chosen else { return };
                good[index].references -= 1;
                let handle = PhysicalHandleId(good[index].id);
                program.tidy_handles();
                self.ended(pid, dice, VmmCall::Release { handle });
            }
            _ => {
                let end = (slot + 1 + u64::from(b / 64)).min(SLOTS);
                program.mapped.retain(|mapped, _| *mapped < slot || *mapped >= end);
                program.tidy_handles();
                let (address, bytes) = (slot * STRIDE, (end - slot) * STRIDE);
                self.ended(pid, dice, VmmCall::Unmap { address, bytes });
            }
        }
    }

    /// A call that may have ended memory, and may return later.
    fn ended(&mut self, pid: Pid, dice: Dice, call: VmmCall) {
        if dice.2.is_multiple_of(3) {
            self.begin_slowly(pid, dice, EventKind::Vmm(call));
        } else {
            self.called(pid, dice, EventKind::Vmm(call));
        }
    }

    fn create(&mut self, pid: Pid, dice: Dice) {
        let (_, a, b, _) = dice;
        let program = self.program(pid);
        let unused = |id: &u64| program.handles.iter().all(|handle| handle.id != *id);
        let Some(id) = (1..=6).find(unused) else { return };
        let handle = PhysicalHandleId(id);
        let device = DeviceId(u16::from(b % DEVICES));
        let bytes = 1 << (b / 2 % 10);
        let (call, bytes, device) = match a % 8 {
            0 => (VmmCall::Multicast { handle }, 0, None),
            1 => (VmmCall::Import { handle }, 0, None),
            2 => (
                VmmCall::Create { handle, bytes, location: MemoryLocation::Host, site: None },
                bytes,
                None,
            ),
            _ => {
                let location = MemoryLocation::Device(device);
                (VmmCall::Create { handle, bytes, location, site: None }, bytes, Some(device))
            }
        };
        let memory = !matches!(call, VmmCall::Multicast { .. });
        program.totals.allocations += u64::from(memory);
        program.handles.push(Handle { id, bytes, device, references: 1, memory });
        self.called(pid, dice, EventKind::Vmm(call));
    }
}
