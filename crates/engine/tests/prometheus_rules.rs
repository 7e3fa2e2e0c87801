//! The rules in `contrib/prometheus`: those of a host, generated from the built-in rules, and those of
//! a fleet, with the same thresholds.

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

/// Rules with a series for each process or suspect: most of the work in a fleet. All wait for minutes, so
/// that they need not be evaluated more often.
const OF_PROCESSES: [&str; 3] = ["leak_suspect", "untracked_growth", "fragmentation"];

const PROCESS_GROUP: &str = "
  # As many series as processes and suspects: most of the work in a fleet.
  - name: vramscope-processes
    interval: 1m
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
    let alert_of = |name| alert(&rules.iter().filter(|rule| rule.name == name).collect::<Vec<_>>());
    let of_hosts = builtin::RULE_NAMES.into_iter().filter(|name| !OF_PROCESSES.contains(name));
    let of_hosts: Vec<String> = of_hosts.map(alert_of).collect();
    let of_processes = OF_PROCESSES.map(alert_of).join("\n");
    format!("{HEADER}{}{AGENT_DOWN}{PROCESS_GROUP}{of_processes}", of_hosts.join("\n"))
}

/// Recording rules of a fleet. Each name is `labels:metric:operation`; the number of series grows with
/// hosts, programs, pods or leaking sites, never with processes.
const RECORDED: [(&str, &str); 17] = [
    ("job:up:avg", "avg by (job) (up{job=~\".*vramscope.*\"})"),
    ("job_version:vramscope_build_info:count", "count by (job, version) (vramscope_build_info)"),
    ("job:vramscope_gpu_total_bytes:sum", "sum by (job) (vramscope_gpu_total_bytes)"),
    ("job:vramscope_gpu_total_bytes:count", "count by (job) (vramscope_gpu_total_bytes)"),
    ("job:vramscope_gpu_used_bytes:sum", "sum by (job) (vramscope_gpu_used_bytes)"),
    ("job:vramscope_gpu_live_bytes:sum", "sum by (job) (vramscope_gpu_live_bytes)"),
    ("job:vramscope_gpu_untracked_bytes:sum", "sum by (job) (vramscope_gpu_untracked_bytes)"),
    (
        "job:vramscope_gpu_time_until_full_seconds:count",
        "count by (job) (vramscope_gpu_time_until_full_seconds < FULL_SOON)",
    ),
    (
        "job:vramscope_out_of_memory_total:hosts1h",
        "count by (job) (sum by (job, instance) (increase(vramscope_out_of_memory_total[1h])) > 0)",
    ),
    (
        "instance:vramscope_gpu_used_bytes:ratio",
        "sum by (job, instance) (vramscope_gpu_used_bytes) / sum by (job, instance) (vramscope_gpu_total_bytes)",
    ),
    (
        "instance:vramscope_gpu_time_until_full_seconds:min",
        "min by (job, instance) (vramscope_gpu_time_until_full_seconds)",
    ),
    (
        "program:vramscope_process_used_bytes:sum",
        "sum by (job, program) (vramscope_process_used_bytes)",
    ),
    (
        "pod:vramscope_container_used_bytes:sum",
        "sum by (job, namespace, pod) (vramscope_container_used_bytes)",
    ),
    // A process without a launch in the last hour, and older than that.
    (
        "pod:vramscope_process_used_bytes:idle1h",
        "sum by (job, namespace, pod) (\n  vramscope_process_used_bytes\n  and on (job, instance, pid)\n  \
         (increase(vramscope_process_launches_total[1h]) == 0 and vramscope_process_launches_total offset 1h)\n)",
    ),
    (
        "site:vramscope_suspect_live_bytes:sum",
        "sum by (job, program, site, location) (vramscope_suspect_live_bytes)",
    ),
    (
        "site:vramscope_suspect_growth_bytes_per_second:sum",
        "sum by (job, program, site, location) (vramscope_suspect_growth_bytes_per_second)",
    ),
    (
        "site:vramscope_suspect_growth_bytes_per_second:hosts",
        "count by (job, program, site, location) (\n  count by (job, instance, program, site, location) \
         (vramscope_suspect_growth_bytes_per_second > 0)\n)",
    ),
];

/// Alerts of a fleet: name, condition, time, severity, summary, action.
const FLEET_ALERTS: [[&str; 6]; 7] = [
    [
        "VramscopeFleetLeak",
        "site:vramscope_suspect_growth_bytes_per_second:hosts >= 3",
        "10m",
        "warning",
        "{{ $labels.program }} leaks at {{ $labels.location }} on {{ $value }} hosts",
        "One program leaks wherever it runs: see the site {{ $labels.site }} in the dashboard of sites, and compare releases \
         with the view site_growth_by_release.",
    ],
    [
        "VramscopeFleetFullSoon",
        "job:vramscope_gpu_time_until_full_seconds:count / job:vramscope_gpu_total_bytes:count > 0.05\n\
         and job:vramscope_gpu_time_until_full_seconds:count >= 3",
        "10m",
        "critical",
        "{{ $value | humanizePercentage }} of all GPUs will be full within FULL_HOURS hours",
        "See the hosts in the dashboard of the fleet, and which program they have in common.",
    ],
    [
        "VramscopeFleetOutOfMemory",
        "job:vramscope_out_of_memory_total:hosts1h >= 3",
        "0m",
        "critical",
        "out of memory on {{ $value }} hosts in the last hour",
        "Several hosts at once are a release or a job, not a host: see the view incidents_by_cause.",
    ],
    [
        "VramscopeFleetAgentsDown",
        "1 - job:up:avg > 0.05\nand count by (job) (up{job=~\".*vramscope.*\"} == 0) >= 3",
        "10m",
        "critical",
        "{{ $value | humanizePercentage }} of all agents do not respond",
        "Compare with other exporters of these hosts: a rollout, a network policy or the token may be the cause.",
    ],
    [
        "VramscopeFleetLostEvents",
        "count by (job) (sum by (job, instance) (increase(vramscope_lost_events_total[10m])) > 0)\n  \
         / count by (job) (vramscope_build_info)\n> 0.05",
        "10m",
        "warning",
        "{{ $value | humanizePercentage }} of all agents lose events; sums over the fleet may be too low",
        "Trace less in the configuration of all agents ([trace] stacks, allocators and objects), or allow them more CPU time.",
    ],
    [
        "VramscopeFleetTablesFailing",
        "count by (job) (\n  sum by (job, instance) \
         (increase(vramscope_exports_total{exporter=\"parquet\", outcome!=\"sent\"}[1h])) > 0\n) > 0",
        "10m",
        "warning",
        "{{ $value }} agents cannot write all of their tables",
        "See the log of these agents: a full disk, or a directory that is not writable. The view coverage_by_host shows what \
         is missing.",
    ],
    [
        "VramscopeFleetMixedVersions",
        "count by (job) (job_version:vramscope_build_info:count) > 1",
        "1d",
        "info",
        "agents of {{ $value }} versions run for more than a day",
        "Complete the rollout: new columns of the tables are null for older agents.",
    ],
];

const FLEET_HEADER: &str = "\
# Recording rules and alerts over all agents, described in docs/operations/fleet.md. Load them next to
# vramscope.rules.yml. The dashboards of the fleet and of sites read the recorded series.
# Generated: VRAMSCOPE_UPDATE=1 cargo test -p vramscope-engine --test integration prometheus_rules
# Unit tests: promtool test rules vramscope.fleet.rules.test.yml
groups:
  - name: vramscope-fleet
    rules:
";

fn indented(expr: &str) -> String {
    match expr.contains('\n') {
        true => format!("|\n          {}", expr.replace('\n', "\n          ")),
        false => expr.to_owned(),
    }
}

fn fleet_file() -> String {
    let full_soon = Thresholds::default().full_soon;
    let mut out = FLEET_HEADER.to_owned();
    for (name, expr) in RECORDED {
        writeln!(out, "      - record: {name}\n        expr: {}", indented(expr)).unwrap();
    }
    for [name, expr, hold, severity, summary, action] in FLEET_ALERTS {
        let hold = if hold == "0m" { String::new() } else { format!("        for: {hold}\n") };
        write!(
            out,
            "\n      - alert: {name}\n        expr: {}\n{hold}        labels:\n          severity: {severity}\n        \
             annotations:\n          summary: '{summary}'\n          action: '{action}'\n",
            indented(expr)
        )
        .unwrap();
    }
    let seconds = full_soon.millis() / 1000;
    out.replace("FULL_SOON", &seconds.to_string())
        .replace("FULL_HOURS", &(seconds / 3600).to_string())
}

#[test]
fn rule_file_is_generated_from_the_built_in_rules() {
    for (name, text) in
        [("vramscope.rules.yml", file()), ("vramscope.fleet.rules.yml", fleet_file())]
    {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/prometheus").join(name);
        if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap();
        assert!(found == text, "{} is out of date: set VRAMSCOPE_UPDATE=1", path.display());
    }
}
