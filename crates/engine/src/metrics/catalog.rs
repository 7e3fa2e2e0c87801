//! Declares every metric once. `docs/reference/metrics.md` is generated from this table.

use crate::snapshot::MAX_UNKNOWN_FUNCTIONS;

use super::Cardinality::{Containers, Fixed, Gpus, Processes, Sites, Suspects};
use super::{Metric, MetricType};

type LabelNames = &'static [&'static str];

const NONE: LabelNames = &[];
const BY_GPU: LabelNames = &["gpu", "uuid"];
const PROCESS: LabelNames = &["pid", "process", "program", "user", "container", "pod", "namespace"];
const PROCESS_AND_MIG: LabelNames =
    &["pid", "process", "program", "user", "container", "pod", "namespace", "mig", "mig_profile"];
const PROCESS_AND_GPU: LabelNames =
    &["gpu", "uuid", "pid", "process", "program", "user", "container", "pod", "namespace"];
const PROCESS_AND_ALLOCATOR: LabelNames = &[
    "gpu",
    "uuid",
    "pid",
    "process",
    "program",
    "user",
    "container",
    "pod",
    "namespace",
    "allocator",
];
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

/// Number of libraries with their own series.
pub(crate) const MAX_LIBRARIES: usize = 20;

/// Declares metrics, and the list of all of them. The help text is also the documentation.
macro_rules! metrics {
    ($($id:ident = $type:ident($name:literal, $unit:literal, $labels:expr, $bound:expr), $help:literal;)*) => {
        $(#[doc = $help]
        pub static $id: Metric = Metric {
            name: $name,
            metric_type: MetricType::$type,
            unit: $unit,
            help: $help,
            labels: $labels,
            bound: $bound,
        };)*

        /// All metrics, in the order of `/metrics`.
        pub static ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    // The agent itself.
    BUILD = Info("vramscope_build_info", "", &["version"], Fixed(1)), "Version of the agent";
    UP_SINCE = Gauge("process_start_time_seconds", "seconds", NONE, Fixed(1)),
        "Start time of the agent, Unix time";
    READY = Gauge("vramscope_ready", "", NONE, Fixed(1)),
        "1 if probes are attached and snapshots are current, else 0";
    OWN_CPU = Counter("process_cpu_seconds_total", "seconds", NONE, Fixed(1)),
        "User and system CPU time of the agent";
    OWN_MEMORY = Gauge("process_resident_memory_bytes", "bytes", NONE, Fixed(1)),
        "Resident memory of the agent";
    DEGRADED = Gauge("vramscope_degradation_level", "", NONE, Fixed(1)),
        "Degradation steps in effect (0: none); memory accounting stays exact";
    EVENTS = Counter("vramscope_events_total", "", NONE, Fixed(1)), "Events processed";
    LOST = Counter("vramscope_lost_events_total", "", &["class"], Fixed(9)),
        "Events lost in the kernel, by class";
    UNKNOWN_CALLS =
        Counter("vramscope_unknown_calls_total", "", &["function"], Fixed(MAX_UNKNOWN_FUNCTIONS)),
        "Calls of memory functions that this version does not know, so what they allocate is not \
         counted";
    EXACT = Gauge("vramscope_exact", "", NONE, Fixed(1)),
        "1 if all values are exact; 0 after lost events or calls of unknown memory functions, or with memory from before the \
         trace";
    HTTP = Counter("vramscope_http_requests_total", "", &["code"], Fixed(5)),
        "HTTP requests, by status class";
    ALERTS = Gauge("vramscope_alerts_firing", "", &["severity"], Fixed(3)),
        "Firing built-in alerts, by severity";
    NOTIFICATIONS =
        Counter("vramscope_notifications_total", "", &["receiver", "outcome"], Fixed(12)),
        "Alert notifications, by receiver and outcome";
    INCIDENTS = Counter("vramscope_incidents_total", "", &["trigger", "outcome"], Fixed(12)),
        "Incidents, by trigger and outcome";
    EXPORTS = Counter("vramscope_exports_total", "", &["exporter", "outcome"], Fixed(12)),
        "Exports, by exporter and outcome";

    // The host and its GPUs.
    PROCESSES = Gauge("vramscope_processes", "", NONE, Fixed(1)),
        "Running processes that use the CUDA driver";
    ENDED = Counter("vramscope_processes_ended_total", "", NONE, Fixed(1)),
        "Processes that used the CUDA driver and exited or called exec";
    UNLISTED = Gauge("vramscope_unlisted_processes", "", NONE, Fixed(1)),
        "Processes that have a GPU open for CUDA and that the driver does not list: they may \
         keep memory";
    NOT_FREED = Counter("vramscope_not_freed_bytes_total", "bytes", NONE, Fixed(1)),
        "Memory not freed by processes at exit";
    ALLOCATIONS = Counter("vramscope_allocations_total", "", NONE, Fixed(1)),
        "Successful allocation calls";
    FREES = Counter("vramscope_frees_total", "", NONE, Fixed(1)),
        "Allocations freed by the program";
    FAILURES = Counter("vramscope_failed_allocations_total", "", NONE, Fixed(1)),
        "Failed allocation calls";
    OUT_OF_MEMORY = Counter("vramscope_out_of_memory_total", "", BY_GPU, Gpus),
        "Calls that failed with CUDA_ERROR_OUT_OF_MEMORY, without oversized requests; gpu is empty \
         if unknown, or if host memory was requested";
    OVERSIZED = Counter("vramscope_oversized_requests_total", "", BY_GPU, Gpus),
        "Failed requests for more memory than the whole GPU has: a mistake of the program, not a \
         full GPU";
    LAUNCHES = Counter("vramscope_launches_total", "", NONE, Fixed(1)),
        "Launches of kernels and graphs, if kernels are traced";
    COPIED = Counter("vramscope_copied_bytes_total", "bytes", &["direction"], Fixed(16)),
        "Bytes copied or set, if kernels are traced";
    KIND = Gauge("vramscope_live_bytes", "bytes", &["kind"], Fixed(20)),
        "Live memory of all processes by kind, on device and host";
    LIBRARY =
        Gauge("vramscope_library_live_bytes", "bytes", &["library"], Fixed(MAX_LIBRARIES + 1)),
        "Live device memory by the library that allocated it; the smallest are merged into `other`";
    GPU = Info("vramscope_gpu_info", "", &["gpu", "uuid", "name"], Gpus), "GPU model and UUID";
    GPU_TOTAL = Gauge("vramscope_gpu_total_bytes", "bytes", BY_GPU, Gpus), "Total GPU memory";
    GPU_FREE = Gauge("vramscope_gpu_free_bytes", "bytes", BY_GPU, Gpus),
        "Free GPU memory, as reported by the driver";
    GPU_USED = Gauge("vramscope_gpu_used_bytes", "bytes", BY_GPU, Gpus),
        "Used GPU memory, as reported by the driver";
    GPU_LIVE = Gauge("vramscope_gpu_live_bytes", "bytes", BY_GPU, Gpus),
        "Live GPU memory from traced allocations";
    GPU_UNTRACKED = Gauge("vramscope_gpu_untracked_bytes", "bytes", BY_GPU, Gpus),
        "Used GPU memory that no traced allocation on this or an unknown GPU explains (contexts, \
         code, pool slack, memory from before the trace)";
    GPU_GROWTH = Gauge("vramscope_gpu_growth_bytes_per_second", "bytes_per_second", BY_GPU, Gpus),
        "Growth of used GPU memory over the last minutes, as reported by the driver";
    GPU_FULL_IN = Gauge("vramscope_gpu_time_until_full_seconds", "seconds", BY_GPU, Gpus),
        "Estimated time until the GPU is full at its current growth, or at that of its leaks; no \
         sample without growth";

    // Processes and containers.
    LIVE = Gauge("vramscope_process_live_bytes", "bytes", PROCESS_AND_GPU, Processes),
        "Live device memory of a process";
    PEAK = Gauge("vramscope_process_peak_bytes", "bytes", PROCESS_AND_GPU, Processes),
        "Peak device memory of a process; for `other` the largest of any";
    USED = Gauge("vramscope_process_used_bytes", "bytes", PROCESS_AND_GPU, Processes),
        "GPU memory used by a process, as reported by the driver";
    UNTRACKED = Gauge("vramscope_process_untracked_bytes", "bytes", PROCESS_AND_GPU, Processes),
        "GPU memory of a process that no traced allocation explains";
    POOL_USED = Gauge("vramscope_process_pool_used_bytes", "bytes", PROCESS_AND_GPU, Processes),
        "Memory allocated from pools";
    POOL_RESERVED =
        Gauge("vramscope_process_pool_reserved_bytes", "bytes", PROCESS_AND_GPU, Processes),
        "Memory that pools hold on a GPU, if the program queried it";
    CACHE_USED = Gauge(
        "vramscope_process_allocator_allocated_bytes", "bytes", PROCESS_AND_ALLOCATOR, Processes),
        "Memory of the blocks of an allocator in the process, such as PyTorch's, if it is tracked";
    CACHE_RESERVED = Gauge(
        "vramscope_process_allocator_reserved_bytes", "bytes", PROCESS_AND_ALLOCATOR, Processes),
        "Memory that an allocator in the process holds, if it is tracked";
    FRAGMENTATION = Gauge(
        "vramscope_process_allocator_fragmentation_ratio", "ratio", PROCESS_AND_ALLOCATOR,
        Processes),
        "Share of the memory of an allocator in the process that is free but fragmented";
    PINNED = Gauge("vramscope_process_pinned_bytes", "bytes", PROCESS, Processes),
        "Pinned or registered host memory";
    MANAGED = Gauge("vramscope_process_managed_bytes", "bytes", PROCESS, Processes),
        "Managed memory, on device or host";
    PROCESS_ALLOCATIONS = Counter("vramscope_process_allocations_total", "", PROCESS, Processes),
        "Successful allocation calls of a process";
    PROCESS_FREES = Counter("vramscope_process_frees_total", "", PROCESS, Processes),
        "Allocations of a process freed by the program";
    PROCESS_FAILURES =
        Counter("vramscope_process_failed_allocations_total", "", PROCESS, Processes),
        "Failed allocation calls of a process";
    PROCESS_OUT_OF_MEMORY =
        Counter("vramscope_process_out_of_memory_total", "", PROCESS, Processes),
        "Calls of a process that failed with CUDA_ERROR_OUT_OF_MEMORY";
    PROCESS_LAUNCHES = Counter("vramscope_process_launches_total", "", PROCESS, Processes),
        "Launches of kernels and graphs of a process, if kernels are traced";
    PROCESS_MIG = Info("vramscope_process_mig_info", "", PROCESS_AND_MIG, Processes),
        "MIG instance on which a process runs: UUID and profile";
    CONTAINER_LIVE = Gauge("vramscope_container_live_bytes", "bytes", CONTAINER, Containers),
        "Live device memory of the processes of a container";
    CONTAINER_USED = Gauge("vramscope_container_used_bytes", "bytes", CONTAINER, Containers),
        "GPU memory used by the processes of a container, as reported by the driver";

    // Allocation sites and leak suspects.
    SITE_LIVE = Gauge("vramscope_site_live_bytes", "bytes", SITE, Sites),
        "Live device memory by allocation site";
    SITE_COUNT = Gauge("vramscope_site_live_allocations", "", SITE, Sites),
        "Live allocations by allocation site";
    SUSPECTS = Gauge("vramscope_suspects", "", &["confidence"], Fixed(3)),
        "Leak suspects, grouped by program and function, by confidence";
    SUSPECT_LIVE = Gauge("vramscope_suspect_live_bytes", "bytes", SUSPECT, Suspects),
        "Live memory of a leak suspect";
    SUSPECT_LIVE_OBJECTS = Gauge("vramscope_suspect_live_objects", "objects", SUSPECT, Suspects),
        "Live objects of a leak suspect";
    SUSPECT_GROWTH =
        Gauge("vramscope_suspect_growth_bytes_per_second", "bytes_per_second", SUSPECT, Suspects),
        "Growth rate of a leak suspect in bytes";
    SUSPECT_GROWTH_OBJECTS =
        Gauge("vramscope_suspect_growth_objects_per_second", "objects_per_second", SUSPECT, Suspects),
        "Growth rate of a leak suspect in objects";
    SUSPECT_FULL_IN =
        Gauge("vramscope_suspect_time_until_full_seconds", "seconds", SUSPECT, Suspects),
        "Estimated time until the GPU of a suspect is full";
}
