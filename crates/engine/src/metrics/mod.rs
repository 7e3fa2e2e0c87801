//! Figures for machines that watch: a catalogue that names each once, and their values at a moment.
//!
//! Metrics, alerts, the page of documentation and the exporters all read from here.

mod board;
pub mod catalogue;
pub mod label;

pub use board::{Board, Gpu, Input, Outcomes, Own, most};
pub use label::label;

/// What a metric is, declared once in [`catalogue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// Its name, with its unit and for counters `_total` at the end, as Prometheus wants it.
    pub name: &'static str,
    /// How it behaves.
    pub sort: Sort,
    /// The unit, as OpenMetrics calls it; empty where there is none.
    pub unit: &'static str,
    /// What it tells, in one sentence without a full stop.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What bounds the number of its samples.
    pub bound: Bound,
}

/// How a metric behaves over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    /// It goes up and down.
    Gauge,
    /// It only grows, until the agent starts anew.
    Counter,
    /// It is always 1; its labels tell something.
    Info,
}

/// What bounds the number of samples of a metric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// There is one, or one for each of a few words.
    Fixed(usize),
    /// One for each GPU of the host.
    Gpus,
    /// One for each process of the list, which is bounded, and GPU; the others fall into `other`.
    Processes,
    /// One for each container of the list, which is bounded, and GPU; the others fall into `other`.
    Containers,
    /// One for each site of the list, which is bounded.
    Sites,
    /// One for each suspect of the list, which is bounded.
    Suspects,
}

/// One value of a metric.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample {
    /// Values of the labels, in the order of [`Metric::labels`]: clean text, cut to a sane length.
    pub labels: Vec<Box<str>>,
    /// The value.
    pub value: Value,
}

/// A value. Bytes and counts are whole, so that nothing is rounded on the way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    /// A whole number.
    Whole(u64),
    /// Any number.
    Real(f64),
}

impl Value {
    /// As a number with a fraction, for those that compare.
    #[must_use]
    pub const fn real(self) -> f64 {
        match self {
            Self::Whole(whole) => whole as f64,
            Self::Real(real) => real,
        }
    }
}

/// A metric with its values.
#[derive(Clone, PartialEq, Debug)]
pub struct Family {
    /// Which.
    pub metric: &'static Metric,
    /// Its values; no two have the same labels.
    pub samples: Vec<Sample>,
}

/// Every metric that has a value, at one moment, in the order of the catalogue.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Figures {
    /// The metrics.
    pub families: Vec<Family>,
}

impl Figures {
    /// The values of a metric.
    #[must_use]
    pub fn of(&self, name: &str) -> &[Sample] {
        let family = self.families.iter().find(|family| family.metric.name == name);
        family.map_or(&[], |family| &family.samples)
    }
}

/// How many processes, containers, sites and suspects have samples of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Processes.
    pub processes: usize,
    /// Containers.
    pub containers: usize,
    /// Sites.
    pub sites: usize,
    /// Suspects.
    pub suspects: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { processes: 64, containers: 64, sites: 64, suspects: 32 }
    }
}
