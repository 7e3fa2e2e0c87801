//! Verdicts and anomalies as text, compared with reviewed golden files. `VRAMSCOPE_UPDATE=1`
//! regenerates them.

use engine::model::blocks::Allocator;
use engine::model::cuda_object::ObjectKind;
use engine::model::ids::{AllocationKey, DeviceId, FunctionId, GpuId, Pid, ProcessKey, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::program::ProcessIdentity;
use engine::model::stack::{CallStack, Frame, Language, SiteName, site_name};
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::{DeviceView, GpuView, ProcessView, Snapshot, Undecided};
use engine::verdict::{Anomaly, AnomalyKind, Confidence, Evidence, Resource, SiteVerdict, Verdict};
use formats::WallClock;
use formats::export::{GpuLabel, ReportContext};
use formats::report::live::json;
use formats::report::live::text::overview::LastOptions;
use formats::report::live::text::{TextStyle, overview};
use formats::report::verdict::ratio_phrase;

const SECOND: u64 = 1_000_000_000;

fn context() -> ReportContext {
    ReportContext {
        function: |FunctionId(_)| "cuMemAlloc_v2",
        gpus: vec![GpuLabel {
            id: GpuId(0),
            uuid: "GPU-0".into(),
            name: "NVIDIA H2\x1b00".into(),
            total_bytes: 140 << 30,
        }],
        ..ReportContext::new(WallClock::fixed(Timestamp(0), 1_700_000_000))
    }
}

/// A process that leaks, on a GPU that it fills.
fn process() -> ProcessView {
    let device = DeviceView {
        device: Some(DeviceId(0)),
        live_bytes: Bytes(1200 << 20),
        peak_bytes: Bytes(1300 << 20),
        peak_bounds: None,
        gpu: Some(GpuId(0)),
        driver_bytes: Some(Bytes(2 << 30)),
        driver_traced: Some(Bytes(1200 << 20)),
        driver_unplaced: Bytes(0),
        graph_reserved: None,
    };
    ProcessView {
        key: ProcessKey { pid: Pid(4711), start: 1 },
        uid: Some(1000),
        name: "pyth\x1bon".into(),
        identity: ProcessIdentity {
            program: Some("train.py".into()),
            user: Some("an\x1bn".into()),
            ..ProcessIdentity::default()
        },
        before_trace: true,
        live_bytes: Bytes(1200 << 20),
        live_allocations: 120,
        devices: vec![device],
        growth_per_hour: Some(300 << 20),
        ..ProcessView::default()
    }
}

/// A line of Python with a name that would clear the screen.
fn stack() -> CallStack {
    let driver = Frame {
        function: "cuMemAlloc_v2".into(),
        module: Some("/usr/lib/libcuda.so.1".into()),
        ..Frame::default()
    };
    let python = Frame {
        function: "eval\x1b[2Juate".into(),
        file: Some("/srv/app/train.py".into()),
        line: 25,
        language: Language::Python,
        ..Frame::default()
    };
    [driver, python].into()
}

fn site_verdict(resource: Resource, verdict: Verdict, evidence: Evidence) -> SiteVerdict {
    SiteVerdict {
        pid: Some(Pid(4711)),
        process: "pyth\x1bon".into(),
        site: SiteName::Resolved(site_name(&stack())),
        frames: stack(),
        resource,
        device: resource.is_bytes().then_some(DeviceId(0)),
        thread: None,
        verdict,
        confidence: Confidence::Likely,
        evidence,
    }
}

fn growing() -> Evidence {
    Evidence {
        live: 1200 << 20,
        live_count: 120,
        window: Nanos(2 * SECOND),
        window_min: vec![0, 400 << 20, 800 << 20],
        peak: 1300 << 20,
        level: (700 << 20, 1300 << 20),
        returns: 4,
        steps: 15,
        growing_steps: 14,
        shrinking_steps: 1,
        growth_per_hour: 240 << 20,
        created: 150,
        freed: 30,
        observed: Nanos(31 * SECOND),
        median_age: Some(Nanos(15 * SECOND)),
        oldest: Some(Nanos(30 * SECOND)),
        mean_age: Nanos(16 * SECOND),
        mean_life: Some(Nanos(3_000_000)),
        median_life: Some(Nanos(2_000_000)),
        longest_life: Some(Nanos(SECOND)),
        overdue: 1100 << 20,
        time_to_verdict: None,
        freed_at_end: 0,
        is_freeing: false,
        sampling: None,
        time_until_full: Some(Nanos(11_520 * SECOND)),
        tensors: None,
        kept_by: None,
    }
}

fn never_freed() -> Evidence {
    Evidence {
        live: 340,
        live_count: 340,
        growth_per_hour: 40_000,
        created: 340,
        freed: 0,
        mean_life: None,
        median_life: None,
        longest_life: None,
        overdue: 0,
        time_until_full: None,
        ..growing()
    }
}

fn anomaly(details: AnomalyKind) -> Anomaly {
    Anomaly {
        at: Timestamp(9 * SECOND),
        pid: Pid(4711),
        process: "python".into(),
        tid: matches!(details, AnomalyKind::Size { .. }).then_some(Tid(4712)),
        thread: "load\ner".into(),
        site: SiteName::Resolved(site_name(&stack())),
        frames: stack(),
        device: Some(DeviceId(0)),
        kind: MemoryKind::Device,
        details,
    }
}

fn snapshot() -> Snapshot {
    let objects = site_verdict(Resource::Objects(ObjectKind::Stream), Verdict::Leak, never_freed());
    let tensors = site_verdict(Resource::Blocks(Allocator::PyTorch), Verdict::Leak, growing());
    let thread = Some((Tid(4713), "worker\x1b".into()));
    let other = |verdict| site_verdict(Resource::Memory(MemoryKind::Device), verdict, growing());
    let size = AnomalyKind::Size {
        key: AllocationKey::address(0x7f00_0000_0000),
        bytes: Bytes(2 << 30),
        baseline: Bytes(10 << 20),
        of: 1024,
        of_site: true,
        live: true,
    };
    let growth = AnomalyKind::Growth {
        bytes: Bytes(3 << 30),
        within: Nanos(2 * SECOND),
        baseline: Bytes(1 << 30),
    };
    Snapshot {
        at: Timestamp(60 * SECOND),
        observed: Nanos(60 * SECOND),
        is_live: true,
        processes: vec![process()],
        gpus: vec![GpuView {
            gpu: GpuId(0),
            free_bytes: Bytes(130 << 30),
            growth_per_hour: Some(52 << 30),
        }],
        suspects: vec![tensors, SiteVerdict { thread, ..objects }],
        suspects_total: 2,
        other_verdicts: Verdict::ALL.into_iter().skip(1).map(other).collect(),
        anomalies: vec![anomaly(size), anomaly(growth)],
        ..Snapshot::default()
    }
}

fn written(snapshot: &Snapshot, last: bool) -> String {
    let mut out = Vec::new();
    let style = TextStyle { last, width: 80, ..TextStyle::default() };
    let options = LastOptions { top: 10, leak: None, more: "vramscope report x.arrows --leak 1" };
    if last {
        assert!(overview::last(&mut out, snapshot, &context(), style, &options).unwrap());
    } else {
        overview::news(&mut out, snapshot, &context(), style).unwrap();
        overview::block(&mut out, snapshot, &context(), style).unwrap();
    }
    String::from_utf8(out).unwrap()
}

/// Returns the last report with one leak in full.
fn with_leak(number: usize, stack_depth: usize) -> (String, bool) {
    let mut out = Vec::new();
    let style = TextStyle { last: true, width: 80, stack_depth, ..TextStyle::default() };
    let options = LastOptions { top: 10, leak: Some(number), more: "" };
    let found = overview::last(&mut out, &snapshot(), &context(), style, &options).unwrap();
    (String::from_utf8(out).unwrap(), found)
}

fn compare(name: &str, found: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, expected, "{name}: VRAMSCOPE_UPDATE=1 regenerates it");
}

#[test]
fn final_report_ends_with_all_verdicts() {
    compare("verdicts.txt", &written(&snapshot(), true));
}

#[test]
fn interim_report_has_a_line_per_suspect() {
    compare("verdicts_on_the_way.txt", &written(&snapshot(), false));
}

#[test]
fn verdicts_json_matches_golden_file() {
    let line = json::line(&snapshot(), &context()).unwrap();
    let object: serde_json::Value = serde_json::from_str(&line).unwrap();
    let parts = ["gpus", "leaks", "suspects", "other_verdicts", "anomalies", "notes"]
        .map(|name| object[name].clone());
    compare("verdicts.json", &(serde_json::to_string_pretty(&parts).unwrap() + "\n"));
}

#[test]
fn names_are_escaped_in_verdicts() {
    for last in [false, true] {
        let text = written(&snapshot(), last);
        assert!(text.contains("\\u{1b}") && !text.contains('\x1b'), "{text}");
        assert!(!text.contains("load\ner"), "{text}");
    }
}

#[test]
fn lines_fit_the_width() {
    for last in [false, true] {
        let text = written(&Snapshot { anomalies: Vec::new(), ..snapshot() }, last);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}

#[test]
fn one_leak_can_be_shown_in_full() {
    let (text, found) = with_leak(1, 6);
    assert!(found);
    let details = text.split_once("\nLeak 1: ").unwrap().1;
    compare("leak.txt", &format!("Leak 1: {details}"));
    assert!(with_leak(1, 0).0.contains("    cuMemAlloc_v2 (libcuda.so.1)"));
    assert!(!with_leak(3, 6).1);
}

#[test]
fn trace_without_suspects_says_whether_it_is_too_early() {
    let none = Snapshot { suspects: Vec::new(), suspects_total: 0, ..snapshot() };
    let found = written(&none, true);
    assert!(found.starts_with("No leak found in 1 process.") && found.contains("\nANOMALY"));
    let none = Snapshot { anomalies: Vec::new(), ..none };
    let early = Snapshot { observed: Nanos(9 * SECOND), ..none.clone() };
    let found = written(&early, true);
    assert!(found.starts_with("Too early to tell: a verdict needs 21 s more."), "{found}");
    let in_one_line = |snapshot: &Snapshot| written(snapshot, false).replace('\n', " ");
    assert!(in_one_line(&early).contains("too early to tell, 21 s to go"));
    let growing = ProcessView {
        undecided: Some(Undecided { sites: 8, wait: Nanos(21 * SECOND) }),
        ..process()
    };
    let found = in_one_line(&Snapshot { processes: vec![growing], ..early });
    assert!(found.contains("8 sites grow, too early to tell if they leak, 21 s to go"), "{found}");
}

#[test]
fn ratio_to_a_zero_baseline_is_not_divided() {
    let ratio = |bytes, baseline| ratio_phrase(Bytes(bytes), Bytes(baseline));
    assert_eq!(ratio(2048, 10), "204x the baseline");
    assert_eq!(ratio(95, 10), "9.5x the baseline");
    assert_eq!(ratio(95, 0), "far above the baseline");
    assert_eq!(ratio(u64::MAX, u64::MAX), "1.0x the baseline");
}
