//! Incidents and advice as text and JSON: one complete report, with hostile names.

use engine::advice::{AdviceInput, advise};
use engine::ledger::Ledger;
use engine::model::event::{Allocate, Event, EventKind, ProcessInfo, SiteFrames};
use engine::model::holder::DeviceFilter;
use engine::model::ids::{AllocationKey, DeviceId, GpuId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::Frame;
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::oom::{HostMemory, OomCause, OomContext, RequestedResource, diagnose};
use engine::snapshot::SnapshotOptions;
use formats::WallClock;
use formats::export::{GpuLabel, ReportContext};
use formats::recording::FunctionTable;
use formats::report::advice::{AdviceReport, GpuAdvice, StepJson};
use formats::report::incident;
use formats::report::incident::{
    FailedRequest, HolderGrowth, IncidentJson, IncidentReport, Requester, Trigger,
};
use formats::report::live::text::TextStyle;

const GIB: u64 = 1 << 30;
const EVIL: &str = "evil\x1b[2J\n<b>\u{202e}";

fn event(pid: u32, kind: EventKind) -> Event {
    let at = Timestamp(1_000_000_000);
    Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind }
}

/// Two processes on GPU 0 of 24 GiB; the second holds nearly all of it.
fn ledger() -> Ledger {
    let mut ledger = Ledger::new();
    ledger.apply(&event(0, EventKind::GpuFree { gpu: GpuId(0), bytes: GIB }));
    for (pid, bytes) in [(1, GIB), (2, 21 * GIB)] {
        let info = ProcessInfo { start: 1, uid: 1000, name: EVIL.into(), before_trace: false };
        ledger.apply(&event(pid, EventKind::Process(info)));
        ledger.apply(&event(pid, EventKind::Gpus([Some(GpuId(0))].into())));
        let (key, kind, device) =
            (AllocationKey::address(7), MemoryKind::Device, Some(DeviceId(0)));
        let (context, pool, stream, site) = (None, None, None, Some(SiteId(pid)));
        let new = Allocate { key, kind, bytes, context, device, pool, stream, site };
        ledger.apply(&event(pid, EventKind::Allocate(new)));
        let usage = EventKind::DriverUsage { gpu: GpuId(0), bytes: bytes + GIB / 2, only: false };
        ledger.apply(&event(pid, usage));
        let (function, file) = (format!("f{pid}{EVIL}").into(), Some("/srv/ann/x.py".into()));
        let frame = Frame { function, file, line: 7, ..Frame::default() };
        let outer = Frame { function: format!("main{EVIL}").into(), line: 9, ..frame.clone() };
        let site_frames = SiteFrames { site: SiteId(pid), frames: [frame, outer].into() };
        ledger.apply(&event(0, EventKind::Site(site_frames)));
    }
    ledger
}

/// Calls `check` with a complete incident report.
fn with_report(check: impl FnOnce(&IncidentReport<'_>)) {
    let mut ledger = ledger();
    let mut holders = ledger.holders(DeviceFilter::Gpu(GpuId(0)));
    ledger.resolve_holder_names(&mut holders, 10);
    let (site, frames) = ledger.site(Some(SiteId(1)));
    let snapshot = ledger.snapshot(Timestamp(1_150_000_000), &SnapshotOptions::default());
    let held: Vec<_> = holders.iter().map(|one| (one.key.pid, one.live_bytes)).collect();
    let requested = RequestedResource::Memory(MemoryKind::Device, Bytes(4 * GIB));
    let (gpu, device) = (Some(GpuId(0)), Some(DeviceId(0)));
    let diagnosis = diagnose(&OomContext {
        pid: Pid(1),
        requested,
        device,
        gpu,
        holders: &held,
        snapshot: &snapshot,
        total: Some(Bytes(24 * GIB)),
        host: HostMemory::default(),
        cached: None,
        hints: &[],
    });
    let steps = advise(&AdviceInput {
        snapshot: &snapshot,
        gpu,
        gpu_memory: Bytes(24 * GIB),
        only: &[],
        requester: Some(Pid(1)),
        cause: None,
        protected: &|_| false,
        idle: &|_| None,
    });
    let card =
        GpuLabel { id: GpuId(0), uuid: "GPU-0".into(), name: EVIL.into(), total_bytes: 24 * GIB };
    let clock = WallClock::fixed(Timestamp(0), 1_700_000_000);
    let recorded = FunctionTable::default();
    let context = ReportContext {
        clock,
        function: |_| "cuMemAlloc_v2",
        recorded,
        gpus: vec![card],
        source: None,
    };
    let advice = [GpuAdvice::new(gpu, &snapshot, &context, &steps)];
    let requester = Requester { pid: Pid(1), tid: Some(Tid(1)), name: EVIL.into() };
    let within = Nanos::from_millis(300_000);
    let grown = [HolderGrowth { pid: Pid(2), name: EVIL.into(), bytes: GIB as i64, within }];
    check(&IncidentReport {
        id: "2023-oom",
        trigger: Trigger::OutOfMemory,
        at: Timestamp(1_000_000_000),
        host: EVIL,
        requester: Some(&requester),
        limit: None,
        failed_request: Some(&FailedRequest {
            requested,
            function: "cuMemAlloc_v2".into(),
            site,
            frames,
            diagnosis,
        }),
        device,
        gpu,
        free_estimate: None,
        holders: &holders,
        grown: &grown,
        advice: &advice,
        snapshot: &snapshot,
        context: &context,
        errors: 3,
        recovered: true,
        skipped: 2,
        events: 9,
        page: "pending",
        write_delay: Nanos::from_millis(321),
    });
}

fn assert_clean(text: &str) {
    assert!(!text.contains('\x1b') && !text.contains('\u{202e}'), "{text}");
}

#[test]
fn incident_summary_has_all_sections() {
    with_report(|report| {
        let mut text = Vec::new();
        incident::write_text(&mut text, report).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_clean(&text);
        for phrase in [
            "out of memory on GPU 0: process 1 (evil\\u{1b}",
            "requested 4.00 GiB of device memory\n2023-11-14T22:13:21.000+00:00, host",
            "CAUSE: device_exhausted (certain)",
            "Failed 3 times",
            "(recovered)",
            "2 earlier failures",
            "CALL: cuMemAlloc_v2 on thread 1\n",
            "24.00 GiB  total",
            "1.00 GiB  free (last driver report)",
            "21.00 GiB in 1 allocation, 512.00 MiB untracked",
            "\n                  from mainevil\\u{1b}",
            "+1.00 GiB in",
            "1. reduce memory use of process 1",
            "2. stop process 2",
            "$ kill -TERM 2",
            "the last 9 events",
            "is from 150",
        ] {
            assert!(text.contains(phrase), "`{phrase}` is not in:\n{text}");
        }
        assert!(text.lines().count() < 70, "{text}");
    });
}

#[test]
fn incident_json_round_trips() {
    with_report(|report| {
        let object = IncidentJson::new(report);
        let text = serde_json::to_string(&object).unwrap();
        assert_clean(&text);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("incident.json");
        std::fs::write(&path, &text).unwrap();
        assert_eq!(incident::read(&path).unwrap(), object);
        let holders: Vec<_> = object
            .holders
            .iter()
            .map(|one| (one.pid, one.live_bytes, one.untracked_bytes))
            .collect();
        assert_eq!(holders, [(2, 21 * GIB, Some(GIB / 2)), (1, GIB, Some(GIB / 2))]);
        assert_eq!((object.written_after_ms, object.snapshot_after_ms), (321, 150));
        assert_eq!(
            (object.requested_bytes, object.requested_kind.as_deref()),
            (Some(4 * GIB), Some("device"))
        );
        assert_eq!(object.cause.unwrap().name, "device_exhausted");
        std::fs::write(&path, "{}").unwrap();
        assert!(incident::read(&path).is_err());
    });
}

#[test]
fn needed_memory_is_evaluated_step_by_step() {
    with_report(|report| {
        let mut gpu = report.advice[0].clone();
        // 1 GiB is free, and terminating process 2 frees 21.5 GiB.
        for (need, safely, steps) in
            [(GIB, true, Some(0)), (2 * GIB, false, Some(2)), (23 * GIB, false, None)]
        {
            gpu.evaluate_need(Bytes(need));
            let found = gpu.need.unwrap();
            assert_eq!((found.without_data_loss, found.steps), (safely, steps), "{need}");
        }
        let mut text = Vec::new();
        let advice = AdviceReport { gpus: vec![gpu], ..AdviceReport::default() };
        formats::report::advice::write(&mut text, &advice, TextStyle::default()).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_clean(&text);
        assert!(text.contains("23.00 GiB cannot be freed even with all steps."), "{text}");
    });
}

#[test]
fn memory_of_a_process_is_counted_once() {
    let step = |action: &str, pid, bytes: u64, safe| StepJson {
        action: action.into(),
        pid,
        freed_bytes: bytes * GIB,
        safe,
        ..StepJson::default()
    };
    let steps = vec![
        step("empty_cache", 1, 6, true),
        step("trim_pool", 2, 1, true),
        step("restart_leaking", 1, 9, false),
        step("stop", 1, 10, false),
        step("stop", 2, 3, false),
    ];
    let (free_bytes, total_bytes) = (Some(4 * GIB), Some(17 * GIB));
    let mut gpu = GpuAdvice { free_bytes, total_bytes, steps, ..GpuAdvice::default() };
    // 4 GiB are free; 10 with the cache, 11 with the pool; 14 and 15 with the termination of one
    // process, which includes its cache; and 17 with both, which is everything.
    for (need, safely, steps) in [
        (4, true, Some(0)),
        (10, true, Some(1)),
        (11, true, Some(2)),
        (12, false, Some(3)),
        (14, false, Some(3)),
        (15, false, Some(4)),
        (16, false, Some(5)),
        (17, false, Some(5)),
        (18, false, None),
    ] {
        gpu.evaluate_need(Bytes(need * GIB));
        let found = gpu.need.unwrap();
        assert_eq!((found.without_data_loss, found.steps), (safely, steps), "{need}");
    }
    // The driver report may be slightly older than the steps: never more than the total.
    gpu.free_bytes = Some(16 * GIB);
    gpu.evaluate_need(Bytes(18 * GIB));
    assert_eq!(gpu.need.unwrap().steps, None);
}

#[test]
fn steps_with_little_effect_are_not_listed() {
    let step = |action: &str, pid, bytes: u64| StepJson {
        action: action.into(),
        pid,
        freed_bytes: bytes,
        ..StepJson::default()
    };
    let mut restart = step("restart_leaking", 1, 9 * GIB);
    restart.alternatives = vec![step("stop", 1, 10 * GIB), step("empty_cache", 1, GIB / 100)];
    let steps = vec![restart, step("empty_cache", 2, GIB / 100)];
    let total_bytes = Some(80 * GIB);
    let gpu = GpuAdvice { gpu: Some(0), total_bytes, steps, ..GpuAdvice::default() };
    let advice = AdviceReport { gpus: vec![gpu], ..AdviceReport::default() };
    let mut text = Vec::new();
    formats::report::advice::write(&mut text, &advice, TextStyle::default()).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("\n     or stop it: about 10.00 GiB\n"), "{text}");
    assert!(text.contains("… 1 more with less effect"), "{text}");
    assert!(!text.contains("empty PyTorch's cache"), "{text}");
}

fn text_of(report: &IncidentReport<'_>) -> String {
    let mut text = Vec::new();
    incident::write_text(&mut text, report).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn title_names_the_gpu_only_if_it_is_the_cause() {
    with_report(|report| {
        for (cause, begins) in [
            (OomCause::DeviceExhausted, "out of memory on GPU 0: process 1"),
            (OomCause::CacheFragmentation, "out of memory on GPU 0: process 1"),
            (OomCause::RequestExceedsDevice, "request larger than GPU 0: process 1"),
            (
                OomCause::Quota,
                "allocation denied on GPU 0 although memory is free (quota): process 1",
            ),
            (OomCause::HostMemoryExhausted, "host memory exhausted: process 1"),
            (OomCause::AddressSpaceExhausted, "address space exhausted: process 1"),
        ] {
            let mut failed_request = report.failed_request.unwrap().clone();
            failed_request.diagnosis.cause = cause;
            let report = IncidentReport { failed_request: Some(&failed_request), ..*report };
            let headline = IncidentJson::new(&report).title;
            assert!(headline.starts_with(begins), "{headline}");
            assert!(text_of(&report).starts_with(&headline));
        }
    });
}

#[test]
fn untraced_process_is_listed_as_holder() {
    with_report(|report| {
        let mut holders = report.holders.to_vec();
        (holders[0].live_bytes, holders[0].live_allocations) = (Bytes(0), 0);
        let text = text_of(&IncidentReport { holders: &holders, ..*report });
        assert!(text.contains("512.00 MiB reported by the driver, not traced"), "{text}");
    });
}

#[test]
fn directories_can_be_redacted() {
    with_report(|report| {
        assert!(text_of(report).contains("/srv/ann/x.py"));
        let mut text = Vec::new();
        incident::write_redacted(&mut text, report).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("x.py") && !text.contains("/srv"), "{text}");
        let lines = |text: &str| text.lines().count();
        assert_eq!(lines(&text), lines(&text_of(report)));
    });
}

#[test]
fn threshold_incident_has_no_error_and_correct_plurals() {
    with_report(|report| {
        let (at, free_estimate) = (report.snapshot.at, Some(Bytes(3 * GIB)));
        let trigger = Trigger::Threshold;
        let text = text_of(&IncidentReport {
            trigger,
            at,
            failed_request: None,
            free_estimate,
            ..*report
        });
        assert!(text.contains("snapshot.json is from the same moment;"), "{text}");
        assert!(text.contains("3.00 GiB  free at that time (estimated)"), "{text}");
        let text = text_of(&IncidentReport { skipped: 1, ..*report });
        assert!(text.contains("1 earlier failure of this process was suppressed."), "{text}");
        let many: Vec<_> = std::iter::repeat_n(report.holders[0].clone(), 11).collect();
        let text = text_of(&IncidentReport { holders: &many, ..*report });
        assert!(text.contains("… 1 more process (incident.json"), "{text}");
    });
}
