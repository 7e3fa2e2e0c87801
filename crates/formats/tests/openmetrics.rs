//! Metrics as text: the official parser reads the same values, and hostile programs never cause
//! more series than the documented limit.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use engine::ledger::Ledger;
use engine::metrics::{
    AgentStats, CollectorInput, GpuInfo, MetricSet, MetricType, MetricsCollector, SeriesLimits,
    max_total_samples,
};
use engine::model::event::{
    Allocate, Event, EventKind, Free, FreeFunction, ProcessInfo, SiteFrames,
};
use engine::model::ids::{AllocationKey, DeviceId, GpuId, Pid, SiteId, Tid};
use engine::model::memory_kind::MemoryKind;
use engine::model::stack::Frame;
use engine::model::units::{Bytes, Timestamp};
use engine::snapshot::SnapshotOptions;
use formats::export::openmetrics;
use formats::report::verdict::short_location;

/// A sample as returned by the parser.
type Parsed = (String, BTreeMap<String, String>, f64);

/// Parses text with the parser of the Prometheus Python library.
fn parse(text: &str) -> Vec<Parsed> {
    const SCRIPT: &str = r"
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
text = sys.stdin.buffer.read().decode('utf-8')
families = list(text_string_to_metric_families(text))
json.dump([[s.name, s.labels, s.value] for f in families for s in f.samples], sys.stdout)
";
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python/bin/python");
    assert!(python.exists(), "{} not found: run tools/python-env", python.display());
    let mut child = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the parser rejects:\n{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Converts metrics to the parser's form.
fn samples(metrics: &MetricSet) -> Vec<Parsed> {
    let mut all = Vec::new();
    for family in &metrics.families {
        for sample in &family.samples {
            let names = family.metric.labels.iter().map(|name| (*name).to_owned());
            let labels = names.zip(sample.labels.iter().map(|label| label.to_string())).collect();
            all.push((family.metric.name.to_owned(), labels, sample.value.as_f64()));
        }
    }
    all
}

fn gpus() -> Vec<GpuInfo> {
    let gpu = |id: u16| GpuInfo {
        id: GpuId(id),
        uuid: format!("GPU-{id}").into(),
        name: "A \"GPU\"".into(),
        total: Bytes(1 << 40),
    };
    (0..8).map(gpu).collect()
}

struct Host {
    ledger: Ledger,
    collector: MetricsCollector,
    limits: SeriesLimits,
    at: u64,
}

impl Host {
    fn new(limits: SeriesLimits) -> Self {
        let ledger = Ledger::new().with_activity();
        Self { ledger, collector: MetricsCollector::new(limits), limits, at: 0 }
    }

    fn apply(&mut self, pid: u32, kind: EventKind) {
        self.at += 100_000;
        let at = Timestamp(self.at);
        self.ledger.apply(&Event { pid: Pid(pid), tid: Tid(pid), entry_time: at, time: at, kind });
    }

    fn begin(&mut self, pid: u32, name: &str) {
        let info =
            ProcessInfo { start: u64::from(pid), uid: 0, name: name.into(), before_trace: false };
        self.apply(pid, EventKind::Process(info));
        self.apply(pid, EventKind::Gpus((0..8).map(|id| Some(GpuId(id))).collect()));
    }

    fn allocate(&mut self, pid: u32, address: u64, site: u32) {
        let allocate = Allocate {
            key: AllocationKey::address(address),
            kind: if address.is_multiple_of(5) { MemoryKind::Pinned } else { MemoryKind::Device },
            bytes: 512,
            context: None,
            device: Some(DeviceId((address % 9) as u16)),
            pool: None,
            stream: None,
            site: Some(SiteId(site)),
        };
        self.apply(pid, EventKind::Allocate(allocate));
    }

    fn metrics(&mut self) -> MetricSet {
        self.at += 1_000_000_000;
        let view = SnapshotOptions { top_sites: 200, ..SnapshotOptions::DEFAULT };
        let snapshot = self.ledger.snapshot(Timestamp(self.at), &view);
        self.collector.observe(&CollectorInput {
            snapshot: &snapshot,
            gpus: &gpus(),
            agent: &AgentStats { version: "1.0".into(), ..AgentStats::default() },
            location: short_location,
        })
    }
}

/// Names that try to break out of their quotes or line, or to exhaust memory.
fn hostile(number: u32) -> String {
    match number % 8 {
        0 => format!("a\"}} 1\nvramscope_fake{{x=\"{number}"),
        1 => format!("\x1b]0;{number}\x07\x1b[2J"),
        2 => format!("{number}{}", "long ".repeat(900)),
        3 => format!("back\\slash\\\"{number}\\"),
        4 => format!("\u{202e}evil\u{2066}{number}\0"),
        5 => format!("# EOF\n{number}\r\n"),
        6 => String::new(),
        _ => format!("训练 {number} {{le=\"+Inf\"}}"),
    }
}

type Series = BTreeMap<(&'static str, Vec<Box<str>>), f64>;

/// Returns every sample by name and labels, which are unique, and counters separately.
fn series(metrics: &MetricSet) -> (usize, Series) {
    let mut all = BTreeSet::new();
    let mut counters = Series::new();
    for family in &metrics.families {
        for sample in &family.samples {
            let name = (family.metric.name, sample.labels.clone());
            assert!(all.insert(name.clone()), "{name:?} is listed twice");
            assert!(sample.labels.iter().all(|label| label.chars().count() <= 120), "{name:?}");
            if family.metric.metric_type == MetricType::Counter {
                counters.insert(name, sample.value.as_f64());
            }
        }
    }
    (all.len(), counters)
}

/// 5,000 short processes with 20 addresses each, a hundred at a time, and one long-lived process.
#[test]
fn series_stay_under_the_limit_and_counters_only_grow() {
    const PROCESSES: u32 = 5000;
    const ADDRESSES: u64 = 20;
    let limits = SeriesLimits::default();
    let limit = max_total_samples(&limits, 8);
    assert!(limit < 10_000, "{limit}");
    let mut host = Host::new(limits);
    let mut before = Series::new();
    let mut greatest = 0;
    host.begin(1, "stays");
    for number in 0..PROCESSES {
        let pid = 1000 + number;
        host.begin(pid, &hostile(number));
        for nth in 0..ADDRESSES {
            let address = (u64::from(number) * ADDRESSES + nth + 1) << 9;
            host.allocate(pid, address, number);
            if nth.is_multiple_of(3) {
                let free = Free {
                    key: AllocationKey::address(address),
                    by: FreeFunction::Free,
                    stream: None,
                };
                host.apply(pid, EventKind::Free(free));
            }
        }
        host.allocate(1, (u64::from(number) + 1) << 40, number % 300);
        let frame = Frame {
            function: hostile(number).into(),
            file: Some(format!("/srv/{}/x.py", hostile(number / 2)).into()),
            line: number,
            ..Frame::default()
        };
        host.apply(
            pid,
            EventKind::Site(SiteFrames { site: SiteId(number), frames: [frame].into() }),
        );
        if number >= 100 {
            host.apply(pid - 100, EventKind::Exit);
        }
        if number % 50 == 49 {
            let metrics = host.metrics();
            let (count, counters) = series(&metrics);
            assert!(count <= limit, "{count} series, more than {limit}");
            greatest = greatest.max(count);
            for (name, value) in &counters {
                let earlier = before.get(name).copied().unwrap_or(0.0);
                assert!(*value >= earlier, "{name:?} went from {earlier} to {value}");
            }
            if number % 1000 == 999 {
                let text = openmetrics::encode(Arc::new(metrics.clone())).unwrap();
                assert_eq!(parse(&text), samples(&metrics));
            }
            before = counters;
        }
    }
    // All series slots were used, or the test would prove nothing.
    assert!(greatest > 64 * 16, "{greatest}");
    let allocations = before[&("vramscope_allocations_total", Vec::new())];
    assert_eq!(allocations, f64::from(PROCESSES) * (ADDRESSES + 1) as f64);
    assert_eq!(host.limits, SeriesLimits::default());
}

#[test]
fn text_is_valid_openmetrics() {
    let mut host = Host::new(SeriesLimits { processes: 1, containers: 1, sites: 1, suspects: 1 });
    host.begin(7, "say \"hi\"\\\n");
    host.allocate(7, 0x1000 * 9, 1);
    let text = openmetrics::encode(Arc::new(host.metrics())).unwrap();
    for part in [
        "# HELP vramscope_build Version of the agent\n# TYPE vramscope_build info\n\
         vramscope_build_info{version=\"1.0\"} 1\n",
        "# TYPE vramscope_allocations counter\nvramscope_allocations_total 1\n",
        "# TYPE vramscope_not_freed_bytes counter\n# UNIT vramscope_not_freed_bytes bytes\n\
         vramscope_not_freed_bytes_total 0\n",
        "# TYPE vramscope_process_live_bytes gauge\n# UNIT vramscope_process_live_bytes bytes\n\
         vramscope_process_live_bytes{gpu=\"0\",uuid=\"GPU-0\",pid=\"7\",\
         process=\"say \\\"hi\\\"\\\\?\",\
         program=\"say \\\"hi\\\"\\\\?\",user=\"0\",container=\"\",pod=\"\",namespace=\"\"} 512\n",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    assert_eq!(text.matches("# EOF").count(), 1);
}

#[test]
fn parser_reads_the_exported_values() {
    let mut host = Host::new(SeriesLimits::default());
    host.begin(7, "python3");
    host.allocate(7, 0x1000 * 9, 1);
    let metrics = host.metrics();
    let text = openmetrics::encode(Arc::new(metrics.clone())).unwrap();
    assert_eq!(parse(&text), samples(&metrics));
}
