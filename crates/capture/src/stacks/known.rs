//! Native stacks that the probes recognise by themselves: the table that tells them how.

use std::collections::HashMap;

use engine::ids::Pid;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::native::{Registers, Slot};
use super::records::From;
use crate::wire::{self, Known, KnownKey, ToWire, WireSlot};

/// Entries of the table that are used: it has a few more.
const MOST: usize = 8000;

/// Where a stack begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    ip: u64,
    sp: u64,
    program: u16,
}

/// Which stacks are in the table.
#[derive(Debug)]
pub(crate) struct KnownStacks {
    map: MapHandle,
    /// Stacks that begin at the same place and are told apart.
    turns: u16,
    places: HashMap<Pid, HashMap<Place, u16>>,
    entries: usize,
}

impl KnownStacks {
    /// `loops`: the probes can go through many that begin at the same place.
    pub(crate) fn new(map: MapHandle, loops: bool) -> Self {
        let turns = if loops { wire::VS_STACKS_PER_KEY } else { wire::VS_STACKS_PER_KEY_NO_LOOP } as u16;
        Self { map, turns, places: HashMap::new(), entries: 0 }
    }

    /// Stacks with this beginning and these return addresses have this number.
    pub(crate) fn add(&mut self, from: From, registers: Registers, slots: &[Slot], number: u64) {
        if slots.is_empty() || slots.len() > wire::VS_SLOTS {
            return;
        }
        if self.entries >= MOST {
            self.clear();
        }
        let place = Place { ip: registers.ip, sp: registers.sp, program: from.program.0 };
        let turns = self.places.entry(from.pid).or_default().entry(place).or_default();
        // The oldest one gives way.
        let most = self.turns;
        let turn = *turns % most;
        if *turns < most {
            self.entries += 1;
        }
        *turns = if *turns + 1 == 2 * most { most } else { *turns + 1 };
        let mut known = Known {
            number,
            count: slots.len() as u32,
            bytes: slots.last().map_or(0, |slot| slot.offset as u32 + 8),
            slots: [WireSlot { offset: 0, value: 0 }; wire::VS_SLOTS],
        };
        for (to, slot) in known.slots.iter_mut().zip(slots) {
            *to = WireSlot { offset: slot.offset, value: slot.value };
        }
        // One that does not fit is sent again, and that is all.
        let _ = self.map.update(&key(from.pid, place, turn).bytes(), &known.bytes(), MapFlags::ANY);
    }

    pub(crate) fn forget(&mut self, pid: Pid) {
        for (place, turns) in self.places.remove(&pid).into_iter().flatten() {
            for turn in 0..turns.min(self.turns) {
                self.entries -= 1;
                let _ = self.map.delete(&key(pid, place, turn).bytes());
            }
        }
    }

    fn clear(&mut self) {
        let pids: Vec<_> = self.places.keys().copied().collect();
        for pid in pids {
            self.forget(pid);
        }
    }
}

fn key(pid: Pid, place: Place, turn: u16) -> KnownKey {
    KnownKey { ip: place.ip, sp: place.sp, pid: pid.0, program: place.program, turn }
}
