//! The data model: ids, units, events and the things they describe.

pub mod change;
mod driver;
pub mod event;
pub mod ids;
pub mod loss;
pub mod memory_kind;
pub mod named;
mod process;
pub mod stack;
mod torch;
pub mod trace_mode;
pub mod units;

pub use driver::{activity, cuda_error, cuda_object, overhead};
pub use process::{container, device_holder, holder, program};
pub use torch::{caching_allocator, tensor};
