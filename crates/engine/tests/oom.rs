//! Causes of out-of-memory errors: a table of cases with less and less information.

use engine::ledger::Ledger;
use engine::model::blocks::{BlockEvent, BlockOp};
use engine::model::event::{Allocate, Event, EventKind, PoolCall, ProcessInfo};
use engine::model::ids::{AllocationKey, DeviceId, GpuId, Pid, PoolId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::sampling::Sampling;
use engine::model::units::{Bytes, Timestamp};
use engine::oom::{
    GpuSharingHint, HostMemory, OomCause, OomContext, OomDiagnosis, RequestedResource, diagnose,
};
use engine::snapshot::{Snapshot, SnapshotOptions};
use engine::verdict::Confidence;

const GIB: u64 = 1 << 30;

/// A host with one GPU of 24 GiB, GPU 3, which is device 0 of every process.
struct HostFixture {
    ledger: Ledger,
    at: u64,
    /// Memory that each process held at the time of the error.
    holders: Vec<(Pid, Bytes)>,
    total: Option<Bytes>,
    host: HostMemory,
    hints: Vec<GpuSharingHint>,
}

impl HostFixture {
    fn new() -> Self {
        Self {
            ledger: Ledger::new(),
            at: 0,
            holders: Vec::new(),
            total: Some(Bytes(24 * GIB)),
            host: HostMemory::default(),
            hints: Vec::new(),
        }
    }

    fn apply(&mut self, pid: u32, kind: EventKind) {
        self.at += 1000;
        let at = Timestamp(self.at);
        self.ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind });
    }

    fn begin(&mut self, pid: u32, before_trace: bool) {
        let name = format!("worker-{pid}").into();
        let info = ProcessInfo { start: 1, uid: 1000, name, before_trace };
        self.apply(pid, EventKind::Process(info));
    }

    /// Adds a process that holds `bytes`, with `untracked` more reported by the driver.
    fn holds(mut self, pid: u32, bytes: u64, untracked: Option<u64>) -> Self {
        self.begin(pid, false);
        self.apply(pid, EventKind::Gpus([Some(GpuId(3))].into()));
        self.allocates(pid, bytes);
        if let Some(untracked) = untracked {
            self.apply(
                pid,
                EventKind::DriverUsage { gpu: GpuId(3), bytes: bytes + untracked, only: false },
            );
        }
        self
    }

    fn allocates(&mut self, pid: u32, bytes: u64) {
        let key = AllocationKey::address(self.at + 1);
        let (kind, device) = (MemoryKind::Device, Some(DeviceId(0)));
        let (context, pool, stream, site) = (None, None, None, None);
        let new = Allocate { key, kind, bytes, context, device, pool, stream, site };
        self.apply(pid, EventKind::Allocate(new));
        self.holders.retain(|(known, _)| *known != Pid(pid));
        let all = self.ledger.holders(engine::model::holder::DeviceFilter::Gpu(GpuId(3)));
        self.holders = all.into_iter().map(|one| (one.key.pid, one.live_bytes)).collect();
    }

    fn free(mut self, bytes: u64) -> Self {
        self.apply(0, EventKind::GpuFree { gpu: GpuId(3), bytes });
        self
    }

    /// Allocates more after the driver was queried.
    fn then(mut self, pid: u32, bytes: u64) -> Self {
        self.allocates(pid, bytes);
        self
    }

    fn cache(mut self, pid: u32, allocated: u64, reserved: u64) -> Self {
        let op = BlockOp::Allocated {
            address: 2,
            bytes: allocated,
            site: None,
            sampling: Sampling::All,
        };
        let device = DeviceId(0);
        self.apply(pid, EventKind::Block(BlockEvent::pytorch(op, device, allocated, reserved)));
        self
    }

    fn pool(mut self, pid: u32, reserved: u64) -> Self {
        let (pool, device) = (PoolId(9), DeviceId(0));
        self.apply(pid, EventKind::Pool(PoolCall::OfDevice { pool, device, current: true }));
        self.apply(pid, EventKind::Pool(PoolCall::ReservedReported { pool, bytes: reserved }));
        self
    }

    fn snapshot(&mut self) -> Snapshot {
        self.ledger.snapshot(Timestamp(self.at + 1), &SnapshotOptions::default())
    }

    fn diagnose(&mut self, requested: RequestedResource) -> OomDiagnosis {
        let snapshot = self.snapshot();
        diagnose(&OomContext {
            pid: Pid(1),
            requested,
            device: Some(DeviceId(0)),
            gpu: Some(GpuId(3)),
            holders: &self.holders,
            snapshot: &snapshot,
            total: self.total,
            host: self.host,
            cached: None,
            hints: &self.hints,
        })
    }

    fn cause(mut self, requested: u64) -> (OomCause, Confidence, String) {
        let found = self.diagnose(RequestedResource::Memory(MemoryKind::Device, Bytes(requested)));
        (found.cause, found.confidence, found.sentence)
    }
}

fn assert_cause(
    fixture: HostFixture,
    requested: u64,
    cause: OomCause,
    confidence: Confidence,
    says: &[&str],
) {
    let (found, found_confidence, sentence) = fixture.cause(requested);
    assert_eq!((found, found_confidence), (cause, confidence), "{sentence}");
    for word in says {
        assert!(sentence.contains(word), "`{word}` is not in: {sentence}");
    }
}

#[test]
fn full_device_names_the_largest_holder() {
    let fixture = || HostFixture::new().holds(1, 3 * GIB, Some(GIB)).holds(2, 17 * GIB, Some(GIB));
    let says =
        ["24.00 GiB device was full", "about 1.00 GiB free", "process 2 (worker-2): 17.00 GiB"];
    let full = OomCause::DeviceExhausted;
    assert_cause(fixture().free(GIB), 4 * GIB, full, Confidence::Certain, &says);
    let own = HostFixture::new().holds(1, 20 * GIB, Some(GIB)).free(2 * GIB);
    let says = ["held by the same process: 20.00 GiB"];
    assert_cause(own, 4 * GIB, full, Confidence::Certain, &says);
}

#[test]
fn allocations_after_the_driver_report_count() {
    let early = HostFixture::new().holds(1, GIB, Some(GIB)).free(22 * GIB).then(1, 20 * GIB);
    let says = ["about 2.00 GiB free"];
    assert_cause(early, 3 * GIB, OomCause::DeviceExhausted, Confidence::Certain, &says);
}

/// The driver was queried before allocations that the report is stored with.
#[test]
fn old_driver_report_is_limited_by_traced_memory() {
    let mut host = HostFixture::new().holds(1, 22 * GIB, None).free(23 * GIB);
    let usage = EventKind::DriverUsage { gpu: GpuId(3), bytes: GIB, only: false };
    host.apply(1, usage);
    let says = [
        "the 24.00 GiB device had too little free memory: 4.00 GiB requested, about 2.00 GiB free",
    ];
    assert_cause(host, 4 * GIB, OomCause::DeviceExhausted, Confidence::Certain, &says);
}

#[test]
fn free_memory_is_known_without_a_requester() {
    let mut fixture = HostFixture::new().holds(1, GIB, Some(GIB)).free(22 * GIB).then(1, 20 * GIB);
    let snapshot = fixture.snapshot();
    let oom = OomContext {
        pid: Pid(0),
        requested: RequestedResource::Other,
        device: None,
        gpu: Some(GpuId(3)),
        holders: &fixture.holders,
        snapshot: &snapshot,
        total: fixture.total,
        host: HostMemory::default(),
        cached: None,
        hints: &[],
    };
    assert_eq!(engine::oom::estimated_free(&oom), Some(Bytes(2 * GIB)));
}

#[test]
fn memory_from_before_the_trace_is_not_context_size() {
    let mut fixture = HostFixture::new();
    fixture.begin(2, true);
    fixture.apply(2, EventKind::Gpus([Some(GpuId(3))].into()));
    fixture.apply(2, EventKind::DriverUsage { gpu: GpuId(3), bytes: 4 * GIB, only: false });
    // The requester is too new for the driver-reported usage: its context is estimated at 512 MiB.
    fixture.begin(1, false);
    let says = ["about 19.50 GiB free", "process 2 (worker-2): 4.00 GiB untracked"];
    assert_cause(
        fixture.free(20 * GIB),
        20 * GIB,
        OomCause::DeviceExhausted,
        Confidence::Certain,
        &says,
    );
}

#[test]
fn untracked_memory_is_named_if_it_is_most() {
    let fixture = HostFixture::new().holds(1, GIB, Some(20 * GIB)).free(GIB);
    let says = ["held by the same process: 1.00 GiB and 20.00 GiB untracked"];
    assert_cause(fixture, 2 * GIB, OomCause::DeviceExhausted, Confidence::Certain, &says);
    // The other process started before the trace: only the driver reports its memory.
    let fixture =
        HostFixture::new().holds(1, GIB, Some(0)).holds(2, 0, Some(20 * GIB)).free(3 * GIB);
    let says = ["most of it was held by process 2 (worker-2): 20.00 GiB untracked"];
    assert_cause(fixture, 4 * GIB, OomCause::DeviceExhausted, Confidence::Certain, &says);
    // No known process holds it.
    let fixture = HostFixture::new().holds(1, GIB, Some(0)).free(GIB);
    let says = ["22.00 GiB held by no known process"];
    assert_cause(fixture, 4 * GIB, OomCause::DeviceExhausted, Confidence::Certain, &says);
}

#[test]
fn full_means_nearly_no_free_and_most_means_over_half() {
    let sentence = |fixture: HostFixture, requested| {
        let (cause, _, sentence) = fixture.cause(requested);
        assert_eq!(cause, OomCause::DeviceExhausted, "{sentence}");
        sentence
    };
    let open = HostFixture::new().holds(1, GIB, Some(0)).holds(2, 2 * GIB, Some(0)).free(20 * GIB);
    let text = sentence(open, 22 * GIB);
    assert!(
        text.contains("24.00 GiB device had too little free memory: 22.00 GiB requested"),
        "{text}"
    );
    assert!(!text.contains("full"), "{text}");
    // 2 GiB is the largest share of the 4 GiB in use, but not more than half.
    assert!(text.contains("the largest holder was process 2 (worker-2): 2.00 GiB"), "{text}");
    let many =
        (1..=20).fold(HostFixture::new(), |fixture, pid| fixture.holds(pid, GIB, Some(GIB / 8)));
    let text = sentence(many.free(GIB), 4 * GIB);
    assert!(text.contains("was full") && text.contains("the largest holder was"), "{text}");
    let no_driver_report = HostFixture::new().holds(1, 12 * GIB, None);
    let text = sentence(no_driver_report, 23 * GIB);
    assert!(
        text.contains("too little free memory") && text.contains("most of it was held"),
        "{text}"
    );
    let cache =
        HostFixture::new().holds(1, 12 * GIB, Some(GIB)).cache(1, 2 * GIB, 12 * GIB).free(8 * GIB);
    let (cause, _, text) = cache.cause(9 * GIB);
    assert_eq!(cause, OomCause::CacheFragmentation);
    assert!(text.starts_with("the 24.00 GiB device had too little free memory, but"), "{text}");
}

#[test]
fn cache_with_enough_unused_memory_is_the_cause() {
    let fixture =
        || HostFixture::new().holds(1, 20 * GIB, Some(GIB)).cache(1, 12 * GIB, 20 * GIB).free(GIB);
    let says = ["had 8.00 GiB unused"];
    assert_cause(fixture(), 4 * GIB, OomCause::CacheFragmentation, Confidence::Likely, &says);
    assert_cause(fixture(), 9 * GIB, OomCause::DeviceExhausted, Confidence::Certain, &[]);
    let others = HostFixture::new()
        .holds(1, GIB, None)
        .holds(2, 20 * GIB, None)
        .cache(2, GIB, 20 * GIB)
        .free(GIB);
    assert_cause(others, 4 * GIB, OomCause::DeviceExhausted, Confidence::Certain, &["process 2"]);
}

#[test]
fn pool_with_enough_reserved_memory_is_the_cause() {
    let fixture = HostFixture::new().holds(1, GIB, None).pool(1, 6 * GIB).free(GIB);
    let says = ["had 6.00 GiB reserved and unused"];
    assert_cause(fixture, 4 * GIB, OomCause::PoolFragmentation, Confidence::Likely, &says);
}

#[test]
fn request_larger_than_the_device_is_the_cause() {
    let fixture = HostFixture::new().holds(1, GIB, None);
    let says = ["25.00 GiB requested", "the device has 24.00 GiB in total"];
    assert_cause(fixture, 25 * GIB, OomCause::RequestExceedsDevice, Confidence::Certain, &says);
}

#[test]
fn plenty_of_free_memory_means_a_quota() {
    let fixture = || HostFixture::new().holds(1, 2 * GIB, Some(GIB)).free(20 * GIB);
    let says = ["about 20.00 GiB was free", "the process held 2.00 GiB"];
    assert_cause(fixture(), GIB, OomCause::Quota, Confidence::Possible, &says);
    let mut divided = fixture();
    divided.hints = vec![GpuSharingHint::Mps];
    assert_cause(divided, GIB, OomCause::Quota, Confidence::Likely, &["MPS server"]);
}

#[test]
fn barely_enough_free_memory_is_a_full_device() {
    let fixture = HostFixture::new().holds(1, 2 * GIB, Some(GIB)).free(GIB + (1 << 20));
    assert_cause(fixture, GIB, OomCause::DeviceExhausted, Confidence::Certain, &[]);
}

#[test]
fn without_driver_report_cause_comes_from_traced_memory() {
    let full = HostFixture::new().holds(1, 12 * GIB, None).holds(2, 11 * GIB, None);
    assert_cause(
        full,
        GIB,
        OomCause::DeviceExhausted,
        Confidence::Likely,
        &["same process: 12.00 GiB"],
    );
    let says = ["free memory", "unknown (the driver could not be queried)"];
    let open = HostFixture::new().holds(1, 2 * GIB, None);
    assert_cause(open, GIB, OomCause::Unknown, Confidence::Possible, &says);
    let mut nothing = HostFixture::new();
    nothing.total = None;
    assert_cause(nothing, GIB, OomCause::Unknown, Confidence::Possible, &says);
}

#[test]
fn host_memory_and_address_space_have_their_own_causes() {
    let kinds = [
        MemoryKind::Pinned,
        MemoryKind::Registered,
        MemoryKind::HostPhysical,
        MemoryKind::HostAsync,
        MemoryKind::Managed,
    ];
    for kind in kinds {
        let mut fixture = HostFixture::new().holds(1, GIB, None).free(20 * GIB);
        let found = fixture.diagnose(RequestedResource::Memory(kind, Bytes(8 * GIB)));
        assert_eq!(
            (found.cause, found.confidence),
            (OomCause::HostMemoryExhausted, Confidence::Possible)
        );
        fixture.host.available = Some(Bytes(4 * GIB));
        let found = fixture.diagnose(RequestedResource::Memory(kind, Bytes(8 * GIB)));
        assert_eq!(found.confidence, Confidence::Certain, "{}", found.sentence);
        fixture.host = HostMemory {
            available: Some(Bytes(40 * GIB)),
            locked_limit: Some(Bytes(GIB)),
            ..HostMemory::default()
        };
        let found = fixture.diagnose(RequestedResource::Memory(kind, Bytes(8 * GIB)));
        assert_eq!(found.confidence, Confidence::Likely);
        assert!(found.sentence.contains("ulimit -l"), "{}", found.sentence);
    }
    let mut fixture = HostFixture::new();
    let found = fixture.diagnose(RequestedResource::Addresses);
    assert_eq!(
        (found.cause, found.confidence),
        (OomCause::AddressSpaceExhausted, Confidence::Possible)
    );
    fixture.host.address_limit = Some(Bytes(GIB));
    let found = fixture.diagnose(RequestedResource::Addresses);
    assert_eq!(found.confidence, Confidence::Likely);
    assert!(found.sentence.contains("limited to 1.00 GiB (ulimit -v)"), "{}", found.sentence);
}

#[test]
fn non_allocating_call_is_diagnosed_by_free_memory() {
    let mut full = HostFixture::new().holds(2, 23 * GIB, Some(GIB)).free(1 << 20);
    assert_eq!(full.diagnose(RequestedResource::Other).cause, OomCause::DeviceExhausted);
    let mut open = HostFixture::new().holds(1, GIB, Some(GIB)).free(20 * GIB);
    assert_eq!(open.diagnose(RequestedResource::Other).cause, OomCause::Quota);
}

#[test]
fn extreme_values_do_not_panic() {
    let huge = HostFixture::new().holds(1, u64::MAX, None).holds(2, u64::MAX, None).free(u64::MAX);
    huge.cause(u64::MAX);
    HostFixture::new().holds(1, 0, None).free(0).cause(0);
}
