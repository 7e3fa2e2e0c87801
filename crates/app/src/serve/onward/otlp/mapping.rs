//! Names of metrics in OpenTelemetry, declared once: by its semantic conventions if they have one,
//! otherwise such that Prometheus derives the name of `/metrics`. `docs/operations/exporters.md`
//! has the same table.

use engine::metrics::{Metric, catalogue};

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
    attributes(&catalogue::BUILD, "service.version"),
    gauge(&catalogue::UP_SINCE, "process.start_time", "s"),
    gauge(&catalogue::READY, "vramscope.ready", ""),
    count(&catalogue::OWN_CPU, "process.cpu.time", "s"),
    level(&catalogue::OWN_MEMORY, "process.memory.usage", "By"),
    gauge(&catalogue::DEGRADED, "vramscope.degradation_level", ""),
    count(&catalogue::EVENTS, "vramscope.events", "{event}"),
    count(&catalogue::LOST, "vramscope.lost_events", "{event}"),
    gauge(&catalogue::EXACT, "vramscope.exact", ""),
    count(&catalogue::HTTP, "vramscope.http.requests", "{request}"),
    gauge(&catalogue::ALERTS, "vramscope.alerts.firing", "{alert}"),
    count(&catalogue::NOTIFICATIONS, "vramscope.notifications", "{notification}"),
    count(&catalogue::INCIDENTS, "vramscope.incidents", "{incident}"),
    count(&catalogue::ONWARD, "vramscope.exports", "{export}"),
    gauge(&catalogue::PROCESSES, "vramscope.processes", "{process}"),
    count(&catalogue::ENDED, "vramscope.processes.ended", "{process}"),
    count(&catalogue::NOT_FREED, "vramscope.not_freed", "By"),
    count(&catalogue::ALLOCATIONS, "vramscope.allocations", "{allocation}"),
    count(&catalogue::FREES, "vramscope.frees", "{allocation}"),
    count(&catalogue::FAILURES, "vramscope.failed_allocations", "{call}"),
    count(&catalogue::OUT_OF_MEMORY, "vramscope.out_of_memory", "{call}"),
    count(&catalogue::LAUNCHES, "vramscope.launches", "{launch}"),
    count(&catalogue::COPIED, "vramscope.copied", "By"),
    gauge(&catalogue::KIND, "vramscope.live", "By"),
    attributes(&catalogue::GPU, "hw.model"),
    level(&catalogue::GPU_TOTAL, "hw.gpu.memory.limit", "By"),
    gauge(&catalogue::GPU_FREE, "vramscope.gpu.free", "By"),
    level(&catalogue::GPU_USED, "hw.gpu.memory.usage", "By"),
    gauge(&catalogue::GPU_LIVE, "vramscope.gpu.live", "By"),
    gauge(&catalogue::GPU_UNTRACKED, "vramscope.gpu.untracked", "By"),
    gauge(&catalogue::GPU_FULL_IN, "vramscope.gpu.time_until_full", "s"),
    gauge(&catalogue::LIVE, "vramscope.process.live", "By"),
    gauge(&catalogue::PEAK, "vramscope.process.peak", "By"),
    gauge(&catalogue::USED, "vramscope.process.used", "By"),
    gauge(&catalogue::UNTRACKED, "vramscope.process.untracked", "By"),
    gauge(&catalogue::POOL_USED, "vramscope.process.pool.used", "By"),
    gauge(&catalogue::POOL_RESERVED, "vramscope.process.pool.reserved", "By"),
    gauge(&catalogue::CACHE_USED, "vramscope.process.torch.allocated", "By"),
    gauge(&catalogue::CACHE_RESERVED, "vramscope.process.torch.reserved", "By"),
    gauge(&catalogue::FRAGMENTATION, "vramscope.process.torch.fragmentation", "1"),
    gauge(&catalogue::PINNED, "vramscope.process.pinned", "By"),
    gauge(&catalogue::MANAGED, "vramscope.process.managed", "By"),
    count(&catalogue::PROCESS_ALLOCATIONS, "vramscope.process.allocations", "{allocation}"),
    count(&catalogue::PROCESS_FREES, "vramscope.process.frees", "{allocation}"),
    count(&catalogue::PROCESS_FAILURES, "vramscope.process.failed_allocations", "{call}"),
    count(&catalogue::PROCESS_OUT_OF_MEMORY, "vramscope.process.out_of_memory", "{call}"),
    count(&catalogue::PROCESS_LAUNCHES, "vramscope.process.launches", "{launch}"),
    gauge(&catalogue::CONTAINER_LIVE, "vramscope.container.live", "By"),
    gauge(&catalogue::CONTAINER_USED, "vramscope.container.used", "By"),
    gauge(&catalogue::SITE_LIVE, "vramscope.site.live", "By"),
    gauge(&catalogue::SITE_COUNT, "vramscope.site.live_allocations", "{allocation}"),
    gauge(&catalogue::SUSPECTS, "vramscope.suspects", "{suspect}"),
    gauge(&catalogue::SUSPECT_LIVE, "vramscope.suspect.live", "By"),
    gauge(&catalogue::SUSPECT_LIVE_OBJECTS, "vramscope.suspect.live_objects", "{object}"),
    gauge(&catalogue::SUSPECT_GROWTH, "vramscope.suspect.growth", "By/s"),
    gauge(&catalogue::SUSPECT_GROWTH_OBJECTS, "vramscope.suspect.growth_objects", "{object}/s"),
    gauge(&catalogue::SUSPECT_FULL_IN, "vramscope.suspect.time_until_full", "s"),
];

/// Attributes of labels, if the conventions define one; other labels get the prefix `vramscope.`.
pub(super) static LABEL_MAPPINGS: &[(&str, &str)] = &[
    ("pid", "process.pid"),
    ("process", "process.executable.name"),
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
        let all: Vec<_> = catalogue::ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names, all);
        for row in METRIC_MAPPINGS {
            let fits = match row.metric.sort {
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
        for row in METRIC_MAPPINGS.iter().filter(|row| row.name.starts_with("vramscope.")) {
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
