//! HTML report: one file that shows a whole recording or capture, works offline and makes no
//! requests.
//!
//! All values are aggregated here, so that the report stays small and fast for any number of
//! events: bands at up to `MAX_POINTS` times, and the `MAX_ALLOCATIONS` largest allocations. The
//! data is one base64 block (see `packed_data`), so names from traced programs are never part of
//! the markup; the script inserts them as text only. The content security policy allows this
//! script only, and no loading of anything else.

mod live_page;
mod packed_data;
mod segments;
mod strings;
mod summary;

pub use live_page::{LivePageFile, live_page};

use std::io::{self, Write};

use engine::analysis::Amount;
use engine::analysis::bands::{BandScanResult, BandSeries};
use engine::analysis::largest::LargestAllocations;
use engine::analysis::leaks::LeakReport;
use engine::analysis::summary::SummaryReport;
use engine::analysis::usage::UsageReport;
use engine::model::SiteId;

use super::analysis::{AnalyzedFile, FragmentationView, OverlaySeries};
use crate::export::escape;
use crate::import::FileState;

/// Maximum number of points of the bands.
pub const MAX_POINTS: usize = 60_000;

/// Maximum number of single allocations.
pub const MAX_ALLOCATIONS: usize = 10_000;

/// Maximum number of points of lines for memory that does not count in the sum.
pub const MAX_LINE_POINTS: usize = 2000;

/// Maximum number of bands per grouping, besides the rest.
pub const MAX_BANDS: usize = 24;

/// Content of an HTML report.
#[derive(Clone, Copy, Debug)]
pub struct HtmlReport<'a> {
    /// The analyzed file.
    pub file: AnalyzedFile<'a>,
    /// Values by process and device.
    pub summary: &'a SummaryReport,
    /// Memory that was never freed.
    pub leaks: &'a LeakReport,
    /// Memory over time by device, kind and process.
    pub usage: &'a UsageReport,
    /// State at the end: leaks, other verdicts and anomalies.
    pub state: &'a FileState,
    /// Fragmentation of caches and pools.
    pub fragmentation: &'a FragmentationView,
    /// The sum over time, and its bands.
    pub scan: &'a BandScanResult,
    /// Bands over time, one series per grouping.
    pub series: &'a [BandSeries],
    /// Memory that was live at the peak, by site.
    pub at_peak: &'a [(Option<SiteId>, Amount)],
    /// The largest allocations.
    pub largest: &'a LargestAllocations,
    /// Memory over time as reported by other tools.
    pub overlays: &'a [OverlaySeries],
    /// Initially visible tab.
    pub initial_view: InitialView,
}

engine::named_enum! {
    /// Initially visible tab of the report.
    #[derive(Default)]
    pub enum InitialView {
        /// Memory over time, and the sites.
        #[default]
        Sites => "sites",
        /// Memory that was never freed.
        Leaks => "leaks",
        /// Flame graph of the memory at the peak.
        Peak => "peak",
        /// Allocator state.
        Segments => "segments",
        /// Growing sites.
        Growing => "growing",
    }
}

const STYLE: &str = include_str!("assets/page.css");

const BODY: &str = include_str!("assets/page.html");

/// Parts of the script, in dependency order.
const SCRIPTS: [&str; 16] = [
    include_str!("assets/base.js"),
    include_str!("assets/data.js"),
    include_str!("assets/format.js"),
    include_str!("assets/canvas.js"),
    include_str!("assets/controls.js"),
    include_str!("assets/details.js"),
    include_str!("assets/dense_bands.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/allocations.js"),
    include_str!("assets/segments.js"),
    include_str!("assets/tables.js"),
    include_str!("assets/sites.js"),
    include_str!("assets/flame.js"),
    include_str!("assets/leaks.js"),
    include_str!("assets/file_info.js"),
    include_str!("assets/main.js"),
];

/// Joins parts of a script in one function.
fn script(parts: &[&str]) -> String {
    format!("\"use strict\";\n(() => {{\n{}\n}})();\n", parts.join("\n"))
}

/// Writes the report.
pub fn write(out: &mut dyn Write, report: &HtmlReport<'_>) -> io::Result<()> {
    let script = script(&SCRIPTS);
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        packed_data::digest(&script),
        packed_data::digest(STYLE)
    );
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{} - vramscope</title>\n<style>{STYLE}</style>\n</head>\n{BODY}\n\
         <script type=\"application/octet-stream\" id=\"data\">",
        escape(report.file.path)
    )?;
    let (object, parts) = summary::collect(report);
    parts.write(object.to_string().as_bytes(), out)?;
    write!(out, "</script>\n<script>{script}</script>\n</body>\n</html>\n")
}
