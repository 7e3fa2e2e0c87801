//! Metrics: a catalog that declares each once, and their values at a given time.
//!
//! Used by `/metrics`, alerts, the generated documentation and the exporters.

pub mod catalog;
mod collector;
pub mod label;

pub use collector::{
    AgentStats, CollectorInput, GpuInfo, MetricsCollector, OutcomeCounts, max_total_samples,
};
pub use label::label;

/// Declaration of a metric; all are in [`catalog`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Name, ending in its unit and, for counters, `_total`, as in Prometheus conventions.
    pub name: &'static str,
    /// Metric type.
    pub metric_type: MetricType,
    /// OpenMetrics unit; empty if missing.
    pub unit: &'static str,
    /// HELP text: one sentence without a full stop.
    pub help: &'static str,
    /// Label names.
    pub labels: &'static [&'static str],
    /// Limit of its samples.
    pub bound: Cardinality,
}

/// Metric type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricType {
    /// Goes up and down.
    Gauge,
    /// Only grows, until the agent restarts.
    Counter,
    /// Always 1; its labels contain the information.
    Info,
}

/// What limits the number of samples of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cardinality {
    /// One sample, or one for each of a few label values.
    Fixed(usize),
    /// One for each GPU of the host.
    Gpus,
    /// One for each process with its own series, and GPU; all others are merged into `other`.
    Processes,
    /// One for each container with its own series, and GPU; all others are merged into `other`.
    Containers,
    /// One for each site with its own series.
    Sites,
    /// One for each suspect with its own series.
    Suspects,
}

/// One sample of a metric.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Label values, in the order of [`Metric::labels`]: sanitized and truncated.
    pub labels: Vec<Box<str>>,
    /// The value.
    pub value: SampleValue,
}

/// Value of a sample. Bytes and counts are integers, so that they are not rounded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum SampleValue {
    /// An integer.
    Whole(u64),
    /// A floating-point number.
    Real(f64),
}

impl SampleValue {
    /// The value as `f64`.
    pub const fn as_f64(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }
}

/// A metric with its samples.
#[derive(Clone, PartialEq, Debug)]
pub struct MetricFamily {
    /// The metric.
    pub metric: &'static Metric,
    /// Samples; no two have the same labels.
    pub samples: Vec<Sample>,
}

/// All metrics with samples at a given time, in the order of the catalog.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MetricSet {
    /// The metrics.
    pub families: Vec<MetricFamily>,
}

impl MetricSet {
    /// Samples of a metric.
    pub fn samples(&self, name: &str) -> &[Sample] {
        let family = self.families.iter().find(|family| family.metric.name == name);
        family.map_or(&[], |family| &family.samples)
    }
}

/// Limits of processes, containers, sites and suspects with their own series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeriesLimits {
    /// Processes.
    pub processes: usize,
    /// Containers.
    pub containers: usize,
    /// Sites.
    pub sites: usize,
    /// Suspects.
    pub suspects: usize,
}

impl Default for SeriesLimits {
    fn default() -> Self {
        Self { processes: 64, containers: 64, sites: 64, suspects: 32 }
    }
}
