//! Cost of the ledger: bytes per live allocation, and heap allocations per event and per snapshot.
//! Counted by the allocator, not measured by time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use engine::ledger::Ledger;
use engine::model::event::{Allocate, Event, EventKind, Free, FreeFunction};
use engine::model::ids::{AllocationKey, ContextId, DeviceId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::{SnapshotOptions, SortOrder};

thread_local! {
    /// Bytes that this thread holds, and bytes that it ever allocated. Tests run on separate
    /// threads.
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
    static TOTAL_BYTES: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count(allocated: usize, freed: usize) {
    // A thread that is exiting has no counters any more, and no test either.
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + allocated as i64 - freed as i64));
    let _ = TOTAL_BYTES.try_with(|sum| sum.set(sum.get() + allocated as u64));
}

// SAFETY: every call goes to the system allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's guarantees are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the pointer came from `System` with this layout; the size is the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MILLION: u64 = 1_000_000;

fn event(at: u64, kind: EventKind) -> Event {
    let time = Timestamp(at);
    Event { pid: Pid(1), tid: Tid(1), entry_time: time, time, kind }
}

fn allocate(ledger: &mut Ledger, kind: MemoryKind, number: u64, bytes: u64) {
    let allocate = Allocate {
        key: AllocationKey::address(0x7f00_0000_0000 + number * 512),
        kind,
        bytes,
        context: Some(ContextId(1)),
        device: Some(DeviceId(0)),
        pool: None,
        stream: None,
        site: Some(SiteId(3)),
    };
    ledger.apply(&event(number, EventKind::Allocate(allocate)));
}

fn free(ledger: &mut Ledger, at: u64, number: u64) {
    let key = AllocationKey::address(0x7f00_0000_0000 + number * 512);
    ledger.apply(&event(at, EventKind::Free(Free { key, by: FreeFunction::Free, stream: None })));
}

fn filled(kind: MemoryKind, count: u64, size: impl Fn(u64) -> u64) -> Ledger {
    let mut ledger = Ledger::new();
    for number in 0..count {
        allocate(&mut ledger, kind, number, size(number));
    }
    ledger
}

/// Returns a different number for every number below 2^20, in no order.
fn scattered(number: u64) -> u64 {
    1 + (number * 0x9_e375) % (1 << 20)
}

fn bytes_each(size: impl Fn(u64) -> u64) -> f64 {
    let before = LIVE_BYTES.get();
    let mut ledger = filled(MemoryKind::Device, MILLION, size);
    let live = LIVE_BYTES.get() - before;
    for number in (0..MILLION).rev() {
        free(&mut ledger, MILLION, number);
    }
    let remaining = LIVE_BYTES.get() - before;
    assert!(remaining < 1 << 20, "{remaining} bytes left after everything was freed");
    live as f64 / MILLION as f64
}

#[test]
fn live_allocation_costs_less_than_80_bytes() {
    let same = bytes_each(|_| 4096);
    let ascending = bytes_each(|number| number + 1);
    let distinct = bytes_each(scattered);
    println!("bytes per allocation: same {same:.1}, ascending {ascending:.1}, {distinct:.1}");
    for each in [same, ascending, distinct] {
        assert!(each < 80.0, "{each} bytes per live allocation");
    }
}

#[test]
fn snapshot_cost_does_not_depend_on_allocation_count() {
    let all_options = [
        SnapshotOptions::default(),
        SnapshotOptions { sort: SortOrder::Age, ..SnapshotOptions::default() },
        SnapshotOptions { sort: SortOrder::Count, ..SnapshotOptions::default() },
        // A few old ones among many, by size; a few large ones among many, by age.
        SnapshotOptions { min_age: Nanos(2 * MILLION - 50), ..SnapshotOptions::default() },
        SnapshotOptions {
            sort: SortOrder::Age,
            min_size: Bytes((1 << 20) - 50),
            ..SnapshotOptions::default()
        },
    ];
    let allocated = |ledger: &mut Ledger, options: &SnapshotOptions| {
        let before = TOTAL_BYTES.get();
        let snapshot = ledger.snapshot(Timestamp(2 * MILLION), options);
        let allocated = TOTAL_BYTES.get() - before;
        assert!(!snapshot.processes[0].threads[0].allocations.is_empty());
        allocated
    };
    // Both have the same largest and oldest allocations; the million adds small and young ones.
    let size = |number: u64| if number < 1000 { (1 << 20) - number } else { number % 100_000 };
    let mut few = filled(MemoryKind::Device, 1000, size);
    let mut many = filled(MemoryKind::Device, MILLION, size);
    for options in &all_options {
        assert_eq!(allocated(&mut few, options), allocated(&mut many, options), "{options:?}");
    }
}

#[test]
fn steady_workload_does_not_allocate() {
    for kind in [MemoryKind::Device, MemoryKind::Async] {
        let round = |ledger: &mut Ledger, from: u64| {
            for number in from..from + 10_000 {
                allocate(ledger, kind, number, scattered(number));
                free(ledger, number, number - 10_000);
            }
        };
        // It held more before, so that the index can compact in place.
        let mut ledger = filled(kind, 20_000, scattered);
        for number in 0..10_000 {
            free(&mut ledger, 20_000, number);
        }
        round(&mut ledger, 20_000);
        let before = TOTAL_BYTES.get();
        round(&mut ledger, 30_000);
        assert_eq!(TOTAL_BYTES.get() - before, 0, "{kind}");
    }
}
