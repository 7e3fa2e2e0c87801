//! Verdicts and anomalies as text, compared with reviewed golden files. `VRAMSCOPE_UPDATE=1`
//! regenerates them.

use std::sync::Arc;

use engine::model::cuda_object::ObjectKind;
use engine::model::ids::{AllocationKey, DeviceId, FunctionId, Pid, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::{Frame, Language, SiteName, site_name};
use engine::model::units::{Bytes, Nanos, Timestamp};
use engine::snapshot::Snapshot;
use engine::verdict::{Anomaly, AnomalyKind, Confidence, Evidence, Resource, SiteVerdict, Verdict};
use formats::WallClock;
use formats::export::ReportContext;
use formats::report::live::text::TextStyle;
use formats::report::live::{json, text};
use formats::report::verdict;
use formats::report::verdict::ratio_phrase;

const SECOND: u64 = 1_000_000_000;

fn context() -> ReportContext {
    ReportContext {
        source: None,
        clock: WallClock::fixed(Timestamp(0), 1_700_000_000),
        function: |FunctionId(_)| "cuMemAlloc_v2",
        recorded: formats::recording::FunctionTable::default(),
        gpus: Vec::new(),
    }
}

/// A line of Python with a name that would clear the screen.
fn stack() -> Arc<[Frame]> {
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
        time_until_full: Some(Nanos(11_520 * SECOND)),
        tensors: None,
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
    let tensors = site_verdict(Resource::Tensors, Verdict::Leak, growing());
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
        at: Timestamp(10 * SECOND),
        suspects: vec![tensors, SiteVerdict { thread, ..objects }],
        suspects_total: 2,
        other_verdicts: Verdict::ALL.into_iter().skip(1).map(other).collect(),
        anomalies: vec![anomaly(size), anomaly(growth)],
        ..Snapshot::default()
    }
}

fn written(snapshot: &Snapshot, last: bool) -> String {
    let mut out = Vec::new();
    text::report(&mut out, snapshot, &context(), TextStyle { last, ..TextStyle::default() })
        .unwrap();
    String::from_utf8(out).unwrap()
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
    let parts = ["suspects", "other_verdicts", "anomalies"].map(|name| object[name].clone());
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
fn no_suspects_are_reported_as_none() {
    let none = Snapshot { suspects: Vec::new(), suspects_total: 0, ..snapshot() };
    assert!(written(&none, true).contains("NO LEAK SUSPECTS (too early to judge 2 of"));
    let open = [Verdict::NotEnoughData, Verdict::RampUp];
    let settled = none.other_verdicts.iter().filter(|one| !open.contains(&one.verdict));
    let settled = Snapshot { other_verdicts: settled.cloned().collect(), ..none.clone() };
    assert!(written(&settled, true).contains("NO LEAK SUSPECTS\n"));
    assert!(!written(&settled, false).contains("SUSPECT"));
}

#[test]
fn advice_matches_the_leaking_resource() {
    let of = |resource, evidence| verdict::advice(resource, &evidence, &[]);
    assert!(of(Resource::Tensors, growing()).contains(".item()"));
    assert!(of(Resource::Memory(MemoryKind::Pinned), growing()).contains("skips cudaFreeHost"));
    assert!(of(Resource::Memory(MemoryKind::Async), never_freed()).contains("call cudaFreeAsync"));
    assert!(of(Resource::Objects(ObjectKind::Event), never_freed()).contains("cudaEventDestroy"));
    let through = Frame { module: Some("/lib/libc10_cuda.so".into()), ..Frame::default() };
    let cache = verdict::advice(Resource::Memory(MemoryKind::Device), &growing(), &[&through]);
    assert!(cache.contains("--torch"));
}

#[test]
fn ratio_to_a_zero_baseline_is_not_divided() {
    let ratio = |bytes, baseline| ratio_phrase(Bytes(bytes), Bytes(baseline));
    assert_eq!(ratio(2048, 10), "204x the baseline");
    assert_eq!(ratio(95, 10), "9.5x the baseline");
    assert_eq!(ratio(95, 0), "far above the baseline");
    assert_eq!(ratio(u64::MAX, u64::MAX), "1.0x the baseline");
}
