//! Declares every metric once. `docs/reference/metrics.md` is generated from this table.

mod agent;
mod host;
mod place;
mod process;

use super::{Bound, Metric, Sort};

pub use agent::*;
pub use host::*;
pub use place::*;
pub use process::*;

type Labels = &'static [&'static str];

const NONE: Labels = &[];
const BY_GPU: Labels = &["gpu", "uuid"];
const PROCESS: Labels = &["pid", "process", "container", "pod", "namespace"];
const PROCESS_AND_GPU: Labels = &["gpu", "uuid", "pid", "process", "container", "pod", "namespace"];
const CONTAINER: Labels = &["gpu", "uuid", "container", "pod", "namespace"];
const SITE: Labels = &["site", "location"];
const SUSPECT: Labels = &[
    "pid",
    "process",
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
    labels: Labels,
    bound: Bound,
    help: &'static str,
) -> Metric {
    Metric { name, sort: Sort::Gauge, unit, help, labels, bound }
}

const fn counter(
    name: &'static str,
    unit: &'static str,
    labels: Labels,
    bound: Bound,
    help: &'static str,
) -> Metric {
    Metric { name, sort: Sort::Counter, unit, help, labels, bound }
}

const fn info(name: &'static str, labels: Labels, bound: Bound, help: &'static str) -> Metric {
    Metric { name, sort: Sort::Info, unit: "", help, labels, bound }
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
    &ONWARD,
    &PROCESSES,
    &ENDED,
    &NOT_FREED,
    &ALLOCATIONS,
    &FREES,
    &FAILURES,
    &OUT_OF_MEMORY,
    &LAUNCHES,
    &COPIED,
    &KIND,
    &GPU,
    &GPU_TOTAL,
    &GPU_FREE,
    &GPU_USED,
    &GPU_LIVE,
    &GPU_UNTRACKED,
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
