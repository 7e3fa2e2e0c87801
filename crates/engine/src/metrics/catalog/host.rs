//! Metrics of the host and its GPUs.

use crate::metrics::Cardinality::{Fixed, Gpus};
use crate::metrics::Metric;

use super::{BY_GPU, NONE, counter, gauge, info};

/// Running processes that use the CUDA driver.
pub static PROCESSES: Metric =
    gauge("vramscope_processes", "", NONE, Fixed(1), "Running processes that use the CUDA driver");

/// Processes that used the CUDA driver and exited or called exec.
pub static ENDED: Metric = counter(
    "vramscope_processes_ended_total",
    "",
    NONE,
    Fixed(1),
    "Processes that used the CUDA driver and exited or called exec",
);

/// Memory not freed by processes at exit.
pub static NOT_FREED: Metric = counter(
    "vramscope_not_freed_bytes_total",
    "bytes",
    NONE,
    Fixed(1),
    "Memory not freed by processes at exit",
);

/// Successful allocation calls.
pub static ALLOCATIONS: Metric =
    counter("vramscope_allocations_total", "", NONE, Fixed(1), "Successful allocation calls");

/// Allocations freed by the program.
pub static FREES: Metric =
    counter("vramscope_frees_total", "", NONE, Fixed(1), "Allocations freed by the program");

/// Failed allocation calls.
pub static FAILURES: Metric =
    counter("vramscope_failed_allocations_total", "", NONE, Fixed(1), "Failed allocation calls");

/// Calls that failed with CUDA_ERROR_OUT_OF_MEMORY; gpu is empty if unknown, or for host memory.
pub static OUT_OF_MEMORY: Metric = counter(
    "vramscope_out_of_memory_total",
    "",
    BY_GPU,
    Gpus,
    "Calls that failed with CUDA_ERROR_OUT_OF_MEMORY; gpu is empty if unknown, or if host memory was requested",
);

/// Launches of kernels and graphs, if kernels are traced.
pub static LAUNCHES: Metric = counter(
    "vramscope_launches_total",
    "",
    NONE,
    Fixed(1),
    "Launches of kernels and graphs, if kernels are traced",
);

/// Bytes copied or set, if kernels are traced.
pub static COPIED: Metric = counter(
    "vramscope_copied_bytes_total",
    "bytes",
    &["direction"],
    Fixed(16),
    "Bytes copied or set, if kernels are traced",
);

/// Live memory of all processes by kind, on device and host.
pub static KIND: Metric = gauge(
    "vramscope_live_bytes",
    "bytes",
    &["kind"],
    Fixed(20),
    "Live memory of all processes by kind, on device and host",
);

/// Processes that have a GPU open for CUDA and that the driver does not list.
pub static UNLISTED: Metric = gauge(
    "vramscope_unlisted_processes",
    "",
    NONE,
    Fixed(1),
    "Processes that have a GPU open for CUDA and that the driver does not list: they may keep memory",
);

/// Number of libraries with their own series.
pub(crate) const MAX_LIBRARIES: usize = 20;

/// Live device memory by the library that allocated it; the smallest are merged into `other`.
pub static LIBRARY: Metric = gauge(
    "vramscope_library_live_bytes",
    "bytes",
    &["library"],
    Fixed(MAX_LIBRARIES + 1),
    "Live device memory by the library that allocated it; the smallest are merged into `other`",
);

/// GPU model and UUID.
pub static GPU: Metric =
    info("vramscope_gpu_info", &["gpu", "uuid", "name"], Gpus, "GPU model and UUID");

/// Total GPU memory.
pub static GPU_TOTAL: Metric =
    gauge("vramscope_gpu_total_bytes", "bytes", BY_GPU, Gpus, "Total GPU memory");

/// Free GPU memory, as reported by the driver.
pub static GPU_FREE: Metric = gauge(
    "vramscope_gpu_free_bytes",
    "bytes",
    BY_GPU,
    Gpus,
    "Free GPU memory, as reported by the driver",
);

/// Used GPU memory, as reported by the driver.
pub static GPU_USED: Metric = gauge(
    "vramscope_gpu_used_bytes",
    "bytes",
    BY_GPU,
    Gpus,
    "Used GPU memory, as reported by the driver",
);

/// Live GPU memory from traced allocations.
pub static GPU_LIVE: Metric = gauge(
    "vramscope_gpu_live_bytes",
    "bytes",
    BY_GPU,
    Gpus,
    "Live GPU memory from traced allocations",
);

/// Used GPU memory that no traced allocation explains (contexts, code, pool slack, memory from
/// before the trace).
pub static GPU_UNTRACKED: Metric = gauge(
    "vramscope_gpu_untracked_bytes",
    "bytes",
    BY_GPU,
    Gpus,
    "Used GPU memory that no traced allocation on this or an unknown GPU explains (contexts, code, pool slack, memory from before the trace)",
);

/// Growth of used GPU memory, as reported by the driver.
pub static GPU_GROWTH: Metric = gauge(
    "vramscope_gpu_growth_bytes_per_second",
    "bytes_per_second",
    BY_GPU,
    Gpus,
    "Growth of used GPU memory over the last minutes, as reported by the driver",
);

/// Estimated time until the GPU is full.
pub static GPU_FULL_IN: Metric = gauge(
    "vramscope_gpu_time_until_full_seconds",
    "seconds",
    BY_GPU,
    Gpus,
    "Estimated time until the GPU is full at its current growth, or at that of its leaks; no sample without growth",
);
