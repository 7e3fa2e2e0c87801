//! The agent itself.

use crate::metrics::Bound::Fixed;
use crate::metrics::Metric;

use super::{NONE, counter, gauge, info};

/// The version of the agent.
pub static BUILD: Metric =
    info("vramscope_build_info", &["version"], Fixed(1), "The version of the agent");

/// When the agent began, in seconds of the Unix clock.
pub static UP_SINCE: Metric = gauge(
    "vramscope_start_time_seconds",
    "seconds",
    NONE,
    Fixed(1),
    "When the agent began, in seconds of the Unix clock",
);

/// Whether the probes are attached and snapshots are made: 1, or 0.
pub static READY: Metric = gauge(
    "vramscope_ready",
    "",
    NONE,
    Fixed(1),
    "Whether the probes are attached and snapshots are made: 1, or 0",
);

/// Processor time of the agent itself, user and system.
pub static OWN_CPU: Metric = counter(
    "vramscope_agent_cpu_seconds_total",
    "seconds",
    NONE,
    Fixed(1),
    "Processor time of the agent itself, user and system",
);

/// Resident memory of the agent itself.
pub static OWN_MEMORY: Metric = gauge(
    "vramscope_agent_memory_bytes",
    "bytes",
    NONE,
    Fixed(1),
    "Resident memory of the agent itself",
);

/// Steps down the ladder that the budget made the agent take; memory accounting stays exact on all.
pub static DEGRADED: Metric = gauge(
    "vramscope_degraded",
    "",
    NONE,
    Fixed(1),
    "Steps down the ladder that the budget made the agent take; memory accounting stays exact on all",
);

/// Events that the agent applied.
pub static EVENTS: Metric =
    counter("vramscope_events_total", "", NONE, Fixed(1), "Events that the agent applied");

/// Events that the kernel could not deliver, by what they were.
pub static LOST: Metric = counter(
    "vramscope_lost_events_total",
    "",
    &["class"],
    Fixed(9),
    "Events that the kernel could not deliver, by what they were",
);

/// Whether every figure is exact: 1, or 0 after losses or with memory from before the trace.
pub static EXACT: Metric = gauge(
    "vramscope_exact",
    "",
    NONE,
    Fixed(1),
    "Whether every figure is exact: 1, or 0 after losses or with memory from before the trace",
);

/// Requests that the agent answered, by the class of the answer.
pub static HTTP: Metric = counter(
    "vramscope_http_requests_total",
    "",
    &["code"],
    Fixed(5),
    "Requests that the agent answered, by the class of the answer",
);

/// Built-in alerts that fire, by severity.
pub static ALERTS: Metric = gauge(
    "vramscope_alerts_firing",
    "",
    &["severity"],
    Fixed(3),
    "Built-in alerts that fire, by severity",
);

/// Notifications of built-in alerts, by action and how it went.
pub static NOTIFICATIONS: Metric = counter(
    "vramscope_notifications_total",
    "",
    &["action", "outcome"],
    Fixed(12),
    "Notifications of built-in alerts, by action and how it went",
);

/// Snapshots that were taken of memory, by what made them necessary and how it went.
pub static INCIDENTS: Metric = counter(
    "vramscope_incidents_total",
    "",
    &["trigger", "outcome"],
    Fixed(12),
    "Snapshots that were taken of memory, by what made them necessary and how it went",
);

/// What was sent onward, by receiver and how it went.
pub static ONWARD: Metric = counter(
    "vramscope_onward_total",
    "",
    &["receiver", "outcome"],
    Fixed(12),
    "What was sent onward, by receiver and how it went",
);
