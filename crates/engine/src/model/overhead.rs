//! What driver-reported memory beyond traced allocations is for.

/// What takes device memory without an allocating call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum OverheadCause {
    /// Contexts.
    Context = 0,
    /// Modules and libraries, loaded by a call.
    Module = 1,
    /// Code loaded, and local memory resized, at the first launch of a kernel.
    FirstLaunch = 2,
    /// Graph executables.
    GraphExec = 3,
    /// Streams.
    Stream = 4,
    /// Memory that pools hold beyond their allocations.
    Pool = 5,
    /// Memory that graphs hold beyond their allocations.
    GraphMemory = 6,
    /// Rounding of allocations to the granularity of the driver.
    Rounding = 7,
    /// Memory from before the trace.
    BeforeTrace = 8,
}

impl OverheadCause {
    /// All causes; the first of several possible ones is the most expensive.
    pub const ALL: [Self; 9] = [
        Self::Context,
        Self::Module,
        Self::FirstLaunch,
        Self::GraphExec,
        Self::Stream,
        Self::Pool,
        Self::GraphMemory,
        Self::Rounding,
        Self::BeforeTrace,
    ];

    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Module => "modules",
            Self::FirstLaunch => "first_launches",
            Self::GraphExec => "graph_execs",
            Self::Stream => "streams",
            Self::Pool => "pool_reserve",
            Self::GraphMemory => "graph_reserve",
            Self::Rounding => "rounding",
            Self::BeforeTrace => "before_trace",
        }
    }

    /// Position in [`OverheadCause::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// How a value was obtained.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Precision {
    /// Counted, or measured with no other cause at the same time.
    Measured,
    /// Measured together with other causes: the true value lies within its bounds.
    Bounded,
    /// Derived from an assumption.
    Estimated,
}

impl Precision {
    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Bounded => "bounded",
            Self::Estimated => "estimated",
        }
    }
}
