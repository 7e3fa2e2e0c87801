//! Trace modes as the probes and the in-process library know them.

pub use engine::model::trace_mode::{AllocatorMode, StackMode};

use crate::wire;

/// A mode with a number in the wire format.
pub(crate) trait WireMode {
    fn wire(self) -> u32;
}

impl WireMode for StackMode {
    fn wire(self) -> u32 {
        match self {
            Self::Off => wire::VS_STACKS_OFF,
            Self::FramePointer => wire::VS_STACKS_FRAME_POINTER,
            Self::Full => wire::VS_STACKS_COPY,
        }
    }
}

impl WireMode for AllocatorMode {
    fn wire(self) -> u32 {
        match self {
            Self::Off => wire::VS_BLOCKS_OFF,
            Self::Totals => wire::VS_BLOCKS_TOTALS,
            Self::Sampled | Self::WhileGrowing => wire::VS_BLOCKS_SAMPLED,
            Self::Full => wire::VS_BLOCKS_FULL,
        }
    }
}
