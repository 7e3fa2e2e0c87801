//! Physical memory by its references and mappings.

use engine::model::event::{Event, MemoryLocation, VmmCall};
use engine::model::ids::{AddressType, AllocationKey, PhysicalHandleId};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;

use super::sites::SiteOp;
use super::{Live, Process};

#[derive(Clone, Copy)]
pub(super) struct Handle {
    number: u64,
    since: Timestamp,
    references: u64,
    memory: bool,
}

#[derive(Clone, Copy)]
pub(super) struct Mapping {
    first: u64,
    end: u64,
    handle: PhysicalHandleId,
    number: u64,
    since: Timestamp,
}

fn key(handle: PhysicalHandleId) -> AllocationKey {
    AllocationKey { space: AddressType::Handle, value: handle.0 }
}

impl Process {
    pub(super) fn vmm(&mut self, event: &Event, call: VmmCall) {
        match call {
            VmmCall::Create { handle, bytes, location, site } => {
                let (kind, device) = match location {
                    MemoryLocation::Device(device) => (MemoryKind::Physical, Some(device)),
                    MemoryLocation::Host => (MemoryKind::HostPhysical, None),
                };
                let live = Live { site, ..Live::new(key(handle), kind, bytes, device) };
                self.begin(event, live);
                self.open(event, handle, true);
            }
            VmmCall::Import { handle } => {
                self.begin(event, Live::new(key(handle), MemoryKind::Imported, 0, None));
                self.open(event, handle, true);
            }
            VmmCall::Multicast { handle } => {
                self.make_room(key(handle), event.time);
                self.open(event, handle, false);
            }
            VmmCall::Retain { handle } => {
                if let Some(handle) = self.handles.get_mut(&handle) {
                    handle.references += 1;
                }
            }
            VmmCall::Release { handle } => self.release_handle(event, handle),
            VmmCall::Map { address, bytes, handle } => self.map(event, address, bytes, handle),
            VmmCall::Unmap { address, bytes } => {
                self.unmap(event, |m| {
                    m.first >= address && m.end <= address + bytes && m.since <= event.entry_time
                });
            }
            VmmCall::Reserve { address, bytes } => {
                self.reservations.insert(address, (bytes, event.time));
            }
            VmmCall::Unreserve { address, .. } => {
                self.reservations
                    .retain(|first, (_, since)| *first != address || *since > event.entry_time);
            }
        }
    }

    fn open(&mut self, event: &Event, handle: PhysicalHandleId, memory: bool) {
        self.remove_handle(handle);
        self.handle_count += 1;
        let new = Handle { number: self.handle_count, since: event.time, references: 1, memory };
        self.handles.insert(handle, new);
    }

    fn release_handle(&mut self, event: &Event, id: PhysicalHandleId) {
        let pending = self.pending_releases.iter().position(|pending| *pending == id);
        let Some(handle) = self.handles.get_mut(&id) else {
            if let Some(position) = pending {
                self.pending_releases.remove(position);
                self.match_pending_free(event, key(id));
            } else {
                self.free_key(event, key(id), None);
            }
            return;
        };
        if event.entry_time < handle.since {
            pending.map(|position| self.pending_releases.remove(position));
            self.match_pending_free(event, key(id));
        } else if handle.references == 0 {
            self.unknown_frees += 1;
        } else {
            handle.references -= 1;
            let handle = *handle;
            let mapped = self.mappings.iter().any(|mapping| mapping.number == handle.number);
            let last = handle.references == 0 && handle.memory;
            self.api_misuse.released_while_mapped += u64::from(last && mapped);
            self.end_if_unused(id);
        }
    }

    fn end_if_unused(&mut self, id: PhysicalHandleId) {
        let Some(handle) = self.handles.get(&id).copied() else { return };
        let mapped = self.mappings.iter().any(|mapping| mapping.number == handle.number);
        if handle.references > 0 || mapped {
            return;
        }
        if handle.memory {
            self.frees_total += 1;
            self.freed.push(key(id));
            if let Some(position) = self.find(key(id)) {
                self.end(position, true);
            }
        }
        self.remove_handle(id);
    }

    /// Removes a handle; later releases of it are expected.
    pub(super) fn remove_handle(&mut self, id: PhysicalHandleId) {
        if let Some(handle) = self.handles.remove(&id) {
            self.pending_releases.extend((0..handle.references).map(|_| id));
        }
    }

    fn map(&mut self, event: &Event, address: u64, bytes: u64, id: PhysicalHandleId) {
        if bytes == 0 {
            return;
        }
        let (first, end) = (address, address + bytes);
        self.unmap(event, |mapping| mapping.first < end && mapping.end > first);
        if let Some(Handle { number, .. }) = self.handles.get(&id).copied() {
            self.mappings.push(Mapping { first, end, handle: id, number, since: event.time });
        }
        if let Some(position) = self.find(key(id))
            && self.live[position].kind == MemoryKind::Imported
        {
            let live = &mut self.live[position];
            let (site, more) = (live.site, bytes.saturating_sub(live.bytes));
            let first = live.bytes == 0 && more > 0;
            live.bytes += more;
            self.write(site, MemoryKind::Imported, SiteOp::Learn { more, first });
        }
    }

    fn unmap(&mut self, event: &Event, gone: impl Fn(&Mapping) -> bool) {
        while let Some(position) = self.mappings.iter().position(&gone) {
            let mapping = self.mappings.remove(position);
            let known = self.handles.get(&mapping.handle);
            if known.is_some_and(|handle| handle.number == mapping.number) {
                self.end_if_unused(mapping.handle);
            } else {
                self.match_pending_free(event, key(mapping.handle));
            }
        }
    }
}
