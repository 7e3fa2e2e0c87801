//! Values of GPUs, sites, suspects, caches and the agent itself.

use engine::metrics::{SampleValue, SeriesLimits};
use engine::model::activity::{CopyActivity, CopyDirection, GpuActivity};
use engine::model::blocks::{
    Allocator, AllocatorPoolView, AllocatorView, CacheFragmentation, FragmentationUnknown,
};
use engine::model::cuda_object::ObjectKind;
use engine::model::event::{Allocate, EventKind, FailedCall};
use engine::model::ids::{AllocationKey, DeviceId, FunctionId, GpuId, Pid};
use engine::model::memory_kind::MemoryKind;
use engine::model::mig::MigInstance;
use engine::model::stack::{SiteName, site_name};
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::GpuView;
use engine::verdict::{Confidence, Evidence, Resource, SiteVerdict, Verdict};

use super::fixture::{MetricsFixture, find, whole};

#[test]
fn gpu_metrics_combine_driver_usage_and_live_memory() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    fixture.begin(1, 1, "p");
    fixture.allocate(1, 0x1000, 300);
    fixture.allocate_at(1, 0x2000, 50, 1, None);
    fixture.apply(1, EventKind::GpuFree { gpu: GpuId(0), bytes: 600 });
    fixture.apply(1, EventKind::DriverUsage { gpu: GpuId(0), bytes: 380, only: false });
    let metrics = fixture.metrics();
    let gpu = |name: &str, uuid: &str| find(&metrics, &format!("vramscope_gpu_{name}"), &[uuid]);
    assert_eq!(gpu("total_bytes", "GPU-0"), Some(SampleValue::Whole(1000)));
    assert_eq!(gpu("free_bytes", "GPU-0"), Some(SampleValue::Whole(600)));
    assert_eq!(gpu("used_bytes", "GPU-0"), Some(SampleValue::Whole(400)));
    assert_eq!(gpu("live_bytes", "GPU-0"), Some(SampleValue::Whole(300)));
    assert_eq!(gpu("untracked_bytes", "GPU-0"), Some(SampleValue::Whole(100)));
    assert_eq!(gpu("live_bytes", "GPU-1"), Some(SampleValue::Whole(50)));
    // The driver did not report the other one.
    assert_eq!(gpu("free_bytes", "GPU-1"), None);
    assert_eq!(gpu("untracked_bytes", "GPU-1"), None);
    assert_eq!(whole(&metrics, "vramscope_process_used_bytes", &["GPU-0"]), 380);
    assert_eq!(whole(&metrics, "vramscope_process_untracked_bytes", &["GPU-0"]), 80);
    assert_eq!(whole(&metrics, "vramscope_live_bytes", &["device"]), 350);
}

#[test]
fn memory_on_an_unknown_gpu_is_not_untracked() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    fixture.begin(1, 1, "p");
    fixture.allocate(1, 0x1000, 300);
    let unknown = Allocate {
        key: AllocationKey::address(0x2000),
        kind: MemoryKind::Device,
        bytes: 50,
        context: None,
        device: None,
        pool: None,
        stream: None,
        site: None,
    };
    fixture.apply(1, EventKind::Allocate(unknown));
    fixture.apply(1, EventKind::GpuFree { gpu: GpuId(0), bytes: 600 });
    let metrics = fixture.metrics();
    // A separate sample, without index and UUID.
    assert_eq!(whole(&metrics, "vramscope_gpu_live_bytes", &[""]), 50);
    assert_eq!(whole(&metrics, "vramscope_gpu_untracked_bytes", &["GPU-0"]), 50);
}

#[test]
fn out_of_memory_is_counted_by_gpu_starting_at_zero() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    let name = "vramscope_out_of_memory_total";
    let metrics = fixture.metrics();
    assert_eq!(metrics.samples(name).len(), 3);
    assert_eq!(whole(&metrics, name, &["GPU-1"]), 0);
    fixture.begin(1, 1, "p");
    fixture.fail_allocation(1, Some(1));
    fixture.fail_allocation(1, Some(1));
    fixture.fail_allocation(1, None);
    // Errors beyond those that a snapshot lists are also counted.
    fixture.begin(2, 2, "q");
    for _ in 0..100 {
        fixture.fail_allocation(2, Some(0));
    }
    fixture.apply(2, EventKind::Exit);
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, name, &["GPU-1"]), 2);
    assert_eq!(whole(&metrics, name, &["GPU-0"]), 100);
    let all: u64 = metrics.samples(name).iter().map(|sample| sample.value.as_f64() as u64).sum();
    assert_eq!(all, 103);
    assert_eq!(whole(&metrics, "vramscope_process_out_of_memory_total", &["1"]), 3);
    assert_eq!(whole(&metrics, "vramscope_failed_allocations_total", &[]), 103);
    let again = fixture.metrics();
    assert_eq!(again.samples(name), metrics.samples(name));
}

#[test]
fn failed_host_allocations_are_not_counted_by_gpu() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    fixture.begin(1, 1, "p");
    for kind in [MemoryKind::Pinned, MemoryKind::Managed, MemoryKind::Device] {
        let failed = FailedCall {
            function: FunctionId(0),
            code: 2,
            requested: Some((kind, 900)),
            freed: None,
            device: Some(DeviceId(0)),
            context: None,
            site: None,
        };
        fixture.apply(1, EventKind::Failed(failed));
    }
    let metrics = fixture.metrics();
    let name = "vramscope_out_of_memory_total";
    assert_eq!(whole(&metrics, name, &["GPU-0"]), 1);
    let all: u64 = metrics.samples(name).iter().map(|sample| sample.value.as_f64() as u64).sum();
    assert_eq!(all, 3);
}

#[test]
fn requests_larger_than_the_gpu_are_counted_apart() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    fixture.begin(1, 1, "p");
    for (device, bytes) in [(Some(0), 1000), (Some(0), 1001), (None, 1001), (None, 1000)] {
        let failed = FailedCall {
            function: FunctionId(0),
            code: 2,
            requested: Some((MemoryKind::Device, bytes)),
            freed: None,
            device: device.map(DeviceId),
            context: None,
            site: None,
        };
        fixture.apply(1, EventKind::Failed(failed));
    }
    let metrics = fixture.metrics();
    for name in ["vramscope_out_of_memory_total", "vramscope_oversized_requests_total"] {
        assert_eq!(whole(&metrics, name, &["GPU-0"]), 1, "{name}");
        assert_eq!(whole(&metrics, name, &[""]), 1, "{name}");
        assert_eq!(whole(&metrics, name, &["GPU-1"]), 0, "{name}");
    }
}

#[test]
fn sites_have_stable_ids_and_small_ones_are_merged() {
    let mut fixture = MetricsFixture::new(SeriesLimits { sites: 2, ..SeriesLimits::default() });
    fixture.begin(1, 1, "p");
    for (site, bytes) in [(1, 100), (2, 200), (3, 30), (4, 4), (9, 1)] {
        fixture.allocate_at(1, u64::from(site) << 12, bytes, 0, Some(site));
    }
    // Two addresses with equal frames are one site; one is not resolved yet.
    for (site, function) in [(1, "f"), (2, "g"), (3, "f"), (4, "h")] {
        fixture.name_site(site, function);
    }
    let snapshot = fixture.snapshot();
    let f = snapshot.sites.iter().find(|site| &*site.frames[0].function == "f").unwrap();
    let name = format!("{:016x}", site_name(&f.frames));
    let metrics = fixture.observe(&snapshot);
    let live = "vramscope_site_live_bytes";
    assert_eq!(metrics.samples(live).len(), 3);
    assert_eq!(whole(&metrics, live, &[&name, "f"]), 130);
    assert_eq!(whole(&metrics, live, &["g"]), 200);
    assert_eq!(whole(&metrics, live, &["other"]), 5);
    assert_eq!(whole(&metrics, "vramscope_site_live_allocations", &[&name]), 2);
    assert_eq!(whole(&metrics, "vramscope_site_live_allocations", &["other"]), 2);
}

#[test]
fn pending_sites_are_one_series() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    fixture.begin(1, 1, "p");
    for site in 1..=50 {
        fixture.allocate_at(1, u64::from(site) << 12, 10, 0, Some(site));
    }
    fixture.allocate_at(1, 0xfff_0000, 7, 0, None);
    let metrics = fixture.metrics();
    let live = "vramscope_site_live_bytes";
    assert_eq!(metrics.samples(live).len(), 3);
    assert_eq!(whole(&metrics, live, &["pending"]), 500);
    assert_eq!(whole(&metrics, live, &["none"]), 7);
    assert_eq!(whole(&metrics, live, &["other"]), 0);
}

fn suspect(
    resource: Resource,
    device: Option<u16>,
    live: u64,
    time_until_full: Option<u64>,
) -> SiteVerdict {
    SiteVerdict {
        pid: Some(Pid(1)),
        process: "p".into(),
        site: SiteName::Resolved(7),
        frames: [].into(),
        resource,
        device: device.map(DeviceId),
        thread: None,
        verdict: Verdict::Leak,
        confidence: Confidence::Likely,
        evidence: Evidence {
            live,
            growth_per_hour: 10 * live,
            time_until_full: time_until_full.map(|seconds| Nanos(seconds * 1_000_000_000)),
            ..Evidence::default()
        },
    }
}

#[test]
fn gpu_time_until_full_is_that_of_all_its_leaks() {
    let mut fixture = MetricsFixture::new(SeriesLimits { suspects: 3, ..SeriesLimits::default() });
    fixture.begin(1, 1, "p");
    fixture.allocate(1, 0x1000, 300);
    fixture.allocate_at(1, 0x2000, 300, 1, None);
    let mut snapshot = fixture.snapshot();
    snapshot.suspects = vec![
        suspect(Resource::Memory(MemoryKind::Device), Some(0), 100, Some(90)),
        suspect(Resource::Memory(MemoryKind::Graph), Some(0), 20, Some(60)),
        suspect(Resource::Objects(ObjectKind::Graph), None, 3, None),
        // The same labels as the first: they are one series.
        suspect(Resource::Memory(MemoryKind::Device), Some(0), 1, Some(80)),
        suspect(Resource::Blocks(Allocator::PyTorch), Some(1), 5, Some(7)),
    ];
    let free = |gpu: u16, bytes: u64| GpuView {
        gpu: GpuId(gpu),
        free_bytes: Bytes(bytes),
        growth_per_hour: Some(0),
    };
    snapshot.gpus = vec![free(0, 1210), free(1, 100)];
    let metrics = fixture.observe(&snapshot);
    let live = "vramscope_suspect_live_bytes";
    assert_eq!(metrics.samples(live).len(), 2);
    assert_eq!(whole(&metrics, live, &["device", "GPU-0", "0000000000000007"]), 101);
    assert_eq!(whole(&metrics, live, &["graph"]), 20);
    let objects = "vramscope_suspect_live_objects";
    assert_eq!(metrics.samples(objects).len(), 1);
    assert_eq!(whole(&metrics, objects, &["graph_objects", ""]), 3);
    let growth = find(&metrics, "vramscope_suspect_growth_bytes_per_second", &["device"]);
    assert_eq!(growth, Some(SampleValue::Real(1010.0 / 3600.0)));
    let growth = find(&metrics, "vramscope_suspect_growth_objects_per_second", &["graph_objects"]);
    assert_eq!(growth, Some(SampleValue::Real(30.0 / 3600.0)));
    let seconds = "vramscope_suspect_time_until_full_seconds";
    assert_eq!(find(&metrics, seconds, &["device"]), Some(SampleValue::Real(80.0)));
    assert_eq!(find(&metrics, seconds, &["graph_objects"]), None);
    let full = "vramscope_gpu_time_until_full_seconds";
    // Its suspects grow by 1210 bytes per hour.
    assert_eq!(find(&metrics, full, &["GPU-0"]), Some(SampleValue::Real(3600.0)));
    // Suspects without a series also count.
    assert_eq!(find(&metrics, full, &["GPU-1"]), Some(SampleValue::Real(7200.0)));
    let growth = "vramscope_gpu_growth_bytes_per_second";
    assert_eq!(find(&metrics, growth, &["GPU-1"]), Some(SampleValue::Real(0.0)));
    // Device memory, objects and tensors: one leak each.
    assert_eq!(whole(&metrics, "vramscope_suspects", &["likely"]), 3);
    assert_eq!(whole(&metrics, "vramscope_suspects", &["certain"]), 0);
}

fn cache(
    device: u16,
    fragmentation: Result<CacheFragmentation, FragmentationUnknown>,
) -> AllocatorPoolView {
    AllocatorPoolView {
        device: Some(DeviceId(device)),
        pool: 0,
        allocated: Bytes(60),
        reserved: Bytes(100),
        peak: Bytes(60),
        peak_at: Timestamp(1),
        blocks: 1,
        tracked_bytes: Bytes(60),
        allocations_total: 1,
        frees_total: 0,
        unmatched_frees: 0,
        ooms_total: 0,
        fragmentation,
    }
}

#[test]
fn fragmentation_ratio_is_exported_only_if_known() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    fixture.begin(1, 1, "p");
    fixture.allocate(1, 0x1000, 100);
    fixture.allocate_at(1, 0x2000, 100, 1, None);
    let mut snapshot = fixture.snapshot();
    let fragmentation =
        CacheFragmentation { releasable: Bytes(15), fragmented: Bytes(25), largest_gap: Bytes(9) };
    let pools = vec![cache(0, Ok(fragmentation)), cache(1, Err(FragmentationUnknown::TooMany))];
    let view = AllocatorView { pools, ..AllocatorView::empty(Allocator::PyTorch) };
    let cupy = AllocatorView { allocator: Allocator::CuPy, ..view.clone() };
    snapshot.processes[0].allocators = vec![view, cupy];
    let metrics = fixture.observe(&snapshot);
    let ratio = "vramscope_process_allocator_fragmentation_ratio";
    for allocator in ["pytorch", "cupy"] {
        assert_eq!(find(&metrics, ratio, &["GPU-0", allocator]), Some(SampleValue::Real(0.25)));
        assert_eq!(find(&metrics, ratio, &["GPU-1", allocator]), None);
    }
    assert_eq!(
        whole(&metrics, "vramscope_process_allocator_allocated_bytes", &["GPU-1", "cupy"]),
        60
    );
    assert_eq!(
        whole(&metrics, "vramscope_process_allocator_reserved_bytes", &["GPU-0", "pytorch"]),
        100
    );
}

#[test]
fn activity_metrics_appear_after_first_launch() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    assert!(fixture.metrics().samples("vramscope_copied_bytes_total").is_empty());
    fixture.begin(1, 1, "p");
    for (asynchronous, bytes) in [(false, 100), (true, 20)] {
        let copies = CopyActivity {
            direction: CopyDirection::HostToDevice,
            pointers: None,
            asynchronous,
            calls: 1,
            bytes,
            nanos: 1,
            bandwidths: Vec::new(),
        };
        fixture.apply(1, EventKind::Activity(GpuActivity::Copies(Box::new(copies))));
    }
    fixture.metrics();
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, "vramscope_copied_bytes_total", &["H2D"]), 120);
    assert_eq!(whole(&metrics, "vramscope_copied_bytes_total", &["D2H"]), 0);
    assert_eq!(whole(&metrics, "vramscope_launches_total", &[]), 0);
}

#[test]
fn agent_exports_its_own_metrics() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    fixture.agent.version = "1.2.3".into();
    fixture.agent.http = [0, 7, 0, 2, 1];
    fixture.agent.alerts = vec![("warning".into(), 2), ("made up".into(), 9)];
    fixture.agent.notifications = vec![(("webhook", "sent"), 4)];
    fixture.agent.unlisted_ends = 3;
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, "vramscope_build_info", &["1.2.3"]), 1);
    assert_eq!(whole(&metrics, "vramscope_http_requests_total", &["4xx"]), 2);
    assert_eq!(whole(&metrics, "vramscope_alerts_firing", &["warning"]), 2);
    assert_eq!(metrics.samples("vramscope_alerts_firing").len(), 3);
    assert_eq!(whole(&metrics, "vramscope_notifications_total", &["webhook", "sent"]), 4);
    assert_eq!(whole(&metrics, "vramscope_processes_ended_total", &[]), 3);
    assert_eq!(whole(&metrics, "vramscope_exact", &[]), 1);
    assert_eq!(metrics.samples("vramscope_lost_events_total").len(), 9);
}

#[test]
fn unlisted_gpu_has_empty_labels() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    fixture.begin(1, 1, "p");
    fixture.apply(1, EventKind::Gpus([Some(GpuId(500))].into()));
    fixture.allocate(1, 0x1000, 9);
    let metrics = fixture.metrics();
    let sample = &metrics.samples("vramscope_process_live_bytes")[0];
    assert_eq!((&*sample.labels[0], &*sample.labels[1]), ("", ""));
    assert_eq!(sample.value, SampleValue::Whole(9));
}

#[test]
fn mig_instance_is_a_series_of_processes_that_have_one() {
    let limits = SeriesLimits { processes: 2, ..SeriesLimits::default() };
    let mut fixture = MetricsFixture::new(limits);
    for pid in 1..=4 {
        fixture.begin(pid, u64::from(pid), "p");
        fixture.allocate(pid, 0x1000, 10 - u64::from(pid));
    }
    assert!(fixture.metrics().samples("vramscope_process_mig_info").is_empty());
    // The first process has no instance, and the others have no series of their own.
    for pid in 2..=4 {
        let mig = MigInstance::new("MIG-2", "NVIDIA H200 MIG 1g.18gb");
        fixture.apply(pid, EventKind::MigInstance(mig.into()));
    }
    let metrics = fixture.metrics();
    let [only] = metrics.samples("vramscope_process_mig_info") else { panic!("{metrics:?}") };
    let labels: Vec<_> = only.labels.iter().map(|label| &**label).collect();
    assert_eq!(labels, ["2", "p", "p", "0", "", "", "", "MIG-2", "1g.18gb"]);
    assert_eq!(only.value, SampleValue::Whole(1));
    // All other series are those of a process without an instance.
    assert_eq!(metrics.samples("vramscope_process_live_bytes").len(), 3);
}

#[test]
fn calls_of_unknown_functions_are_counted_by_function() {
    let mut fixture = MetricsFixture::new(SeriesLimits::default());
    assert!(fixture.metrics().samples("vramscope_unknown_calls_total").is_empty());
    fixture.begin(1, 1, "p");
    for function in ["cuMemNew", "cuArrayNew", "cuMemNew"] {
        let function = function.into();
        fixture.apply(1, EventKind::UnknownCalls { function, calls: 2 });
    }
    let metrics = fixture.metrics();
    assert_eq!(whole(&metrics, "vramscope_unknown_calls_total", &["cuMemNew"]), 4);
    assert_eq!(whole(&metrics, "vramscope_unknown_calls_total", &["cuArrayNew"]), 2);
    assert_eq!(whole(&metrics, "vramscope_exact", &[]), 0);
}
