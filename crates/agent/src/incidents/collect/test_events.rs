//! Synthetic events for tests.

use engine::model::{
    Allocate, AllocationKey, DeviceId, Event, EventKind, MemoryKind, Pid, SiteId, Tid, Timestamp,
};

pub(in crate::incidents) fn event(at: u64, kind: EventKind) -> Event {
    Event { pid: Pid(7), tid: Tid(7), entry_time: Timestamp(at), time: Timestamp(at), kind }
}

/// An allocation whose address is its time.
pub(in crate::incidents) fn allocate(at: u64) -> Event {
    let kind = EventKind::Allocate(Allocate {
        key: AllocationKey::address(at),
        kind: MemoryKind::Device,
        bytes: 512,
        context: None,
        device: Some(DeviceId(0)),
        pool: None,
        stream: None,
        site: Some(SiteId(3)),
    });
    event(at, kind)
}
