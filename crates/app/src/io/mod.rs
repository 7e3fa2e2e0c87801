//! Output: files, standard streams and the terminal.

pub(super) mod atomic_file;
pub(super) mod output;
pub(super) mod output_file;
pub(super) mod signals;
pub(super) mod terminal;
