//! Metrics as OpenMetrics text for Prometheus.

use std::fmt::Error;
use std::sync::Arc;

use engine::metrics::{Metric, MetricFamily, MetricSet, MetricType, Sample, SampleValue};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType as OpenMetricsType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::{Registry, Unit};

/// HTTP content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Encodes metrics as text, with the `# EOF` marker. Sample names are those of the catalog.
pub fn encode(metrics: Arc<MetricSet>) -> Result<String, Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricsCollector(metrics)));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct MetricsCollector(Arc<MetricSet>);

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        self.0.families.iter().try_for_each(|family| encode_family(&mut encoder, family))
    }
}

fn encode_family(encoder: &mut DescriptorEncoder<'_>, family: &MetricFamily) -> Result<(), Error> {
    let Metric { metric_type, help, labels, .. } = *family.metric;
    let (name, unit) = stem(family.metric);
    let unit = unit.map(|unit| Unit::Other(unit.to_owned()));
    let metric_type = match metric_type {
        MetricType::Gauge => OpenMetricsType::Gauge,
        MetricType::Counter => OpenMetricsType::Counter,
        MetricType::Info => OpenMetricsType::Info,
    };
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), metric_type)?;
    family.samples.iter().try_for_each(|sample| value(&mut metric, metric_type, labels, sample))
}

/// Returns the family name without the suffixes that the encoder adds, and the unit. OpenMetrics
/// requires that a unit is a suffix of the name, so any other unit is dropped.
fn stem(metric: &Metric) -> (&'static str, Option<&'static str>) {
    let suffix = match metric.metric_type {
        MetricType::Gauge => "",
        MetricType::Counter => "_total",
        MetricType::Info => "_info",
    };
    let name = metric.name.strip_suffix(suffix).unwrap_or(metric.name);
    let bare = name.strip_suffix(metric.unit).and_then(|bare| bare.strip_suffix('_'));
    match bare.filter(|_| !metric.unit.is_empty()) {
        Some(bare) => (bare, Some(metric.unit)),
        None => (name, None),
    }
}

fn value(
    metric: &mut MetricEncoder<'_>,
    metric_type: OpenMetricsType,
    names: &'static [&'static str],
    sample: &Sample,
) -> Result<(), Error> {
    let pairs = names.iter().copied().zip(sample.labels.iter().map(|label| &**label));
    let labels: Vec<(&str, &str)> = pairs.collect();
    if let OpenMetricsType::Info = metric_type {
        return metric.encode_info(&labels);
    }
    if labels.is_empty() {
        return number(metric, metric_type, sample.value);
    }
    let mut metric = metric.encode_family(&labels)?;
    number(&mut metric, metric_type, sample.value)
}

fn number(
    metric: &mut MetricEncoder<'_>,
    metric_type: OpenMetricsType,
    value: SampleValue,
) -> Result<(), Error> {
    let none: Option<&Exemplar<NoLabelSet, f64>> = None;
    match (metric_type, value) {
        (OpenMetricsType::Counter, SampleValue::Whole(integer)) => {
            metric.encode_counter(&integer, none)
        }
        (OpenMetricsType::Counter, SampleValue::Real(real)) => metric.encode_counter(&real, none),
        (_, SampleValue::Whole(integer)) => metric.encode_gauge(&integer),
        (_, SampleValue::Real(real)) => metric.encode_gauge(&real),
    }
}
