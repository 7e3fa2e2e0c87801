//! Reports of one snapshot with everything in it, compared with reviewed golden files.
//! `VRAMSCOPE_UPDATE=1` regenerates them.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::model::blocks::SamplingView;
use engine::model::blocks::{
    Allocator, AllocatorPoolView, AllocatorView, CacheFragmentation, FragmentationUnknown,
};
use engine::model::container::{Container, ContainerRuntime, Pod};
use engine::model::cuda_object::ObjectKind;
use engine::model::ids::{
    AddressType, AllocationKey, DeviceId, FunctionId, GpuId, Pid, PoolId, ProcessKey, SiteId, Tid,
};
use engine::model::loss::LostDelta;
use engine::model::memory_kind::MemoryKind;
use engine::model::program::ProcessIdentity;
use engine::model::sampling::SamplingInterval;
use engine::model::stack::{CallStack, Frame, Language, SiteName, UnknownReason, site_name};
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::{
    AllocationView, ApiMisuse, DeviceView, DriverReported, FailedCallCount, KindView, LostTotals,
    NotFreed, NotFreedSite, ObjectView, OutOfMemory, PoolView, ProcessEnd, ProcessView,
    ReceivedCalls, SiteHistory, SiteKindView, SiteObjectView, SiteProcess, SiteView, Snapshot,
    ThreadView, Uncertainty,
};
use formats::WallClock;
use formats::export::{GpuLabel, ReportContext};
use formats::report::live::text::TextStyle;
use formats::report::live::{json, text};

const SECOND: u64 = 1_000_000_000;

fn context() -> ReportContext {
    ReportContext {
        function: |FunctionId(row)| if row == 1 { "cuMemAlloc_v2" } else { "cuMemFree_v2" },
        gpus: vec![GpuLabel {
            id: GpuId(3),
            uuid: "GPU-67bf22d2-b5d2-6521-4905-299b65b79ef1".into(),
            name: "NVIDIA H200".into(),
            total_bytes: 143_771 << 20,
        }],
        ..ReportContext::new(WallClock::fixed(Timestamp(0), 1_700_000_000))
    }
}

fn allocation(value: u64, kind: MemoryKind, bytes: u64, device: Option<u16>) -> AllocationView {
    AllocationView {
        baseline: None,
        key: AllocationKey {
            space: if kind == MemoryKind::Array {
                AddressType::Array
            } else {
                AddressType::Pointer
            },
            value,
        },
        device: device.map(DeviceId),
        bytes: Bytes(bytes),
        kind,
        age: Nanos(65 * SECOND),
        site: if device.is_some() {
            SiteName::Resolved(site_name(&stack()))
        } else {
            SiteName::Unknown
        },
    }
}

fn process(pid: u32, name: &str) -> ProcessView {
    ProcessView {
        key: ProcessKey { pid: Pid(pid), start: 1 },
        uid: Some(1000),
        name: name.into(),
        ..ProcessView::default()
    }
}

/// A few live objects of many that were created.
fn object(kind: ObjectKind, live: u64) -> ObjectView {
    ObjectView {
        kind,
        live,
        created: if kind == ObjectKind::Event { 1024 } else { live },
        destroyed: 0,
        released: 0,
        peak: live + 3,
        unknown_destroys: 0,
        untracked: 0,
    }
}

fn container() -> Container {
    Container {
        id: "3f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f003f2a5b6c7d8e9f00".into(),
        runtime: ContainerRuntime::Containerd,
        pod: Some(Pod {
            uid: "0a1b2c3d-1111-2222-3333-444455556666".into(),
            name: Some("trainer-0".into()),
            namespace: Some("te\x1b[31mam".into()),
            container: Some("main".into()),
        }),
        container_pid: Some(Pid(17)),
    }
}

fn contained(pid: u32, name: &str) -> ProcessView {
    ProcessView { container: Some(Arc::new(container())), ..process(pid, name) }
}

fn kinds() -> Vec<KindView> {
    let kind = |kind, bytes, live_allocations| KindView {
        kind,
        live_bytes: Bytes(bytes),
        live_allocations,
        unknown_sizes: 0,
    };
    vec![
        kind(MemoryKind::Device, 20 << 20, 3),
        kind(MemoryKind::Async, 5 << 20, 2),
        kind(MemoryKind::Pinned, 4096, 1),
    ]
}

fn rich() -> ProcessView {
    ProcessView {
        live_bytes: Bytes(25 << 20),
        live_allocations: 6,
        peak_bytes: Bytes(40 << 20),
        peak_at: Timestamp(2 * SECOND),
        peak_bounds: Some((Bytes(39 << 20), Bytes(41 << 20))),
        allocations_total: 100,
        frees_total: 92,
        released_total: 2,
        failed_allocations: 1,
        unknown_frees: 3,
        received_calls: ReceivedCalls { allocations: 101, frees: 95, failures: 1 },
        before_trace: true,
        failures: vec![FailedCallCount { function: FunctionId(1), code: 2, count: 1 }],
        devices: vec![
            DeviceView {
                device: Some(DeviceId(0)),
                live_bytes: Bytes(20 << 20),
                peak_bytes: Bytes(30 << 20),
                peak_bounds: Some((Bytes(29 << 20), Bytes(31 << 20))),
                gpu: Some(GpuId(3)),
                driver_bytes: Some(Bytes(600 << 20)),
                driver_traced: Some(Bytes(18 << 20)),
                driver_unplaced: Bytes(4 << 20),
                graph_reserved: None,
            },
            DeviceView {
                device: None,
                live_bytes: Bytes(5 << 20),
                peak_bytes: Bytes(5 << 20),
                peak_bounds: None,
                gpu: None,
                driver_bytes: None,
                driver_traced: None,
                driver_unplaced: Bytes(0),
                graph_reserved: None,
            },
        ],
        kinds: kinds(),
        threads: vec![ThreadView {
            tid: Tid(4712),
            name: "pt\x1b[31m_autograd".into(),
            live_bytes: Bytes(25 << 20),
            live_allocations: 6,
            kinds: kinds(),
            allocations: vec![
                allocation(0x7d33_2a00_0000, MemoryKind::Device, 20 << 20, Some(0)),
                allocation(0x7d33_2b00_0000, MemoryKind::Async, 5 << 20, None),
                allocation(0xa0, MemoryKind::Array, 100, Some(0)),
                allocation(0x5000, MemoryKind::Pinned, 4096, None),
            ],
        }],
        pools: vec![PoolView {
            pool: Some(PoolId(0x90)),
            device: Some(DeviceId(0)),
            used: Bytes(5 << 20),
            allocations: 2,
            reserved: Some(DriverReported { bytes: Bytes(32 << 20), at: Timestamp(SECOND) }),
            destroyed: false,
        }],
        reserved_addresses: Bytes(1 << 40),
        api_misuse: ApiMisuse { double_frees: 1, released_while_mapped: 2, ..ApiMisuse::default() },
        objects: vec![
            ObjectView { destroyed: 1012, unknown_destroys: 2, ..object(ObjectKind::Event, 12) },
            object(ObjectKind::Library, 1),
            ObjectView { live: 0, released: 3, ..object(ObjectKind::Texture, 0) },
        ],
        allocators: vec![torch()],
        sites: vec![site()],
        sites_total: 2,
        uncertainty: Uncertainty {
            before_trace: true,
            lost: LostTotals {
                counts: LostDelta { objects: 4, ..LostDelta::default() },
                since: None,
            },
            ..Uncertainty::default()
        },
        ..contained(4711, "python3")
    }
}

fn snapshot() -> Snapshot {
    let counts = LostDelta {
        allocations: 2,
        allocated_bytes: 8192,
        frees: 1,
        other: 1,
        stacks: 3,
        objects: 4,
        processes: 2,
        ..LostDelta::default()
    };
    let lost = LostTotals { counts, since: Some(Timestamp(SECOND)) };
    Snapshot {
        at: Timestamp(10 * SECOND),
        live_bytes: Bytes(25 << 20),
        live_allocations: 6,
        uncertainty: Uncertainty {
            lost,
            live_min: Bytes(20 << 20),
            live_max: Bytes(26 << 20),
            implied_frees: 0,
            before_trace: true,
            capture_ended: None,
            unknown_context: 0,
            ambiguous_calls: 7,
            unknown_calls: 12,
        },
        processes: vec![
            rich(),
            ProcessView { ended: Some(ProcessEnd::Exited), ..process(4713, "clean") },
        ],
        unknown_calls: BTreeMap::from([("cuMemAllocNext".into(), 12)]),
        observed: Nanos(10 * SECOND),
        is_live: true,
        not_freed: vec![not_freed()],
        out_of_memory: vec![OutOfMemory {
            framework: None,
            recovered: None,
            at: Timestamp(9 * SECOND),
            pid: Pid(4711),
            tid: Tid(4712),
            name: "python3".into(),
            device: Some(DeviceId(0)),
            gpu: Some(GpuId(3)),
            requested: Some((MemoryKind::Device, Bytes(4 << 40))),
            site: Some(SiteId(7)),
            site_name: SiteName::Resolved(site_name(&stack())),
            frames: stack(),
            holders: vec![(Pid(4711), "python3".into(), Bytes(20 << 20))],
        }],
        sites: vec![SiteView { processes: vec![held_by()], ..site() }, pending(), of_objects()],
        sites_total: 3,
        allocations_total: 100,
        without_stack: 12,
        tensor_sites: vec![tensor_site()],
        tensor_sites_total: 2,
        ..Snapshot::default()
    }
}

/// Memory that a process had not freed when it exited.
fn not_freed() -> NotFreed {
    let site = NotFreedSite {
        site: site().name,
        frames: stack(),
        kind: MemoryKind::Device,
        bytes: Bytes(6 << 20),
        allocations: 2,
    };
    let program = Some("train.py".into());
    NotFreed {
        key: ProcessKey { pid: Pid(4714), start: 1 },
        name: "python3".into(),
        identity: ProcessIdentity {
            program,
            user: Some("ann".into()),
            ..ProcessIdentity::default()
        },
        cached: Bytes(2 << 20),
        bytes: Bytes(6 << 20),
        allocations: 2,
        sites: vec![site],
    }
}

/// A frame of a library, of a program, and of a stripped file.
fn stack() -> CallStack {
    let driver = Frame {
        function: "cuMemAlloc_v2".into(),
        module: Some("/usr/lib/libcuda.so.1".into()),
        ..Frame::default()
    };
    let python = Frame {
        function: "for\x1b[31mward".into(),
        file: Some("/srv/app/model.py".into()),
        line: 12,
        language: Language::Python,
        ..Frame::default()
    };
    let stripped = Frame {
        module: Some("/opt/app".into()),
        unknown: Some(UnknownReason::NoSymbol),
        ..Frame::default()
    };
    [driver, python, stripped].into()
}

/// A cache that is fully known on one device, and not on the other.
fn torch() -> AllocatorView {
    let known = AllocatorPoolView {
        device: Some(DeviceId(0)),
        pool: 0,
        allocated: Bytes(12 << 20),
        reserved: Bytes(20 << 20),
        peak: Bytes(16 << 20),
        peak_at: Timestamp(3 * SECOND),
        blocks: 7,
        tracked_bytes: Bytes(12 << 20),
        allocations_total: 30,
        frees_total: 23,
        unmatched_frees: 0,
        ooms_total: 1,
        fragmentation: Ok(CacheFragmentation {
            releasable: Bytes(2 << 20),
            fragmented: Bytes(6 << 20),
            largest_gap: Bytes(5 << 20),
        }),
    };
    let late = AllocatorPoolView {
        device: Some(DeviceId(1)),
        tracked_bytes: Bytes(1 << 20),
        blocks: 1,
        unmatched_frees: 3,
        ooms_total: 0,
        fragmentation: Err(FragmentationUnknown::BlocksUnknown),
        ..known
    };
    let empty = AllocatorView::empty(Allocator::PyTorch);
    let interval = SamplingInterval::from_bytes(1 << 19).unwrap();
    let sampling = Some(SamplingView { since: Timestamp(3 * SECOND), interval, skipped: 900 });
    AllocatorView { pools: vec![known, late], lost: 5, sampling, ..empty }
}

/// The site of the tensors.
fn tensor_site() -> SiteView {
    let kinds = vec![SiteKindView {
        kind: MemoryKind::Torch,
        live_bytes: Bytes(12 << 20),
        live_allocations: 7,
        unknown_sizes: 0,
        bytes_total: Bytes(30 << 20),
        allocations_total: 30,
        freed_total: 23,
        peak_bytes: Bytes(16 << 20),
    }];
    let processes = vec![held_by()];
    let sampling = SamplingInterval::from_bytes(1 << 19);
    SiteView {
        live_bytes: Bytes(12 << 20),
        live_allocations: 7,
        sampling,
        kinds,
        processes,
        ..site()
    }
}

fn held_by() -> SiteProcess {
    SiteProcess {
        pid: Some(Pid(4711)),
        live_bytes: Bytes(20 << 20),
        live_allocations: 3,
        kinds: site().kinds.iter().map(Into::into).collect(),
    }
}

fn site() -> SiteView {
    SiteView {
        name: SiteName::Resolved(site_name(&stack())),
        frames: stack(),
        live_bytes: Bytes(20 << 20),
        live_allocations: 3,
        grown: 4 << 20,
        bytes_total: Bytes(200 << 20),
        allocations_total: 90,
        freed_total: 85,
        sampling: None,
        peak_bytes: Bytes(30 << 20),
        peak_at: Some(Timestamp(2 * SECOND)),
        seen: (Timestamp(SECOND), Timestamp(9 * SECOND)),
        lifetimes: vec![(10, 80), (20, 5)],
        longest_lifetime: Some(Nanos(1_500_000)),
        growth: SiteHistory {
            start: Timestamp(SECOND),
            window: Nanos(1 << 32),
            live: vec![Bytes(10 << 20), Bytes(16 << 20), Bytes(20 << 20)],
        },
        kinds: vec![
            SiteKindView {
                kind: MemoryKind::Device,
                live_bytes: Bytes(20 << 20),
                live_allocations: 3,
                unknown_sizes: 0,
                bytes_total: Bytes(200 << 20),
                allocations_total: 90,
                freed_total: 85,
                peak_bytes: Bytes(30 << 20),
            },
            SiteKindView {
                kind: MemoryKind::Pinned,
                live_bytes: Bytes(4096),
                live_allocations: 1,
                unknown_sizes: 0,
                bytes_total: Bytes(4096),
                allocations_total: 1,
                freed_total: 0,
                peak_bytes: Bytes(4096),
            },
        ],
        objects: vec![SiteObjectView {
            kind: ObjectKind::Event,
            live: 12,
            created: 1024,
            destroyed: 1012,
        }],
        processes: Vec::new(),
    }
}

/// A site with objects and no memory.
fn of_objects() -> SiteView {
    let object = |kind| SiteObjectView { kind, live: 1, created: 3, destroyed: 2 };
    SiteView {
        name: SiteName::Unknown,
        frames: [].into(),
        live_bytes: Bytes(0),
        live_allocations: 0,
        grown: 0,
        bytes_total: Bytes(0),
        allocations_total: 0,
        freed_total: 0,
        peak_bytes: Bytes(0),
        peak_at: None,
        lifetimes: Vec::new(),
        longest_lifetime: None,
        kinds: Vec::new(),
        objects: vec![object(ObjectKind::GraphExec), object(ObjectKind::Library)],
        processes: vec![SiteProcess {
            pid: Some(Pid(4711)),
            live_bytes: Bytes(0),
            live_allocations: 0,
            kinds: Vec::new(),
        }],
        growth: SiteHistory::default(),
        ..site()
    }
}

fn pending() -> SiteView {
    SiteView {
        name: SiteName::Pending(SiteId(9)),
        frames: [].into(),
        live_bytes: Bytes(5 << 20),
        live_allocations: 2,
        grown: -(1 << 20),
        peak_at: None,
        lifetimes: Vec::new(),
        longest_lifetime: None,
        kinds: vec![SiteKindView {
            live_bytes: Bytes(5 << 20),
            live_allocations: 2,
            ..site().kinds[0]
        }],
        objects: Vec::new(),
        processes: vec![held_by(), SiteProcess { pid: None, ..held_by() }],
        ..site()
    }
}

fn assert_golden(name: &str, found: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "{} differs; found:\n{found}", path.display());
}

#[test]
fn text_report_matches_golden_file() {
    let mut out = Vec::new();
    text::report(&mut out, &snapshot(), &context(), TextStyle::default()).unwrap();
    let found = String::from_utf8(out).unwrap();
    assert!(!found.contains('\x1b'), "escape sequences of a process must not reach the terminal");
    assert_golden("everything.txt", &found);
}

#[test]
fn text_report_by_site_matches_golden_file() {
    let mut out = Vec::new();
    text::sites::report(&mut out, &snapshot(), &context(), TextStyle::default()).unwrap();
    let found = String::from_utf8(out).unwrap();
    assert!(!found.contains('\x1b'), "escape sequences of a process must not reach the terminal");
    assert_golden("sites.txt", &found);
}

#[test]
fn memory_not_freed_at_exit_is_listed_by_site() {
    let ended = ProcessView { ended: Some(ProcessEnd::Exited), ..rich() };
    let snapshot = Snapshot { processes: vec![ended], ..Snapshot::default() };
    let mut out = Vec::new();
    text::report(&mut out, &snapshot, &context(), TextStyle::default()).unwrap();
    let found = String::from_utf8(out).unwrap();
    let lines: Vec<_> = found.lines().skip(3).take(7).collect();
    let expected = [
        "  20.00 MiB in 3 allocations; host 4.00 KiB in 1 allocation, allocated at",
        "    kinds: device 20.00 MiB, pinned 4.00 KiB (host)",
        "    cuMemAlloc_v2 (libcuda.so.1)",
        "    for\\u{1b}[31mward (/srv/app/model.py:12)",
        "    (no symbol) (app)",
        "  … 2 allocations at other sites",
    ];
    assert_eq!(lines[..6], expected);
    assert!(lines[6].starts_with(
        "NOT FREED AT EXIT: 25.00 MiB in 5 allocations; host 4.00 KiB in 1 allocation"
    ));
}

#[test]
fn undestroyed_objects_are_listed_by_site() {
    let code = SiteObjectView { kind: ObjectKind::Library, live: 1, created: 1, destroyed: 0 };
    let code = SiteView { objects: vec![code], ..of_objects() };
    let ended = Some(ProcessEnd::Exited);
    let ended = ProcessView { ended, sites: vec![code, site()], ..rich() };
    let snapshot = Snapshot { processes: vec![ended], ..Snapshot::default() };
    let mut out = Vec::new();
    text::report(&mut out, &snapshot, &context(), TextStyle::default()).unwrap();
    let found = String::from_utf8(out).unwrap();
    let mut lines = found.lines().skip_while(|line| !line.contains("objects never destroyed"));
    assert_eq!(
        lines.next(),
        Some("  objects never destroyed: 12 events (created 1024), 1 library")
    );
    let rest: Vec<_> = lines.skip(1).take(3).collect();
    let expected = [
        "    12 events, created at",
        "      cuMemAlloc_v2 (libcuda.so.1)",
        "      for\\u{1b}[31mward (/srv/app/model.py:12)",
    ];
    assert_eq!(rest, expected);
    assert_eq!(found.matches("created at").count(), 2);
}

#[test]
fn empty_snapshot_prints_no_activity() {
    let mut out = Vec::new();
    text::report(&mut out, &Snapshot::default(), &context(), TextStyle::default()).unwrap();
    assert!(String::from_utf8(out).unwrap().ends_with("\nNo GPU memory activity yet.\n"));
}

#[test]
fn colors_are_used_only_on_request() {
    let mut out = Vec::new();
    text::report(
        &mut out,
        &snapshot(),
        &context(),
        TextStyle { color: true, ..TextStyle::default() },
    )
    .unwrap();
    let found = String::from_utf8(out).unwrap();
    assert!(found.contains("\x1b[1;31mOUT OF MEMORY") && !found.contains("\x1b[31m_autograd"));
}

#[test]
fn json_report_matches_golden_file() {
    let line = json::line(&snapshot(), &context()).unwrap();
    assert!(!line.contains('\n'));
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_golden("everything.json", &(serde_json::to_string_pretty(&value).unwrap() + "\n"));
}
