//! Data of charts and HTML reports of a file. The file is read twice: the first pass finds the
//! points in time and the bands worth drawing.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use engine::analysis::Amount;
use engine::analysis::bands::{Bands, By, Course, Drawn, Outline};
use engine::analysis::leakage::Leakage;
use engine::analysis::lives::{Biggest, Lives};
use engine::analysis::summary::Summary;
use engine::analysis::suspects::Suspects;
use engine::analysis::usage::{Courses, Usage};
use engine::ids::SiteId;
use formats::export::analysis::{Overlay, Subject};
use formats::export::page::{self, Opens, Story};
use formats::import::gather::Only;

use super::input::{self, Input};
use super::{fragmentation, overlay};
use crate::cli;

/// Points of each series that an `nvidia-smi` log is aligned with.
const COMPARED: usize = 20_000;

/// A file to plot, and its filters.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The file.
    pub(crate) path: &'a Path,
    /// Processes and devices to include.
    pub(crate) only: Only,
    /// Log of another tool.
    pub(crate) overlay: &'a cli::Overlay,
}

/// A file with its bands.
pub(crate) struct Picture {
    pub(crate) input: Input,
    pub(crate) drawn: Drawn,
    pub(crate) courses: Vec<Course>,
    pub(crate) overlays: Vec<Overlay>,
    usage: Courses,
    at_peak: Vec<(Option<SiteId>, Amount)>,
    biggest: Biggest,
}

/// Analyses of the first pass.
struct Questions {
    outline: Outline,
    usage: Usage,
    summary: Summary,
    suspects: Suspects,
}

impl Questions {
    fn new(request: &Wanted<'_>) -> Result<Self> {
        let measure = input::recognise(request.path)?.measure();
        let points = if request.overlay.smi_log.is_some() { COMPARED } else { page::LINE_POINTS };
        Ok(Self {
            outline: Outline::new(measure),
            usage: Usage::new(measure, Some(points)),
            summary: Summary::new(measure),
            suspects: Suspects::new(measure),
        })
    }
}

/// Returns the bands of a chart: grouped by `by`, at most `top` and the rest, at `points` points in
/// time.
pub(crate) fn chart(request: &Wanted<'_>, by: By, top: usize, points: usize) -> Result<Picture> {
    let Questions { mut outline, mut usage, .. } = Questions::new(request)?;
    let input = input::read(request.path, request.only, &mut |change, _| {
        outline.change(change);
        usage.change(change);
    })?;
    fill(request, input, outline.finish(), usage.finish(), &[(by, top)], (points, 0))
}

/// Writes the HTML report of a file.
pub(crate) fn write_page(request: &Wanted<'_>, initial: Opens, out: &mut dyn Write) -> Result<()> {
    let Questions { mut outline, mut usage, mut summary, mut suspects } = Questions::new(request)?;
    let input = input::read(request.path, request.only, &mut |change, _| {
        outline.change(change);
        usage.change(change);
        summary.change(change);
        suspects.change(change);
    })?;
    let cuts = By::ALL.map(|by| (by, page::BANDS));
    let sizes = (page::POINTS, page::ALLOCATIONS);
    let data = fill(request, input, outline.finish(), usage.finish(), &cuts, sizes)?;
    let leakage = Leakage::of(summary.groups());
    let report = Story {
        subject: data.subject(),
        overview: &summary.finish(0),
        leakage: &leakage,
        usage: &data.usage,
        findings: &data.input.facts.findings(suspects),
        fragmentation: &fragmentation::describe(&data.input.facts, None),
        drawn: &data.drawn,
        courses: &data.courses,
        at_peak: &data.at_peak,
        biggest: &data.biggest,
        overlays: &data.overlays,
        opens: initial,
    };
    page::write(out, &report)?;
    Ok(())
}

/// Runs the second pass.
fn fill(
    request: &Wanted<'_>,
    input: Input,
    drawn: Drawn,
    usage: Courses,
    cuts: &[(By, usize)],
    (points, allocations): (usize, usize),
) -> Result<Picture> {
    let overlays = overlay::read(request.overlay, &usage, &input)?;
    let mut bands = Bands::new(&drawn, drawn.moments(points), cuts);
    let mut lives = Lives::new(input.imported.source.measure(), allocations);
    let again = input::read(request.path, request.only, &mut |change, _| {
        bands.change(change);
        if allocations > 0 {
            lives.change(change);
        }
    })?;
    let same = (0..input.facts.stacks.len()).all(|id| {
        let site = SiteId(u32::try_from(id).unwrap_or(u32::MAX));
        input.facts.stacks.frames(site).eq(again.facts.stacks.frames(site))
    });
    if !bands.is_whole() || !same {
        bail!("{}: the file changed while it was read; try again", input.name);
    }
    let (courses, at_peak) = bands.finish();
    let biggest = lives.finish();
    Ok(Picture { input, drawn, courses, overlays, usage, at_peak, biggest })
}

impl Picture {
    /// Returns the file in the form that reports take.
    pub(crate) fn subject(&self) -> Subject<'_> {
        self.input.subject(None)
    }
}
