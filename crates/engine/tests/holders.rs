//! Holders of one device by site, compared with a scan of all allocations.

use std::collections::BTreeMap;

use engine::ledger::Ledger;
use engine::model::event::{
    Allocate, Event, EventKind, Free, FreeFunction, ProcessInfo, SiteFrames,
};
use engine::model::holder::DeviceFilter;
use engine::model::ids::{AllocationKey, DeviceId, GpuId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, SiteName};
use engine::model::units::Timestamp;

fn event(at: u64, pid: u32, kind: EventKind) -> Event {
    Event { pid: Pid(pid), tid: Tid(pid), entry_time: Timestamp(at), time: Timestamp(at), kind }
}

fn allocate(at: u64, pid: u32, device: u16, kind: MemoryKind, site: u32, bytes: u64) -> Event {
    let event_kind = EventKind::Allocate(Allocate {
        key: AllocationKey::address(at),
        kind,
        bytes,
        context: None,
        device: Some(DeviceId(device)),
        pool: None,
        stream: None,
        site: Some(SiteId(site)),
    });
    event(at, pid, event_kind)
}

/// Process 1 sees GPUs 0 and 1; process 2 sees only GPU 1, as its device 0.
fn two_processes() -> Ledger {
    let mut ledger = Ledger::new();
    for (pid, gpus) in [(1, vec![Some(GpuId(0)), Some(GpuId(1))]), (2, vec![Some(GpuId(1))])] {
        let info = ProcessInfo { start: 1, uid: 0, name: "p".into(), before_trace: false };
        ledger.apply(&event(1, pid, EventKind::Process(info)));
        ledger.apply(&event(1, pid, EventKind::Gpus(gpus.into())));
    }
    ledger
}

#[test]
fn every_live_allocation_counts_once_on_its_gpu_and_site() {
    let mut ledger = two_processes();
    let mut expected: BTreeMap<(u16, u32, u32), (u64, u64)> = BTreeMap::new();
    for i in 0..2000_u64 {
        let (pid, site) = (1 + (i % 2) as u32, (i % 7) as u32);
        let device = if pid == 1 { (i / 2 % 2) as u16 } else { 0 };
        let kind = if i % 5 == 0 { MemoryKind::Pinned } else { MemoryKind::Device };
        ledger.apply(&allocate(10 + i, pid, device, kind, site, 100 + i));
        if i % 3 == 0 {
            let free =
                Free { key: AllocationKey::address(10 + i), by: FreeFunction::Free, stream: None };
            ledger.apply(&event(10 + i, pid, EventKind::Free(free)));
        } else if kind == MemoryKind::Device {
            let gpu = if pid == 1 { device } else { 1 };
            let one = expected.entry((gpu, pid, site)).or_default();
            *one = (one.0 + 100 + i, one.1 + 1);
        }
    }
    for gpu in [0, 1] {
        let mut found = BTreeMap::new();
        for holder in ledger.holders(DeviceFilter::Gpu(GpuId(gpu))) {
            let sum: u64 = holder.sites.iter().map(|site| site.live_bytes.0).sum();
            assert_eq!(sum, holder.live_bytes.0);
            for site in holder.sites {
                let key = (gpu, holder.key.pid.0, site.site.unwrap().0);
                found.insert(key, (site.live_bytes.0, site.live_allocations));
            }
        }
        let expected: BTreeMap<_, _> =
            expected.iter().filter(|((on, ..), _)| *on == gpu).map(|(k, v)| (*k, *v)).collect();
        assert_eq!(found, expected);
    }
    let all: u64 =
        ledger.holders(DeviceFilter::AllDevices).iter().map(|one| one.live_bytes.0).sum();
    assert_eq!(all, ledger.live_bytes().0);
    let by_ordinal = ledger.holders(DeviceFilter::Device(DeviceId(1), Some(GpuId(1))));
    assert_eq!(by_ordinal, ledger.holders(DeviceFilter::Gpu(GpuId(1))));
}

#[test]
fn sites_with_equal_frames_are_merged() {
    let mut ledger = two_processes();
    for (at, site, bytes) in [(10, 5, 100), (11, 6, 50), (12, 7, 120)] {
        ledger.apply(&allocate(at, 1, 0, MemoryKind::Device, site, bytes));
    }
    let mut holders = ledger.holders(DeviceFilter::Gpu(GpuId(0)));
    assert_eq!(holders[0].sites.len(), 3);
    assert_eq!(holders[0].sites[0].name, SiteName::Pending(SiteId(7)));
    for site in [5, 6] {
        let frame = Frame { function: "same".into(), ..Frame::default() };
        let site = SiteFrames { site: SiteId(site), frames: [frame].into() };
        ledger.apply(&event(20, 1, EventKind::Site(site)));
    }
    ledger.resolve_holder_names(&mut holders, 1);
    let sites = &holders[0].sites;
    assert_eq!(sites.len(), 1, "the rest is dropped");
    assert_eq!((sites[0].live_bytes.0, sites[0].live_allocations), (150, 2));
    assert_eq!(&*sites[0].frames[0].function, "same");
}
