//! Modes of a trace: the same for probes, the agent's configuration and the command line.

use std::str::FromStr;

/// How stacks of allocating calls are captured.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum StackMode {
    /// No stacks.
    #[default]
    Off,
    /// Frame-pointer walks, and Python stacks.
    FramePointer,
    /// Copies of the stack, unwound with the unwind tables of programs, and Python stacks.
    Full,
}

impl StackMode {
    /// All modes, cheapest first.
    pub const ALL: [Self; 3] = [Self::Off, Self::FramePointer, Self::Full];

    /// Returns whether stacks are captured.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Returns the name on the command line and in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::FramePointer => "fp",
            Self::Full => "full",
        }
    }
}

impl FromStr for StackMode {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|mode| mode.name() == name).ok_or("must be off, fp or full")
    }
}

/// What is recorded about blocks of PyTorch's caching allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TensorMode {
    /// Nothing: the allocator is not traced.
    #[default]
    Off,
    /// Allocations and frees, without stacks.
    Totals,
    /// Allocations and frees, with the stacks of allocations.
    Full,
    /// The same, for processes whose memory grows.
    WhileGrowing,
}

impl TensorMode {
    /// All modes.
    pub const ALL: [Self; 4] = [Self::WhileGrowing, Self::Full, Self::Totals, Self::Off];

    /// Returns whether the allocator is traced.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Returns the name on the command line and in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Totals => "totals",
            Self::Full => "full",
            Self::WhileGrowing => "auto",
        }
    }
}

impl FromStr for TensorMode {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == name);
        found.ok_or("must be auto, full, totals or off")
    }
}
