//! Effects of contexts on the memory of a process: its device, and frees without a call.

use crate::model::{ContextCall, ContextId, DeviceId, Event, Timestamp};

use super::super::super::memory::allocation::{AllocationEntry, Slot};
use super::super::super::memory::pending_frees::{PendingFree, ReleasedMemory};
use super::super::super::memory::totals::ByteSum;
use super::super::super::process::Process;
use super::super::reuse::existed;
use super::PrimaryRelease;
use super::reused::EndedMemory;

/// What ended with a context.
struct Released {
    /// Device memory of its allocations.
    bytes: ByteSum,
    /// Memory whose free was pending.
    pending: Vec<EndedMemory>,
}

impl Process {
    /// Applies a context call. Returns the number of objects that may have ended with the context
    /// and were not in doubt before.
    pub(crate) fn apply_context(&mut self, event: &Event, call: ContextCall) -> u64 {
        let ends = match call {
            ContextCall::Created { .. }
            | ContextCall::PrimaryRetained { .. }
            | ContextCall::Learned { .. } => false,
            ContextCall::Destroyed { .. } => true,
            ContextCall::PrimaryReleased { device } => !self.contexts.is_shared(device),
            ContextCall::PrimaryReset { device } => !self.contexts.has_no_primary(device),
        };
        if ends {
            self.context_ends.doubt_unknown(event.time);
        }
        self.apply_call(event, call);
        if ends { self.objects.doubt_unknown_contexts() } else { 0 }
    }

    fn apply_call(&mut self, event: &Event, call: ContextCall) {
        match call {
            ContextCall::Created { context, device } => {
                self.create_context(context, device, event.time);
            }
            ContextCall::Destroyed { context } => {
                self.contexts.record_end();
                if let Some(index) = self.contexts.destroyed(context, event.entry_time) {
                    self.release(index, event.entry_time);
                    self.pools.forget_context(index);
                    self.contexts.remove_destroyed(index);
                } else {
                    self.release_objects(context, event.entry_time);
                    // It destroyed an older context whose handle is already in use again. The
                    // memory of that context was released when the reuse was seen, or evicted.
                    self.release_pending(context, event.entry_time);
                    let memory = self.contexts.reused.destroyed(context, event.entry_time);
                    self.ended_earlier(&memory, event.entry_time);
                }
            }
            ContextCall::PrimaryRetained { context, device } => {
                let index = self.contexts.of(context);
                if let Some(old) = self.contexts.retain(device, index) {
                    self.contexts.record_end();
                    self.release(old, event.time);
                }
                self.set_context_device(index, device);
            }
            ContextCall::PrimaryReleased { device } => self.release_primary(event, device),
            ContextCall::PrimaryReset { device } => self.reset_primary(event, device),
            ContextCall::Learned { context, device } => {
                let index = self.contexts.of(context);
                self.set_context_device(index, device);
            }
        }
    }

    fn create_context(&mut self, context: ContextId, device: DeviceId, at: Timestamp) {
        if self.contexts.find(context).is_some() {
            self.contexts.record_end();
        }
        let index = self.contexts.of(context);
        // The handle is reused, so the older context with this handle has ended.
        let mut memory = self.memory_of(index, at);
        memory.extend(self.release(index, at).pending);
        self.contexts.reused.add(context, (self.contexts.since(index), at), memory);
        self.pools.forget_context(index);
        self.contexts.create(index, at);
        self.set_context_device(index, device);
    }

    fn release_primary(&mut self, event: &Event, device: DeviceId) {
        self.contexts.record_end();
        match self.contexts.release(device) {
            PrimaryRelease::Last(index) => {
                let released = self.release(index, event.entry_time);
                self.losses.record_implied_free(released.bytes);
            }
            PrimaryRelease::Shared => {}
            PrimaryRelease::Unknown => self.doubt_contexts(event),
        }
    }

    fn reset_primary(&mut self, event: &Event, device: DeviceId) {
        self.contexts.record_end();
        if let Some(index) = self.contexts.primary(device) {
            self.release(index, event.entry_time);
            // After lost events, the primary context may differ from the last one retained.
            if self.losses.has_other_lost() {
                self.doubt_contexts(event);
            }
        } else if !self.losses.has_other_lost()
            && let Some(index) = self.contexts.guess_primary(device)
        {
            let released = self.release(index, event.entry_time);
            self.losses.record_implied_free(released.bytes);
        } else if !self.contexts.has_no_primary(device) {
            self.doubt_contexts(event);
        }
    }

    /// An unknown context ended.
    fn doubt_contexts(&mut self, event: &Event) {
        if self.losses.has_other_lost() {
            self.losses.mark_possible_context_end(event.time, self.totals.live);
        } else {
            self.context_ends.doubt_all(event.time);
        }
    }

    /// Ends all allocations made in a context up to a given time, without calls. Later allocations
    /// belong to a newer context with the same handle, as with reused addresses.
    fn release(&mut self, context: u32, until: Timestamp) -> Released {
        let before = self.totals.live;
        self.pending_frees.released_at = self.call.1;
        let slots = self.allocations_of(context, until);
        for entry in slots.iter().map(|slot| self.allocations.slab[*slot]) {
            let bytes = if entry.kind.takes_device_memory() { entry.bytes } else { 0 };
            let memory = ReleasedMemory {
                device: entry.device(),
                bytes,
                allocated_at: entry.returned_at,
                call: self.call,
                entry: Some(entry),
            };
            for _ in 0..=self.reopened.get(entry.key()) {
                self.pending_frees.add_released(entry.key(), memory);
            }
        }
        self.counts.released += self.remove_allocations(&slots);
        let mut pending = Vec::new();
        if let Some(id) = self.contexts.id(context) {
            self.release_objects(id, until);
            pending = self.release_pending(id, until);
        }
        Released { bytes: before.minus(self.totals.live), pending }
    }

    /// Ends frees that were pending and whose memory ended with a context, in a call entered at this
    /// time.
    fn release_pending(&mut self, context: ContextId, entered: Timestamp) -> Vec<EndedMemory> {
        let ended = self.pending_frees.release_context(context, entered);
        self.counts.released += ended.len() as u64;
        let mut memory = Vec::new();
        for (key, PendingFree { device, bytes, allocated_at, entered: until, .. }) in ended {
            let call = self.call;
            let released = ReleasedMemory { device, bytes, allocated_at, call, entry: None };
            self.pending_frees.add_released(key, released);
            memory.push(EndedMemory { device, bytes, until });
        }
        self.ended_earlier(&memory, entered);
        memory
    }

    /// Corrects the bounds of peaks: memory ended in a call entered at this time.
    fn ended_earlier(&mut self, memory: &[EndedMemory], entered: Timestamp) {
        for part in memory {
            self.totals.ended_earlier(part.device, entered, part.until, part.bytes);
        }
    }

    /// Allocations made in a context up to a given time.
    fn allocations_of(&self, context: u32, until: Timestamp) -> Vec<Slot> {
        if self.contexts.live(context) == 0 {
            return Vec::new();
        }
        self.allocations
            .select(|entry| entry.context() == context && existed(entry.returned_at, until))
    }

    /// Device memory of a context that ends with the current call, by device.
    fn memory_of(&self, context: u32, until: Timestamp) -> Vec<EndedMemory> {
        let mut memory: Vec<EndedMemory> = Vec::new();
        for slot in self.allocations_of(context, until) {
            let entry = &self.allocations.slab[slot];
            if !entry.kind.takes_device_memory() {
                continue;
            }
            let (device, until) = (entry.device(), self.call.0);
            match memory.iter_mut().find(|part| part.device == device) {
                Some(part) => part.bytes = part.bytes.saturating_add(entry.bytes),
                None => memory.push(EndedMemory { device, bytes: entry.bytes, until }),
            }
        }
        memory
    }

    /// Applies the device of a context once it is known.
    pub(crate) fn set_context_device(&mut self, context: u32, device: DeviceId) {
        self.devices.uses(device);
        self.set_pool_device(context, device);
        if self.contexts.set_device(context, device) {
            let waiting =
                |entry: &AllocationEntry| entry.context() == context && entry.device().is_none();
            for slot in self.allocations.select(waiting) {
                let before = self.late_fields(slot);
                self.learn_device(slot, device);
                self.log_update(slot, before);
            }
            self.contexts.clear_waiting(context);
        }
        if !self.unowned && self.contexts.all_on(device) && !self.losses.has_other_lost() {
            self.totals.attribute_peak_to(device);
        }
    }
}
