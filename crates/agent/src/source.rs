//! What the agent needs from the program that it runs in. It never sees probes: the binary passes
//! a live trace, tests pass lists of events.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use engine::model::{Event, FunctionId, StackMode, Timestamp};
use formats::export::GpuLabel;
use formats::report::html::InitialView;

/// A message of a source.
pub enum Message {
    /// Events in order.
    Events(Vec<Event>),
    /// GPUs found after the start.
    Gpus(Vec<GpuLabel>),
    /// Probes are attached to a driver.
    Attached,
    /// The source ended early; nothing follows.
    Failed(anyhow::Error),
}

/// A running trace.
pub trait Source {
    /// Returns the GPUs that were known at the start.
    fn gpus(&self) -> Vec<GpuLabel>;

    /// Whether launches and copies are counted.
    fn counts_activity(&self) -> bool;

    /// Returns the next message, if one arrives before `deadline`.
    fn next(&self, deadline: Instant) -> Option<Message>;

    /// Returns the time up to which every event was sent.
    fn complete_until(&self) -> Timestamp;

    /// Limits how call stacks are collected from now on.
    fn limit_stacks(&self, max: StackMode);

    /// Ends the trace. Returns the remaining messages, and the time up to which nothing is missing.
    fn finish(self: Box<Self>) -> (Vec<Message>, Timestamp);
}

/// Functions of the program that the agent runs in.
#[derive(Clone, Copy)]
pub struct Program {
    /// Clock of events.
    pub clock: fn() -> Timestamp,
    /// Name of a driver function.
    pub function_name: fn(FunctionId) -> &'static str,
    /// Writes the HTML report of a recording.
    pub write_html: WriteHtml,
    /// Fails if a test requested a fault of the current thread.
    pub fault_point: fn(),
}

/// Writes the HTML report of a recording.
pub type WriteHtml = fn(&Path, InitialView, &mut dyn Write) -> Result<()>;
