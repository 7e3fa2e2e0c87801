//! Blocks of allocators inside a process next to driver memory: how they are listed, and that they are not
//! added to any other total.

use engine::ledger::Ledger;
use engine::model::blocks::{
    Allocator, AllocatorView, BlockEvent, BlockOp, BlockTracking, BlocksUnavailable,
    CacheFragmentation, FragmentationUnknown,
};
use engine::model::event::{
    Allocate, Event, EventKind, FailedCall, Free, FreeFunction, LostDelta, MemoryLocation,
    OUT_OF_MEMORY, ProcessInfo, VmmCall,
};
use engine::model::ids::{
    AllocationKey, DeviceId, FunctionId, GpuId, PhysicalHandleId, Pid, SiteId, Tid,
};
use engine::model::memory_kind::MemoryKind;
use engine::model::sampling::Sampling;
use engine::model::stack::SiteName;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::{Snapshot, SnapshotOptions};
use engine::verdict::Resource;

const MIB: u64 = 1 << 20;

/// Events a microsecond apart, and the allocator's own totals.
#[derive(Default)]
struct Scenario {
    events: Vec<Event>,
    allocated: u64,
    reserved: u64,
}

impl Scenario {
    fn push(&mut self, kind: EventKind) {
        let at = Timestamp(1000 * (self.events.len() as u64 + 1));
        self.events.push(Event { pid: Pid(7), tid: Tid(8), entry_time: at, time: at, kind });
    }

    fn tensor(&mut self, op: BlockOp) {
        let (allocated, reserved) = (self.allocated, self.reserved);
        let device = DeviceId(0);
        self.push(EventKind::Block(BlockEvent::pytorch(op, device, allocated, reserved)));
    }

    fn driver(&mut self, address: u64, bytes: u64, kind: MemoryKind) {
        self.push(EventKind::Allocate(Allocate {
            key: AllocationKey::address(address),
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
        self.driver(address, bytes, MemoryKind::Device);
    }

    fn begin(&mut self, address: u64, bytes: u64, site: u32) {
        self.allocated += bytes;
        self.tensor(BlockOp::Allocated {
            address,
            bytes,
            site: Some(SiteId(site)),
            sampling: Sampling::All,
        });
    }

    fn end(&mut self, address: u64, bytes: u64) {
        self.allocated -= bytes;
        self.tensor(BlockOp::Freed { address, bytes });
    }

    fn snapshot(&self) -> Snapshot {
        let mut ledger = Ledger::new();
        self.events.iter().for_each(|event| ledger.apply(event));
        ledger.snapshot(Timestamp(1_000_000), &SnapshotOptions::default())
    }

    fn torch(&self) -> AllocatorView {
        self.snapshot().processes[0].torch().next().unwrap().clone()
    }

    fn fragmentation(&self) -> Result<CacheFragmentation, FragmentationUnknown> {
        self.torch().pools[0].fragmentation
    }
}

/// Three segments: one with gaps, one full, one free.
fn scenario() -> Scenario {
    let mut scenario = Scenario::default();
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
    let torch = snapshot.processes[0].torch().next().unwrap();
    assert!(torch.is_exact());
    let [device] = &torch.pools[..] else { panic!("{:?}", torch.pools) };
    let allocated_bytes = 20 * MIB + MIB + MIB / 2 + 512;
    assert_eq!(
        (device.allocated, device.tracked_bytes),
        (Bytes(allocated_bytes), Bytes(allocated_bytes))
    );
    assert_eq!(
        (device.reserved, device.cached()),
        (Bytes(26 * MIB), Bytes(26 * MIB - allocated_bytes))
    );
    assert_eq!(device.peak, Bytes(allocated_bytes + 3 * MIB));
    assert_eq!((device.blocks, device.allocations_total, device.frees_total), (4, 5, 1));
    let live: Vec<_> =
        snapshot.tensor_sites.iter().map(|site| (site.name, site.live_bytes.0)).collect();
    let site = |number| SiteName::Pending(SiteId(number));
    assert_eq!(live, [(site(3), 20 * MIB), (site(1), MIB), (site(2), MIB / 2 + 512)]);
    let first = &snapshot.tensor_sites[1];
    assert_eq!((first.allocations_total, first.freed_total), (2, 1));
    assert_eq!(first.peak_bytes, Bytes(4 * MIB));
    assert_eq!(first.kinds.iter().map(|kind| kind.kind).collect::<Vec<_>>(), [MemoryKind::Torch]);
}

#[test]
fn blocks_do_not_change_the_rest_of_a_snapshot() {
    let all = scenario();
    let mut ledger = Ledger::new();
    for event in all.events.iter().filter(|event| !matches!(event.kind, EventKind::Block(_))) {
        ledger.apply(event);
    }
    let without = ledger.snapshot(Timestamp(1_000_000), &SnapshotOptions::default());
    let mut with = all.snapshot();
    assert_eq!(with.tensor_sites_total, 3);
    with.tensor_sites.clear();
    with.tensor_sites_total = 0;
    with.processes[0].allocators.clear();
    // Tensors are judged separately.
    with.other_verdicts.retain(|one| one.resource != Resource::Blocks(Allocator::PyTorch));
    assert_eq!(with, without);
}

#[test]
fn blocks_do_not_count_in_allocations_without_stack() {
    let mut scenario = Scenario::default();
    scenario.segment(0x1000_0000, 2 * MIB);
    scenario.allocated = 512;
    scenario.tensor(BlockOp::Allocated {
        address: 0x1000_0000,
        bytes: 512,
        site: None,
        sampling: Sampling::All,
    });
    let snapshot = scenario.snapshot();
    assert_eq!((snapshot.allocations_total, snapshot.without_stack), (1, 0));
    assert_eq!((snapshot.sites_total, snapshot.tensor_sites_total), (1, 1));
}

#[test]
fn fragmentation_is_computed_from_gaps() {
    let scenario = scenario();
    // From 0x10100200 to 0x10180000.
    let gap = MIB / 2 - 512;
    let fragmentation = CacheFragmentation {
        releasable: Bytes(4 * MIB),
        fragmented: Bytes(gap),
        largest_gap: Bytes(gap),
    };
    assert_eq!(scenario.fragmentation(), Ok(fragmentation));
}

#[test]
fn block_can_span_adjacent_mappings() {
    let mut scenario = Scenario::default();
    for number in 0..4 {
        let handle = PhysicalHandleId(number + 1);
        let (location, bytes) = (MemoryLocation::Device(DeviceId(0)), 2 * MIB);
        scenario.push(EventKind::Vmm(VmmCall::Create { handle, bytes, location, site: None }));
        let address = 0x4000_0000 + number * bytes;
        scenario.push(EventKind::Vmm(VmmCall::Map { address, bytes, handle }));
    }
    scenario.reserved = 8 * MIB;
    scenario.begin(0x4000_0000, MIB, 1);
    scenario.begin(0x4018_0000, MIB, 1);
    // The second mapping has half a MiB of a block; the last two are free.
    let fragmentation = CacheFragmentation {
        releasable: Bytes(4 * MIB),
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
    assert_eq!(late.fragmentation(), Err(FragmentationUnknown::BlocksUnknown));
    let mut elsewhere = scenario();
    elsewhere.begin(0x9000_0000, 512, 1);
    assert_eq!(elsewhere.fragmentation(), Err(FragmentationUnknown::SegmentsUnknown));
    let mut beyond = scenario();
    beyond.begin(0x303f_fe00, 1024, 1);
    assert_eq!(beyond.fragmentation(), Err(FragmentationUnknown::SegmentsUnknown));
}

#[test]
fn free_of_an_unknown_block_is_only_counted() {
    let mut scenario = Scenario { allocated: 10 * MIB, ..scenario() };
    scenario.begin(0x1010_0400, 512, 1);
    scenario.end(0x7000_0000, 4 * MIB);
    let torch = scenario.torch();
    let device = torch.pools[0];
    assert!(!torch.is_exact());
    assert_eq!((device.frees_total, device.unmatched_frees, device.blocks), (2, 1, 5));
    assert_eq!(device.allocated, Bytes(6 * MIB + 512));
}

#[test]
fn reused_address_after_a_loss_ends_the_older_block() {
    let mut scenario = scenario();
    scenario.push(EventKind::Lost(LostDelta { tensors: 1, ..LostDelta::default() }));
    scenario.allocated -= 512;
    scenario.begin(0x1010_0000, 1024, 2);
    let snapshot = scenario.snapshot();
    let torch = snapshot.processes[0].torch().next().unwrap();
    assert_eq!((torch.lost, torch.is_exact()), (1, false));
    assert_eq!((torch.pools[0].blocks, torch.pools[0].tracked_bytes.0), (4, scenario.allocated));
    // Driver memory is as exact as before.
    assert!(snapshot.uncertainty.exact() || snapshot.uncertainty.before_trace);
    assert_eq!(snapshot.uncertainty.lost.events(), 0);
    assert_eq!(snapshot.uncertainty.live_min, snapshot.uncertainty.live_max);
}

#[test]
fn exited_process_lists_its_tensors() {
    let mut scenario = scenario();
    scenario.push(EventKind::Exit);
    let snapshot = scenario.snapshot();
    let torch = snapshot.processes[0].torch().next().unwrap();
    assert!(snapshot.processes[0].ended.is_some());
    assert_eq!((torch.pools[0].blocks, torch.is_exact()), (4, true));
}

#[test]
fn memory_returned_to_the_driver_is_not_reserved() {
    let mut scenario = Scenario::default();
    let (start, uid, name) = (1, 0, "python3".into());
    scenario.push(EventKind::Process(ProcessInfo { start, uid, name, before_trace: false }));
    scenario.segment(0x1000_0000, 2 * MIB);
    scenario.segment(0x2000_0000, 20 * MIB);
    scenario.begin(0x1000_0000, 512, 1);
    scenario.begin(0x2000_0000, 512, 1);
    scenario.end(0x2000_0000, 512);
    let key = AllocationKey::address(0x2000_0000);
    scenario.push(EventKind::Free(Free { key, by: FreeFunction::Free, stream: None }));
    let device = scenario.torch().pools[0];
    assert_eq!((device.reserved, device.allocated), (Bytes(2 * MIB), Bytes(512)));
    assert_eq!(scenario.fragmentation().unwrap().releasable, Bytes(0));
}

#[test]
fn out_of_memory_requests_are_counted() {
    let mut scenario = scenario();
    scenario.tensor(BlockOp::OutOfMemory { bytes: 1 << 40, site: None });
    assert_eq!(scenario.torch().pools[0].ooms_total, 1);
}

impl Scenario {
    /// The driver rejects a segment.
    fn rejected(&mut self, bytes: u64) {
        self.push(EventKind::Failed(FailedCall {
            function: FunctionId(0),
            code: OUT_OF_MEMORY,
            requested: Some((MemoryKind::Device, bytes)),
            freed: None,
            device: Some(DeviceId(0)),
            context: None,
            site: Some(SiteId(100)),
        }));
    }

    fn free(&mut self, address: u64) {
        let key = AllocationKey::address(address);
        self.push(EventKind::Free(Free { key, by: FreeFunction::Free, stream: None }));
    }
}

#[test]
fn limit_of_the_framework_is_an_out_of_memory_error() {
    let mut scenario = scenario();
    scenario.tensor(BlockOp::OutOfMemory { bytes: 1 << 40, site: Some(SiteId(5)) });
    let snapshot = scenario.snapshot();
    let [oom] = &snapshot.out_of_memory[..] else { panic!("{:?}", snapshot.out_of_memory) };
    let framework = oom.framework.unwrap();
    assert_eq!((framework.requested, framework.reserved), (Bytes(1 << 40), Bytes(26 * MIB)));
    assert_eq!((oom.device, oom.site, oom.recovered), (Some(DeviceId(0)), Some(SiteId(5)), None));
    assert_eq!(oom.holders[0].2, Bytes(26 * MIB));
    assert_eq!(snapshot.ooms_by_gpu, [(None, 1)]);
}

#[test]
fn retry_after_freeing_the_cache_is_not_an_error() {
    let mut scenario = scenario();
    scenario.rejected(8 * MIB);
    scenario.free(0x3000_0000);
    scenario.rejected(8 * MIB);
    scenario.free(0x2000_0000);
    scenario.segment(0x4000_0000, 8 * MIB);
    let snapshot = scenario.snapshot();
    let [oom] = &snapshot.out_of_memory[..] else { panic!("{:?}", snapshot.out_of_memory) };
    assert_eq!((oom.recovered, oom.framework), (Some(Bytes(24 * MIB)), None));
    assert_eq!(snapshot.ooms_by_gpu, [(None, 2)]);
}

#[test]
fn errors_of_driver_and_framework_are_one() {
    let mut scenario = scenario();
    scenario.rejected(1 << 40);
    scenario.tensor(BlockOp::OutOfMemory { bytes: 1 << 39, site: None });
    // Later, and of another size: not a retry of it.
    scenario.segment(0x4000_0000, 8 * MIB);
    let snapshot = scenario.snapshot();
    let [oom] = &snapshot.out_of_memory[..] else { panic!("{:?}", snapshot.out_of_memory) };
    assert_eq!(oom.requested, Some((MemoryKind::Device, Bytes(1 << 40))));
    assert_eq!(oom.framework.map(|one| one.requested), Some(Bytes(1 << 39)));
    assert_eq!(oom.recovered, None);
}

#[test]
fn cache_is_not_exact_after_failures_before_its_probes() {
    let mut ledger = Ledger::new();
    let mut is_exact_after = |entry: u64, at: u64, kind| {
        let (entry_time, time) = (Timestamp(entry), Timestamp(at));
        ledger.apply(&Event { pid: Pid(7), tid: Tid(8), entry_time, time, kind });
        let snapshot = ledger.snapshot(Timestamp(30), &SnapshotOptions::default());
        snapshot.processes[0].torch().all(AllocatorView::is_exact)
    };
    let info = ProcessInfo { start: 1, uid: 0, name: "train".into(), before_trace: false };
    is_exact_after(1, 1, EventKind::Process(info));
    let failed = FailedCall {
        function: FunctionId(1),
        code: 2,
        requested: Some((MemoryKind::Device, 1 << 40)),
        freed: None,
        device: None,
        context: None,
        site: None,
    };
    is_exact_after(10, 11, EventKind::Failed(failed));
    assert!(is_exact_after(9, 20, EventKind::Allocator(Allocator::PyTorch, BlockTracking::Active)));
    assert!(!is_exact_after(
        12,
        21,
        EventKind::Allocator(Allocator::PyTorch, BlockTracking::Active)
    ));
}

#[test]
fn reason_for_missing_tensors_is_reported() {
    let mut scenario = Scenario::default();
    scenario.driver(0x1000_0000, MIB, MemoryKind::Device);
    scenario.push(EventKind::Allocator(Allocator::PyTorch, BlockTracking::Active));
    assert_eq!(scenario.torch().reason, None);
    for number in 0..16 {
        scenario.driver(0x2000_0000 + number * MIB, 512, MemoryKind::Async);
    }
    assert_eq!(scenario.torch().reason, Some(BlocksUnavailable::AsyncBackend));
    scenario.begin(0x1000_0000, 512, 1);
    assert_eq!(scenario.torch().reason, None);
    scenario.push(EventKind::Allocator(
        Allocator::PyTorch,
        BlockTracking::Unavailable(BlocksUnavailable::NoSymbol),
    ));
    assert_eq!(scenario.torch().reason, Some(BlocksUnavailable::NoSymbol));
}

#[test]
fn tensors_are_unknown_while_memory_does_not_grow() {
    let mut scenario = Scenario::default();
    scenario.segment(0x1000_0000, 2 * MIB);
    scenario.push(EventKind::Allocator(Allocator::PyTorch, BlockTracking::Active));
    scenario.begin(0x1000_0000, 512, 1);
    assert_eq!(scenario.snapshot().tensor_sites[0].live_allocations, 1);
    scenario.push(EventKind::Allocator(
        Allocator::PyTorch,
        BlockTracking::Unavailable(BlocksUnavailable::NotGrowing),
    ));
    let snapshot = scenario.snapshot();
    let torch = snapshot.processes[0].torch().next().unwrap();
    assert_eq!((&torch.pools[..], torch.reason), (&[][..], Some(BlocksUnavailable::NotGrowing)));
    assert_eq!(snapshot.tensor_sites[0].live_allocations, 0);
    scenario.push(EventKind::Allocator(Allocator::PyTorch, BlockTracking::Active));
    scenario.begin(0x1000_0200, 1024, 1);
    let snapshot = scenario.snapshot();
    let torch = snapshot.processes[0].torch().next().unwrap();
    let device = &torch.pools[0];
    assert_eq!((device.allocated, device.tracked_bytes), (Bytes(1536), Bytes(1024)));
    assert_eq!((torch.reason, snapshot.tensor_sites[0].live_bytes), (None, Bytes(1024)));
}

#[test]
fn leaking_tensors_have_a_time_until_full() {
    const SECOND: u64 = 1_000_000_000;
    let mut ledger = Ledger::new();
    let mut apply = |at: u64, kind| {
        let at = Timestamp(at);
        ledger.apply(&Event { pid: Pid(7), tid: Tid(8), entry_time: at, time: at, kind });
    };
    let info = ProcessInfo { start: 1, uid: 0, name: "train".into(), before_trace: false };
    apply(1, EventKind::Process(info));
    apply(1, EventKind::Gpus([Some(GpuId(4)), Some(GpuId(3))].into()));
    // 1 MiB every 0.1 s for a minute: 9216 MiB are full after 921 seconds.
    for step in 0..600_u64 {
        let op = BlockOp::Allocated {
            address: 0x1000 + step * MIB,
            bytes: MIB,
            site: Some(SiteId(3)),
            sampling: Sampling::All,
        };
        let allocated = (step + 1) * MIB;
        let call = BlockEvent::pytorch(op, DeviceId(1), allocated, allocated);
        apply(10 + step * SECOND / 10, EventKind::Block(call));
    }
    apply(60 * SECOND, EventKind::GpuFree { gpu: GpuId(3), bytes: 9216 * MIB });
    apply(60 * SECOND, EventKind::GpuFree { gpu: GpuId(4), bytes: MIB });
    let snapshot = ledger.snapshot(Timestamp(60 * SECOND), &SnapshotOptions::default());
    let [suspect] = &snapshot.suspects[..] else { panic!("{:?}", snapshot.suspects) };
    assert_eq!(
        (suspect.resource, suspect.device),
        (Resource::Blocks(Allocator::PyTorch), Some(DeviceId(1)))
    );
    let seconds = suspect.evidence.time_until_full.unwrap().0 / SECOND;
    assert!((900..=950).contains(&seconds), "{seconds}");
    let free: Vec<_> = snapshot.gpus.iter().map(|view| (view.gpu.0, view.free_bytes.0)).collect();
    assert_eq!(free, [(3, 9216 * MIB), (4, MIB)]);
}

/// Blocks of an allocator that does not pass its totals.
impl Scenario {
    fn block(&mut self, allocator: Allocator, device: Option<u16>, op: BlockOp) {
        let device = device.map(DeviceId);
        self.push(EventKind::Block(BlockEvent { allocator, op, pool: 0x70, device, totals: None }));
    }

    fn view(&self, allocator: Allocator) -> AllocatorView {
        let views = self.snapshot().processes[0].allocators.clone();
        views.into_iter().find(|view| view.allocator == allocator).unwrap()
    }
}

const fn allocated(address: u64, bytes: u64) -> BlockOp {
    BlockOp::Allocated { address, bytes, site: Some(SiteId(1)), sampling: Sampling::All }
}

const fn freed(address: u64, bytes: u64) -> BlockOp {
    BlockOp::Freed { address, bytes }
}

#[test]
fn totals_of_other_allocators_follow_from_their_blocks() {
    let mut scenario = Scenario::default();
    scenario.push(EventKind::Allocator(Allocator::CuPy, BlockTracking::Active));
    scenario.segment(0x1000_0000, 2 * MIB);
    scenario.block(Allocator::CuPy, Some(0), allocated(0x1000_0000, MIB));
    scenario.block(Allocator::CuPy, Some(0), allocated(0x1010_0000, 512));
    scenario.block(Allocator::CuPy, Some(0), freed(0x1000_0000, MIB));
    // A segment stays with the pool when it is empty, and other memory of the process does not count.
    scenario.segment(0x2000_0000, 4 * MIB);
    scenario.block(Allocator::CuPy, Some(0), allocated(0x2000_0000, 4 * MIB));
    scenario.block(Allocator::CuPy, Some(0), freed(0x2000_0000, 4 * MIB));
    scenario.segment(0x3000_0000, 8 * MIB);
    let view = scenario.view(Allocator::CuPy);
    assert!(view.is_exact());
    let [pool] = &view.pools[..] else { panic!("{view:?}") };
    assert_eq!((pool.allocated, pool.reserved), (Bytes(512), Bytes(6 * MIB)));
    assert_eq!(pool.peak, Bytes(4 * MIB + 512));
    assert_eq!(
        pool.fragmentation,
        Ok(CacheFragmentation {
            releasable: Bytes(4 * MIB),
            fragmented: Bytes(2 * MIB - 512),
            largest_gap: Bytes(MIB),
        })
    );
    // Memory that another user gets at the address later is not the pool's.
    scenario.free(0x2000_0000);
    scenario.segment(0x2000_0000, 16 * MIB);
    assert_eq!(scenario.view(Allocator::CuPy).pools[0].reserved, Bytes(2 * MIB));
}

#[test]
fn device_of_a_pool_is_that_of_its_memory() {
    let mut scenario = Scenario::default();
    scenario.segment(0x1000_0000, 64 * MIB);
    scenario.block(Allocator::Xla, None, allocated(0x1000_0000, 256));
    let view = scenario.view(Allocator::Xla);
    assert_eq!(
        (view.pools[0].device, view.pools[0].reserved),
        (Some(DeviceId(0)), Bytes(64 * MIB))
    );
    // A pool of host memory is none of the GPU.
    let mut scenario = Scenario::default();
    scenario.driver(0x1000_0000, 64 * MIB, MemoryKind::Pinned);
    scenario.block(Allocator::Xla, None, allocated(0x1000_0000, 256));
    assert_eq!(scenario.view(Allocator::Xla).pools, []);
    assert_eq!(scenario.snapshot().tensor_sites_total, 0);
}

#[test]
fn blocks_from_before_the_probes_make_a_pool_inexact() {
    for (driver_first, expected) in [(false, true), (true, false)] {
        let mut scenario = Scenario::default();
        if driver_first {
            scenario.segment(0x1000_0000, MIB);
        }
        scenario.push(EventKind::Allocator(Allocator::CuPy, BlockTracking::Active));
        scenario.segment(0x2000_0000, MIB);
        scenario.block(Allocator::CuPy, Some(0), allocated(0x2000_0000, MIB));
        let view = scenario.view(Allocator::CuPy);
        assert_eq!((view.is_exact(), view.late), (expected, driver_first));
        scenario.block(Allocator::CuPy, Some(0), freed(0x1000_0000, 512));
        let pool = scenario.view(Allocator::CuPy).pools[0];
        assert_eq!((pool.unmatched_frees, pool.allocated), (1, Bytes(MIB)));
        assert_eq!(pool.fragmentation, Err(FragmentationUnknown::BlocksUnknown));
    }
}
