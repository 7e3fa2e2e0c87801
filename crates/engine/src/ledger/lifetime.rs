//! Effects of contexts on the memory of a process: its device, and frees without a call.

use crate::event::{ContextChange, Event};
use crate::ids::{ContextId, DeviceId};
use crate::units::Moment;

use super::allocation::Entry;
use super::context::Release;
use super::process::Process;
use super::totals::Sum;

impl Process {
    /// Applies a context call. Returns the number of objects that may have ended with the context
    /// and were not in doubt before.
    pub(super) fn change(&mut self, event: &Event, change: ContextChange) -> u64 {
        let ends = match change {
            ContextChange::Created { .. }
            | ContextChange::PrimaryRetained { .. }
            | ContextChange::Learned { .. } => false,
            ContextChange::Destroyed { .. } => true,
            ContextChange::PrimaryReleased { device } => !self.contexts.is_shared(device),
            ContextChange::PrimaryReset { device } => !self.contexts.has_no_primary(device),
        };
        if ends {
            self.context_ends.one(event.at);
        }
        self.apply_change(event, change);
        if ends { self.objects.doubt_unknown_contexts() } else { 0 }
    }

    fn apply_change(&mut self, event: &Event, change: ContextChange) {
        match change {
            ContextChange::Created { context, device } => {
                self.create_context(context, device, event.at);
            }
            ContextChange::Destroyed { context } => {
                self.contexts.record_end();
                if let Some(index) = self.contexts.destroyed(context, event.entered) {
                    self.release(index, event.entered);
                    self.pools.orphan(index);
                    self.contexts.remove_destroyed(index);
                } else {
                    self.release_objects(context, event.entered);
                    // It destroyed an older context whose handle is already in use again. The
                    // memory of that context was released when the reuse was seen, or evicted.
                    let released = self.superseded.released(context, event.entered);
                    self.counts.released += released;
                }
            }
            ContextChange::PrimaryRetained { context, device } => {
                let index = self.contexts.of(context);
                if let Some(old) = self.contexts.retain(device, index) {
                    self.contexts.record_end();
                    self.release(old, event.at);
                }
                self.place(index, device);
            }
            ContextChange::PrimaryReleased { device } => self.release_primary(event, device),
            ContextChange::PrimaryReset { device } => self.reset_primary(event, device),
            ContextChange::Learned { context, device } => {
                let index = self.contexts.of(context);
                self.place(index, device);
            }
        }
    }

    fn create_context(&mut self, context: ContextId, device: DeviceId, at: Moment) {
        if self.contexts.find(context).is_some() {
            self.contexts.record_end();
        }
        let index = self.contexts.of(context);
        // The handle is reused, so the older context with this handle has ended.
        self.release(index, at);
        self.pools.orphan(index);
        self.contexts.create(index, at);
        self.place(index, device);
    }

    fn release_primary(&mut self, event: &Event, device: DeviceId) {
        self.contexts.record_end();
        match self.contexts.release(device) {
            Release::Last(index) => {
                let bytes = self.release(index, event.entered);
                self.losses.conclude(bytes);
            }
            Release::Shared => {}
            Release::Unknown => self.doubt_contexts(event),
        }
    }

    fn reset_primary(&mut self, event: &Event, device: DeviceId) {
        self.contexts.record_end();
        if let Some(index) = self.contexts.primary(device) {
            self.release(index, event.entered);
            // After lost events, the primary context may differ from the last one retained.
            if self.losses.broken() {
                self.doubt_contexts(event);
            }
        } else if !self.losses.broken()
            && let Some(index) = self.contexts.guess_primary(device)
        {
            let bytes = self.release(index, event.entered);
            self.losses.conclude(bytes);
        } else if !self.contexts.has_no_primary(device) {
            self.doubt_contexts(event);
        }
    }

    /// An unknown context ended.
    fn doubt_contexts(&mut self, event: &Event) {
        if self.losses.broken() {
            self.losses.doubt(event.at, self.totals.live);
        } else {
            self.context_ends.any(event.at);
        }
    }

    /// Ends all allocations made in a context up to a given time, without calls; returns their
    /// device memory. Later allocations belong to a newer context with the same handle, as with
    /// reused addresses.
    fn release(&mut self, context: u32, until: Moment) -> Sum {
        let before = self.totals.live;
        if self.contexts.live(context) > 0 {
            let gone = |entry: &Entry| entry.context() == context && entry.returned_at <= until;
            let slots = self.allocations.select(gone);
            self.counts.released += self.end_all(&slots);
        }
        if let Some(id) = self.contexts.id(context) {
            self.release_objects(id, until);
            self.counts.released += self.superseded.released(id, until);
        }
        before.minus(self.totals.live)
    }

    /// Applies the device of a context once it is known.
    pub(super) fn place(&mut self, context: u32, device: DeviceId) {
        self.devices.uses(device);
        self.place_pool(context, device);
        if self.contexts.place(context, device) {
            let waiting = |entry: &Entry| entry.context() == context && entry.device().is_none();
            for slot in self.allocations.select(waiting) {
                let before = self.known(slot);
                self.learn_device(slot, device);
                self.tell_learned(slot, before);
            }
            self.contexts.placed(context);
        }
        if !self.unowned && self.contexts.all_on(device) && !self.losses.broken() {
            self.totals.attribute_peak_to(device);
        }
    }
}
