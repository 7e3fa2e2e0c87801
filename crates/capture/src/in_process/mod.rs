//! In-process tracing, without probes and capabilities. `CUDA_INJECTION64_PATH` makes the CUDA
//! driver load a library into each process of a command. The library writes the same records as the
//! probes into memory that it shares with the collector, in files of a private directory.

#[path = "../../../inject/src/area.rs"]
#[allow(dead_code, reason = "shared with the library")]
mod area;
mod collector_dir;
mod hook_rows;
mod jumps;
mod known_stack_store;
mod open_area;
mod process_end;
mod requests;
mod source;
mod tables;

pub use collector_dir::{CollectorDir, CollectorDirError, collector_dirs};
pub use requests::{SOCKET_FILE, Waker, peer};
pub(crate) use source::InProcess;
pub(crate) use tables::SharedTable;
#[cfg(test)]
pub(crate) use tables::Tables;
