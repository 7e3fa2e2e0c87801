//! Metrics about the agent itself.

use crate::metrics::Cardinality::Fixed;
use crate::metrics::Metric;

use super::{NONE, counter, gauge, info};

/// Version of the agent.
pub static BUILD: Metric =
    info("vramscope_build_info", &["version"], Fixed(1), "Version of the agent");

/// Start time of the agent, Unix time.
pub static UP_SINCE: Metric = gauge(
    "process_start_time_seconds",
    "seconds",
    NONE,
    Fixed(1),
    "Start time of the agent, Unix time",
);

/// 1 if probes are attached and snapshots are current, else 0.
pub static READY: Metric = gauge(
    "vramscope_ready",
    "",
    NONE,
    Fixed(1),
    "1 if probes are attached and snapshots are current, else 0",
);

/// User and system CPU time of the agent.
pub static OWN_CPU: Metric = counter(
    "process_cpu_seconds_total",
    "seconds",
    NONE,
    Fixed(1),
    "User and system CPU time of the agent",
);

/// Resident memory of the agent.
pub static OWN_MEMORY: Metric =
    gauge("process_resident_memory_bytes", "bytes", NONE, Fixed(1), "Resident memory of the agent");

/// Degradation steps in effect (0: none); memory accounting stays exact.
pub static DEGRADED: Metric = gauge(
    "vramscope_degradation_level",
    "",
    NONE,
    Fixed(1),
    "Degradation steps in effect (0: none); memory accounting stays exact",
);

/// Events processed.
pub static EVENTS: Metric =
    counter("vramscope_events_total", "", NONE, Fixed(1), "Events processed");

/// Events lost in the kernel, by class.
pub static LOST: Metric = counter(
    "vramscope_lost_events_total",
    "",
    &["class"],
    Fixed(9),
    "Events lost in the kernel, by class",
);

/// 1 if all values are exact; 0 after lost events or with memory from before the trace.
pub static EXACT: Metric = gauge(
    "vramscope_exact",
    "",
    NONE,
    Fixed(1),
    "1 if all values are exact; 0 after lost events or with memory from before the trace",
);

/// HTTP requests, by status class.
pub static HTTP: Metric = counter(
    "vramscope_http_requests_total",
    "",
    &["code"],
    Fixed(5),
    "HTTP requests, by status class",
);

/// Firing built-in alerts, by severity.
pub static ALERTS: Metric = gauge(
    "vramscope_alerts_firing",
    "",
    &["severity"],
    Fixed(3),
    "Firing built-in alerts, by severity",
);

/// Alert notifications, by receiver and outcome.
pub static NOTIFICATIONS: Metric = counter(
    "vramscope_notifications_total",
    "",
    &["receiver", "outcome"],
    Fixed(12),
    "Alert notifications, by receiver and outcome",
);

/// Incidents, by trigger and outcome.
pub static INCIDENTS: Metric = counter(
    "vramscope_incidents_total",
    "",
    &["trigger", "outcome"],
    Fixed(12),
    "Incidents, by trigger and outcome",
);

/// Exports, by exporter and outcome.
pub static EXPORTS: Metric = counter(
    "vramscope_exports_total",
    "",
    &["exporter", "outcome"],
    Fixed(12),
    "Exports, by exporter and outcome",
);
