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
