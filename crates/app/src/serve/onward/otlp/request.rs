//! Figures of a moment as one request.

use std::collections::BTreeMap;

use engine::container::Container;
use engine::metrics::{Family, Figures, Sample, Value, catalogue};
use engine::snapshot::Snapshot;
use engine::units::Moment;
use formats::WallClock;
use formats::export::Names;
use formats::plain::plain;

use super::mapping::{Form, LABELS, Row, UTILIZATION, row};
use super::proto::{
    CUMULATIVE, Data, Gauge, KeyValue, Metric, Number, Point, Request, Resource, ResourceMetrics,
    Scope, ScopeMetrics, Sum,
};

/// Who makes GPUs that have the driver we trace.
const VENDOR: &str = "NVIDIA";

/// Who tells: attributes by their names. Those of the settings come in the place of ours.
pub(super) fn resource(host: &str, settings: &BTreeMap<String, String>) -> Vec<KeyValue> {
    let mut all: BTreeMap<&str, &str> = BTreeMap::from([
        ("service.name", "vramscope"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", host),
        ("host.name", host),
    ]);
    all.extend(settings.iter().map(|(name, text)| (&**name, &**text)));
    all.into_iter().map(|(name, text)| KeyValue::text(name, text)).collect()
}

/// The request. Sums count from the beginning of the trace.
pub(super) fn request(
    resource: Vec<KeyValue>,
    figures: &Figures,
    snapshot: &Snapshot,
    names: &Names,
) -> Request {
    let known = Known { snapshot, names };
    let times = Times::new(&names.clock, snapshot.at);
    let mut metrics: Vec<Metric> =
        figures.families.iter().filter_map(|family| metric(family, times, known)).collect();
    metrics.extend(utilization(figures, times, known));
    let scope = Scope { name: "vramscope".into(), version: env!("CARGO_PKG_VERSION").into() };
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics }];
    let resource = Some(Resource { attributes: resource });
    Request { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] }
}

/// When, in nanoseconds of the Unix clock.
#[derive(Clone, Copy)]
struct Times {
    start: u64,
    now: u64,
}

impl Times {
    fn new(clock: &WallClock, at: Moment) -> Self {
        let nanos = |moment| u64::try_from(clock.nanos(moment)).unwrap_or(0);
        Self { start: nanos(clock.start()), now: nanos(at) }
    }
}

fn metric(family: &Family, times: Times, known: Known<'_>) -> Option<Metric> {
    let row = row(family.metric)?;
    let start = if matches!(row.form, Form::Count | Form::Level) { times.start } else { 0 };
    let points = family.samples.iter().filter_map(|sample| {
        let attributes = attributes(family.metric.labels, sample, row, known);
        Some(point(number(sample.value)?, attributes, start, times.now))
    });
    let data_points: Vec<Point> = points.collect();
    if data_points.is_empty() {
        return None;
    }
    let data = match row.form {
        Form::Gauge => Data::Gauge(Gauge { data_points }),
        Form::Count | Form::Level => Data::Sum(Sum {
            data_points,
            aggregation_temporality: CUMULATIVE,
            is_monotonic: row.form == Form::Count,
        }),
        Form::Attributes => return None,
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

/// Whole numbers stay whole. What is no number is left out.
fn number(value: Value) -> Option<Number> {
    match value {
        Value::Whole(whole) => {
            Some(i64::try_from(whole).map_or(Number::Real(whole as f64), Number::Whole))
        }
        Value::Real(real) => real.is_finite().then_some(Number::Real(real)),
    }
}

/// What the labels of a sample become; empty ones are left out.
fn attributes(
    labels: &[&'static str],
    sample: &Sample,
    row: &Row,
    known: Known<'_>,
) -> Vec<KeyValue> {
    let mut all = Vec::new();
    let of = |wanted: &str| {
        let place = labels.iter().position(|label| *label == wanted)?;
        sample.labels.get(place).map(|text| &**text).filter(|text| !text.is_empty())
    };
    let container = of("container").and_then(|label| known.container(label, of("pod")));
    let told = labels.iter().zip(&sample.labels).filter(|(_, text)| !text.is_empty());
    for (label, text) in told {
        match *label {
            "gpu" => all.push(KeyValue::text("hw.name", &format!("gpu{text}"))),
            // The rest of the list has no number.
            "pid" => all.extend(text.parse().ok().map(|pid| KeyValue::whole("process.pid", pid))),
            "container" | "pod" | "namespace" if container.is_some() => {}
            label => all.push(KeyValue::text(&attribute(label), text)),
        }
    }
    all.extend(container.into_iter().flat_map(of_container));
    let Some(gpu) = of("gpu") else { return all };
    if of("uuid").is_none() {
        all.push(KeyValue::text("hw.id", gpu));
    }
    all.push(KeyValue::text("hw.type", "gpu"));
    if row.name.starts_with("hw.") {
        all.push(KeyValue::text("hw.vendor", VENDOR));
        let model = known.names.gpus.iter().find(|known| known.id.0.to_string() == gpu);
        all.extend(model.map(|model| KeyValue::text("hw.model", &plain(&model.name))));
    }
    all
}

/// What labels leave out.
#[derive(Clone, Copy)]
struct Known<'a> {
    snapshot: &'a Snapshot,
    names: &'a Names,
}

impl<'a> Known<'a> {
    /// The container that labels are of. They have names where those are known, and the beginning of
    /// an id otherwise.
    fn container(&self, label: &str, pod: Option<&str>) -> Option<&'a Container> {
        let all = self.snapshot.processes.iter().filter_map(|process| process.container.as_deref());
        all.into_iter().find(|container| {
            let of = container.pod.as_ref();
            let name = of.and_then(|of| of.container.as_deref());
            let is_it = name.map_or_else(|| container.id.starts_with(label), |name| name == label);
            is_it && of.map(|of| of.name.as_deref().unwrap_or(&of.uid)) == pod
        })
    }
}

fn of_container(container: &Container) -> Vec<KeyValue> {
    let pod = container.pod.as_ref();
    let told = [
        ("container.id", Some(&*container.id)),
        ("container.runtime", Some(container.runtime.name())),
        ("k8s.container.name", pod.and_then(|pod| pod.container.as_deref())),
        ("k8s.pod.uid", pod.map(|pod| &*pod.uid)),
        ("k8s.pod.name", pod.and_then(|pod| pod.name.as_deref())),
        ("k8s.namespace.name", pod.and_then(|pod| pod.namespace.as_deref())),
    ];
    let text = |(key, text): (&str, Option<&str>)| Some(KeyValue::text(key, &plain(text?)));
    told.into_iter().filter_map(text).collect()
}

fn attribute(label: &str) -> String {
    let known = LABELS.iter().find(|(known, _)| *known == label);
    known.map_or_else(|| format!("vramscope.{label}"), |(_, attribute)| (*attribute).to_owned())
}

/// The used part of the memory of each GPU.
fn utilization(figures: &Figures, times: Times, known: Known<'_>) -> Option<Metric> {
    let row = row(&catalogue::GPU_USED)?;
    let totals = figures.of(catalogue::GPU_TOTAL.name);
    let points = figures.of(catalogue::GPU_USED.name).iter().filter_map(|used| {
        let total = totals.iter().find(|total| total.labels == used.labels)?.value.real();
        let part = used.value.real() / total;
        let attributes = attributes(catalogue::GPU_USED.labels, used, row, known);
        part.is_finite().then(|| point(Number::Real(part), attributes, 0, times.now))
    });
    let data_points: Vec<Point> = points.collect();
    (!data_points.is_empty()).then(|| Metric {
        name: UTILIZATION.into(),
        description: "Used share of GPU memory".into(),
        unit: "1".into(),
        data: Some(Data::Gauge(Gauge { data_points })),
    })
}
