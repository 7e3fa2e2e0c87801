//! Call stacks of allocations: unwinding, Python frames and symbols.

mod known_stacks;
mod merge;
pub(crate) mod native;
pub(crate) mod python;
mod python_processes;
mod records;
mod resolver;
mod symbolizer_thread;

pub(crate) use native::mmap_events;
pub(crate) use records::{StackRecord, read};
pub(crate) use resolver::{SiteResolver, StackTables};

use crate::wire;

/// How stacks of allocating calls are captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
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
    /// Returns whether stacks are captured.
    #[must_use]
    pub const fn is_enabled(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::FramePointer => "fp",
            Self::Full => "full",
        }
    }

    pub(crate) const fn wire(self) -> u32 {
        match self {
            Self::Off => wire::VS_STACKS_OFF,
            Self::FramePointer => wire::VS_STACKS_FRAME_POINTER,
            Self::Full => wire::VS_STACKS_COPY,
        }
    }
}
