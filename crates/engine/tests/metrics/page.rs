//! `docs/reference/metrics.md` is made from the catalogue and must be fresh. `VRAMSCOPE_UPDATE=1` writes it.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use engine::metrics::catalogue::ALL;
use engine::metrics::{Bound, Limits, Metric, Sort, most};

/// The host that the page counts series for.
const GPUS: usize = 8;

fn sort(metric: &Metric) -> &'static str {
    match metric.sort {
        Sort::Gauge => "gauge",
        Sort::Counter => "counter",
        Sort::Info => "info",
    }
}

fn bound(metric: &Metric) -> String {
    let on_gpus = metric.labels.contains(&"gpu");
    let times =
        |word: &str| if on_gpus { format!("({word} + 1) (G + 1)") } else { format!("{word} + 1") };
    match metric.bound {
        Bound::Fixed(number) => number.to_string(),
        Bound::Gpus => "G + 1".to_owned(),
        Bound::Processes => times("P"),
        Bound::Containers => times("C"),
        Bound::Sites => "S + 1".to_owned(),
        Bound::Suspects => "Q".to_owned(),
    }
}

/// How many metrics are bounded in one way.
fn formula() -> String {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    let mut fixed = 0;
    for metric in ALL {
        if let Bound::Fixed(number) = metric.bound {
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
    let limits = Limits::default();
    let mut page = format!(
        "# Metrics\n\n\
         What `vramscope serve` tells under `/metrics`, in OpenMetrics. Made from the catalogue by a test; \
         `VRAMSCOPE_UPDATE=1 cargo test -p vramscope-engine --test metrics` writes it anew.\n\n\
         Bytes and counts are whole numbers, exact while `vramscope_exact` is 1. Counters begin at 0 when the \
         agent starts. What is not known has no sample: the driver's account where it cannot be asked, \
         fragmentation where tensors are not followed.\n\n\
         ## Labels\n\n\
         | label | is |\n|---|---|\n\
         | `gpu`, `uuid` | the GPU's index and UUID; both empty where it is not known |\n\
         | `pid`, `process` | the process id as the host sees it, and the process's name |\n\
         | `container`, `pod`, `namespace` | names where the node tells them, else ids; empty outside of containers |\n\
         | `site` | a place in programs, by a hash of its call stack that is the same on every host and after every \
         start; `none` without a stack, `pending` until the stack has names, `other` for all the rest |\n\
         | `place` | the innermost line of the program itself, in words |\n\
         | `subject` | what a suspect holds: a kind of memory, `tensors`, or `stream_objects` and so on |\n\n\
         Values of labels are cut at 120 characters, and characters that cannot be seen are written as `?`. There is \
         never an address in them.\n\n\
         ## How many series there are\n\n\
         At most so many processes, containers, sites and suspects have series of their own, as `[metrics]` in the \
         settings says: P = {} processes, C = {} containers, S = {} sites, Q = {} suspects. The others are added up \
         as `other`. A process keeps its series until it ends, and so does a container; when one ends, the biggest of \
         those without gets its place and counts from then on. What a process did in its last second is in the \
         counters of the host only.\n\n\
         On a host with G GPUs there are at most\n\n\
         ```text\n{}\n```\n\n\
         series: {} on a host with {GPUS} GPUs, whatever programs do. A process on one GPU has {}.\n\n\
         ## All metrics\n\n\
         | name | sort | labels | samples, at most | tells |\n|---|---|---|---|---|\n",
        limits.processes,
        limits.containers,
        limits.sites,
        limits.suspects,
        formula(),
        most(&limits, GPUS),
        ALL.iter().filter(|metric| metric.bound == Bound::Processes).count(),
    );
    for metric in ALL {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {} |",
            metric.name,
            sort(metric),
            labels.join(", "),
            bound(metric),
            metric.help
        )
        .unwrap();
    }
    page
}

#[test]
fn the_page_of_metrics_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md");
    let page = page();
    if std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/reference/metrics.md is stale: VRAMSCOPE_UPDATE=1 cargo test -p vramscope-engine --test metrics"
    );
}
