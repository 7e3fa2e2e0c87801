//! What a rule says, and what it sees in the figures of one moment.

use crate::metrics::{Figures, Metric, Sample};
use crate::units::Nanos;

use super::history::History;
use crate::units::Moment;

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// Worth knowing.
    Info,
    /// Somebody should look at it in the next hours.
    Warning,
    /// Somebody should look at it now.
    Critical,
}

impl Severity {
    /// Every severity, the mildest first.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Critical];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// Which figure is made of the values of the metric.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Measure {
    /// The value itself.
    Value,
    /// The value as a share of another metric's, of the same labels.
    ShareOf(&'static Metric),
    /// By how much a counter grew in the last time of this length.
    Increase(Nanos),
    /// By how much a gauge grew in the last time of this length; nothing while it is younger.
    Growth(Nanos),
}

/// When it is too much, or too little.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// More than this.
    Above(f64),
    /// Less than this.
    Below(f64),
}

impl Limit {
    /// The number of it.
    #[must_use]
    pub const fn number(self) -> f64 {
        match self {
            Self::Above(number) | Self::Below(number) => number,
        }
    }

    /// Whether a value is beyond it, or less than `slack` away from that.
    #[must_use]
    pub fn is_crossed(self, value: f64, slack: f64) -> bool {
        match self {
            Self::Above(limit) => value > limit - slack,
            Self::Below(limit) => value < limit + slack,
        }
    }
}

/// A rule. One alert for each set of labels.
#[derive(Clone, PartialEq, Debug)]
pub struct Rule {
    /// Its name, as the settings have it.
    pub name: Box<str>,
    /// Whether it came with the agent; else somebody wrote it.
    pub is_builtin: bool,
    /// How bad it is.
    pub severity: Severity,
    /// What it looks at.
    pub metric: &'static Metric,
    /// Which figure of that.
    pub measure: Measure,
    /// Labels that samples must have.
    pub matching: Vec<(Box<str>, Box<str>)>,
    /// Another metric of the same labels that must be at least this, where it has a value.
    pub at_least: Option<(&'static Metric, f64)>,
    /// The limit.
    pub limit: Limit,
    /// How far the figure must be back from the limit for the alert to end.
    pub slack: f64,
    /// How long it must be beyond the limit.
    pub hold: Nanos,
    /// What is the matter, in a sentence: labels, `value` and `threshold` in braces are filled in.
    pub summary: Box<str>,
    /// What to do, in a sentence or two.
    pub advice: Box<str>,
}

/// Where processes and containers beyond the bound of a list are added up.
const OTHER: &str = "other";

/// Labels that belong to another label: they may become known late, and do not tell alerts apart.
const BELONGS: &[(&str, &[&str])] = &[
    ("pid", &["process", "container", "pod", "namespace"]),
    ("gpu", &["uuid"]),
    ("site", &["location"]),
];

impl Rule {
    /// The name in the form that alerts of Prometheus have: `VramscopeLeakSuspect`. Names that people
    /// gave stay as they are.
    #[must_use]
    pub fn alert_name(&self) -> String {
        if !self.is_builtin {
            return self.name.to_string();
        }
        let capital = |word: &str| {
            let mut letters = word.chars();
            letters.next().map_or_else(String::new, |first| {
                first.to_ascii_uppercase().to_string() + letters.as_str()
            })
        };
        let words = self.name.split('_').map(capital);
        std::iter::once("Vramscope".to_owned()).chain(words).collect()
    }

    /// What it sees: samples with their figure, whether that is beyond the limit or not.
    pub(super) fn look<'f>(
        &self,
        index: usize,
        figures: &'f Figures,
        history: &mut History,
        now: Moment,
    ) -> Vec<(&'f Sample, f64)> {
        let samples = figures.of(self.metric.name).iter();
        let matching = samples.filter(|sample| self.matches(sample));
        let measured = matching.filter_map(|sample| {
            let figure = self.measure(index, sample, figures, history, now)?;
            figure.is_finite().then_some((sample, figure))
        });
        measured.collect()
    }

    fn measure(
        &self,
        index: usize,
        sample: &Sample,
        figures: &Figures,
        history: &mut History,
        now: Moment,
    ) -> Option<f64> {
        let value = sample.value.real();
        let figure = match self.measure {
            Measure::Value => value,
            Measure::ShareOf(whole) => {
                let whole = same_labels(figures, whole, sample)?;
                (whole > 0.0).then(|| value / whole)?
            }
            // Who is in there changes, so that a growth of it says nothing.
            Measure::Increase(_) | Measure::Growth(_) if self.is_of_others(sample) => return None,
            Measure::Increase(within) => {
                history.increase((index, self.identity(sample)), self.metric, value, within, now)?
            }
            Measure::Growth(within) => {
                history.growth((index, self.identity(sample)), value, within, now)?
            }
        };
        let is_enough = self.at_least.is_none_or(|(metric, least)| {
            same_labels(figures, metric, sample).is_none_or(|value| value >= least)
        });
        is_enough.then_some(figure)
    }

    fn matches(&self, sample: &Sample) -> bool {
        self.matching.iter().all(|(name, wanted)| self.label(sample, name) == Some(wanted))
    }

    fn is_of_others(&self, sample: &Sample) -> bool {
        ["pid", "container"].iter().any(|name| self.label(sample, name) == Some(OTHER))
    }

    fn label<'s>(&self, sample: &'s Sample, name: &str) -> Option<&'s str> {
        let at = self.metric.labels.iter().position(|label| *label == name)?;
        sample.labels.get(at).map(AsRef::as_ref)
    }

    /// The labels that tell alerts apart.
    pub(super) fn identity(&self, sample: &Sample) -> Vec<Box<str>> {
        let labels = self.metric.labels;
        let belongs = |label: &str| {
            let to = BELONGS.iter().find(|(_, those)| those.contains(&label));
            to.is_some_and(|(owner, _)| labels.contains(owner))
        };
        let pairs = labels.iter().zip(&sample.labels);
        pairs.filter(|(label, _)| !belongs(label)).map(|(_, value)| value.clone()).collect()
    }
}

/// The value of another metric of the same labels.
fn same_labels(figures: &Figures, metric: &Metric, sample: &Sample) -> Option<f64> {
    let found = figures.of(metric.name).iter().find(|other| other.labels == sample.labels);
    found.map(|other| other.value.real())
}
