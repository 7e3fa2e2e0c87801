//! Modes of a trace: the same for probes, the agent's configuration and the command line.

use crate::model::named::named_enum;

named_enum! {
    /// How stacks of allocating calls are captured, cheapest first.
    #[derive(Default)]
    pub enum StackMode {
        /// No stacks.
        #[default]
        Off => "off",
        /// Frame-pointer walks, and Python stacks.
        FramePointer => "fp",
        /// Copies of the stack, unwound with the unwind tables of programs, and Python stacks.
        Full => "full",
    }
}

impl StackMode {
    /// Returns whether stacks are captured.
    pub const fn is_enabled(self) -> bool {
        !matches!(self, Self::Off)
    }
}

named_enum! {
    /// What is recorded about blocks of PyTorch's caching allocator.
    #[derive(Default)]
    pub enum AllocatorMode {
        /// As `Sampled`, for processes whose memory grows.
        WhileGrowing => "auto",
        /// Allocations and frees, with the stacks of allocations; of a sample if there are many.
        Sampled => "sampled",
        /// Allocations and frees, with the stacks of all allocations.
        Full => "full",
        /// Allocations and frees, without stacks.
        Totals => "totals",
        /// Nothing: the allocator is not traced.
        #[default]
        Off => "off",
    }
}

impl AllocatorMode {
    /// Returns whether the allocator is traced.
    pub const fn is_enabled(self) -> bool {
        !matches!(self, Self::Off)
    }
}
