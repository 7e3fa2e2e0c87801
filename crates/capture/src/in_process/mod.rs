//! In-process tracing: no probes, no capabilities. `CUDA_INJECTION64_PATH` makes the CUDA driver
//! load a library into each process of a command; it writes the records of the probes into memory
//! that is shared with this side, through files of a private directory.

#[path = "../../../inject/src/area.rs"]
#[allow(dead_code, reason = "shared with the library")]
mod area;
mod directory;
mod jumps;
mod lifetime;
mod open;
mod rows;
mod source;
mod store;
mod tables;

pub use directory::{Directory, DirectoryError};
pub(crate) use source::InProcess;
pub(crate) use tables::SharedTable;
