//! Metrics of processes and containers.

use crate::metrics::Cardinality::{Containers, Processes};
use crate::metrics::Metric;

use super::{CONTAINER, PROCESS, PROCESS_AND_GPU, counter, gauge};

/// Live device memory of a process.
pub static LIVE: Metric = gauge(
    "vramscope_process_live_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Live device memory of a process",
);

/// Peak device memory of a process; for `other` the largest of any.
pub static PEAK: Metric = gauge(
    "vramscope_process_peak_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Peak device memory of a process; for `other` the largest of any",
);

/// GPU memory used by a process, as reported by the driver.
pub static USED: Metric = gauge(
    "vramscope_process_used_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "GPU memory used by a process, as reported by the driver",
);

/// GPU memory of a process that no traced allocation explains.
pub static UNTRACKED: Metric = gauge(
    "vramscope_process_untracked_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "GPU memory of a process that no traced allocation explains",
);

/// Memory allocated from pools.
pub static POOL_USED: Metric = gauge(
    "vramscope_process_pool_used_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Memory allocated from pools",
);

/// Memory that pools hold on a GPU, if the program queried it.
pub static POOL_RESERVED: Metric = gauge(
    "vramscope_process_pool_reserved_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Memory that pools hold on a GPU, if the program queried it",
);

/// Memory of tensors in the PyTorch cache, if tensors are tracked.
pub static CACHE_USED: Metric = gauge(
    "vramscope_process_torch_allocated_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Memory of tensors in the PyTorch cache, if tensors are tracked",
);

/// Memory that the PyTorch cache holds, if tensors are tracked.
pub static CACHE_RESERVED: Metric = gauge(
    "vramscope_process_torch_reserved_bytes",
    "bytes",
    PROCESS_AND_GPU,
    Processes,
    "Memory that the PyTorch cache holds, if tensors are tracked",
);

/// Share of the PyTorch cache that is free but fragmented.
pub static FRAGMENTATION: Metric = gauge(
    "vramscope_process_torch_fragmentation_ratio",
    "ratio",
    PROCESS_AND_GPU,
    Processes,
    "Share of the PyTorch cache that is free but fragmented",
);

/// Pinned or registered host memory.
pub static PINNED: Metric = gauge(
    "vramscope_process_pinned_bytes",
    "bytes",
    PROCESS,
    Processes,
    "Pinned or registered host memory",
);

/// Managed memory, on device or host.
pub static MANAGED: Metric = gauge(
    "vramscope_process_managed_bytes",
    "bytes",
    PROCESS,
    Processes,
    "Managed memory, on device or host",
);

/// Successful allocation calls of a process.
pub static PROCESS_ALLOCATIONS: Metric = counter(
    "vramscope_process_allocations_total",
    "",
    PROCESS,
    Processes,
    "Successful allocation calls of a process",
);

/// Allocations of a process freed by the program.
pub static PROCESS_FREES: Metric = counter(
    "vramscope_process_frees_total",
    "",
    PROCESS,
    Processes,
    "Allocations of a process freed by the program",
);

/// Failed allocation calls of a process.
pub static PROCESS_FAILURES: Metric = counter(
    "vramscope_process_failed_allocations_total",
    "",
    PROCESS,
    Processes,
    "Failed allocation calls of a process",
);

/// Calls of a process that failed with CUDA_ERROR_OUT_OF_MEMORY.
pub static PROCESS_OUT_OF_MEMORY: Metric = counter(
    "vramscope_process_out_of_memory_total",
    "",
    PROCESS,
    Processes,
    "Calls of a process that failed with CUDA_ERROR_OUT_OF_MEMORY",
);

/// Launches of kernels and graphs of a process, if kernels are traced.
pub static PROCESS_LAUNCHES: Metric = counter(
    "vramscope_process_launches_total",
    "",
    PROCESS,
    Processes,
    "Launches of kernels and graphs of a process, if kernels are traced",
);

/// Live device memory of the processes of a container.
pub static CONTAINER_LIVE: Metric = gauge(
    "vramscope_container_live_bytes",
    "bytes",
    CONTAINER,
    Containers,
    "Live device memory of the processes of a container",
);

/// GPU memory used by the processes of a container, as reported by the driver.
pub static CONTAINER_USED: Metric = gauge(
    "vramscope_container_used_bytes",
    "bytes",
    CONTAINER,
    Containers,
    "GPU memory used by the processes of a container, as reported by the driver",
);
