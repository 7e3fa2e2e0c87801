//! Synthetic events for tests.

use engine::event::{Allocate, Event, What};
use engine::ids::{DeviceId, Key, Pid, SiteId, Tid};
use engine::kind::Kind;
use engine::units::Moment;

pub(super) fn event(at: u64, what: What) -> Event {
    Event { pid: Pid(7), tid: Tid(7), entered: Moment(at), at: Moment(at), what }
}

/// An allocation whose address is its time.
pub(super) fn allocate(at: u64) -> Event {
    let what = What::Allocate(Allocate {
        key: Key::address(at),
        kind: Kind::Device,
        bytes: 512,
        context: None,
        device: Some(DeviceId(0)),
        pool: None,
        stream: None,
        site: Some(SiteId(3)),
    });
    event(at, what)
}
