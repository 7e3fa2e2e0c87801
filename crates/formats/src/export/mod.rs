//! Reports and other output formats. All formatting for users is done here.

/// Declares messages of protobuf: the number and type of each field.
#[macro_export]
macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident {
        $($field:ident($tag:tt, $($kind:ident),+): $type:ty,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub(crate) struct $name {
            $(#[prost($($kind),+, tag = $tag)] pub(crate) $field: $type,)*
        }
    )*};
}

pub mod allocations;
pub mod format_writer;
pub mod nsys_tsv;
pub mod openmetrics;
pub mod parquet;
pub mod perfetto;
pub mod profile;
pub mod torch;

pub use crate::report::redact::hide_directories;

use std::borrow::Cow;

use engine::model::{FunctionId, GpuId};

use crate::WallClock;
use crate::recording::FunctionTable;
use crate::sanitize::{sanitize, sanitize_up_to};

/// Reason why the device of an allocation is unknown.
pub const UNKNOWN_DEVICE_REASON: &str =
    "device unknown; the thread set its context before the trace";

/// Maximum number of characters of one text in markup.
const MAX_MARKUP_CHARS: usize = 2000;

/// Escapes text for HTML and SVG.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in sanitize_up_to(text, MAX_MARKUP_CHARS).chars() {
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

/// What a report needs besides the snapshot: the clock, and names for ids.
#[derive(Clone, Debug)]
pub struct ReportContext {
    /// Wall clock.
    pub clock: WallClock,
    /// Returns the driver function of a row of the hook table.
    pub function: fn(FunctionId) -> &'static str,
    /// Names of driver functions from a recording; they take precedence.
    pub recorded: FunctionTable,
    /// GPUs of the host.
    pub gpus: Vec<GpuLabel>,
    /// How calls were captured; `None` if the report does not say so.
    pub source: Option<CaptureSource>,
}

engine::named_enum! {
    /// How the calls of programs are captured.
    pub enum CaptureSource {
        /// By probes in the kernel.
        Probes => "probes",
        /// By a library in the processes, as `vramscope run` does.
        InProcess => "in_process",
    }
}

/// Name and size of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuLabel {
    /// Index.
    pub id: GpuId,
    /// `GPU-…`.
    pub uuid: String,
    /// Vendor's name of the GPU.
    pub name: String,
    /// Total memory.
    pub total_bytes: u64,
}

impl ReportContext {
    /// Returns a context with a clock and no names.
    pub fn new(clock: WallClock) -> Self {
        let (function, recorded) = (|_| "an unknown function", FunctionTable::default());
        Self { clock, function, recorded, gpus: Vec::new(), source: None }
    }

    /// Returns the name of a driver function, sanitized.
    pub fn function(&self, id: FunctionId) -> Cow<'_, str> {
        match self.recorded.name(id) {
            _ if id == FunctionId::FRAMEWORK => Cow::Borrowed("PyTorch's caching allocator"),
            Some(name) => sanitize(name),
            None => Cow::Borrowed((self.function)(id)),
        }
    }

    /// Returns the name and size of a GPU, if known.
    pub fn gpu(&self, id: GpuId) -> Option<&GpuLabel> {
        self.gpus.iter().find(|gpu| gpu.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(
            escape("<script>alert('1')</script>&\""),
            "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;"
        );
        assert_eq!(escape("a\x1b\u{202e}b"), "a\\u{1b}\\u{202e}b");
    }
}
