//! A simulated CUDA driver: stands in for `libcuda.so.1` without a GPU.
//!
//! The exported functions have the real names, the real ABI and entry points that start with the
//! machine code of real drivers, so a tracer can be tested with them. Device memory is only
//! accounted; addresses are plausible, but not mapped. When the process exits, the driver writes
//! its own account, the oracle, to compare with the report of a tracer.
//!
//! `docs/internals/simulator.md` describes the environment variables and the files.

mod abi;
mod api;
mod entry;
mod oracle;
mod settings;
mod state;
