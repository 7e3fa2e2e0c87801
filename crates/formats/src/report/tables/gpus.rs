//! GPUs.

use engine::view::{GpuRow, View};

use crate::WallClock;
use crate::report::view::text;
use crate::report::view::units::{compact_size, duration_words, signed_size};

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
#[must_use]
pub fn texts(gpu: &GpuRow<'_>, view: &View<'_>, clock: &WallClock) -> GpuTexts {
    let growth = match gpu.growth_per_hour {
        Some(0) => "steady".to_owned(),
        Some(growth) => format!("{}/h", signed_size(growth)),
        None => String::new(),
    };
    let full = text::forecast(gpu).map_or_else(String::new, |time| {
        let at = engine::model::units::Timestamp(view.at.0.saturating_add(time.0));
        format!("FULL IN {} ({})", duration_words(time), clock.minute(at))
    });
    let both = gpu.used.zip(gpu.total);
    let used = match (both, gpu.total) {
        (Some((used, total)), _) => text::used_of_total(used, total, 1),
        (None, Some(total)) => format!("{} of {total} traced", gpu.traced),
        (None, None) => format!("{} traced", gpu.traced),
    };
    let [traced, untracked] = [gpu.traced, gpu.untracked].map(|bytes| compact_size(bytes.0));
    let other = gpu.used.map_or_else(String::new, |used| {
        let other = used.0.saturating_sub(gpu.traced.0).saturating_sub(gpu.untracked.0);
        format!("  other {}", compact_size(other))
    });
    GpuTexts {
        name: text::gpu_name(gpu),
        used,
        share: both.map(|(used, total)| used.0 as f64 / total.0.max(1) as f64),
        growth,
        full,
        parts: format!(
            "traced {traced}  untracked {untracked}{other}  processes {}",
            gpu.processes
        ),
    }
}
