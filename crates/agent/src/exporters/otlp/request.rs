//! Metrics of one snapshot as an export request.

use std::collections::BTreeMap;

use engine::metrics::{MetricFamily, MetricSet, Sample, SampleValue, catalog};
use engine::model::{Container, Pid, Timestamp};
use engine::snapshot::Snapshot;
use formats::WallClock;
use formats::export::ReportContext;
use formats::sanitize::sanitize;

use super::mapping::{LABEL_MAPPINGS, OtlpKind, Row, UTILIZATION, row};
use super::proto::{
    CUMULATIVE, Data, Gauge, KeyValue, Metric, Number, Point, Request, Resource, ResourceMetrics,
    Scope, ScopeMetrics, Sum,
};

/// Vendor of the traced GPUs.
const VENDOR: &str = "NVIDIA";

/// Returns the resource attributes by name. Those of the configuration override the defaults.
pub(super) fn resource(host: &str, config: &BTreeMap<String, String>) -> Vec<KeyValue> {
    let mut all: BTreeMap<&str, &str> = BTreeMap::from([
        ("service.name", "vramscope"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", host),
        ("host.name", host),
    ]);
    all.extend(config.iter().map(|(name, text)| (&**name, &**text)));
    all.into_iter().map(|(name, text)| KeyValue::text(name, text)).collect()
}

/// Returns the request. Sums count from the start of the trace.
pub(super) fn request(
    resource: Vec<KeyValue>,
    set: &MetricSet,
    snapshot: &Snapshot,
    context: &ReportContext,
) -> Request {
    let known = ResolvedAttributes { snapshot, context };
    let times = Timestamps::new(&context.clock, snapshot.at);
    let mut metrics: Vec<Metric> =
        set.families.iter().filter_map(|family| metric(family, times, known)).collect();
    metrics.extend(utilization(set, times, known));
    let scope = Scope { name: "vramscope".into(), version: env!("CARGO_PKG_VERSION").into() };
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics }];
    let resource = Some(Resource { attributes: resource });
    Request { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] }
}

/// Timestamps in nanoseconds of the Unix clock.
#[derive(Clone, Copy)]
struct Timestamps {
    start: u64,
    now: u64,
}

impl Timestamps {
    fn new(clock: &WallClock, at: Timestamp) -> Self {
        let nanos = |time| u64::try_from(clock.nanos(time)).unwrap_or(0);
        Self { start: nanos(clock.start()), now: nanos(at) }
    }
}

fn metric(
    family: &MetricFamily,
    times: Timestamps,
    known: ResolvedAttributes<'_>,
) -> Option<Metric> {
    let row = row(family.metric)?;
    let start = if matches!(row.form, OtlpKind::Count | OtlpKind::Level) { times.start } else { 0 };
    let points = family.samples.iter().filter_map(|sample| {
        let attributes = attributes(family.metric.labels, sample, row, known);
        Some(point(number(sample.value)?, attributes, start, times.now))
    });
    let data_points: Vec<Point> = points.collect();
    if data_points.is_empty() {
        return None;
    }
    let data = match row.form {
        OtlpKind::Gauge => Data::Gauge(Gauge { data_points }),
        OtlpKind::Count | OtlpKind::Level => Data::Sum(Sum {
            data_points,
            aggregation_temporality: CUMULATIVE,
            is_monotonic: row.form == OtlpKind::Count,
        }),
        OtlpKind::Attributes => return None,
    };
    Some(Metric {
        name: row.name.into(),
        description: family.metric.help.into(),
        unit: row.unit.into(),
        data: Some(data),
    })
}

const fn point(value: Number, attributes: Vec<KeyValue>, start: u64, now: u64) -> Point {
    let (start_time_unix_nano, time_unix_nano) = (start, now);
    Point { start_time_unix_nano, time_unix_nano, attributes, value: Some(value) }
}

/// Integers stay integers. Values that are not finite are skipped.
fn number(value: SampleValue) -> Option<Number> {
    match value {
        SampleValue::Whole(number) => {
            Some(i64::try_from(number).map_or(Number::Double(number as f64), Number::Int))
        }
        SampleValue::Real(number) => number.is_finite().then_some(Number::Double(number)),
    }
}

/// Converts the labels of a sample to attributes; empty ones are skipped.
fn attributes(
    labels: &[&'static str],
    sample: &Sample,
    row: &Row,
    known: ResolvedAttributes<'_>,
) -> Vec<KeyValue> {
    let mut all = Vec::new();
    let value = |name: &str| {
        let index = labels.iter().position(|label| *label == name)?;
        sample.labels.get(index).map(|text| &**text).filter(|text| !text.is_empty())
    };
    let container = value("container").and_then(|label| known.container(label, value("pod")));
    let present = labels.iter().zip(&sample.labels).filter(|(_, text)| !text.is_empty());
    for (label, text) in present {
        match *label {
            "gpu" => all.push(KeyValue::text("hw.name", &format!("gpu{text}"))),
            // The row for all other processes has no pid.
            "pid" => {
                all.extend(text.parse().ok().map(|pid| KeyValue::int("process.pid", pid)));
                all.extend(known.mig(text));
            }
            "container" | "pod" | "namespace" if container.is_some() => {}
            label => all.push(KeyValue::text(&attribute(label), text)),
        }
    }
    all.extend(container.into_iter().flat_map(container_attributes));
    let Some(gpu) = value("gpu") else { return all };
    if value("uuid").is_none() {
        all.push(KeyValue::text("hw.id", gpu));
    }
    all.push(KeyValue::text("hw.type", "gpu"));
    if row.name.starts_with("hw.") {
        all.push(KeyValue::text("hw.vendor", VENDOR));
        let model = known.context.gpus.iter().find(|known| known.id.0.to_string() == gpu);
        all.extend(model.map(|model| KeyValue::text("hw.model", &sanitize(&model.name))));
    }
    all
}

/// Context for attributes that labels do not contain.
#[derive(Clone, Copy)]
struct ResolvedAttributes<'a> {
    snapshot: &'a Snapshot,
    context: &'a ReportContext,
}

impl<'a> ResolvedAttributes<'a> {
    /// Returns the MIG instance of a process.
    fn mig(&self, pid: &str) -> impl Iterator<Item = KeyValue> {
        let pid = pid.parse().ok().map(Pid);
        let process = self.snapshot.running().find(|process| Some(process.key.pid) == pid);
        let mig = process.and_then(|process| process.mig.as_deref());
        mig.into_iter().flat_map(|mig| {
            [("vramscope.mig", &mig.uuid), ("vramscope.mig_profile", &mig.profile)]
                .map(|(key, text)| KeyValue::text(key, &sanitize(text)))
        })
    }

    /// Returns the container of the labels, which have its name if known, or the beginning of its
    /// id.
    fn container(&self, label: &str, pod: Option<&str>) -> Option<&'a Container> {
        let all = self.snapshot.processes.iter().filter_map(|process| process.container.as_deref());
        all.into_iter().find(|container| {
            let info = container.pod.as_ref();
            let name = info.and_then(|info| info.container.as_deref());
            let same = name.map_or_else(|| container.id.starts_with(label), |name| name == label);
            same && info.map(|info| info.name.as_deref().unwrap_or(&info.uid)) == pod
        })
    }
}

fn container_attributes(container: &Container) -> Vec<KeyValue> {
    let pod = container.pod.as_ref();
    let attributes = [
        ("container.id", Some(&*container.id)),
        ("container.runtime", Some(container.runtime.name())),
        ("k8s.container.name", pod.and_then(|pod| pod.container.as_deref())),
        ("k8s.pod.uid", pod.map(|pod| &*pod.uid)),
        ("k8s.pod.name", pod.and_then(|pod| pod.name.as_deref())),
        ("k8s.namespace.name", pod.and_then(|pod| pod.namespace.as_deref())),
    ];
    let text = |(key, text): (&str, Option<&str>)| Some(KeyValue::text(key, &sanitize(text?)));
    attributes.into_iter().filter_map(text).collect()
}

fn attribute(label: &str) -> String {
    let known = LABEL_MAPPINGS.iter().find(|(known, _)| *known == label);
    known.map_or_else(|| format!("vramscope.{label}"), |(_, attribute)| (*attribute).to_owned())
}

/// Returns the used share of each GPU's memory.
fn utilization(
    set: &MetricSet,
    times: Timestamps,
    known: ResolvedAttributes<'_>,
) -> Option<Metric> {
    let row = row(&catalog::GPU_USED)?;
    let totals = set.samples(catalog::GPU_TOTAL.name);
    let points = set.samples(catalog::GPU_USED.name).iter().filter_map(|used| {
        let total = totals.iter().find(|total| total.labels == used.labels)?.value.as_f64();
        let ratio = used.value.as_f64() / total;
        let attributes = attributes(catalog::GPU_USED.labels, used, row, known);
        ratio.is_finite().then(|| point(Number::Double(ratio), attributes, 0, times.now))
    });
    let data_points: Vec<Point> = points.collect();
    (!data_points.is_empty()).then(|| Metric {
        name: UTILIZATION.into(),
        description: "Used share of GPU memory".into(),
        unit: "1".into(),
        data: Some(Data::Gauge(Gauge { data_points })),
    })
}
