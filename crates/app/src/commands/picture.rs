//! What pictures of a file are made of. It takes two readings: which moments and bands are worth
//! drawing is known at the end of the first.

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

/// Points of each series that a log of `nvidia-smi` is compared with.
const COMPARED: usize = 20_000;

/// Which file, and what of it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// The file.
    pub(crate) path: &'a Path,
    /// A part of it.
    pub(crate) only: Only,
    /// What another tool saw.
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

/// What the first reading asks besides.
struct Questions {
    outline: Outline,
    usage: Usage,
    summary: Summary,
    suspects: Suspects,
}

impl Questions {
    fn new(wanted: &Wanted<'_>) -> Result<Self> {
        let measure = input::recognise(wanted.path)?.measure();
        let points = if wanted.overlay.smi_log.is_some() { COMPARED } else { page::LINE_POINTS };
        Ok(Self {
            outline: Outline::new(measure),
            usage: Usage::new(measure, Some(points)),
            summary: Summary::new(measure),
            suspects: Suspects::new(measure),
        })
    }
}

/// Bands for a chart: by what, how many besides the rest, and at how many moments.
pub(crate) fn chart(wanted: &Wanted<'_>, by: By, top: usize, points: usize) -> Result<Picture> {
    let Questions { mut outline, mut usage, .. } = Questions::new(wanted)?;
    let input = input::read(wanted.path, wanted.only, &mut |change, _| {
        outline.change(change);
        usage.change(change);
    })?;
    fill(wanted, input, outline.finish(), usage.finish(), &[(by, top)], (points, 0))
}

/// Writes the page of a file.
pub(crate) fn write_page(wanted: &Wanted<'_>, opens: Opens, out: &mut dyn Write) -> Result<()> {
    let Questions { mut outline, mut usage, mut summary, mut suspects } = Questions::new(wanted)?;
    let input = input::read(wanted.path, wanted.only, &mut |change, _| {
        outline.change(change);
        usage.change(change);
        summary.change(change);
        suspects.change(change);
    })?;
    let cuts = By::ALL.map(|by| (by, page::BANDS));
    let sizes = (page::POINTS, page::ALLOCATIONS);
    let picture = fill(wanted, input, outline.finish(), usage.finish(), &cuts, sizes)?;
    let leakage = Leakage::of(summary.groups());
    let story = Story {
        subject: picture.subject(),
        overview: &summary.finish(0),
        leakage: &leakage,
        usage: &picture.usage,
        findings: &picture.input.facts.findings(suspects),
        fragmentation: &fragmentation::answer(&picture.input.facts, None),
        drawn: &picture.drawn,
        courses: &picture.courses,
        at_peak: &picture.at_peak,
        biggest: &picture.biggest,
        overlays: &picture.overlays,
        opens,
    };
    page::write(out, &story)?;
    Ok(())
}

/// The second reading.
fn fill(
    wanted: &Wanted<'_>,
    input: Input,
    drawn: Drawn,
    usage: Courses,
    cuts: &[(By, usize)],
    (points, allocations): (usize, usize),
) -> Result<Picture> {
    let overlays = overlay::read(wanted.overlay, &usage, &input)?;
    let mut bands = Bands::new(&drawn, drawn.moments(points), cuts);
    let mut lives = Lives::new(input.imported.source.measure(), allocations);
    let again = input::read(wanted.path, wanted.only, &mut |change, _| {
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
    /// The file, as exports want it.
    pub(crate) fn subject(&self) -> Subject<'_> {
        self.input.subject(None)
    }
}
