//! GPUs.

use engine::view::{GpuRow, View};

use crate::WallClock;
use crate::report::view::text;
use crate::report::view::units::compact_size;

/// Texts of a GPU.
#[derive(Clone, PartialEq, Debug)]
pub struct GpuTexts {
    /// `GPU 0 H200`.
    pub name: String,
    /// `18.0 of 140.4 GiB`, or what was traced.
    pub used: String,
    /// Share of the used memory, if known: 0 to 1.
    pub share: Option<f64>,
    /// `+612G/h`, `steady`, or nothing if it is unknown.
    pub growth: String,
    /// `FULL IN 12 min (22:30)`, or nothing.
    pub full: String,
    /// `traced 8.00G  untracked 9.30G  other 0.70G  processes 13`.
    pub parts: String,
}

/// Returns the texts of a GPU.
pub fn texts(gpu: &GpuRow<'_>, view: &View<'_>, clock: &WallClock) -> GpuTexts {
    let full = text::full_at(gpu, view, clock);
    let both = gpu.used.zip(gpu.total);
    let [traced, untracked] = [gpu.traced, gpu.untracked].map(|bytes| compact_size(bytes.0));
    let other = gpu.used.map(|_| format!("  other {}", compact_size(text::other(gpu))));
    GpuTexts {
        name: text::gpu_name(gpu),
        used: text::usage(gpu),
        share: both.map(|(used, total)| used.0 as f64 / total.0.max(1) as f64),
        growth: text::growth(gpu),
        full: full.map(|at| format!("FULL IN {at}")).unwrap_or_default(),
        parts: format!(
            "traced {traced}  untracked {untracked}{}  processes {}",
            other.unwrap_or_default(),
            gpu.processes
        ),
    }
}
