//! Alert rules, and their evaluation on one set of metrics.

use crate::metrics::{Metric, MetricSet, Sample};
use crate::model::named::named_enum;
use crate::model::{Nanos, Timestamp};

use super::series_history::SeriesHistory;

named_enum! {
    /// Severity of an alert.
    pub enum Severity {
        /// For information.
        Info => "info",
        /// Needs attention within hours.
        Warning => "warning",
        /// Needs attention now.
        Critical => "critical",
    }
}

/// Expression over the metric that is compared with the threshold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RuleExpr {
    /// The value.
    Value,
    /// The value divided by that of another metric with the same labels.
    ShareOf(&'static Metric),
    /// Increase of a counter within this window.
    Increase(Nanos),
    /// Growth of a gauge within this window; no value while the series is younger.
    Growth(Nanos),
}

/// Bound beyond which an alert is raised.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Threshold {
    /// Raised above this value.
    Above(f64),
    /// Raised below this value.
    Below(f64),
}

impl Threshold {
    /// The bound.
    pub const fn threshold_value(self) -> f64 {
        match self {
            Self::Above(number) | Self::Below(number) => number,
        }
    }

    /// Whether a value is beyond the bound, or within `slack` of it.
    pub fn is_crossed(self, value: f64, slack: f64) -> bool {
        match self {
            Self::Above(limit) => value > limit - slack,
            Self::Below(limit) => value < limit + slack,
        }
    }
}

/// An alert rule. Each set of labels is a separate alert.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Name, as in the configuration.
    pub name: &'static str,
    /// Severity of its alerts.
    pub severity: Severity,
    /// Metric it reads.
    pub metric: &'static Metric,
    /// Expression over that metric.
    pub expr: RuleExpr,
    /// Another metric with the same labels that must be at least this, if it has a value.
    pub at_least: Option<(&'static Metric, f64)>,
    /// Threshold.
    pub threshold: Threshold,
    /// Distance from the threshold, on the good side, that the value needs for the alert to
    /// resolve.
    pub slack: f64,
    /// How long the value must be beyond the threshold before the alert fires.
    pub hold: Nanos,
    /// One-sentence summary; labels, `value` and `threshold` in braces are replaced.
    pub summary: &'static str,
    /// Recommended action, one or two sentences.
    pub advice: &'static str,
}

/// Label value of the series that sums processes or containers beyond the series limit.
const OTHER: &str = "other";

/// Labels that depend on another label. Their values may become known late, so they do not identify
/// an alert.
const DEPENDENT_LABELS: &[(&str, &[&str])] = &[
    ("pid", &["process", "program", "user", "container", "pod", "namespace"]),
    ("gpu", &["uuid"]),
    ("site", &["location"]),
];

impl Rule {
    /// Alert name in Prometheus style: `VramscopeLeakSuspect`.
    pub fn alert_name(&self) -> String {
        let capital = |word: &str| {
            let mut letters = word.chars();
            letters.next().map_or_else(String::new, |first| {
                first.to_ascii_uppercase().to_string() + letters.as_str()
            })
        };
        let words = self.name.split('_').map(capital);
        std::iter::once("Vramscope".to_owned()).chain(words).collect()
    }

    /// Returns the samples with their values, whether or not these cross the threshold.
    pub(super) fn evaluate<'f>(
        &self,
        index: usize,
        metrics: &'f MetricSet,
        history: &mut SeriesHistory,
        now: Timestamp,
    ) -> Vec<(&'f Sample, f64)> {
        let samples = metrics.samples(self.metric.name).iter();
        let values = samples.filter_map(|sample| {
            let result = self.evaluate_sample(index, sample, metrics, history, now)?;
            result.is_finite().then_some((sample, result))
        });
        values.collect()
    }

    fn evaluate_sample(
        &self,
        index: usize,
        sample: &Sample,
        metrics: &MetricSet,
        history: &mut SeriesHistory,
        now: Timestamp,
    ) -> Option<f64> {
        let value = sample.value.as_f64();
        let result = match self.expr {
            RuleExpr::Value => value,
            RuleExpr::ShareOf(total) => {
                let total = same_labels(metrics, total, sample)?;
                (total > 0.0).then(|| value / total)?
            }
            // The members of `other` change, so its growth is meaningless.
            RuleExpr::Increase(_) | RuleExpr::Growth(_) if self.is_other(sample) => return None,
            RuleExpr::Increase(within) => {
                history.increase((index, self.identity(sample)), self.metric, value, within, now)?
            }
            RuleExpr::Growth(within) => {
                history.growth((index, self.identity(sample)), value, within, now)?
            }
        };
        let is_enough = self.at_least.is_none_or(|(metric, min)| {
            same_labels(metrics, metric, sample).is_none_or(|value| value >= min)
        });
        is_enough.then_some(result)
    }

    fn is_other(&self, sample: &Sample) -> bool {
        ["pid", "container"].iter().any(|name| self.label(sample, name) == Some(OTHER))
    }

    fn label<'s>(&self, sample: &'s Sample, name: &str) -> Option<&'s str> {
        let index = self.metric.labels.iter().position(|label| *label == name)?;
        sample.labels.get(index).map(AsRef::as_ref)
    }

    /// Labels that identify an alert.
    pub(super) fn identity(&self, sample: &Sample) -> Vec<Box<str>> {
        let labels = self.metric.labels;
        let is_dependent = |label: &str| {
            let entry = DEPENDENT_LABELS.iter().find(|(_, dependents)| dependents.contains(&label));
            entry.is_some_and(|(owner, _)| labels.contains(owner))
        };
        let pairs = labels.iter().zip(&sample.labels);
        pairs.filter(|(label, _)| !is_dependent(label)).map(|(_, value)| value.clone()).collect()
    }
}

/// Value of another metric with the same labels.
fn same_labels(metrics: &MetricSet, metric: &Metric, sample: &Sample) -> Option<f64> {
    let found = metrics.samples(metric.name).iter().find(|other| other.labels == sample.labels);
    found.map(|other| other.value.as_f64())
}
