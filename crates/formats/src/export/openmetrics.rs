//! Figures as OpenMetrics text, which Prometheus reads.

use std::fmt::Error;
use std::sync::Arc;

use engine::metrics::{Family, Figures, Metric, Sample, Sort, Value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

/// What the text is, for HTTP.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Figures as text, with its end. The names of samples are those of the catalogue.
pub fn encode(figures: Arc<Figures>) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Told(figures)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Told(Arc<Figures>);

impl Collector for Told {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.0.families.iter().try_for_each(|family| one(&mut encoder, family))
    }
}

fn one(encoder: &mut DescriptorEncoder<'_>, family: &Family) -> Result<(), Error> {
    let Metric { sort, help, labels, .. } = *family.metric;
    let (name, unit) = stem(family.metric);
    let unit = unit.map(|unit| Unit::Other(unit.to_owned()));
    let sort = match sort {
        Sort::Gauge => MetricType::Gauge,
        Sort::Counter => MetricType::Counter,
        Sort::Info => MetricType::Info,
    };
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), sort)?;
    family.samples.iter().try_for_each(|sample| value(&mut metric, sort, labels, sample))
}

/// The name of the family without what the format itself adds, and the unit. A unit that is not the
/// end of the name is not one to the format.
fn stem(metric: &Metric) -> (&'static str, Option<&'static str>) {
    let end = match metric.sort {
        Sort::Gauge => "",
        Sort::Counter => "_total",
        Sort::Info => "_info",
    };
    let name = metric.name.strip_suffix(end).unwrap_or(metric.name);
    let bare = name.strip_suffix(metric.unit).and_then(|bare| bare.strip_suffix('_'));
    match bare.filter(|_| !metric.unit.is_empty()) {
        Some(bare) => (bare, Some(metric.unit)),
        None => (name, None),
    }
}

fn value(
    metric: &mut MetricEncoder<'_>,
    sort: MetricType,
    names: &'static [&'static str],
    sample: &Sample,
) -> Result<(), Error> {
    let pairs = names.iter().copied().zip(sample.labels.iter().map(|label| &**label));
    let labels: Vec<(&str, &str)> = pairs.collect();
    if let MetricType::Info = sort {
        return metric.encode_info(&labels);
    }
    if labels.is_empty() {
        return number(metric, sort, sample.value);
    }
    let mut metric = metric.encode_family(&labels)?;
    number(&mut metric, sort, sample.value)
}

fn number(metric: &mut MetricEncoder<'_>, sort: MetricType, value: Value) -> Result<(), Error> {
    let none: Option<&Exemplar<NoLabelSet, f64>> = None;
    match (sort, value) {
        (MetricType::Counter, Value::Whole(whole)) => metric.encode_counter(&whole, none),
        (MetricType::Counter, Value::Real(real)) => metric.encode_counter(&real, none),
        (_, Value::Whole(whole)) => metric.encode_gauge(&whole),
        (_, Value::Real(real)) => metric.encode_gauge(&real),
    }
}
