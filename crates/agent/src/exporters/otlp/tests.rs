//! Requests from synthetic metrics.

use std::collections::BTreeMap;

use engine::ledger::Ledger;
use engine::metrics::{MetricFamily, MetricSet, Sample, SampleValue, catalog};
use engine::model::{
    Container, ContainerRuntime, Event, EventKind, GpuId, MigInstance, Pid, Pod, ProcessInfo, Tid,
    Timestamp,
};
use engine::snapshot::{Snapshot, SnapshotOptions};
use formats::WallClock;
use formats::export::{GpuLabel, ReportContext};
use prost::Message;

use super::proto::{Any, Data, KeyValue, Metric, Number, Point, Request};
use super::request::{request, resource};
use super::{compressed, rejected};

fn report_context() -> ReportContext {
    let clock = WallClock::fixed(Timestamp(1_000), 1_700_000_000);
    let (uuid, name) = ("GPU-1".to_owned(), "NVIDIA H200".to_owned());
    let gpus = vec![GpuLabel { id: GpuId(0), uuid, name, total_bytes: 1000 }];
    ReportContext { gpus, ..ReportContext::new(clock) }
}

fn sample(labels: &[&str], value: SampleValue) -> Sample {
    Sample { labels: labels.iter().map(|label| (*label).into()).collect(), value }
}

fn metric_set() -> MetricSet {
    let gpu = ["0", "GPU-1"];
    let one = ["0", "GPU-1", "47", "train", "train.py", "ann", "main", "pod-1", "team"];
    let other = ["0", "GPU-1", "other", "other", "", "", "main", "pod-2", ""];
    let family = |metric, samples| MetricFamily { metric, samples };
    MetricSet {
        families: vec![
            family(&catalog::BUILD, vec![sample(&["1.0"], SampleValue::Whole(1))]),
            family(&catalog::OWN_CPU, vec![sample(&[], SampleValue::Real(1.5))]),
            family(&catalog::EVENTS, vec![sample(&[], SampleValue::Whole(u64::MAX))]),
            family(&catalog::GPU_TOTAL, vec![sample(&gpu, SampleValue::Whole(1000))]),
            family(&catalog::GPU_USED, vec![sample(&gpu, SampleValue::Whole(250))]),
            family(
                &catalog::LIVE,
                vec![sample(&one, SampleValue::Whole(7)), sample(&other, SampleValue::Whole(5))],
            ),
            family(&catalog::SUSPECT_GROWTH, vec![sample(&[""; 12], SampleValue::Real(f64::NAN))]),
        ],
    }
}

/// A process in a pod, whose names are in labels.
fn snapshot() -> Snapshot {
    let mut ledger = Ledger::new();
    let info = ProcessInfo { start: 1, uid: 0, name: "train".into(), before_trace: false };
    let (at, kind) = (Timestamp(2_000), EventKind::Process(info));
    ledger.apply(&Event { pid: Pid(47), tid: Tid(47), entry_time: at, time: at, kind });
    let mut snapshot = ledger.snapshot(Timestamp(5_000), &SnapshotOptions::DEFAULT);
    let pod = Pod {
        uid: "u-1".into(),
        name: Some("pod-1".into()),
        namespace: Some("team".into()),
        container: Some("main".into()),
    };
    let (id, runtime) = ("c0ffee00".into(), ContainerRuntime::Containerd);
    let container = Container { id, runtime, pod: Some(pod), container_pid: None };
    snapshot.processes[0].container = Some(container.into());
    let mig = MigInstance { uuid: "MIG-1".into(), profile: "1g.10gb".into() };
    snapshot.processes[0].mig = Some(mig.into());
    snapshot
}

fn sent() -> Request {
    let config = BTreeMap::from([("deployment.environment.name".to_owned(), "lab".to_owned())]);
    request(resource("node", &config), &metric_set(), &snapshot(), &report_context())
}

fn texts(attributes: &[KeyValue]) -> Vec<String> {
    let text = |attribute: &KeyValue| {
        let value = match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
            Any::Text(text) => text.clone(),
            Any::Int(number) => format!("#{number}"),
        };
        format!("{}={value}", attribute.key)
    };
    let mut texts: Vec<_> = attributes.iter().map(text).collect();
    texts.sort();
    texts
}

fn metrics() -> Vec<Metric> {
    sent().resource_metrics.remove(0).scope_metrics.remove(0).metrics
}

fn points(name: &str) -> Vec<Point> {
    let metric = metrics().into_iter().find(|metric| metric.name == name).unwrap();
    match metric.data.unwrap() {
        Data::Gauge(gauge) => gauge.data_points,
        Data::Sum(sum) => {
            assert_eq!(sum.aggregation_temporality, 2);
            assert_eq!(sum.is_monotonic, !name.starts_with("hw."), "{name}");
            sum.data_points
        }
    }
}

#[test]
fn names_and_resource_follow_the_conventions() {
    let names: Vec<_> = metrics().into_iter().map(|metric| (metric.name, metric.unit)).collect();
    let expected = [
        ("process.cpu.time", "s"),
        ("vramscope.events", "{event}"),
        ("hw.gpu.memory.limit", "By"),
        ("hw.gpu.memory.usage", "By"),
        ("vramscope.process.live", "By"),
        ("hw.gpu.memory.utilization", "1"),
    ];
    assert_eq!(names, expected.map(|(name, unit)| (name.to_owned(), unit.to_owned())));
    let resource = sent().resource_metrics.remove(0).resource.unwrap();
    let version = concat!("service.version=", env!("CARGO_PKG_VERSION"));
    let expected = [
        "deployment.environment.name=lab",
        "host.name=node",
        "service.instance.id=node",
        "service.name=vramscope",
        version,
    ];
    assert_eq!(texts(&resource.attributes), expected);
}

#[test]
fn labels_become_attributes() {
    let [one, other] = points("vramscope.process.live").try_into().unwrap();
    assert_eq!(one.value, Some(Number::Int(7)));
    let expected = [
        "container.id=c0ffee00",
        "container.runtime=containerd",
        "hw.id=GPU-1",
        "hw.name=gpu0",
        "hw.type=gpu",
        "k8s.container.name=main",
        "k8s.namespace.name=team",
        "k8s.pod.name=pod-1",
        "k8s.pod.uid=u-1",
        "process.executable.name=train",
        "process.owner=ann",
        "process.pid=#47",
        "vramscope.mig=MIG-1",
        "vramscope.mig_profile=1g.10gb",
        "vramscope.program=train.py",
    ];
    assert_eq!(texts(&one.attributes), expected);
    let expected = [
        "container.name=main",
        "hw.id=GPU-1",
        "hw.name=gpu0",
        "hw.type=gpu",
        "k8s.pod.name=pod-2",
        "process.executable.name=other",
    ];
    assert_eq!(texts(&other.attributes), expected);
    let [gpu] = points("hw.gpu.memory.usage").try_into().unwrap();
    let expected =
        ["hw.id=GPU-1", "hw.model=NVIDIA H200", "hw.name=gpu0", "hw.type=gpu", "hw.vendor=NVIDIA"];
    assert_eq!(texts(&gpu.attributes), expected);
    let [ratio] = points("hw.gpu.memory.utilization").try_into().unwrap();
    assert_eq!(ratio.value, Some(Number::Double(0.25)));
}

#[test]
fn sums_have_a_start_and_large_numbers_are_doubles() {
    let [cpu] = points("process.cpu.time").try_into().unwrap();
    let start = 1_700_000_000_000_000_000;
    assert_eq!((cpu.start_time_unix_nano, cpu.time_unix_nano), (start, start + 4_000));
    let [events] = points("vramscope.events").try_into().unwrap();
    assert_eq!(events.value, Some(Number::Double(u64::MAX as f64)));
    let live = points("vramscope.process.live");
    assert_eq!(live[0].start_time_unix_nano, 0);
}

#[test]
fn rejected_data_points_are_reported() {
    assert_eq!(rejected(&[]), None);
    assert_eq!(rejected(b"\xff\xff no message"), None);
    let partial =
        super::proto::PartialSuccess { rejected_data_points: 3, error_message: "too old".into() };
    let response = super::proto::Response { partial_success: Some(partial) }.encode_to_vec();
    assert_eq!(rejected(&response).as_deref(), Some("3 data points rejected: too old"));
}

#[test]
fn compressed_bytes_are_gzip() {
    let bytes = compressed(b"abc").unwrap();
    assert_eq!(bytes[..3], [0x1f, 0x8b, 8]);
    let mut out = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*bytes), &mut out).unwrap();
    assert_eq!(out, b"abc");
}
