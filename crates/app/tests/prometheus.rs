//! Rule files and dashboards, checked with promtool and the metric catalog.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use engine::metrics::catalog;
use serde_json::Value;

use crate::harness::files::{read, root, stderr, stdout};

/// Labels that Prometheus itself adds.
const SCRAPED: [&str; 2] = ["job", "instance"];

/// Rules of a host, and of a fleet.
const RULE_FILES: [&str; 2] = ["vramscope", "vramscope.fleet"];

/// Dashboards, from the fleet down to a site.
const DASHBOARDS: [&str; 4] =
    ["vramscope-fleet", "vramscope", "vramscope-process", "vramscope-site"];

/// An alert or a recorded series of a rule file.
#[derive(Default, Debug)]
struct Rule {
    name: String,
    recorded: bool,
    expr: String,
    annotations: String,
}

fn rules() -> Vec<Rule> {
    RULE_FILES.into_iter().flat_map(rules_of).collect()
}

/// Parses a rule file, which has a fixed layout.
fn rules_of(file: &str) -> Vec<Rule> {
    let text = read(&format!("contrib/prometheus/{file}.rules.yml"));
    let mut rules: Vec<Rule> = Vec::new();
    let mut section = "";
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let content = line.trim();
        let alert = content.strip_prefix("- alert: ");
        let recorded = content.strip_prefix("- record: ");
        if let Some(name) = alert.or(recorded) {
            let recorded = recorded.is_some();
            rules.push(Rule { name: name.into(), recorded, ..Rule::default() });
            section = "";
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
    promtool(&["check", "rules", "vramscope.rules.yml", "vramscope.fleet.rules.yml"]);
}

#[test]
fn every_alert_fires_and_resolves_in_promtool_tests() {
    let files = RULE_FILES.map(|file| format!("{file}.rules.test.yml"));
    promtool(&["test", "rules", &files[0], &files[1]]);
    // Each alert must fire at least once in the tests, and be silent at least twice.
    let tests = files.map(|file| read(&format!("contrib/prometheus/{file}"))).concat();
    for rule in rules().into_iter().filter(|rule| !rule.recorded) {
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
    let (recorded, alerts): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(|rule| rule.recorded);
    assert_eq!((alerts.len(), recorded.len()), (17, 17));
    for rule in &rules {
        if rule.expr.contains("up{") {
            assert!(metrics(&rule.expr).is_empty());
            continue;
        }
        assert!(!metrics(&rule.expr).is_empty(), "{rule:?}");
        let known = assert_in_catalog(&rule.expr, &rule.name);
        for label in names_after(&rule.annotations, "$labels.") {
            assert!(known.contains(label), "{}: {label}", rule.name);
        }
        for part in ["summary:", "action:"].into_iter().filter(|_| !rule.recorded) {
            assert!(rule.annotations.contains(part), "{}: {part}", rule.name);
        }
    }
}

fn dashboards() -> Vec<Value> {
    let file = |name| read(&format!("contrib/grafana/{name}.json"));
    DASHBOARDS.map(|name| serde_json::from_str(&file(name)).unwrap()).into()
}

fn panels(dashboard: &Value) -> &[Value] {
    dashboard["panels"].as_array().unwrap()
}

/// Returns the expressions of all panels.
fn expressions(dashboards: &[Value]) -> Vec<&str> {
    let panels = dashboards.iter().flat_map(panels);
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().unwrap()).collect()
}

/// Returns the names of variables.
fn variables(dashboard: &Value) -> BTreeSet<&str> {
    let list = dashboard["templating"]["list"].as_array().unwrap();
    list.iter().map(|variable| variable["name"].as_str().unwrap()).collect()
}

#[test]
fn generated_dashboards_are_current() {
    let check = Command::new(root().join("tools/make-dashboards")).arg("--check").output().unwrap();
    assert!(check.status.success(), "{}", stderr(&check));
}

#[test]
fn recorded_series_exist_and_are_used() {
    let (rules, dashboards) = (rules(), dashboards());
    let recorded: BTreeSet<&str> =
        rules.iter().filter(|rule| rule.recorded).map(|rule| rule.name.as_str()).collect();
    let alerts = rules.iter().filter(|rule| !rule.recorded).map(|rule| rule.expr.as_str());
    let mut used = BTreeSet::new();
    for expr in expressions(&dashboards).into_iter().chain(alerts) {
        let words = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        used.extend(words.filter(|word| word.contains(':')));
    }
    assert_eq!(used.difference(&recorded).collect::<Vec<_>>(), Vec::<&&str>::new(), "not recorded");
    assert_eq!(recorded.difference(&used).collect::<Vec<_>>(), Vec::<&&str>::new(), "not used");
}

#[test]
fn dashboards_use_only_cataloged_metrics_and_labels() {
    let dashboards = dashboards();
    for dashboard in &dashboards {
        let list = dashboard["templating"]["list"].as_array().unwrap();
        for variable in list.iter().filter(|variable| variable["type"] == "query") {
            let query = variable["definition"].as_str().unwrap();
            let known = assert_in_catalog(query, query);
            let label = query.rsplit_once(", ").unwrap().1.trim_end_matches(')');
            assert!(known.contains(label), "{query}");
        }
        let names = variables(dashboard);
        for panel in panels(dashboard) {
            assert_panel_is_valid(panel, &names);
        }
    }
    let shown = expressions(&dashboards).into_iter().flat_map(metrics).map(|(name, _)| name);
    let shown: BTreeSet<&str> = shown.collect();
    let all: BTreeSet<&str> = catalog::ALL.iter().map(|metric| metric.name).collect();
    assert_eq!(all.difference(&shown).collect::<Vec<_>>(), Vec::<&&str>::new(), "shown nowhere");
}

fn assert_panel_is_valid(panel: &Value, variables: &BTreeSet<&str>) {
    let title = panel["title"].as_str().unwrap();
    let targets = panel["targets"].as_array().map_or(&[][..], |targets| targets);
    assert!(panel["type"] == "row" || !targets.is_empty(), "{title}");
    for target in targets {
        let expr = target["expr"].as_str().unwrap();
        let mut known = assert_in_catalog(expr, title);
        // Recorded for the job of the agents only.
        known.extend(expr.contains("job:up:avg").then_some("job"));
        for label in names_after(target["legendFormat"].as_str().unwrap(), "{{") {
            assert!(known.contains(label), "{title}: {label}");
        }
        for variable in names_after(expr, "$") {
            assert!(
                variables.contains(variable) || variable == "__rate_interval",
                "{title}: {variable}"
            );
        }
        assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
    }
}

/// Returns the values of a key, at any depth.
fn values_of<'v>(value: &'v Value, key: &str) -> Vec<&'v Value> {
    let inner = |value: &'v Value| values_of(value, key);
    match value {
        Value::Object(fields) => {
            let own = fields.get(key).into_iter();
            own.chain(fields.values().flat_map(inner)).collect()
        }
        Value::Array(values) => values.iter().flat_map(inner).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn links_lead_from_the_fleet_to_the_site() {
    let dashboards = dashboards();
    let mut steps = BTreeSet::new();
    for dashboard in &dashboards {
        let from = dashboard["uid"].as_str().unwrap();
        for panel in panels(dashboard) {
            for url in values_of(panel, "url") {
                let url = url.as_str().unwrap();
                let (path, query) = url.strip_prefix("/d/").unwrap().split_once('?').unwrap();
                let target = dashboards.iter().find(|one| one["uid"] == path).unwrap();
                let names = names_after(query, "var-");
                assert!(!names.is_empty(), "{url}");
                for name in names {
                    assert!(variables(target).contains(name), "{url}");
                }
                steps.insert((from, path));
            }
        }
    }
    for step in DASHBOARDS.windows(2) {
        assert!(steps.contains(&(step[0], step[1])), "{step:?}: {steps:?}");
    }
    assert!(steps.contains(&("vramscope-fleet", "vramscope-site")));
    assert!(steps.contains(&("vramscope-site", "vramscope-process")));
}

#[test]
fn dashboard_panels_do_not_overlap() {
    for dashboard in dashboards() {
        let mut ids = BTreeSet::new();
        let mut cells = BTreeMap::new();
        for panel in panels(&dashboard) {
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
        assert!(ids.len() > 5);
    }
}
