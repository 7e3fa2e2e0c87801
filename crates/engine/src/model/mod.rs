//! The data model: ids, units, events and the things they describe.

mod allocator;
pub mod change;
mod driver;
pub mod event;
pub mod ids;
pub mod loss;
pub mod mark;
pub mod memory_kind;
pub mod named;
mod process;
pub mod stack;
pub mod trace_mode;
pub mod units;

pub use allocator::{blocks, caching_allocator, sampling};
pub use driver::{activity, cuda_error, cuda_object, overhead};
pub use process::{container, device_holder, holder, mig, program};

// The vocabulary is used everywhere, so its items are also here.
pub use activity::*;
pub use blocks::*;
pub use caching_allocator::*;
pub use change::*;
pub use container::*;
pub use cuda_error::*;
pub use cuda_object::*;
pub use device_holder::*;
pub use event::*;
pub use holder::*;
pub use ids::*;
pub use loss::*;
pub use mark::*;
pub use memory_kind::*;
pub use mig::*;
pub use overhead::*;
pub use program::*;
pub use sampling::*;
pub use stack::*;
pub use trace_mode::*;
pub use units::*;
