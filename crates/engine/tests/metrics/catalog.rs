//! The metric catalog follows the rules of OpenMetrics.

use std::collections::BTreeSet;

use engine::metrics::catalog::ALL;
use engine::metrics::{Cardinality, MetricType, SeriesLimits, max_total_samples};

#[test]
fn metric_names_follow_prometheus_conventions() {
    let mut names = BTreeSet::new();
    for metric in ALL {
        let name = metric.name;
        assert!(names.insert(name), "{name} is listed twice");
        // The agent's own process metrics have the names of the Prometheus client libraries.
        let is_own = ["process_start_time_seconds", "process_cpu_seconds_total"].contains(&name)
            || name == "process_resident_memory_bytes";
        assert!(name.starts_with("vramscope_") || is_own, "{name}");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
        assert_eq!(name.ends_with("_total"), metric.metric_type == MetricType::Counter, "{name}");
        assert_eq!(name.ends_with("_info"), metric.metric_type == MetricType::Info, "{name}");
        let bare = name.strip_suffix("_total").unwrap_or(name);
        assert!(bare.ends_with(metric.unit), "{name} does not end with its unit");
        assert!(!metric.help.ends_with('.') && !metric.help.contains('\n'), "{name}");
        let labels: BTreeSet<_> = metric.labels.iter().collect();
        assert_eq!(labels.len(), metric.labels.len(), "{name}");
        // Addresses are unbounded.
        assert!(!labels.contains(&"address"), "{name}");
    }
}

#[test]
fn labels_match_the_cardinality_bound() {
    for metric in ALL {
        let has = |label: &str| metric.labels.contains(&label);
        match metric.bound {
            Cardinality::Gpus => assert!(has("gpu") && !has("pid"), "{}", metric.name),
            Cardinality::Processes => assert!(has("pid") && has("container"), "{}", metric.name),
            Cardinality::Containers => assert!(has("container") && !has("pid"), "{}", metric.name),
            Cardinality::Sites => assert!(has("site") && !has("pid"), "{}", metric.name),
            Cardinality::Suspects => assert!(has("site") && has("resource"), "{}", metric.name),
            Cardinality::Fixed(_) => assert!(metric.labels.len() < 3, "{}", metric.name),
        }
    }
}

#[test]
fn sample_limit_matches_the_documented_formula() {
    // Computed by hand: with all limits 0, `other` of each remains, on each GPU and on none.
    let none = SeriesLimits { processes: 0, containers: 0, sites: 0, suspects: 0 };
    let by = |wanted: fn(&Cardinality) -> bool| ALL.iter().filter(|m| wanted(&m.bound)).count();
    let fixed: usize = ALL
        .iter()
        .filter_map(|metric| match metric.bound {
            Cardinality::Fixed(number) => Some(number),
            _ => None,
        })
        .sum();
    let gpus = by(|bound| matches!(bound, Cardinality::Gpus));
    let sites = by(|bound| matches!(bound, Cardinality::Sites));
    let with_gpu = ALL
        .iter()
        .filter(|m| matches!(m.bound, Cardinality::Processes | Cardinality::Containers))
        .filter(|m| m.labels.contains(&"gpu"))
        .count();
    let without =
        by(|bound| matches!(bound, Cardinality::Processes | Cardinality::Containers)) - with_gpu;
    assert_eq!(max_total_samples(&none, 3), fixed + 4 * gpus + 4 * with_gpu + without + sites);
    let one_more = SeriesLimits { processes: 1, ..none };
    let of_process = |gpu: bool| {
        let processes = ALL.iter().filter(|m| m.bound == Cardinality::Processes);
        processes.filter(|m| m.labels.contains(&"gpu") == gpu).count()
    };
    assert_eq!(
        max_total_samples(&one_more, 3) - max_total_samples(&none, 3),
        4 * of_process(true) + of_process(false)
    );
}
