//! Every metric, declared once. `docs/metrics.md` is made from this table.

use super::Bound::{Containers, Fixed, Gpus, Processes, Sites, Suspects};
use super::{Bound, Metric, Sort};

type Labels = &'static [&'static str];

const NONE: Labels = &[];
const BY_GPU: Labels = &["gpu", "uuid"];
const PROCESS: Labels = &["pid", "process", "container", "pod", "namespace"];
const PROCESS_AND_GPU: Labels = &["gpu", "uuid", "pid", "process", "container", "pod", "namespace"];
const CONTAINER: Labels = &["gpu", "uuid", "container", "pod", "namespace"];
const SITE: Labels = &["site", "place"];
const SUSPECT: Labels =
    &["pid", "process", "container", "pod", "namespace", "gpu", "uuid", "site", "place", "subject"];

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

/// Processes that run and use the CUDA driver.
pub static PROCESSES: Metric =
    gauge("vramscope_processes", "", NONE, Fixed(1), "Processes that run and use the CUDA driver");

/// Processes that used the CUDA driver and ended.
pub static ENDED: Metric = counter(
    "vramscope_processes_ended_total",
    "",
    NONE,
    Fixed(1),
    "Processes that used the CUDA driver and ended",
);

/// Memory that processes held when they ended.
pub static NOT_FREED: Metric = counter(
    "vramscope_not_freed_bytes_total",
    "bytes",
    NONE,
    Fixed(1),
    "Memory that processes held when they ended",
);

/// Calls that allocated, of all processes.
pub static ALLOCATIONS: Metric = counter(
    "vramscope_allocations_total",
    "",
    NONE,
    Fixed(1),
    "Calls that allocated, of all processes",
);

/// Allocations that calls freed, of all processes.
pub static FREES: Metric = counter(
    "vramscope_frees_total",
    "",
    NONE,
    Fixed(1),
    "Allocations that calls freed, of all processes",
);

/// Calls that should have allocated and failed, of all processes.
pub static FAILURES: Metric = counter(
    "vramscope_failed_allocations_total",
    "",
    NONE,
    Fixed(1),
    "Calls that should have allocated and failed, of all processes",
);

/// Calls that failed with CUDA_ERROR_OUT_OF_MEMORY; gpu is empty where it is not known.
pub static OUT_OF_MEMORY: Metric = counter(
    "vramscope_out_of_memory_total",
    "",
    BY_GPU,
    Gpus,
    "Calls that failed with CUDA_ERROR_OUT_OF_MEMORY; gpu is empty where it is not known",
);

/// Launches of kernels and graphs, where they are counted.
pub static LAUNCHES: Metric = counter(
    "vramscope_launches_total",
    "",
    NONE,
    Fixed(1),
    "Launches of kernels and graphs, where they are counted",
);

/// Bytes that copies and fills moved, where they are counted.
pub static COPIED: Metric = counter(
    "vramscope_copied_bytes_total",
    "bytes",
    &["direction"],
    Fixed(16),
    "Bytes that copies and fills moved, where they are counted",
);

/// Live memory of all processes by kind, on device and host.
pub static KIND: Metric = gauge(
    "vramscope_live_bytes",
    "bytes",
    &["kind"],
    Fixed(20),
    "Live memory of all processes by kind, on device and host",
);

/// What a GPU is called.
pub static GPU: Metric =
    info("vramscope_gpu_info", &["gpu", "uuid", "name"], Gpus, "What a GPU is called");

/// Memory of a GPU.
pub static GPU_TOTAL: Metric =
    gauge("vramscope_gpu_total_bytes", "bytes", BY_GPU, Gpus, "Memory of a GPU");

/// Memory of a GPU that nobody holds, by the driver's own account.
pub static GPU_FREE: Metric = gauge(
    "vramscope_gpu_free_bytes",
    "bytes",
    BY_GPU,
    Gpus,
    "Memory of a GPU that nobody holds, by the driver's own account",
);

/// Memory of a GPU that somebody holds, by the driver's own account.
pub static GPU_USED: Metric = gauge(
    "vramscope_gpu_used_bytes",
    "bytes",
    BY_GPU,
    Gpus,
    "Memory of a GPU that somebody holds, by the driver's own account",
);

/// Memory of a GPU that calls allocated and that is live.
pub static GPU_LIVE: Metric = gauge(
    "vramscope_gpu_live_bytes",
    "bytes",
    BY_GPU,
    Gpus,
    "Memory of a GPU that calls allocated and that is live",
);

/// Used memory of a GPU beyond what is live: contexts, code, slack of pools, memory from before the trace.
pub static GPU_UNTRACKED: Metric = gauge(
    "vramscope_gpu_untracked_bytes",
    "bytes",
    BY_GPU,
    Gpus,
    "Used memory of a GPU beyond what is live: contexts, code, slack of pools, memory from before the trace",
);

/// When a GPU will be full if its suspects go on as they do; no value without a suspect.
pub static GPU_FULL_IN: Metric = gauge(
    "vramscope_gpu_seconds_until_full",
    "seconds",
    BY_GPU,
    Gpus,
    "When a GPU will be full if its suspects go on as they do; no value without a suspect",
);

/// Device memory that a process allocated and that is live.
pub static LIVE: Metric = gauge(
    "vramscope_process_live_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Device memory that a process allocated and that is live",
);

/// The most device memory that a process held at one time; for `other` the greatest of any.
pub static PEAK: Metric = gauge(
    "vramscope_process_peak_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "The most device memory that a process held at one time; for `other` the greatest of any",
);

/// What a process holds of a GPU by the driver's own account.
pub static USED: Metric = gauge(
    "vramscope_process_used_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "What a process holds of a GPU by the driver's own account",
);

/// What the driver's account has beyond what is live.
pub static UNTRACKED: Metric = gauge(
    "vramscope_process_untracked_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "What the driver's account has beyond what is live",
);

/// Memory that is allocated from pools.
pub static POOL_USED: Metric = gauge(
    "vramscope_process_pool_used_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Memory that is allocated from pools",
);

/// Memory that pools hold of a GPU, where the program asked the driver.
pub static POOL_RESERVED: Metric = gauge(
    "vramscope_process_pool_reserved_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Memory that pools hold of a GPU, where the program asked the driver",
);

/// Tensors inside PyTorch's cache, where they are followed.
pub static CACHE_USED: Metric = gauge(
    "vramscope_process_cache_used_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Tensors inside PyTorch's cache, where they are followed",
);

/// Memory that PyTorch's cache holds, where it is followed.
pub static CACHE_RESERVED: Metric = gauge(
    "vramscope_process_cache_reserved_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Memory that PyTorch's cache holds, where it is followed",
);

/// Of what PyTorch's cache holds: the part that lies free in pieces that are in use otherwise.
pub static FRAGMENTATION: Metric = gauge(
    "vramscope_process_fragmentation_ratio",
    "ratio",
    PROCESS_AND_GPU,
    Processes,
    "Of what PyTorch's cache holds: the part that lies free in pieces that are in use otherwise",
);

/// Host memory that is pinned or registered.
pub static PINNED: Metric = gauge(
    "vramscope_process_pinned_bytes",
    "bytes",
    PROCESS,
    Processes,
    "Host memory that is pinned or registered",
);

/// Managed memory, on device or host.
pub static MANAGED: Metric = gauge(
    "vramscope_process_managed_bytes",
    "bytes",
    PROCESS,
    Processes,
    "Managed memory, on device or host",
);

/// Calls of a process that allocated.
pub static PROCESS_ALLOCATIONS: Metric = counter(
    "vramscope_process_allocations_total",
    "",
    PROCESS,
    Processes,
    "Calls of a process that allocated",
);

/// Allocations of a process that calls freed.
pub static PROCESS_FREES: Metric = counter(
    "vramscope_process_frees_total",
    "",
    PROCESS,
    Processes,
    "Allocations of a process that calls freed",
);

/// Calls of a process that should have allocated and failed.
pub static PROCESS_FAILURES: Metric = counter(
    "vramscope_process_failed_allocations_total",
    "",
    PROCESS,
    Processes,
    "Calls of a process that should have allocated and failed",
);

/// Calls of a process that failed with CUDA_ERROR_OUT_OF_MEMORY.
pub static PROCESS_OUT_OF_MEMORY: Metric = counter(
    "vramscope_process_out_of_memory_total",
    "",
    PROCESS,
    Processes,
    "Calls of a process that failed with CUDA_ERROR_OUT_OF_MEMORY",
);

/// Launches of kernels and graphs of a process, where they are counted.
pub static PROCESS_LAUNCHES: Metric = counter(
    "vramscope_process_launches_total",
    "",
    PROCESS,
    Processes,
    "Launches of kernels and graphs of a process, where they are counted",
);

/// Device memory that the processes of a container allocated and that is live.
pub static CONTAINER_LIVE: Metric = gauge(
    "vramscope_container_live_bytes",
    "bytes",
    CONTAINER,
    Containers,
    "Device memory that the processes of a container allocated and that is live",
);

/// What the processes of a container hold of a GPU by the driver's own account.
pub static CONTAINER_USED: Metric = gauge(
    "vramscope_container_used_bytes",
    "bytes",
    CONTAINER,
    Containers,
    "What the processes of a container hold of a GPU by the driver's own account",
);

/// Live device memory by the place in programs that it came from.
pub static SITE_LIVE: Metric = gauge(
    "vramscope_site_live_bytes",
    "bytes",
    SITE,
    Sites,
    "Live device memory by the place in programs that it came from",
);

/// Live allocations by the place in programs that they came from.
pub static SITE_COUNT: Metric = gauge(
    "vramscope_site_live_allocations",
    "",
    SITE,
    Sites,
    "Live allocations by the place in programs that they came from",
);

/// Places that are suspected of a leak, by how sure that is.
pub static SUSPECTS: Metric = gauge(
    "vramscope_suspects",
    "",
    &["sureness"],
    Fixed(3),
    "Places that are suspected of a leak, by how sure that is",
);

/// What is live of a suspect: bytes, or a number of objects.
pub static SUSPECT_LIVE: Metric = gauge(
    "vramscope_suspect_live",
    "",
    SUSPECT,
    Suspects,
    "What is live of a suspect: bytes, or a number of objects",
);

/// How fast a suspect grows: bytes, or a number of objects, per hour.
pub static SUSPECT_GROWTH: Metric = gauge(
    "vramscope_suspect_growth_per_hour",
    "",
    SUSPECT,
    Suspects,
    "How fast a suspect grows: bytes, or a number of objects, per hour",
);

/// When the GPU of a suspect will be full if it goes on like this.
pub static SUSPECT_FULL_IN: Metric = gauge(
    "vramscope_suspect_seconds_until_full",
    "seconds",
    SUSPECT,
    Suspects,
    "When the GPU of a suspect will be full if it goes on like this",
);

/// All of them, in the order of `/metrics`.
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
    &SUSPECT_GROWTH,
    &SUSPECT_FULL_IN,
];
