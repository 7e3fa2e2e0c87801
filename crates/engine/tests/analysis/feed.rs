//! Generated changes with the properties of a ledger or file: ends repeat their allocation, times
//! never go backwards, and many changes share a timestamp.

use std::collections::BTreeMap;

use engine::model::change::{AllocationChange, ChangeKind, EndReason};
use engine::model::ids::{AllocationKey, DeviceId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::Timestamp;
use proptest::prelude::*;

/// Returns an allocation with the fields that most tests need.
pub(crate) fn alloc(at: u64, pid: u32, address: u64, bytes: u64, site: u32) -> AllocationChange {
    AllocationChange {
        at: Timestamp(at),
        action: ChangeKind::Allocated,
        pid: Pid(pid),
        tid: Tid(pid),
        device: Some(DeviceId(0)),
        kind: MemoryKind::Device,
        key: AllocationKey::address(address),
        bytes,
        pool: None,
        stream: None,
        site: Some(SiteId(site)),
    }
}

/// Returns the end of an allocation.
pub(crate) fn ended(at: u64, allocated: AllocationChange, reason: EndReason) -> AllocationChange {
    AllocationChange {
        at: Timestamp(at),
        action: ChangeKind::Ended { allocated_at: allocated.at, reason },
        ..allocated
    }
}

const KINDS: [MemoryKind; 6] = [
    MemoryKind::Device,
    MemoryKind::Device,
    MemoryKind::Async,
    MemoryKind::Static,
    MemoryKind::Managed,
    MemoryKind::Pinned,
];

type Dice = (u8, u8, u8, u8);

/// Generates changes of a few processes, addresses, sites and devices.
pub(crate) fn changes(limit: usize) -> impl Strategy<Value = Vec<AllocationChange>> {
    prop::collection::vec(any::<Dice>(), 1..limit).prop_map(replay)
}

fn replay(dice: Vec<Dice>) -> Vec<AllocationChange> {
    let mut live: BTreeMap<(Pid, AllocationKey), (AllocationChange, Timestamp)> = BTreeMap::new();
    let mut all = Vec::new();
    let mut now = Timestamp(1000);
    for (choice, target, size, delay) in dice {
        now.0 += u64::from(delay % 4) * u64::from(delay);
        let pid = Pid(u32::from(target % 3) + 1);
        let key = AllocationKey::address(u64::from(target / 3 % 8));
        match live.get(&(pid, key)).copied() {
            None => {
                let device = [None, Some(DeviceId(0)), Some(DeviceId(1))][usize::from(choice % 3)];
                let new = AllocationChange {
                    device,
                    kind: KINDS[usize::from(choice / 3 % 6)],
                    ..alloc(
                        now.0,
                        pid.0,
                        key.value,
                        u64::from(size % 16) * 10,
                        u32::from(choice % 5),
                    )
                };
                live.insert((pid, key), (new, now));
                all.push(new);
            }
            Some((old, allocated_at)) if choice % 8 == 0 => {
                let device = Some(DeviceId(u16::from(size % 2)));
                let new =
                    AllocationChange { device, bytes: old.bytes + u64::from(choice / 128), ..old };
                if new.late_fields() != old.late_fields() {
                    live.insert((pid, key), (new, allocated_at));
                    all.push(AllocationChange {
                        at: now,
                        action: ChangeKind::Updated { allocated_at, before: old.late_fields() },
                        ..new
                    });
                }
            }
            Some(_) if choice % 8 == 1 => {
                let of_pid: Vec<_> = live.keys().filter(|(of, _)| *of == pid).copied().collect();
                for name in of_pid {
                    let (old, allocated_at) = live.remove(&name).unwrap();
                    let action =
                        ChangeKind::Ended { allocated_at, reason: EndReason::ProcessExited };
                    all.push(AllocationChange { at: now, action, ..old });
                }
            }
            Some((old, allocated_at)) => {
                live.remove(&(pid, key));
                let reasons =
                    [EndReason::Freed, EndReason::Freed, EndReason::Replaced, EndReason::Released];
                let action =
                    ChangeKind::Ended { allocated_at, reason: reasons[usize::from(choice % 4)] };
                all.push(AllocationChange { at: now, action, ..old });
            }
        }
    }
    all
}
