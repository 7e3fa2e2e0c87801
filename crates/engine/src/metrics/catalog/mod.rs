//! Declares every metric once. `docs/reference/metrics.md` is generated from this table.

mod agent;
mod host;
mod process;
mod site;

use super::{Cardinality, Metric, MetricType};

pub use agent::*;
pub use host::*;
pub use process::*;
pub use site::*;

type LabelNames = &'static [&'static str];

const NONE: LabelNames = &[];
const BY_GPU: LabelNames = &["gpu", "uuid"];
const PROCESS: LabelNames = &["pid", "process", "program", "user", "container", "pod", "namespace"];
const PROCESS_AND_GPU: LabelNames =
    &["gpu", "uuid", "pid", "process", "program", "user", "container", "pod", "namespace"];
const CONTAINER: LabelNames = &["gpu", "uuid", "container", "pod", "namespace"];
const SITE: LabelNames = &["site", "location"];
const SUSPECT: LabelNames = &[
    "pid",
    "process",
    "program",
    "user",
    "container",
    "pod",
    "namespace",
    "gpu",
    "uuid",
    "site",
    "location",
    "resource",
];

const fn gauge(
    name: &'static str,
    unit: &'static str,
    labels: LabelNames,
    bound: Cardinality,
    help: &'static str,
) -> Metric {
    Metric { name, metric_type: MetricType::Gauge, unit, help, labels, bound }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    labels: LabelNames,
    bound: Cardinality,
    help: &'static str,
) -> Metric {
    Metric { name, metric_type: MetricType::Counter, unit, help, labels, bound }
}

const fn info(
    name: &'static str,
    labels: LabelNames,
    bound: Cardinality,
    help: &'static str,
) -> Metric {
    Metric { name, metric_type: MetricType::Info, unit: "", help, labels, bound }
}

/// All metrics, in the order of `/metrics`.
pub static ALL: &[&Metric] = &[
    &BUILD,
    &UP_SINCE,
    &READY,
    &OWN_CPU,
    &OWN_MEMORY,
    &DEGRADED,
    &EVENTS,
    &LOST,
    &EXACT,
    &HTTP,
    &ALERTS,
    &NOTIFICATIONS,
    &INCIDENTS,
    &EXPORTS,
    &PROCESSES,
    &ENDED,
    &UNLISTED,
    &NOT_FREED,
    &ALLOCATIONS,
    &FREES,
    &FAILURES,
    &OUT_OF_MEMORY,
    &LAUNCHES,
    &COPIED,
    &KIND,
    &LIBRARY,
    &GPU,
    &GPU_TOTAL,
    &GPU_FREE,
    &GPU_USED,
    &GPU_LIVE,
    &GPU_UNTRACKED,
    &GPU_GROWTH,
    &GPU_FULL_IN,
    &LIVE,
    &PEAK,
    &USED,
    &UNTRACKED,
    &POOL_USED,
    &POOL_RESERVED,
    &CACHE_USED,
    &CACHE_RESERVED,
    &FRAGMENTATION,
    &PINNED,
    &MANAGED,
    &PROCESS_ALLOCATIONS,
    &PROCESS_FREES,
    &PROCESS_FAILURES,
    &PROCESS_OUT_OF_MEMORY,
    &PROCESS_LAUNCHES,
    &CONTAINER_LIVE,
    &CONTAINER_USED,
    &SITE_LIVE,
    &SITE_COUNT,
    &SUSPECTS,
    &SUSPECT_LIVE,
    &SUSPECT_LIVE_OBJECTS,
    &SUSPECT_GROWTH,
    &SUSPECT_GROWTH_OBJECTS,
    &SUSPECT_FULL_IN,
];
