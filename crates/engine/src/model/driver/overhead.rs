//! What driver-reported memory beyond traced allocations is for.

use crate::model::named::named_enum;

named_enum! {
    /// What takes device memory without an allocating call.
    pub enum OverheadCause {
        /// Contexts.
        Context => "context",
        /// Modules and libraries, loaded by a call.
        Module => "modules",
        /// Code loaded, and local memory resized, at the first launch of a kernel.
        FirstLaunch => "first_launches",
        /// Graph executables.
        GraphExec => "graph_execs",
        /// Streams.
        Stream => "streams",
        /// Heaps and stacks, sized by `cuCtxSetLimit`.
        Limit => "context_limits",
        /// Memory that pools hold beyond their allocations.
        Pool => "pool_reserve",
        /// Memory that graphs hold beyond their allocations.
        GraphMemory => "graph_reserve",
        /// Rounding of allocations to the granularity of the driver.
        Rounding => "rounding",
        /// Memory from before the trace.
        BeforeTrace => "before_trace",
    }
}

named_enum! {
    /// A limit of `cuCtxSetLimit` that takes device memory.
    pub enum ContextLimit {
        /// Stack of each GPU thread.
        Stack => "stack",
        /// Buffer of `printf` in kernels.
        PrintfFifo => "printf_fifo",
        /// Heap of `malloc` in kernels.
        MallocHeap => "malloc_heap",
        /// Depth of synchronization of launches by kernels.
        LaunchDepth => "launch_depth",
        /// Outstanding launches by kernels.
        PendingLaunches => "pending_launches",
    }
}

impl ContextLimit {
    /// Value of a context in which it was not set.
    pub const fn default_value(self) -> u64 {
        match self {
            Self::Stack => 1024,
            Self::PrintfFifo => 1 << 20,
            Self::MallocHeap => 8 << 20,
            Self::LaunchDepth => 2,
            Self::PendingLaunches => 2048,
        }
    }

    /// Limit of a value of `CUlimit`; `None` for those of caches, which take no device memory.
    pub fn from_code(code: u64) -> Option<Self> {
        Self::ALL.into_iter().nth(usize::try_from(code).ok()?)
    }
}

named_enum! {
    /// How a value was obtained.
    pub enum Precision {
        /// Counted, or measured with no other cause at the same time.
        Measured => "measured",
        /// Measured together with other causes: the true value lies within its bounds.
        Bounded => "bounded",
        /// Derived from an assumption.
        Estimated => "estimated",
    }
}
