//! Blocks of PyTorch's cache beside the driver's memory: what is listed of them, and that nothing of
//! it is added to anything else.
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

/// Events one after the other, a microsecond apart; and an allocator's own sums.
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

    fn lies(&self) -> Result<Fragmentation, NoFragmentation> {
        self.torch().devices[0].fragmentation
    }
}

/// Three segments: one with holes, one that is full, one that is free.
fn story() -> Story {
    let mut story = Story::default();
    story.segment(0x1000_0000, 2 * MIB);
    story.segment(0x2000_0000, 20 * MIB);
    story.segment(0x3000_0000, 4 * MIB);
    story.begin(0x1000_0000, MIB, 1);
    story.begin(0x1010_0000, 512, 2);
    story.begin(0x1018_0000, MIB / 2, 2);
    story.begin(0x2000_0000, 20 * MIB, 3);
    story.begin(0x3000_0000, 3 * MIB, 1);
    story.end(0x3000_0000, 3 * MIB);
    story
}

#[test]
fn blocks_are_listed_by_device_and_site() {
    let story = story();
    let snapshot = story.snapshot();
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
fn nothing_else_of_a_snapshot_knows_of_blocks() {
    let all = story();
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
    // Tensors are judged, each by itself.
    with.judgements.retain(|judged| judged.subject != Subject::Tensors);
    assert_eq!(with, without);
}

#[test]
fn blocks_without_a_stack_do_not_count_as_allocations_without_one() {
    let mut story = Story::default();
    story.segment(0x1000_0000, 2 * MIB);
    story.allocated = 512;
    story.tensor(TensorTurn::Began { address: 0x1000_0000, bytes: 512, site: None });
    let snapshot = story.snapshot();
    assert_eq!((snapshot.allocations_total, snapshot.without_stack), (1, 0));
    assert_eq!((snapshot.sites_total, snapshot.tensor_sites_total), (1, 1));
}

#[test]
fn unused_memory_is_told_by_how_it_lies() {
    let story = story();
    // Between 0x10100200 and 0x10180000.
    let gap = MIB / 2 - 512;
    let lies =
        Fragmentation { whole: Bytes(4 * MIB), fragmented: Bytes(gap), largest_gap: Bytes(gap) };
    assert_eq!(story.lies(), Ok(lies));
}

#[test]
fn a_block_may_lie_across_mappings_that_are_side_by_side() {
    let mut story = Story::default();
    for number in 0..4 {
        let handle = HandleId(number + 1);
        let (place, bytes) = (Place::Device(DeviceId(0)), 2 * MIB);
        story.push(What::Vmm(VmmCall::Create { handle, bytes, place, site: None }));
        let address = 0x4000_0000 + number * bytes;
        story.push(What::Vmm(VmmCall::Map { address, bytes, handle }));
    }
    story.reserved = 8 * MIB;
    story.begin(0x4000_0000, MIB, 1);
    story.begin(0x4018_0000, MIB, 1);
    // The second mapping has half a MiB of a block, the last two are free.
    let lies = Fragmentation {
        whole: Bytes(4 * MIB),
        fragmented: Bytes(2 * MIB),
        largest_gap: Bytes(8 * MIB - MIB * 5 / 2),
    };
    assert_eq!(story.lies(), Ok(lies));
}

#[test]
fn how_memory_lies_is_not_guessed() {
    let mut late = story();
    late.allocated += MIB;
    late.begin(0x1010_0400, 512, 1);
    assert_eq!(late.lies(), Err(NoFragmentation::BlocksUnseen));
    let mut elsewhere = story();
    elsewhere.begin(0x9000_0000, 512, 1);
    assert_eq!(elsewhere.lies(), Err(NoFragmentation::SegmentsUnseen));
    let mut beyond = story();
    beyond.begin(0x303f_fe00, 1024, 1);
    assert_eq!(beyond.lies(), Err(NoFragmentation::SegmentsUnseen));
}

#[test]
fn the_end_of_a_block_that_was_never_seen_is_counted_and_takes_nothing() {
    let mut story = Story { allocated: 10 * MIB, ..story() };
    story.begin(0x1010_0400, 512, 1);
    story.end(0x7000_0000, 4 * MIB);
    let torch = story.torch();
    let device = torch.devices[0];
    assert!(!torch.exact());
    assert_eq!((device.taken_total, device.unknown_taken, device.blocks), (2, 1, 5));
    assert_eq!(device.allocated, Bytes(6 * MIB + 512));
}

#[test]
fn after_a_loss_an_address_that_comes_again_ends_the_older_block() {
    let mut story = story();
    story.push(What::Lost(Lost { tensors: 1, ..Lost::default() }));
    story.allocated -= 512;
    story.begin(0x1010_0000, 1024, 2);
    let snapshot = story.snapshot();
    let torch = snapshot.processes[0].torch.as_ref().unwrap();
    assert_eq!((torch.lost, torch.exact()), (1, false));
    assert_eq!((torch.devices[0].blocks, torch.devices[0].seen_bytes.0), (4, story.allocated));
    // The driver's memory is as exact as before.
    assert!(snapshot.certainty.exact() || snapshot.certainty.before_trace);
    assert_eq!(snapshot.certainty.lost.events(), 0);
    assert_eq!(snapshot.certainty.live_at_least, snapshot.certainty.live_at_most);
}

#[test]
fn a_process_that_ends_shows_what_tensors_it_had() {
    let mut story = story();
    story.push(What::Exit);
    let snapshot = story.snapshot();
    let torch = snapshot.processes[0].torch.as_ref().unwrap();
    assert!(snapshot.processes[0].ended.is_some());
    assert_eq!((torch.devices[0].blocks, torch.exact()), (4, true));
}

#[test]
fn memory_that_went_back_to_the_driver_is_not_held() {
    let mut story = Story::default();
    let (start, uid, name) = (1, 0, "python3".into());
    story.push(What::Process(ProcessFacts { start, uid, name, before_trace: false }));
    story.segment(0x1000_0000, 2 * MIB);
    story.segment(0x2000_0000, 20 * MIB);
    story.begin(0x1000_0000, 512, 1);
    story.begin(0x2000_0000, 512, 1);
    story.end(0x2000_0000, 512);
    let key = Key::address(0x2000_0000);
    story.push(What::Free(Free { key, by: FreeBy::Free, stream: None }));
    let device = story.torch().devices[0];
    assert_eq!((device.reserved, device.allocated), (Bytes(2 * MIB), Bytes(512)));
    assert_eq!(story.lies().unwrap().whole, Bytes(0));
}

#[test]
fn refused_requests_are_counted() {
    let mut story = story();
    story.tensor(TensorTurn::Refused { bytes: 1 << 40, site: None });
    assert_eq!(story.torch().devices[0].refused, 1);
}

#[test]
fn why_nothing_is_known_is_told() {
    let mut story = Story::default();
    story.driver(0x1000_0000, MIB, Kind::Device);
    story.push(What::Torch(TensorWatch::Begun));
    assert_eq!(story.torch().reason, None);
    for number in 0..16 {
        story.driver(0x2000_0000 + number * MIB, 512, Kind::Async);
    }
    assert_eq!(story.torch().reason, Some(NoTensors::DriverAllocates));
    story.begin(0x1000_0000, 512, 1);
    assert_eq!(story.torch().reason, None);
    story.push(What::Torch(TensorWatch::Impossible(NoTensors::NoFunction)));
    assert_eq!(story.torch().reason, Some(NoTensors::NoFunction));
}

#[test]
fn tensors_that_leak_tell_when_their_device_will_be_full() {
    const SECOND: u64 = 1_000_000_000;
    let mut ledger = Ledger::new();
    let mut apply = |at: u64, what| {
        let at = Moment(at);
        ledger.apply(&Event { pid: Pid(7), tid: Tid(8), entered: at, at, what });
    };
    let facts = ProcessFacts { start: 1, uid: 0, name: "train".into(), before_trace: false };
    apply(1, What::Process(facts));
    apply(1, What::Gpus([Some(GpuId(4)), Some(GpuId(3))].into()));
    // 1 MiB every tenth of a second, for a minute: 9216 MiB are full after 921 seconds.
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
