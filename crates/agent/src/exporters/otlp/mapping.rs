//! Names of metrics in OpenTelemetry, declared once: by its semantic conventions if they have one,
//! otherwise such that Prometheus derives the name of `/metrics`. `docs/operations/exporters.md`
//! has the same table.

use engine::metrics::{Metric, catalog};

/// Type of a metric in OTLP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OtlpKind {
    /// A gauge.
    Gauge,
    /// A monotonic sum.
    Count,
    /// A non-monotonic sum, which the conventions call an up-down counter.
    Level,
    /// Attributes of other metrics or of the resource.
    Attributes,
}

/// A metric and its OTLP name.
pub(super) struct Row {
    pub(super) metric: &'static Metric,
    pub(super) name: &'static str,
    /// In UCUM notation.
    pub(super) unit: &'static str,
    pub(super) form: OtlpKind,
}

const fn gauge(metric: &'static Metric, name: &'static str, unit: &'static str) -> Row {
    Row { metric, name, unit, form: OtlpKind::Gauge }
}

const fn count(metric: &'static Metric, name: &'static str, unit: &'static str) -> Row {
    Row { metric, name, unit, form: OtlpKind::Count }
}

const fn level(metric: &'static Metric, name: &'static str, unit: &'static str) -> Row {
    Row { metric, name, unit, form: OtlpKind::Level }
}

const fn attributes(metric: &'static Metric, name: &'static str) -> Row {
    Row { metric, name, unit: "", form: OtlpKind::Attributes }
}

/// Used share of a GPU's memory: computed from two metrics, because the conventions define it.
pub(super) const UTILIZATION: &str = "hw.gpu.memory.utilization";

/// Every metric of the catalog, in its order.
pub(super) static METRIC_MAPPINGS: &[Row] = &[
    attributes(&catalog::BUILD, "service.version"),
    gauge(&catalog::UP_SINCE, "process.start_time", "s"),
    gauge(&catalog::READY, "vramscope.ready", ""),
    count(&catalog::OWN_CPU, "process.cpu.time", "s"),
    level(&catalog::OWN_MEMORY, "process.memory.usage", "By"),
    gauge(&catalog::DEGRADED, "vramscope.degradation_level", ""),
    count(&catalog::EVENTS, "vramscope.events", "{event}"),
    count(&catalog::LOST, "vramscope.lost_events", "{event}"),
    count(&catalog::UNKNOWN_CALLS, "vramscope.unknown_calls", "{call}"),
    gauge(&catalog::EXACT, "vramscope.exact", ""),
    count(&catalog::HTTP, "vramscope.http.requests", "{request}"),
    gauge(&catalog::ALERTS, "vramscope.alerts.firing", "{alert}"),
    count(&catalog::NOTIFICATIONS, "vramscope.notifications", "{notification}"),
    count(&catalog::INCIDENTS, "vramscope.incidents", "{incident}"),
    count(&catalog::EXPORTS, "vramscope.exports", "{export}"),
    gauge(&catalog::PROCESSES, "vramscope.processes", "{process}"),
    count(&catalog::ENDED, "vramscope.processes.ended", "{process}"),
    gauge(&catalog::UNLISTED, "vramscope.unlisted_processes", "{process}"),
    count(&catalog::NOT_FREED, "vramscope.not_freed", "By"),
    count(&catalog::ALLOCATIONS, "vramscope.allocations", "{allocation}"),
    count(&catalog::FREES, "vramscope.frees", "{allocation}"),
    count(&catalog::FAILURES, "vramscope.failed_allocations", "{call}"),
    count(&catalog::OUT_OF_MEMORY, "vramscope.out_of_memory", "{call}"),
    count(&catalog::OVERSIZED, "vramscope.oversized_requests", "{call}"),
    count(&catalog::LAUNCHES, "vramscope.launches", "{launch}"),
    count(&catalog::COPIED, "vramscope.copied", "By"),
    gauge(&catalog::KIND, "vramscope.live", "By"),
    gauge(&catalog::LIBRARY, "vramscope.library.live", "By"),
    attributes(&catalog::GPU, "hw.model"),
    level(&catalog::GPU_TOTAL, "hw.gpu.memory.limit", "By"),
    gauge(&catalog::GPU_FREE, "vramscope.gpu.free", "By"),
    level(&catalog::GPU_USED, "hw.gpu.memory.usage", "By"),
    gauge(&catalog::GPU_LIVE, "vramscope.gpu.live", "By"),
    gauge(&catalog::GPU_UNTRACKED, "vramscope.gpu.untracked", "By"),
    gauge(&catalog::GPU_GROWTH, "vramscope.gpu.growth", "By/s"),
    gauge(&catalog::GPU_FULL_IN, "vramscope.gpu.time_until_full", "s"),
    gauge(&catalog::LIVE, "vramscope.process.live", "By"),
    gauge(&catalog::PEAK, "vramscope.process.peak", "By"),
    gauge(&catalog::USED, "vramscope.process.used", "By"),
    gauge(&catalog::UNTRACKED, "vramscope.process.untracked", "By"),
    gauge(&catalog::POOL_USED, "vramscope.process.pool.used", "By"),
    gauge(&catalog::POOL_RESERVED, "vramscope.process.pool.reserved", "By"),
    gauge(&catalog::CACHE_USED, "vramscope.process.allocator.allocated", "By"),
    gauge(&catalog::CACHE_RESERVED, "vramscope.process.allocator.reserved", "By"),
    gauge(&catalog::FRAGMENTATION, "vramscope.process.allocator.fragmentation", "1"),
    gauge(&catalog::PINNED, "vramscope.process.pinned", "By"),
    gauge(&catalog::MANAGED, "vramscope.process.managed", "By"),
    count(&catalog::PROCESS_ALLOCATIONS, "vramscope.process.allocations", "{allocation}"),
    count(&catalog::PROCESS_FREES, "vramscope.process.frees", "{allocation}"),
    count(&catalog::PROCESS_FAILURES, "vramscope.process.failed_allocations", "{call}"),
    count(&catalog::PROCESS_OUT_OF_MEMORY, "vramscope.process.out_of_memory", "{call}"),
    count(&catalog::PROCESS_LAUNCHES, "vramscope.process.launches", "{launch}"),
    attributes(&catalog::PROCESS_MIG, "vramscope.mig"),
    gauge(&catalog::CONTAINER_LIVE, "vramscope.container.live", "By"),
    gauge(&catalog::CONTAINER_USED, "vramscope.container.used", "By"),
    gauge(&catalog::SITE_LIVE, "vramscope.site.live", "By"),
    gauge(&catalog::SITE_COUNT, "vramscope.site.live_allocations", "{allocation}"),
    gauge(&catalog::SUSPECTS, "vramscope.suspects", "{suspect}"),
    gauge(&catalog::SUSPECT_LIVE, "vramscope.suspect.live", "By"),
    gauge(&catalog::SUSPECT_LIVE_OBJECTS, "vramscope.suspect.live_objects", "{object}"),
    gauge(&catalog::SUSPECT_GROWTH, "vramscope.suspect.growth", "By/s"),
    gauge(&catalog::SUSPECT_GROWTH_OBJECTS, "vramscope.suspect.growth_objects", "{object}/s"),
    gauge(&catalog::SUSPECT_FULL_IN, "vramscope.suspect.time_until_full", "s"),
];

/// Attributes of labels, if the conventions define one; other labels get the prefix `vramscope.`.
pub(super) static LABEL_MAPPINGS: &[(&str, &str)] = &[
    ("pid", "process.pid"),
    ("process", "process.executable.name"),
    ("user", "process.owner"),
    ("container", "container.name"),
    ("pod", "k8s.pod.name"),
    ("namespace", "k8s.namespace.name"),
    ("uuid", "hw.id"),
    ("gpu", "hw.name"),
    ("name", "hw.model"),
];

/// Returns the mapping of a metric.
pub(super) fn row(metric: &Metric) -> Option<&'static Row> {
    METRIC_MAPPINGS.iter().find(|row| row.metric.name == metric.name)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use engine::metrics::MetricType;

    use super::*;

    #[test]
    fn every_metric_is_mapped_in_catalog_order() {
        let names: Vec<_> = METRIC_MAPPINGS.iter().map(|row| row.metric.name).collect();
        let all: Vec<_> = catalog::ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names, all);
        for row in METRIC_MAPPINGS {
            let fits = match row.metric.metric_type {
                MetricType::Gauge => matches!(row.form, OtlpKind::Gauge | OtlpKind::Level),
                MetricType::Counter => row.form == OtlpKind::Count,
                MetricType::Info => row.form == OtlpKind::Attributes,
            };
            assert!(fits, "{}", row.name);
        }
    }

    /// Returns the Prometheus name of a metric received by OTLP: underscores, the unit unless a
    /// word already is it, `ratio` for gauges of unit 1, `total` for counters.
    fn in_prometheus(row: &Row) -> String {
        let mut name = row.name.replace('.', "_");
        let unit = match row.unit {
            "By" => "bytes",
            "s" => "seconds",
            "By/s" => "bytes_per_second",
            // Text in braces is an annotation.
            "{object}/s" => "per_second",
            "1" if row.form == OtlpKind::Gauge => "ratio",
            _ => "",
        };
        if !unit.is_empty() && !name.split('_').any(|word| word == unit) {
            name = format!("{name}_{unit}");
        }
        if row.form == OtlpKind::Count { format!("{name}_total") } else { name }
    }

    #[test]
    fn own_names_match_prometheus_metrics() {
        let own = METRIC_MAPPINGS.iter().filter(|row| row.name.starts_with("vramscope."));
        for row in own.filter(|row| row.form != OtlpKind::Attributes) {
            assert_eq!(in_prometheus(row), row.metric.name);
        }
        let others = METRIC_MAPPINGS.iter().filter(|row| !row.name.starts_with("vramscope."));
        let others: Vec<_> = others.map(|row| row.name).collect();
        let conventional = [
            "service.version",
            "process.start_time",
            "process.cpu.time",
            "process.memory.usage",
            "hw.model",
            "hw.gpu.memory.limit",
            "hw.gpu.memory.usage",
        ];
        assert_eq!(others, conventional);
    }

    fn table() -> String {
        let mut text =
            String::from("| metric | OpenTelemetry name | unit | type |\n|---|---|---|---|\n");
        let mut line = |metric: &str, name: &str, unit: &str, form: &str| {
            let unit = if unit.is_empty() { String::new() } else { format!("`{unit}`") };
            writeln!(text, "| `{metric}` | `{name}` | {unit} | {form} |").unwrap();
        };
        for row in METRIC_MAPPINGS {
            let form = match row.form {
                OtlpKind::Gauge => "gauge",
                OtlpKind::Count => "sum, monotonic",
                OtlpKind::Level => "sum, non-monotonic",
                OtlpKind::Attributes => "attribute",
            };
            line(row.metric.name, row.name, row.unit, form);
        }
        line("vramscope_gpu_used_bytes", UTILIZATION, "1", "gauge: share of the limit");
        text.push_str("\n| label | attribute |\n|---|---|\n");
        for (label, attribute) in LABEL_MAPPINGS {
            writeln!(text, "| `{label}` | `{attribute}` |").unwrap();
        }
        text.push_str("| any other | `vramscope.` and the label |\n");
        text
    }

    #[test]
    fn docs_table_matches_the_mapping() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations/exporters.md");
        let text = std::fs::read_to_string(&page).unwrap();
        let (head, rest) = text.split_once("<!-- mapping -->\n").unwrap();
        let (found, tail) = rest.split_once("<!-- end -->").unwrap();
        let expected = table();
        if found != expected && std::env::var_os("VRAMSCOPE_UPDATE").is_some() {
            let new = format!("{head}<!-- mapping -->\n{expected}<!-- end -->{tail}");
            std::fs::write(&page, new).unwrap();
            return;
        }
        assert_eq!(found, expected, "run this test with VRAMSCOPE_UPDATE=1 to update the table");
    }
}
