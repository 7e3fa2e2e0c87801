//! Native stacks that the traced side identifies by their return addresses, and the table of them.

use std::collections::HashMap;

use engine::model::ids::Pid;

use super::native::{Registers, ReturnSlot};
use super::records::StackOrigin;
use crate::session::Table;
use crate::wire::{self, KnownStack, KnownStackKey, ToWire, WireSlot};

/// Maximum number of entries used; the BPF map has a few more.
const MAX_KNOWN_STACKS: usize = 8000;

/// Innermost frame of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct StackKey {
    ip: u64,
    sp: u64,
    exec_gen: u16,
}

/// The stacks in the table.
pub(crate) struct KnownStacks {
    table: Table,
    /// Maximum number of stacks per key.
    per_key: u16,
    /// Stacks added per key; wraps around, so that the oldest is replaced.
    added: HashMap<Pid, HashMap<StackKey, u16>>,
    entries: usize,
}

impl KnownStacks {
    /// `loops`: the probes can search many stacks per key.
    pub(crate) fn new(table: Table, loops: bool) -> Self {
        let per_key = if loops { wire::VS_STACKS_PER_KEY } else { wire::VS_STACKS_PER_KEY_NO_LOOP };
        Self { table, per_key: per_key as u16, added: HashMap::new(), entries: 0 }
    }

    /// Adds the number of stacks with this innermost frame and these return addresses.
    pub(crate) fn add(
        &mut self,
        origin: StackOrigin,
        registers: Registers,
        slots: &[ReturnSlot],
        number: u64,
    ) {
        if slots.is_empty() || slots.len() > wire::VS_SLOTS {
            return;
        }
        if self.entries >= MAX_KNOWN_STACKS {
            self.clear();
        }
        let stack = StackKey { ip: registers.ip, sp: registers.sp, exec_gen: origin.exec_gen.0 };
        let added = self.added.entry(origin.pid).or_default().entry(stack).or_default();
        // The oldest one is replaced.
        let max = self.per_key;
        let index = *added % max;
        if *added < max {
            self.entries += 1;
        }
        *added = if *added + 1 == 2 * max { max } else { *added + 1 };
        let mut known = KnownStack {
            number,
            count: slots.len() as u32,
            bytes: slots.last().map_or(0, |slot| slot.offset as u32 + 8),
            slots: [WireSlot { offset: 0, value: 0 }; wire::VS_SLOTS],
        };
        for (to, slot) in known.slots.iter_mut().zip(slots) {
            *to = WireSlot { offset: slot.offset, value: slot.value };
        }
        // A stack that does not fit is just sent again.
        let key = key(origin.pid, stack, index);
        let _ = self.table.update(&key.bytes(), &known.bytes());
    }

    pub(crate) fn process_exited(&mut self, pid: Pid) {
        for (stack, added) in self.added.remove(&pid).into_iter().flatten() {
            for index in 0..added.min(self.per_key) {
                self.entries -= 1;
                self.table.delete(&key(pid, stack, index).bytes());
            }
        }
    }

    fn clear(&mut self) {
        let pids: Vec<_> = self.added.keys().copied().collect();
        for pid in pids {
            self.process_exited(pid);
        }
    }
}

fn key(pid: Pid, stack: StackKey, index: u16) -> KnownStackKey {
    KnownStackKey { ip: stack.ip, sp: stack.sp, pid: pid.0, exec_gen: stack.exec_gen, index }
}
