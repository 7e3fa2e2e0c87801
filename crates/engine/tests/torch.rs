//! Blocks of PyTorch's cache next to driver memory: how they are listed, and that they are not
//! added to any other total.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use engine::event::{Allocate, Event, Free, FreeBy, Lost, Place, ProcessFacts, VmmCall, What};
use engine::ids::{DeviceId, GpuId, HandleId, Key, Pid, SiteId, Tid};
use engine::kind::Kind;
use engine::ledger::Ledger;
use engine::snapshot::{Snapshot, View};
use engine::stack::SiteName;
use engine::tensor::{
    Fragmentation, NoFragmentation, NoTensors, TensorCall, TensorTurn, TensorWatch, TorchView,
};
use engine::units::{Bytes, Moment};
use engine::verdict::Subject;

const MIB: u64 = 1 << 20;

/// Events a microsecond apart, and the allocator's own totals.
#[derive(Default)]
struct Story {
    events: Vec<Event>,
    allocated: u64,
    reserved: u64,
}

impl Story {
    fn push(&mut self, what: What) {
        let at = Moment(1000 * (self.events.len() as u64 + 1));
        self.events.push(Event { pid: Pid(7), tid: Tid(8), entered: at, at, what });
    }

    fn tensor(&mut self, what: TensorTurn) {
        let (allocated, reserved) = (self.allocated, self.reserved);
        let device = DeviceId(0);
        self.push(What::Tensor(TensorCall { what, device, allocated, reserved }));
    }

    fn driver(&mut self, address: u64, bytes: u64, kind: Kind) {
        self.push(What::Allocate(Allocate {
            key: Key::address(address),
            kind,
            bytes,
            context: None,
            device: Some(DeviceId(0)),
            pool: None,
            stream: None,
            site: Some(SiteId(100)),
        }));
    }

    fn segment(&mut self, address: u64, bytes: u64) {
        self.reserved += bytes;
        self.driver(address, bytes, Kind::Device);
    }

    fn begin(&mut self, address: u64, bytes: u64, site: u32) {
        self.allocated += bytes;
        self.tensor(TensorTurn::Began { address, bytes, site: Some(SiteId(site)) });
    }

    fn end(&mut self, address: u64, bytes: u64) {
        self.allocated -= bytes;
        self.tensor(TensorTurn::Ended { address, bytes });
    }

    fn snapshot(&self) -> Snapshot {
        let mut ledger = Ledger::new();
        self.events.iter().for_each(|event| ledger.apply(event));
        ledger.snapshot(Moment(1_000_000), &View::default())
    }

    fn torch(&self) -> TorchView {
        self.snapshot().processes[0].torch.clone().unwrap()
    }

    fn fragmentation(&self) -> Result<Fragmentation, NoFragmentation> {
        self.torch().devices[0].fragmentation
    }
}

/// Three segments: one with gaps, one full, one free.
fn scenario() -> Story {
    let mut scenario = Story::default();
    scenario.segment(0x1000_0000, 2 * MIB);
    scenario.segment(0x2000_0000, 20 * MIB);
    scenario.segment(0x3000_0000, 4 * MIB);
    scenario.begin(0x1000_0000, MIB, 1);
    scenario.begin(0x1010_0000, 512, 2);
    scenario.begin(0x1018_0000, MIB / 2, 2);
    scenario.begin(0x2000_0000, 20 * MIB, 3);
    scenario.begin(0x3000_0000, 3 * MIB, 1);
    scenario.end(0x3000_0000, 3 * MIB);
    scenario
}

#[test]
fn blocks_are_listed_by_device_and_site() {
    let scenario = scenario();
    let snapshot = scenario.snapshot();
    let torch = snapshot.processes[0].torch.as_ref().unwrap();
    assert!(torch.exact());
    let [device] = &torch.devices[..] else { panic!("{:?}", torch.devices) };
    let held = 20 * MIB + MIB + MIB / 2 + 512;
    assert_eq!((device.allocated, device.seen_bytes), (Bytes(held), Bytes(held)));
    assert_eq!((device.reserved, device.cached()), (Bytes(26 * MIB), Bytes(26 * MIB - held)));
    assert_eq!(device.peak, Bytes(held + 3 * MIB));
    assert_eq!((device.blocks, device.given_total, device.taken_total), (4, 5, 1));
    let live: Vec<_> =
        snapshot.tensor_sites.iter().map(|site| (site.name, site.live_bytes.0)).collect();
    let site = |number| SiteName::Pending(SiteId(number));
    assert_eq!(live, [(site(3), 20 * MIB), (site(1), MIB), (site(2), MIB / 2 + 512)]);
    let first = &snapshot.tensor_sites[1];
    assert_eq!((first.allocations_total, first.freed_total), (2, 1));
    assert_eq!(first.peak_bytes, Bytes(4 * MIB));
    assert_eq!(first.kinds.iter().map(|kind| kind.kind).collect::<Vec<_>>(), [Kind::Torch]);
}

#[test]
fn blocks_do_not_change_the_rest_of_a_snapshot() {
    let all = scenario();
    let mut ledger = Ledger::new();
    for event in all.events.iter().filter(|event| !matches!(event.what, What::Tensor(_))) {
        ledger.apply(event);
    }
    let without = ledger.snapshot(Moment(1_000_000), &View::default());
    let mut with = all.snapshot();
    assert_eq!(with.tensor_sites_total, 3);
    with.tensor_sites.clear();
    with.tensor_sites_total = 0;
    with.processes[0].torch = None;
    // Tensors are judged separately.
    with.judgements.retain(|one| one.subject != Subject::Tensors);
    assert_eq!(with, without);
}

#[test]
fn blocks_do_not_count_in_allocations_without_stack() {
    let mut scenario = Story::default();
    scenario.segment(0x1000_0000, 2 * MIB);
    scenario.allocated = 512;
    scenario.tensor(TensorTurn::Began { address: 0x1000_0000, bytes: 512, site: None });
    let snapshot = scenario.snapshot();
    assert_eq!((snapshot.allocations_total, snapshot.without_stack), (1, 0));
    assert_eq!((snapshot.sites_total, snapshot.tensor_sites_total), (1, 1));
}

#[test]
fn fragmentation_is_computed_from_gaps() {
    let scenario = scenario();
    // From 0x10100200 to 0x10180000.
    let gap = MIB / 2 - 512;
    let fragmentation =
        Fragmentation { whole: Bytes(4 * MIB), fragmented: Bytes(gap), largest_gap: Bytes(gap) };
    assert_eq!(scenario.fragmentation(), Ok(fragmentation));
}

#[test]
fn block_can_span_adjacent_mappings() {
    let mut scenario = Story::default();
    for number in 0..4 {
        let handle = HandleId(number + 1);
        let (place, bytes) = (Place::Device(DeviceId(0)), 2 * MIB);
        scenario.push(What::Vmm(VmmCall::Create { handle, bytes, place, site: None }));
        let address = 0x4000_0000 + number * bytes;
        scenario.push(What::Vmm(VmmCall::Map { address, bytes, handle }));
    }
    scenario.reserved = 8 * MIB;
    scenario.begin(0x4000_0000, MIB, 1);
    scenario.begin(0x4018_0000, MIB, 1);
    // The second mapping has half a MiB of a block; the last two are free.
    let fragmentation = Fragmentation {
        whole: Bytes(4 * MIB),
        fragmented: Bytes(2 * MIB),
        largest_gap: Bytes(8 * MIB - MIB * 5 / 2),
    };
    assert_eq!(scenario.fragmentation(), Ok(fragmentation));
}

#[test]
fn fragmentation_is_unknown_without_all_blocks() {
    let mut late = scenario();
    late.allocated += MIB;
    late.begin(0x1010_0400, 512, 1);
    assert_eq!(late.fragmentation(), Err(NoFragmentation::BlocksUnseen));
    let mut elsewhere = scenario();
    elsewhere.begin(0x9000_0000, 512, 1);
    assert_eq!(elsewhere.fragmentation(), Err(NoFragmentation::SegmentsUnseen));
    let mut beyond = scenario();
    beyond.begin(0x303f_fe00, 1024, 1);
    assert_eq!(beyond.fragmentation(), Err(NoFragmentation::SegmentsUnseen));
}

#[test]
fn free_of_an_unknown_block_is_only_counted() {
    let mut scenario = Story { allocated: 10 * MIB, ..scenario() };
    scenario.begin(0x1010_0400, 512, 1);
    scenario.end(0x7000_0000, 4 * MIB);
    let torch = scenario.torch();
    let device = torch.devices[0];
    assert!(!torch.exact());
    assert_eq!((device.taken_total, device.unknown_taken, device.blocks), (2, 1, 5));
    assert_eq!(device.allocated, Bytes(6 * MIB + 512));
}

#[test]
fn reused_address_after_a_loss_ends_the_older_block() {
    let mut scenario = scenario();
    scenario.push(What::Lost(Lost { tensors: 1, ..Lost::default() }));
    scenario.allocated -= 512;
    scenario.begin(0x1010_0000, 1024, 2);
    let snapshot = scenario.snapshot();
    let torch = snapshot.processes[0].torch.as_ref().unwrap();
    assert_eq!((torch.lost, torch.exact()), (1, false));
    assert_eq!((torch.devices[0].blocks, torch.devices[0].seen_bytes.0), (4, scenario.allocated));
    // Driver memory is as exact as before.
    assert!(snapshot.certainty.exact() || snapshot.certainty.before_trace);
    assert_eq!(snapshot.certainty.lost.events(), 0);
    assert_eq!(snapshot.certainty.live_at_least, snapshot.certainty.live_at_most);
}

#[test]
fn exited_process_lists_its_tensors() {
    let mut scenario = scenario();
    scenario.push(What::Exit);
    let snapshot = scenario.snapshot();
    let torch = snapshot.processes[0].torch.as_ref().unwrap();
    assert!(snapshot.processes[0].ended.is_some());
    assert_eq!((torch.devices[0].blocks, torch.exact()), (4, true));
}

#[test]
fn memory_returned_to_the_driver_is_not_reserved() {
    let mut scenario = Story::default();
    let (start, uid, name) = (1, 0, "python3".into());
    scenario.push(What::Process(ProcessFacts { start, uid, name, before_trace: false }));
    scenario.segment(0x1000_0000, 2 * MIB);
    scenario.segment(0x2000_0000, 20 * MIB);
    scenario.begin(0x1000_0000, 512, 1);
    scenario.begin(0x2000_0000, 512, 1);
    scenario.end(0x2000_0000, 512);
    let key = Key::address(0x2000_0000);
    scenario.push(What::Free(Free { key, by: FreeBy::Free, stream: None }));
    let device = scenario.torch().devices[0];
    assert_eq!((device.reserved, device.allocated), (Bytes(2 * MIB), Bytes(512)));
    assert_eq!(scenario.fragmentation().unwrap().whole, Bytes(0));
}

#[test]
fn out_of_memory_requests_are_counted() {
    let mut scenario = scenario();
    scenario.tensor(TensorTurn::Refused { bytes: 1 << 40, site: None });
    assert_eq!(scenario.torch().devices[0].refused, 1);
}

#[test]
fn reason_for_missing_tensors_is_reported() {
    let mut scenario = Story::default();
    scenario.driver(0x1000_0000, MIB, Kind::Device);
    scenario.push(What::Torch(TensorWatch::Begun));
    assert_eq!(scenario.torch().reason, None);
    for number in 0..16 {
        scenario.driver(0x2000_0000 + number * MIB, 512, Kind::Async);
    }
    assert_eq!(scenario.torch().reason, Some(NoTensors::DriverAllocates));
    scenario.begin(0x1000_0000, 512, 1);
    assert_eq!(scenario.torch().reason, None);
    scenario.push(What::Torch(TensorWatch::Impossible(NoTensors::NoFunction)));
    assert_eq!(scenario.torch().reason, Some(NoTensors::NoFunction));
}

#[test]
fn leaking_tensors_have_a_time_until_full() {
    const SECOND: u64 = 1_000_000_000;
    let mut ledger = Ledger::new();
    let mut apply = |at: u64, what| {
        let at = Moment(at);
        ledger.apply(&Event { pid: Pid(7), tid: Tid(8), entered: at, at, what });
    };
    let facts = ProcessFacts { start: 1, uid: 0, name: "train".into(), before_trace: false };
    apply(1, What::Process(facts));
    apply(1, What::Gpus([Some(GpuId(4)), Some(GpuId(3))].into()));
    // 1 MiB every 0.1 s for a minute: 9216 MiB are full after 921 seconds.
    for step in 0..600_u64 {
        let what =
            TensorTurn::Began { address: 0x1000 + step * MIB, bytes: MIB, site: Some(SiteId(3)) };
        let allocated = (step + 1) * MIB;
        let call = TensorCall { what, device: DeviceId(1), allocated, reserved: allocated };
        apply(10 + step * SECOND / 10, What::Tensor(call));
    }
    apply(60 * SECOND, What::GpuFree { gpu: GpuId(3), bytes: 9216 * MIB });
    apply(60 * SECOND, What::GpuFree { gpu: GpuId(4), bytes: MIB });
    let snapshot = ledger.snapshot(Moment(60 * SECOND), &View::default());
    let [suspect] = &snapshot.suspects[..] else { panic!("{:?}", snapshot.suspects) };
    assert_eq!((suspect.subject, suspect.device), (Subject::Tensors, Some(DeviceId(1))));
    let seconds = suspect.evidence.full_in.unwrap().0 / SECOND;
    assert!((900..=950).contains(&seconds), "{seconds}");
    let free: Vec<_> = snapshot.gpus.iter().map(|view| (view.gpu.0, view.free_bytes.0)).collect();
    assert_eq!(free, [(3, 9216 * MIB), (4, MIB)]);
}
