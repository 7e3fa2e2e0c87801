//! Creation and end of contexts.

use engine::model::event::{ContextCall, Event};
use engine::model::ids::{AddressType, ContextId, DeviceId};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;

use super::process::{Context, PendingFree, Released};
use super::{Live, Process};

impl Process {
    fn release(&mut self, context: ContextId, until: Timestamp) {
        self.released_at = self.now;
        let gone = |live: &Live| {
            live.context == Some(context) && live.at <= until && !live.kind.is_pooled()
        };
        while let Some(position) = self.live.iter().position(gone) {
            let old = self.end(position, false);
            self.released_total += old.openings;
            let live = Some((old.site, old.kind));
            let memory = Released { allocated_at: old.at, at: self.now, live };
            self.released.extend((0..old.openings).map(|_| (old.key, memory)));
        }
        self.end_released(context, until);
        self.release_objects(context, until);
    }

    /// Memory that existed when the end of its context began, and was replaced since, ended with
    /// it.
    fn end_released(&mut self, context: ContextId, entered: Timestamp) {
        let stays = |old: &PendingFree| {
            old.context != Some(context) || old.allocated_at > entered || old.at < entered
        };
        for old in self.pending_frees.extract_if(.., |old| !stays(old)) {
            self.released_total += 1;
            let memory = Released { allocated_at: old.allocated_at, at: self.now, live: None };
            self.released.push((old.key, memory));
        }
    }

    pub(super) fn set_device(&mut self, context: ContextId, device: DeviceId) {
        self.sees_more |= device.0 != 0;
        self.contexts.entry(context).or_default().device = Some(device);
        self.set_live_device(Some(context), device);
        let on = |known: &Context| known.device == Some(device);
        if !self.unowned && !self.any_ended && self.contexts.values().all(on) && !self.broken() {
            self.merge_peak(device);
        }
    }

    /// Sets the device of memory of a context, or of no context.
    pub(super) fn set_live_device(&mut self, context: Option<ContextId>, device: DeviceId) {
        for at in 0..self.live.len() {
            let live = &self.live[at];
            if live.context != context || live.orphan {
                continue;
            }
            if !live.kind.is_pooled() && live.device.is_none() && context.is_some() {
                self.live[at].device = Some(device);
            } else if live.kind.is_pooled() && !live.of_graph() && live.pool.is_none() {
                self.live[at].pool = Some(self.current_pool(device));
                self.live[at].device = Some(device);
            }
        }
    }

    /// Returns the number of objects that became uncertain.
    pub(super) fn apply_context(&mut self, event: &Event, call: ContextCall) -> u64 {
        let ends = match call {
            ContextCall::Destroyed { .. } => true,
            ContextCall::PrimaryReset { device } => {
                let known = self.primaries.contains_key(&device);
                known || !self.counted || self.guess(device).is_some()
            }
            ContextCall::PrimaryReleased { device } => {
                let users = self.primaries.get(&device).map_or(0, |(_, users)| *users);
                !self.counted || users <= 1
            }
            _ => false,
        };
        if ends {
            self.doubt.0 = event.time.max(self.newest);
        }
        self.apply_call(event, call);
        if ends { self.doubt_objects() } else { 0 }
    }

    /// Without a loss, memory of any context is in doubt when an unknown one ends.
    fn doubt_all(&mut self, event: &Event) {
        if !self.broken() {
            self.doubt.1 = event.time.max(self.newest);
        }
    }

    /// Whether an allocation may have ended with a context.
    pub(super) fn is_in_doubt(&self, live: &Live) -> bool {
        let kinds = [
            MemoryKind::Device,
            MemoryKind::Array,
            MemoryKind::Managed,
            MemoryKind::Pinned,
            MemoryKind::Registered,
            MemoryKind::Imported,
        ];
        let until = if live.context.is_none() { self.doubt.0 } else { self.doubt.1 };
        kinds.contains(&live.kind) && live.key.space != AddressType::Handle && live.at <= until
    }

    pub(super) fn in_doubt(&self) -> u64 {
        self.live.iter().filter(|live| self.is_in_doubt(live)).count() as u64 + self.open
    }

    pub(super) fn ambiguous_calls(&self) -> u64 {
        let unreturned = if self.ended.is_some() { self.pending_frees.len() } else { 0 };
        self.ambiguous + unreturned as u64
    }

    pub(super) fn broken(&self) -> bool {
        self.lost.other > 0 || self.shared_other > 0
    }

    fn apply_call(&mut self, event: &Event, call: ContextCall) {
        match call {
            ContextCall::Created { context, device } => {
                self.any_ended |= self.contexts.contains_key(&context);
                self.release(context, event.time);
                self.orphan(context);
                self.primaries.retain(|_, (primary, _)| *primary != context);
                self.set_device(context, device);
                self.contexts.entry(context).or_default().created_at = Some(event.time);
            }
            ContextCall::Destroyed { context } => {
                self.any_ended = true;
                self.destroy(event, context);
            }
            ContextCall::PrimaryRetained { context, device } => {
                let (primary, users) = self.primaries.get(&device).copied().unwrap_or((context, 0));
                if primary == context {
                    self.primaries.insert(device, (context, users + 1));
                } else {
                    self.primaries.insert(device, (context, 1));
                    self.any_ended = true;
                    self.release(primary, event.time);
                }
                self.set_device(context, device);
            }
            ContextCall::PrimaryReleased { device } => {
                self.any_ended = true;
                if let Some((context, users)) = self.primaries.get(&device).copied()
                    && self.counted
                    && users > 0
                {
                    self.primaries.insert(device, (context, users - 1));
                    if users == 1 {
                        self.release(context, event.entry_time);
                    }
                } else {
                    self.doubt_all(event);
                }
            }
            ContextCall::PrimaryReset { device } => {
                self.any_ended = true;
                self.reset(event, device);
            }
            ContextCall::Learned { context, device } => self.set_device(context, device),
        }
    }

    fn destroy(&mut self, event: &Event, context: ContextId) {
        let known = self.contexts.get(&context).copied();
        if known.is_none_or(|known| known.created_at.is_some_and(|at| event.entry_time < at)) {
            self.end_released(context, event.entry_time);
            self.release_objects(context, event.entry_time);
            return;
        }
        self.release(context, event.entry_time);
        self.orphan(context);
        if self.primaries.values().any(|(primary, _)| *primary == context) {
            return;
        }
        // A newer context with the same handle holds the rest: its device is unknown.
        if self.live.iter().any(|live| live.context == Some(context) && !live.orphan) {
            self.contexts.insert(context, Context::default());
        } else {
            self.contexts.remove(&context);
        }
    }

    fn reset(&mut self, event: &Event, device: DeviceId) {
        if let Some((context, _)) = self.primaries.get(&device).copied() {
            self.release(context, event.entry_time);
        } else if !self.broken() {
            if let Some(only) = self.guess(device) {
                self.release(only, event.entry_time);
            } else if !self.counted {
                self.doubt_all(event);
            }
        }
    }

    /// Returns the only context of a device that can be its primary one.
    fn guess(&self, device: DeviceId) -> Option<ContextId> {
        let on = |(_, known): &(&ContextId, &Context)| {
            known.device == Some(device) && known.created_at.is_none()
        };
        let candidates: Vec<_> = self.contexts.iter().filter(on).map(|(id, _)| *id).collect();
        if let [only] = candidates[..] { Some(only) } else { None }
    }

    /// The device of stream-ordered memory of a destroyed context stays unknown.
    fn orphan(&mut self, context: ContextId) {
        for live in self.live.iter_mut().filter(|live| live.kind.is_pooled()) {
            live.orphan |= live.context.take_if(|id| *id == context).is_some();
        }
    }
}
