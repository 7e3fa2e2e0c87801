//! A simulated CUDA driver: what `libcuda.so.1` is to a program, without a GPU.
//!
//! The exported functions have the real names, the real ABI and entry points that begin with the
//! machine code of real drivers, so a tracer can be tried against them. Device memory is only
//! bookkeeping; addresses are plausible and belong to no real mapping. When the process ends, the
//! driver writes down what it was asked for, so that a tracer's account can be checked.
//!
//! The folder's `README.md` describes the environment variables and the files.

mod abi;
mod arena;
mod context;
mod device;
mod entry;
mod exit;
mod fork;
mod handle;
mod host;
mod ledger;
mod memory;
mod report;
mod resolve;
mod settings;
mod state;
