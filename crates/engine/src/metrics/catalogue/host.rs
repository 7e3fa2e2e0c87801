//! The host as a whole, and its GPUs.

use crate::metrics::Bound::{Fixed, Gpus};
use crate::metrics::Metric;

use super::{BY_GPU, NONE, counter, gauge, info};

/// Processes that run and use the CUDA driver.
pub static PROCESSES: Metric =
    gauge("vramscope_processes", "", NONE, Fixed(1), "Processes that run and use the CUDA driver");

/// Processes that used the CUDA driver and ended, or replaced their program.
pub static ENDED: Metric = counter(
    "vramscope_processes_ended_total",
    "",
    NONE,
    Fixed(1),
    "Processes that used the CUDA driver and ended, or replaced their program",
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

/// Calls that failed with CUDA_ERROR_OUT_OF_MEMORY; gpu is empty where it is not known, or host memory
/// was asked for.
pub static OUT_OF_MEMORY: Metric = counter(
    "vramscope_out_of_memory_total",
    "",
    BY_GPU,
    Gpus,
    "Calls that failed with CUDA_ERROR_OUT_OF_MEMORY; gpu is empty where it is not known, or host memory was asked for",
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
    "Used memory of a GPU beyond what is live there or on an unknown GPU: contexts, code, slack of pools, memory from before the trace",
);

/// When a GPU will be full if its suspects go on as they do; no value without a suspect.
pub static GPU_FULL_IN: Metric = gauge(
    "vramscope_gpu_seconds_until_full",
    "seconds",
    BY_GPU,
    Gpus,
    "When a GPU will be full if its suspects go on as they do; no value without a suspect",
);
