//! Effects of contexts on the memory of a process: its device, and frees without a call.

use crate::model::event::{ContextCall, Event};
use crate::model::ids::{ContextId, DeviceId};
use crate::model::units::Timestamp;

use super::super::memory::allocation::AllocationEntry;
use super::super::memory::totals::ByteSum;
use super::super::process::Process;
use super::context::PrimaryRelease;

impl Process {
    /// Applies a context call. Returns the number of objects that may have ended with the context
    /// and were not in doubt before.
    pub(in crate::ledger) fn apply_context(&mut self, event: &Event, call: ContextCall) -> u64 {
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
                    let released = self.pending_frees.release_context(context, event.entry_time);
                    self.counts.released += released;
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
        self.release(index, at);
        self.pools.forget_context(index);
        self.contexts.create(index, at);
        self.set_context_device(index, device);
    }

    fn release_primary(&mut self, event: &Event, device: DeviceId) {
        self.contexts.record_end();
        match self.contexts.release(device) {
            PrimaryRelease::Last(index) => {
                let bytes = self.release(index, event.entry_time);
                self.losses.record_implied_free(bytes);
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
            let bytes = self.release(index, event.entry_time);
            self.losses.record_implied_free(bytes);
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

    /// Ends all allocations made in a context up to a given time, without calls; returns their
    /// device memory. Later allocations belong to a newer context with the same handle, as with
    /// reused addresses.
    fn release(&mut self, context: u32, until: Timestamp) -> ByteSum {
        let before = self.totals.live;
        if self.contexts.live(context) > 0 {
            let gone =
                |entry: &AllocationEntry| entry.context() == context && entry.returned_at <= until;
            let slots = self.allocations.select(gone);
            self.counts.released += self.remove_allocations(&slots);
        }
        if let Some(id) = self.contexts.id(context) {
            self.release_objects(id, until);
            self.counts.released += self.pending_frees.release_context(id, until);
        }
        before.minus(self.totals.live)
    }

    /// Applies the device of a context once it is known.
    pub(in crate::ledger) fn set_context_device(&mut self, context: u32, device: DeviceId) {
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
