//! What is told of the blocks of PyTorch's cache.

use crate::wire;

/// What is told of each block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tensors {
    /// Nothing: the cache is not watched.
    #[default]
    Off,
    /// That it was given out or taken back, and not where.
    Totals,
    /// Where it was given out, too.
    Full,
}

impl Tensors {
    /// Whether the cache is watched.
    #[must_use]
    pub const fn are_told(self) -> bool {
        !matches!(self, Self::Off)
    }

    pub(crate) const fn wire(self) -> u32 {
        match self {
            Self::Off => wire::VS_TENSORS_OFF,
            Self::Totals => wire::VS_TENSORS_TOTALS,
            Self::Full => wire::VS_TENSORS_FULL,
        }
    }
}
