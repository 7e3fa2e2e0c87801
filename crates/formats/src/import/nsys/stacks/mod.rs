//! NEWMOD import/nsys/stacks

pub(super) mod calls;
pub(super) mod chains;
pub(super) mod lookup;
