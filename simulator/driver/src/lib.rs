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
mod array;
mod context;
mod copy;
mod copy_batch;
mod copy_shaped;
mod device;
mod entry;
mod exit;
mod fill;
mod fork;
mod graph;
mod graph_api;
mod handle;
mod host;
mod import;
mod launch;
mod ledger;
mod memory;
mod module;
mod objects;
mod owner;
mod pool;
mod report;
mod report_work;
mod resolve;
mod settings;
mod share;
mod shared;
mod side;
mod state;
mod stream;
mod vmm;
mod work;
