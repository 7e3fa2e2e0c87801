//! A page for a browser: one file that shows a whole recording or capture, works offline and asks
//! nobody for anything.
//!
//! Everything is added up here, so that the page stays small and quick however many events there
//! are: bands at so many moments, the biggest allocations one by one. What the page carries is one
//! piece of letters (see `pack`), so no name of a traced program ever stands in the markup; the
//! script puts names into the page as text only. The browser is told to run this script and no
//! other, and to load nothing.

mod figures;
mod names;
mod pack;
mod segments;

pub use pack::base64;

use std::io::{self, Write};

use engine::analysis::Amount;
use engine::analysis::bands::{Course, Drawn};
use engine::analysis::leakage::Leakage;
use engine::analysis::lives::Biggest;
use engine::analysis::summary::Overview;
use engine::analysis::suspects::Findings;
use engine::analysis::usage::Courses;
use engine::ids::SiteId;

use super::analysis::{Fragmentation, Overlay, Subject};
use super::escape;

/// Moments that bands are told of.
pub const POINTS: usize = 60_000;

/// Allocations that are told one by one.
pub const ALLOCATIONS: usize = 10_000;

/// Points of the lines of memory that does not count in the sum.
pub const LINE_POINTS: usize = 2000;

/// Bands of each cut, besides the rest.
pub const BANDS: usize = 24;

/// All that a page tells.
#[derive(Clone, Copy, Debug)]
pub struct Story<'a> {
    /// The file.
    pub subject: Subject<'a>,
    /// Each process on each device.
    pub overview: &'a Overview,
    /// What was never freed.
    pub leakage: &'a Leakage,
    /// Memory over time by device, kind and process.
    pub usage: &'a Courses,
    /// What leaks, what is thought of the rest, and what was unusual.
    pub findings: &'a Findings,
    /// What caches hold and cannot use.
    pub fragmentation: &'a Fragmentation,
    /// The sum over time, and its bands.
    pub drawn: &'a Drawn,
    /// The bands over time, each cut of them.
    pub courses: &'a [Course],
    /// What was live at the peak.
    pub at_peak: &'a [(Option<SiteId>, Amount)],
    /// The biggest allocations.
    pub biggest: &'a Biggest,
    /// Memory by other tools' accounts.
    pub overlays: &'a [Overlay],
    /// What the page shows first.
    pub opens: Opens,
}

/// What a page shows first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Opens {
    /// Memory over time, and the sites.
    #[default]
    Sites,
    /// What was never freed.
    Leaks,
    /// What was live at the peak, as a flame graph.
    Peak,
    /// Caches.
    Segments,
    /// What grows.
    Growing,
}

impl Opens {
    const fn name(self) -> &'static str {
        match self {
            Self::Sites => "sites",
            Self::Leaks => "leaks",
            Self::Peak => "peak",
            Self::Segments => "segments",
            Self::Growing => "growing",
        }
    }
}

const STYLE: &str = include_str!("assets/page.css");

const BODY: &str = include_str!("assets/page.html");

/// The script, in the order in which its parts build on each other.
const SCRIPTS: [&str; 15] = [
    include_str!("assets/base.js"),
    include_str!("assets/data.js"),
    include_str!("assets/words.js"),
    include_str!("assets/canvas.js"),
    include_str!("assets/details.js"),
    include_str!("assets/dense.js"),
    include_str!("assets/timeline.js"),
    include_str!("assets/lives.js"),
    include_str!("assets/segments.js"),
    include_str!("assets/tables.js"),
    include_str!("assets/sites.js"),
    include_str!("assets/flame.js"),
    include_str!("assets/leaks.js"),
    include_str!("assets/facts.js"),
    include_str!("assets/main.js"),
];

/// Writes the page.
pub fn write(out: &mut dyn Write, story: &Story<'_>) -> io::Result<()> {
    let script = format!("\"use strict\";\n(() => {{\n{}\n}})();\n", SCRIPTS.join("\n"));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        pack::digest(&script),
        pack::digest(STYLE)
    );
    write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{} - vramscope</title>\n<style>{STYLE}</style>\n</head>\n{BODY}\n\
         <script type=\"application/octet-stream\" id=\"data\">",
        escape(story.subject.path)
    )?;
    let (words, parts) = figures::gather(story);
    parts.write(words.to_string().as_bytes(), out)?;
    write!(out, "</script>\n<script>{script}</script>\n</body>\n</html>\n")
}
