//! `[[alerts.rule]]`: custom rules.

use std::collections::BTreeMap;

use engine::alert::{Rule, RuleExpr, Severity, Threshold, placeholders};
use engine::metrics::{Metric, MetricType, catalog};
use engine::model::units::Nanos;
use formats::sanitize::sanitize;
use serde::Deserialize;

use crate::parse_units;
use crate::serve::config::DurationValue;

/// `[[alerts.rule]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CustomRuleConfig {
    pub(super) name: String,
    metric: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    above: Option<ThresholdNumber>,
    below: Option<ThresholdNumber>,
    /// Compares the growth of the metric within this time, not its value.
    window: Option<DurationValue>,
    #[serde(rename = "for")]
    hold: Option<DurationValue>,
    #[serde(default = "warning")]
    severity: SeverityName,
    summary: Option<String>,
    #[serde(default)]
    advice: String,
}

/// A number, or a size or duration with a unit; the unit of the metric decides which.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum ThresholdNumber {
    Plain(f64),
    Text(String),
}

/// Severity of an alert.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SeverityName {
    Info,
    Warning,
    Critical,
}

const fn warning() -> SeverityName {
    SeverityName::Warning
}

impl SeverityName {
    pub(crate) const fn severity(self) -> Severity {
        match self {
            Self::Info => Severity::Info,
            Self::Warning => Severity::Warning,
            Self::Critical => Severity::Critical,
        }
    }
}

/// Maximum length of a rule name.
const MAX_RULE_NAME_LEN: usize = 64;

impl CustomRuleConfig {
    /// Returns the rule, or all of its problems.
    pub(super) fn compile(&self) -> Result<Rule, Vec<String>> {
        let mut errors = Vec::new();
        let is_name_char = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if self.name.is_empty()
            || self.name.len() > MAX_RULE_NAME_LEN
            || !self.name.chars().all(is_name_char)
        {
            errors.push(format!(
                "the name must be up to {MAX_RULE_NAME_LEN} letters, digits, `_` and `-`"
            ));
        }
        let metric = self.metric();
        let rule = metric.and_then(|metric| self.build(metric, &mut errors));
        let rule = rule.map_err(|reason| errors.push(reason)).ok();
        let section = format!("[[alerts.rule]] {}", sanitize(&self.name));
        let errors: Vec<_> = errors.iter().map(|reason| format!("{section}: {reason}")).collect();
        rule.filter(|_| errors.is_empty()).ok_or(errors)
    }

    fn metric(&self) -> Result<&'static Metric, String> {
        let known = catalog::ALL.iter().find(|metric| metric.name == self.metric);
        known.copied().ok_or_else(|| {
            let nearest = nearest(&self.metric, catalog::ALL.iter().map(|metric| metric.name));
            let hint = nearest.map_or_else(
                || "docs/reference/metrics.md lists all of them".into(),
                |nearest| format!("did you mean `{nearest}`?"),
            );
            format!("unknown metric `{}`; {hint}", sanitize(&self.metric))
        })
    }

    fn build(&self, metric: &'static Metric, errors: &mut Vec<String>) -> Result<Rule, String> {
        let labels = metric.labels.join(", ");
        let no_label = |name: &str| match labels.as_str() {
            "" => format!("`{}` has no label `{}`: it has none", metric.name, sanitize(name)),
            _ => format!("`{}` has no label `{}`; it has {labels}", metric.name, sanitize(name)),
        };
        for name in self.labels.keys().filter(|name| !metric.labels.contains(&name.as_str())) {
            errors.push(no_label(name));
        }
        let summary = self.summary.clone().unwrap_or_else(|| self.default_summary(metric));
        for name in placeholders(&summary).chain(placeholders(&self.advice)) {
            if !metric.labels.contains(&name) && !["value", "threshold"].contains(&name) {
                errors.push(format!("{{{}}} is unknown: {}", sanitize(name), no_label(name)));
            }
        }
        Ok(Rule {
            name: self.name.as_str().into(),
            is_builtin: false,
            severity: self.severity.severity(),
            metric,
            expr: self.rule_expr(metric)?,
            matching: self
                .labels
                .iter()
                .map(|(k, v)| (k.as_str().into(), v.as_str().into()))
                .collect(),
            at_least: None,
            threshold: self.limit(metric)?,
            slack: 0.0,
            hold: self.hold.map_or(Nanos(0), DurationValue::nanos),
            summary: summary.into(),
            advice: self.advice.as_str().into(),
        })
    }

    fn rule_expr(&self, metric: &Metric) -> Result<RuleExpr, String> {
        match (metric.metric_type, self.window.map(DurationValue::nanos)) {
            (_, Some(window)) if window < Nanos::from_millis(1000) => {
                Err("`window` must be at least \"1s\"".into())
            }
            (MetricType::Counter, Some(window)) => Ok(RuleExpr::Increase(window)),
            (MetricType::Counter, None) => {
                Err(format!("`{}` is a counter; set window, such as window = \"10m\"", metric.name))
            }
            (MetricType::Gauge, Some(window)) => Ok(RuleExpr::Growth(window)),
            (MetricType::Gauge, None) => Ok(RuleExpr::Value),
            (MetricType::Info, _) => {
                Err(format!("`{}` is always 1; choose another one", metric.name))
            }
        }
    }

    /// Summary of a rule that has none.
    fn default_summary(&self, metric: &Metric) -> String {
        let labels: String =
            metric.labels.iter().map(|label| format!(" {label}={{{label}}}")).collect();
        let than = if self.below.is_some() { "less" } else { "more" };
        let change = match self.window {
            Some(window) => format!("grew by {{value}} in {}", span(window)),
            None => "is {value}".to_owned(),
        };
        format!("{} {change}, {than} than {{threshold}}:{labels}", metric.name)
            .trim_end_matches(':')
            .to_owned()
    }

    fn limit(&self, metric: &Metric) -> Result<Threshold, String> {
        match (&self.above, &self.below) {
            (Some(above), None) => above.value_for(metric).map(Threshold::Above),
            (None, Some(below)) => below.value_for(metric).map(Threshold::Below),
            _ => Err("set exactly one of `above` and `below`".into()),
        }
    }
}

impl ThresholdNumber {
    fn value_for(&self, metric: &Metric) -> Result<f64, String> {
        match self {
            Self::Plain(number) if number.is_finite() => Ok(*number),
            Self::Plain(_) => Err("the threshold is not a number".into()),
            Self::Text(text) => match metric.unit {
                "bytes" => parse_units::size(text).map(|bytes| bytes.0 as f64),
                "seconds" => parse_units::time(text).map(|time| time.as_secs_f64()),
                _ => Err(format!("`{}` takes a number without quotes", metric.name)),
            },
        }
    }
}

/// Formats a duration in the largest unit that divides it.
fn span(span: DurationValue) -> String {
    let millis = span.0.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let unit_of = units.into_iter().find(|(unit, _)| millis.is_multiple_of(*unit));
    unit_of.map_or_else(|| format!("{millis}ms"), |(unit, name)| format!("{}{name}", millis / unit))
}

/// Returns the most similar name, if at most a third of it differs.
fn nearest<'n>(input: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // Longer input is not a typo; this also bounds the running time.
    if input.len() > 100 {
        return None;
    }
    let near = names.map(|name| (distance(input, name), name)).min()?;
    (near.0 <= near.1.len() / 3).then_some(near.1)
}

/// Returns the edit distance: characters to replace, insert or delete.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (line, a) in one.chars().enumerate() {
        let mut diagonal = line;
        let mut left = line + 1;
        for (b, above) in other.chars().zip(row.iter_mut().skip(1)) {
            let changed = diagonal + usize::from(a != b);
            diagonal = *above;
            left = changed.min(left + 1).min(*above + 1);
            *above = left;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}
