//! Generated changes with the properties of a ledger or file: ends repeat their allocation, times
//! never go backwards, and many changes share a timestamp.

use std::collections::BTreeMap;

use engine::change::{Change, How, Turn};
use engine::ids::{DeviceId, Key, Pid, SiteId, Tid};
use engine::kind::Kind;
use engine::units::Moment;
use proptest::prelude::*;

/// Returns an allocation with the fields that most tests need.
pub(crate) fn alloc(at: u64, pid: u32, address: u64, bytes: u64, site: u32) -> Change {
    Change {
        at: Moment(at),
        what: Turn::Began,
        pid: Pid(pid),
        tid: Tid(pid),
        device: Some(DeviceId(0)),
        kind: Kind::Device,
        key: Key::address(address),
        bytes,
        pool: None,
        stream: None,
        site: Some(SiteId(site)),
    }
}

/// Returns the end of an allocation.
pub(crate) fn ended(at: u64, began: Change, how: How) -> Change {
    Change { at: Moment(at), what: Turn::Ended { began: began.at, how }, ..began }
}

const KINDS: [Kind; 6] =
    [Kind::Device, Kind::Device, Kind::Async, Kind::Static, Kind::Managed, Kind::Pinned];

type Dice = (u8, u8, u8, u8);

/// Generates changes of a few processes, addresses, sites and devices.
pub(crate) fn changes(most: usize) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec(any::<Dice>(), 1..most).prop_map(play)
}

fn play(dice: Vec<Dice>) -> Vec<Change> {
    let mut live: BTreeMap<(Pid, Key), (Change, Moment)> = BTreeMap::new();
    let mut all = Vec::new();
    let mut now = Moment(1000);
    for (what, who, size, when) in dice {
        now.0 += u64::from(when % 4) * u64::from(when);
        let pid = Pid(u32::from(who % 3) + 1);
        let key = Key::address(u64::from(who / 3 % 8));
        match live.get(&(pid, key)).copied() {
            None => {
                let device = [None, Some(DeviceId(0)), Some(DeviceId(1))][usize::from(what % 3)];
                let new = Change {
                    device,
                    kind: KINDS[usize::from(what / 3 % 6)],
                    ..alloc(now.0, pid.0, key.value, u64::from(size % 16) * 10, u32::from(what % 5))
                };
                live.insert((pid, key), (new, now));
                all.push(new);
            }
            Some((old, began)) if what % 8 == 0 => {
                let device = Some(DeviceId(u16::from(size % 2)));
                let new = Change { device, bytes: old.bytes + u64::from(what / 128), ..old };
                if new.known() != old.known() {
                    live.insert((pid, key), (new, began));
                    all.push(Change {
                        at: now,
                        what: Turn::Learned { began, before: old.known() },
                        ..new
                    });
                }
            }
            Some(_) if what % 8 == 1 => {
                let of_pid: Vec<_> = live.keys().filter(|(of, _)| *of == pid).copied().collect();
                for name in of_pid {
                    let (old, began) = live.remove(&name).unwrap();
                    let what = Turn::Ended { began, how: How::Exited };
                    all.push(Change { at: now, what, ..old });
                }
            }
            Some((old, began)) => {
                live.remove(&(pid, key));
                let how = [How::Freed, How::Freed, How::Replaced, How::Released];
                let what = Turn::Ended { began, how: how[usize::from(what % 4)] };
                all.push(Change { at: now, what, ..old });
            }
        }
    }
    all
}
