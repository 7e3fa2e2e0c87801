//! The rule file and the dashboard, checked with promtool and the metric catalog.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use engine::metrics::catalog;
use serde_json::Value;

use crate::harness::files::{read, root, stderr, stdout};

/// Labels that Prometheus itself adds.
const SCRAPED: [&str; 2] = ["job", "instance"];

/// An alert of the rule file.
#[derive(Default, Debug)]
struct Rule {
    name: String,
    expr: String,
    annotations: String,
}

/// Parses the rule file, which has a fixed layout.
fn rules() -> Vec<Rule> {
    let text = read("contrib/prometheus/vramscope.rules.yml");
    let mut rules: Vec<Rule> = Vec::new();
    let mut section = "";
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let content = line.trim();
        if let Some(name) = content.strip_prefix("- alert: ") {
            rules.push(Rule { name: name.into(), ..Rule::default() });
            continue;
        }
        let Some(rule) = rules.last_mut() else { continue };
        match content.split_once(':').map(|(key, value)| (key, value.trim())) {
            Some(("expr", expr)) => {
                section = "expr";
                rule.expr.push_str(expr.trim_start_matches('|'));
            }
            Some(("for" | "labels", _)) => section = "",
            Some(("annotations", "")) => section = "annotations",
            _ if section == "annotations" => rule.annotations += line,
            _ if section == "expr" => rule.expr += line,
            _ => (),
        }
    }
    rules
}

/// Returns the metric names in an expression, each with the labels of its selector.
fn metrics(expr: &str) -> Vec<(&str, Vec<&str>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut metrics = Vec::new();
    let mut rest = expr;
    while let Some(at) = rest.find(is_part) {
        let text = &rest[at..];
        let end = text.find(|c: char| !is_part(c)).unwrap_or(text.len());
        let (name, after) = text.split_at(end);
        if !name.starts_with("vramscope_") && !name.starts_with("process_") {
            rest = after;
            continue;
        }
        let selector = after.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let labels = selector.map_or_else(Vec::new, |(inside, _)| {
            let matchers = inside.split(", ").filter(|matcher| !matcher.is_empty());
            matchers.map(|one| one.split(['=', '!']).next().unwrap().trim()).collect()
        });
        metrics.push((name, labels));
        rest = after;
    }
    metrics
}

/// Returns the names in `by (…)` and `on (…)`.
fn grouped(expr: &str) -> Vec<&str> {
    let mut labels = Vec::new();
    for word in [" by (", " on ("] {
        for rest in expr.split(word).skip(1) {
            labels.extend(rest.split_once(')').unwrap().0.split(", "));
        }
    }
    labels
}

/// Returns the name after each occurrence of a mark.
fn names_after<'t>(text: &'t str, mark: &str) -> Vec<&'t str> {
    let name = |rest: &'t str| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    };
    text.split(mark).skip(1).map(name).collect()
}

/// Fails unless an expression uses only metrics and labels of the catalog; returns the labels of
/// its metrics.
fn assert_in_catalog(expr: &str, source: &str) -> BTreeSet<&'static str> {
    let mut known: BTreeSet<&str> = SCRAPED.into();
    for (name, labels) in metrics(expr) {
        let metric = catalog::ALL.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{source}: unknown metric {name}"));
        for label in labels {
            let fine = metric.labels.contains(&label) || SCRAPED.contains(&label);
            assert!(fine, "{source}: {name} has no label {label}");
        }
        known.extend(metric.labels);
    }
    for label in grouped(expr) {
        assert!(known.contains(label), "{source}: no metric has the label {label}");
    }
    known
}

fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(root().join("contrib/prometheus"))
        .output()
        .expect("promtool of Debian's package `prometheus`");
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn prometheus_accepts_the_rules() {
    promtool(&["check", "rules", "vramscope.rules.yml"]);
}

#[test]
fn every_alert_fires_and_resolves_in_promtool_tests() {
    promtool(&["test", "rules", "vramscope.rules.test.yml"]);
    // Each alert must fire at least once in the tests, and be silent at least twice.
    let tests = read("contrib/prometheus/vramscope.rules.test.yml");
    for rule in rules() {
        let key = format!("alertname: {}\n", rule.name);
        let expectations = tests.split(&key).skip(1);
        let silent = |rest: &&str| rest.trim_start().starts_with("exp_alerts: []");
        let (silent, firing): (Vec<&str>, Vec<&str>) = expectations.partition(silent);
        assert!(!firing.is_empty() && silent.len() >= 2, "{}", rule.name);
    }
}

#[test]
fn rules_use_only_cataloged_metrics_and_labels() {
    let rules = rules();
    assert_eq!(rules.len(), 10);
    for rule in &rules {
        if rule.name == "VramscopeAgentDown" {
            assert!(metrics(&rule.expr).is_empty());
            continue;
        }
        assert!(!metrics(&rule.expr).is_empty(), "{rule:?}");
        let known = assert_in_catalog(&rule.expr, &rule.name);
        for label in names_after(&rule.annotations, "$labels.") {
            assert!(known.contains(label), "{}: {label}", rule.name);
        }
        for part in ["summary:", "action:"] {
            assert!(rule.annotations.contains(part), "{}: {part}", rule.name);
        }
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&read("contrib/grafana/vramscope.json")).unwrap()
}

#[test]
fn dashboard_uses_only_cataloged_metrics_and_labels() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let query = variable["definition"].as_str().unwrap();
        let known = assert_in_catalog(query, query);
        let label = query.rsplit_once(", ").unwrap().1.trim_end_matches(')');
        assert!(known.contains(label), "{query}");
    }
    let names: BTreeSet<&str> =
        variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    let mut shown = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().map_or(&[][..], |targets| targets);
        assert!(panel["type"] == "row" || !targets.is_empty(), "{title}");
        for target in targets {
            let expr = target["expr"].as_str().unwrap();
            let known = assert_in_catalog(expr, title);
            for label in names_after(target["legendFormat"].as_str().unwrap(), "{{") {
                assert!(known.contains(label), "{title}: {label}");
            }
            for variable in names_after(expr, "$") {
                assert!(
                    names.contains(variable) || variable == "__rate_interval",
                    "{title}: {variable}"
                );
            }
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            shown.extend(metrics(expr).into_iter().map(|(name, _)| name));
        }
    }
    let all: BTreeSet<&str> = catalog::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(all.difference(&shown).collect::<Vec<_>>(), Vec::<&&str>::new(), "shown nowhere");
}

#[test]
fn dashboard_panels_do_not_overlap() {
    let dashboard = dashboard();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeMap::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has a duplicate id");
        let side = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        let (x, y, w, h) = (side("x"), side("y"), side("w"), side("h"));
        assert!(w > 0 && h > 0 && x + w <= 24, "{title}");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            let other = cells.insert(cell, title);
            assert_eq!(other, None, "{title}");
        }
    }
    assert!(ids.len() > 30);
}
