//! Processes and containers.

use crate::metrics::Bound::{Containers, Processes};
use crate::metrics::Metric;

use super::{CONTAINER, PROCESS, PROCESS_AND_GPU, counter, gauge};

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
