//! Where in a program an allocation was made: stacks, native and Python, and the names in them.

mod desk;
mod known;
mod mixed;
mod naming;
mod native;
mod python;
mod pythons;
mod records;

pub(crate) use desk::{Desk, Maps};
pub(crate) use records::{StackRecord, read};

use crate::wire;

/// Which stacks are taken of allocating calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stacks {
    /// None.
    #[default]
    Off,
    /// What a walk along frame pointers finds, and Python stacks.
    Pointers,
    /// Everything: a copy of the stack is unwound by the tables that programs carry.
    Full,
}

impl Stacks {
    /// Whether there are any.
    #[must_use]
    pub const fn are_taken(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// The word for it on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Pointers => "fp",
            Self::Full => "full",
        }
    }

    pub(crate) const fn wire(self) -> u32 {
        match self {
            Self::Off => wire::VS_STACKS_OFF,
            Self::Pointers => wire::VS_STACKS_FRAME_POINTER,
            Self::Full => wire::VS_STACKS_COPY,
        }
    }
}
