//! Snapshots and reports → bytes. Nobody else formats for users.

pub mod advice;
pub mod allocations;
pub mod analysis;
pub mod chart;
pub mod exporter;
pub mod handoff;
pub mod incident;
pub mod json;
#[cfg(feature = "openmetrics")]
pub mod openmetrics;
pub mod page;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod perfetto;
mod places;
pub mod profile;
pub mod speedscope;
pub mod text;
pub mod torch;
pub mod verdict;
pub mod work;

pub use places::hide_directories;

use std::borrow::Cow;

use engine::ids::{FunctionId, GpuId};
use engine::snapshot::{Certainty, Snapshot};
use engine::units::Bytes;

use crate::WallClock;
use crate::plain::{plain, plain_up_to};
use crate::recording::Functions;

/// Why an allocation has no device.
pub const UNKNOWN_DEVICE: &str = "device unknown; the thread set its context before the trace";

/// The certainty of every process that a snapshot lists. Its bounds include the memory that ended
/// processes had not freed.
pub(crate) fn listed(snapshot: &Snapshot) -> Certainty {
    let mut certainty = snapshot.certainty.clone();
    for process in &snapshot.processes {
        if process.ended.is_some() {
            let own = &process.certainty;
            let add = |sum: Bytes, more: Bytes| Bytes(sum.0.saturating_add(more.0));
            certainty.live_at_least = add(certainty.live_at_least, own.live_at_least);
            certainty.live_at_most = add(certainty.live_at_most, own.live_at_most);
            certainty.before_trace |= own.before_trace;
            certainty.unknown_context += own.unknown_context;
            certainty.ambiguous_calls += own.ambiguous_calls;
        }
    }
    certainty
}

/// The longest piece of foreign text in markup.
const LONGEST: usize = 2000;

/// Text that means nothing to a browser.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain_up_to(text, LONGEST).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_no_markup() {
        assert_eq!(
            escape("<script>alert('1')</script>&\""),
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;"
        );
        assert_eq!(escape("a\x1b\u{202e}b"), "a\\u{1b}\\u{202e}b");
    }
}
