//! Traces calls of the CUDA driver with eBPF and turns them into [`engine::model::event::Event`]s.
//! The only library with unsafe code.
//!
//! Reading order: [`hooks`] (traced functions), `bpf/` (the probes), [`plan`] (how to attach on
//! this host), [`libraries`] (where to attach), [`session`] (a running trace), [`decode`] (records
//! to events).

mod clock;
pub mod command;
mod containers;
pub mod decode;
mod error;
pub mod fault;
pub mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod gpus;
pub mod hooks;
pub mod in_process;
pub mod libraries;
mod marks;
pub mod plan;
pub mod session;
mod stacks;
mod threads;
pub mod users;
mod wire;

#[cfg(test)]
#[path = "../../engine/tests/random/mod.rs"]
mod random;

pub use clock::monotonic;
pub use error::Error;
pub use marks::{MarkAnswers, MarkRequest, MarkScope, MarkSubject, publish, send_mark};
pub use threads::panic_message;
