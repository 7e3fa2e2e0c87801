//! `contrib/prometheus/vramscope.rules.yml`, generated from the built-in rules.

use std::fmt::Write;
use std::path::Path;

use engine::alert::builtin::{self, Thresholds};
use engine::alert::{Rule, RuleExpr, Threshold, pieces};
use engine::model::units::Nanos;

const HEADER: &str = "\
# Alerts on the metrics of `vramscope serve`, described in docs/operations/alerts.md.
# Generated from the agent's built-in rules, crates/engine/src/alert/builtin.rs:
# VRAMSCOPE_UPDATE=1 cargo test -p vramscope-engine --test integration prometheus_rules
# Unit tests: promtool test rules vramscope.rules.test.yml
groups:
  - name: vramscope
    rules:
";

/// The only rule that the agent itself cannot have.
const AGENT_DOWN: &str = "
      # The job that scrapes the agents has vramscope in its name.
      - alert: VramscopeAgentDown
        expr: up{job=~\".*vramscope.*\"} == 0
        for: 5m
        labels:
          severity: warning
        annotations:
          summary: 'the agent does not respond ({{ $labels.instance }})'
          action: 'Check whether it is running (systemctl status vramscope), and its log.'
";

/// `10m` or `1h`.
fn duration(time: Nanos) -> String {
    match time.millis() / 60_000 {
        minutes if minutes % 60 == 0 => format!("{}h", minutes / 60),
        minutes => format!("{minutes}m"),
    }
}

/// Returns the condition of a rule. Rates are per hour, as people read them.
fn condition(rule: &Rule) -> String {
    let metric = rule.metric.name;
    let (sign, limit) = match rule.threshold {
        Threshold::Above(limit) => (">", limit),
        Threshold::Below(limit) => ("<", limit),
    };
    let value = match rule.expr {
        RuleExpr::Value if rule.metric.unit.ends_with("_per_second") => format!("3600 * {metric}"),
        RuleExpr::Value => metric.to_owned(),
        RuleExpr::ShareOf(total) => format!("{metric} / {}", total.name),
        // The second half catches errors before the first scrape, for which there is no increase.
        // It applies only if the agent was scraped before, or has just started.
        RuleExpr::Increase(window) => {
            let (time, seconds) = (duration(window), window.millis() / 1000);
            return format!(
                "increase({metric}[{time}]) {sign} {limit}\nor\n(\n  \
                 ({metric} {sign} {limit} unless {metric} offset {time})\n  \
                 and on (job, instance)\n  \
                 (process_start_time_seconds offset {time} or process_start_time_seconds > time() - {seconds})\n)"
            );
        }
        // Only series with a value from then: a new process is not growth.
        RuleExpr::Growth(window) => {
            let series = format!("{metric}{{pid!=\"other\"}}");
            format!("{series} - ({series} offset {})", duration(window))
        }
    };
    let also = rule.at_least.map(|(metric, min)| format!("\nand {} >= {min}", metric.name));
    format!("{value} {sign} {limit}{}", also.unwrap_or_default())
}

/// Returns a template of Prometheus for the value of a rule.
fn value(rule: &Rule) -> &'static str {
    match (rule.expr, rule.metric.unit) {
        (RuleExpr::ShareOf(_), _) | (_, "ratio") => "{{ $value | humanizePercentage }}",
        (_, "bytes") => "{{ $value | humanize1024 }}B",
        (_, "seconds") => "{{ $value | humanizeDuration }}",
        (_, "bytes_per_second") => "{{ $value | humanize1024 }}B/h",
        (_, "objects_per_second") => "{{ $value | humanize }}/h",
        _ => "{{ $value | printf \"%.0f\" }}",
    }
}

/// Returns a text for YAML, with the placeholders of Prometheus.
fn text(template: &str, value: &str) -> String {
    let mut out = String::new();
    for (before, name) in pieces(template) {
        out.push_str(before);
        match name {
            None => (),
            Some("value") => out.push_str(value),
            Some(name) => write!(out, "{{{{ or $labels.{name} \"?\" }}}}").unwrap(),
        }
    }
    out.replace('\'', "''")
}

/// Returns the alert of rules with the same name: one, or those of memory and of objects.
fn alert(rules: &[&Rule]) -> String {
    let rule = rules[0];
    let conditions: Vec<String> = rules.iter().map(|rule| condition(rule)).collect();
    let expr = conditions.join("\nor\n");
    let expr = match expr.contains('\n') {
        true => format!("|\n          {}", expr.replace('\n', "\n          ")),
        false => expr,
    };
    let value = match rules {
        [memory, objects] => format!(
            "{{{{ if match \"_objects$\" $labels.resource }}}}{}{{{{ else }}}}{}{{{{ end }}}}",
            value(objects),
            value(memory)
        ),
        _ => value(rule).to_owned(),
    };
    let hold = match rule.hold {
        Nanos(0) => String::new(),
        hold => format!("        for: {}\n", duration(hold)),
    };
    format!(
        "      - alert: {}\n        expr: {expr}\n{hold}        labels:\n          severity: {}\n        \
         annotations:\n          summary: '{} ({{{{ $labels.instance }}}})'\n          action: '{}'\n",
        rule.alert_name(),
        rule.severity.name(),
        text(rule.summary, &value),
        text(rule.advice, &value),
    )
}

fn file() -> String {
    let rules = builtin::rules(&Thresholds::default());
    let alerts = builtin::RULE_NAMES
        .map(|name| alert(&rules.iter().filter(|rule| rule.name == name).collect::<Vec<_>>()));
    format!("{HEADER}{}{AGENT_DOWN}", alerts.join("\n"))
}

#[test]
fn rule_file_is_generated_from_the_built_in_rules() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../../contrib/prometheus/vramscope.rules.yml");
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        std::fs::write(&path, file()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap();
    assert!(found == file(), "{} is out of date: set VRAMSCOPE_UPDATE=1", path.display());
}
