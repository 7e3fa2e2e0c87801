//! Snapshots and reports → bytes. Nobody else formats for users.

pub mod allocations;
pub mod analysis;
pub mod exporter;
pub mod handoff;
pub mod json;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
pub mod profile;
pub mod speedscope;
pub mod text;
pub mod torch;
pub mod work;

use std::borrow::Cow;

use engine::ids::{FunctionId, GpuId};
use engine::snapshot::{Certainty, Snapshot};
use engine::units::Bytes;

use crate::WallClock;
use crate::plain::plain;
use crate::recording::Functions;

/// Why an allocation has no device.
pub const UNKNOWN_DEVICE: &str = "allocated by threads whose context was set before the trace and \
    that have not asked the driver for it since";

/// The live bytes of every process that a snapshot lists, and what bounds them: those that ended
/// count with what they had not freed.
pub(crate) fn listed(snapshot: &Snapshot) -> (Bytes, Certainty) {
    let mut certainty = snapshot.certainty.clone();
    let mut live = 0_u64;
    for process in &snapshot.processes {
        live = live.saturating_add(process.live_bytes.0);
        if process.ended.is_some() {
            let own = &process.certainty;
            let add = |sum: Bytes, more: Bytes| Bytes(sum.0.saturating_add(more.0));
            certainty.live_at_least = add(certainty.live_at_least, own.live_at_least);
            certainty.live_at_most = add(certainty.live_at_most, own.live_at_most);
            certainty.before_trace |= own.before_trace;
        }
    }
    (Bytes(live), certainty)
}

/// What a report needs besides the snapshot: the names of things the engine knows by number.
#[derive(Clone, Debug)]
pub struct Names {
    /// Times of day.
    pub clock: WallClock,
    /// The driver function of a row of the hook table.
    pub function: fn(FunctionId) -> &'static str,
    /// The driver functions that a recording names itself; they come first.
    pub recorded: Functions,
    /// The GPUs of the host.
    pub gpus: Vec<GpuName>,
}

/// What a GPU is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuName {
    /// Its index.
    pub id: GpuId,
    /// `GPU-…`.
    pub uuid: String,
    /// What the vendor calls it.
    pub name: String,
    /// All of its memory.
    pub total_bytes: u64,
}

impl Names {
    /// What a driver function is called, fit for a terminal.
    #[must_use]
    pub fn function(&self, id: FunctionId) -> Cow<'_, str> {
        match self.recorded.name(id) {
            Some(name) => plain(name),
            None => Cow::Borrowed((self.function)(id)),
        }
    }

    /// What a GPU is called, where the host could be asked.
    #[must_use]
    pub fn gpu(&self, id: GpuId) -> Option<&GpuName> {
        self.gpus.iter().find(|gpu| gpu.id == id)
    }
}
