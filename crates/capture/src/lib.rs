//! Linux and eBPF: from calls of the CUDA driver to [`engine::event::Event`]s. The one library
//! with unsafe code.
//!
//! Read in this order: [`hooks`] (what is traced), `bpf/` (the probes), [`host`] and [`plan`] (how
//! they can be attached here), [`libraries`] and [`prologue`] (where), [`session`] (a running
//! trace), [`decode`] (what a record means).

mod clock;
pub mod command;
mod containers;
pub mod decode;
mod error;
pub mod fault;
pub mod gpus;
pub mod hooks;
pub mod host;
pub mod libraries;
mod life;
pub mod plan;
pub mod prologue;
pub mod session;
mod stacks;
mod tensors;
mod threads;
mod wire;

#[cfg(test)]
#[path = "../../engine/tests/random/mod.rs"]
mod random;

pub use clock::monotonic;
pub use error::Error;
pub use threads::panic_message;
