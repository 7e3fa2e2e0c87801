//! A reader of pickles that executes nothing.

pub(super) mod byte_window;
pub(super) mod error;
pub(super) mod machine;
pub(super) mod memo;
pub(super) mod opcode;
pub(super) mod strings;
pub(super) mod value;
