//! Modes for tracing PyTorch's caching allocator.

use crate::wire;

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
    /// Returns whether the allocator is traced.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        !matches!(self, Self::Off)
    }

    pub(crate) const fn wire(self) -> u32 {
        match self {
            Self::Off => wire::VS_TENSORS_OFF,
            Self::Totals => wire::VS_TENSORS_TOTALS,
            Self::Full | Self::WhileGrowing => wire::VS_TENSORS_FULL,
        }
    }
}
