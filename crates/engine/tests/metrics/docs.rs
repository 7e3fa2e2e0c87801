//! `docs/reference/metrics.md` is generated from the metric catalog. `VRAMSCOPE_UPDATE=1` writes it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use engine::metrics::catalog::ALL;
use engine::metrics::{Cardinality, Metric, MetricType, SeriesLimits, max_total_samples};

/// GPUs of the host in the example of the page.
const GPUS: usize = 8;

fn metric_type(metric: &Metric) -> &'static str {
    match metric.metric_type {
        MetricType::Gauge => "gauge",
        MetricType::Counter => "counter",
        MetricType::Info => "info",
    }
}

fn bound(metric: &Metric) -> String {
    let on_gpus = metric.labels.contains(&"gpu");
    let times =
        |word: &str| if on_gpus { format!("({word} + 1) (G + 1)") } else { format!("{word} + 1") };
    match metric.bound {
        Cardinality::Fixed(number) => number.to_string(),
        Cardinality::Gpus => "G + 1".to_owned(),
        Cardinality::Processes => times("P"),
        Cardinality::Containers => times("C"),
        Cardinality::Sites => "S + 1".to_owned(),
        Cardinality::Suspects => "Q".to_owned(),
    }
}

/// Returns the number of metrics for each cardinality bound, as a formula.
fn formula() -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    let mut fixed = 0;
    for metric in ALL {
        if let Cardinality::Fixed(number) = metric.bound {
            fixed += number;
            continue;
        }
        let bound = bound(metric);
        match kinds.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, count)) => *count += 1,
            None => kinds.push((bound, 1)),
        }
    }
    let mut text = fixed.to_string();
    for (bound, count) in kinds {
        let bound =
            if bound.contains(") (") || bound == "Q" { bound } else { format!("({bound})") };
        write!(text, " + {count} {bound}").unwrap();
    }
    text
}

fn page() -> String {
    let limits = SeriesLimits::default();
    let mut page = format!(
        "# Metrics\n\n\
         Every metric that the agent serves at `/metrics`, in OpenMetrics format, with its labels and the number of \
         its series.\n\n\
         ```sh manual\ncurl -s http://127.0.0.1:9754/metrics\n```\n\n\
         Bytes and counts are whole numbers, exact while `vramscope_exact` is 1. Counters start at 0 when the agent \
         starts. Unknown values have no sample: driver-reported usage if the driver cannot be queried, fragmentation \
         if tensors are not tracked.\n\n\
         This page is generated from the metric catalog: `VRAMSCOPE_UPDATE=1 cargo test -p vramscope-engine --test \
         integration metrics`.\n\n\
         ## Labels\n\n\
         | label | description |\n|---|---|\n\
         | `gpu`, `uuid` | GPU index and UUID; both empty if unknown |\n\
         | `pid`, `process` | process id on the host, and process name |\n\
         | `program` | script, module or executable, without directories and arguments |\n\
         | `user` | name of the owner of the process, else the user id |\n\
         | `container`, `pod`, `namespace` | names if the node has them, else ids; empty outside of containers |\n\
         | `mig`, `mig_profile` | UUID and profile of the MIG instance of a process, such as `1g.10gb` |\n\
         | `library` | library that allocated the memory: `NCCL`, `PyTorch allocator`, `program`, `unknown` |\n\
         | `site` | hash of the call stack, the same on every host and after every restart; `none` without a stack, \
         `pending` until symbols are resolved, `other` for the rest |\n\
         | `location` | `function file:line` of the innermost frame in the program itself |\n\
         | `resource` | what a leak suspect holds: a memory kind, `tensors`, or `stream_objects` and so on |\n\n\
         Label values are truncated at 120 characters, and invisible characters are written as `?`. They never \
         contain addresses.\n\n\
         ## Number of series\n\n\
         `[metrics]` limits how many processes, containers, sites and suspects get their own series: P = {} \
         processes, C = {} containers, S = {} sites, Q = {} suspects. The others are summed up as `other`. A process \
         keeps its series until it exits, and so does a container; then the largest process or container without a \
         series takes over the slot and counts from then on. What a process did in its last second is only in the \
         counters of the host.\n\n\
         On a host with G GPUs there are at most\n\n\
         ```text\n{}\n```\n\n\
         series: {} on a host with {GPUS} GPUs, whatever programs do. A process on one GPU has {}.\n\n\
         ## All metrics\n\n\
         | name | type | labels | maximum series | description |\n|---|---|---|---|---|\n",
        limits.processes,
        limits.containers,
        limits.sites,
        limits.suspects,
        formula(),
        max_total_samples(&limits, GPUS),
        ALL.iter().filter(|metric| metric.bound == Cardinality::Processes).count(),
    );
    for metric in ALL {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {} |",
            metric.name,
            metric_type(metric),
            labels.join(", "),
            bound(metric),
            metric.help
        )
        .unwrap();
    }
    page
}

#[test]
fn metrics_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = page();
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/reference/metrics.md is stale: VRAMSCOPE_UPDATE=1 cargo test -p vramscope-engine --test integration metrics"
    );
}
