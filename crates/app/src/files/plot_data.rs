//! Data of charts and HTML reports of a file. The file is read twice: the first pass finds the
//! points in time and the bands worth drawing.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, bail};
use engine::analysis::bands::{BandSampler, BandScan, BandScanResult, BandSeries, GroupBy};
use engine::analysis::largest::{LargestAllocations, LargestAnalysis};
use engine::analysis::leaks::LeakReport;
use engine::analysis::summary::SummaryAnalysis;
use engine::analysis::usage::{UsageAnalysis, UsageReport};
use engine::analysis::{Amount, MemoryScope};
use engine::ledger::FileLedger;
use engine::model::SiteId;
use formats::report::analysis::{AnalyzedFile, FragmentationView, OverlaySeries};
use formats::report::html::{self, HtmlReport, InitialView};

use super::input::{self, InputFile, Selection};
use super::smi_overlay;
use crate::cli;

/// Points of each series that an `nvidia-smi` log is aligned with.
const MAX_ALIGN_POINTS: usize = 20_000;

/// A file to plot, and its filters.
#[derive(Clone)]
pub(crate) struct PlotRequest<'a> {
    /// The file.
    pub(crate) path: &'a Path,
    /// What to read of it.
    pub(crate) selection: Selection<'a>,
    /// Log of another tool.
    pub(crate) overlay: &'a cli::SmiArgs,
}

/// A file with its bands.
pub(crate) struct PlotData {
    pub(crate) input: InputFile,
    pub(crate) scan: BandScanResult,
    pub(crate) series: Vec<BandSeries>,
    pub(crate) overlays: Vec<OverlaySeries>,
    usage: UsageReport,
    at_peak: Vec<(Option<SiteId>, Amount)>,
    largest: LargestAllocations,
}

/// Returns the scope of a file, and the analysis of its series.
fn usage(request: &PlotRequest<'_>) -> Result<(MemoryScope, UsageAnalysis)> {
    let scope = input::detect(request.path)?.scope();
    let has_log = request.overlay.smi_log.is_some();
    let points = if has_log { MAX_ALIGN_POINTS } else { html::MAX_LINE_POINTS };
    Ok((scope, UsageAnalysis::new(scope, Some(points))))
}

/// Returns the bands of a chart: grouped by `by`, at most `top` and the rest, at `points` points in
/// time.
pub(crate) fn chart(
    request: &PlotRequest<'_>,
    by: GroupBy,
    top: usize,
    points: usize,
) -> Result<PlotData> {
    let (scope, mut usage) = usage(request)?;
    let mut scan = BandScan::new(scope);
    let input = input::read(request.path, request.selection.clone(), &mut |change| {
        scan.observe(change);
        usage.observe(change);
    })?;
    second_pass(request, input, scan.finish(), usage.finish(), &[(by, top)], (points, 0))
}

/// Writes the HTML report of a file.
pub(crate) fn write_page(
    request: &PlotRequest<'_>,
    initial_view: InitialView,
    out: &mut dyn Write,
) -> Result<()> {
    let (scope, mut usage) = usage(request)?;
    let (mut scan, mut summary) = (BandScan::new(scope), SummaryAnalysis::new(scope));
    let mut suspects = FileLedger::new(scope);
    let input = input::read(request.path, request.selection.clone(), &mut |change| {
        scan.observe(change);
        usage.observe(change);
        summary.observe(change);
        suspects.observe(change);
    })?;
    let groupings = GroupBy::ALL.map(|by| (by, html::MAX_BANDS));
    let sizes = (html::MAX_POINTS, html::MAX_ALLOCATIONS);
    let data = second_pass(request, input, scan.finish(), usage.finish(), &groupings, sizes)?;
    let leaks = LeakReport::of(summary.groups());
    let report = HtmlReport {
        file: data.analyzed_file(),
        summary: &summary.finish(0),
        leaks: &leaks,
        usage: &data.usage,
        state: &data.input.info.end_state(suspects),
        fragmentation: &FragmentationView::of(&data.input.info, None),
        scan: &data.scan,
        series: &data.series,
        at_peak: &data.at_peak,
        largest: &data.largest,
        overlays: &data.overlays,
        initial_view,
    };
    html::write(out, &report)?;
    Ok(())
}

/// Runs the second pass.
fn second_pass(
    request: &PlotRequest<'_>,
    input: InputFile,
    mut scan: BandScanResult,
    usage: UsageReport,
    groupings: &[(GroupBy, usize)],
    (points, allocations): (usize, usize),
) -> Result<PlotData> {
    let overlays = smi_overlay::read(request.overlay, &usage, &input)?;
    scan.add_libraries(&input.info.stacks);
    let mut bands = BandSampler::new(&scan, scan.sample_points(points), groupings);
    let mut analysis = LargestAnalysis::new(input.imported.source.scope(), allocations);
    let second = input::read(request.path, request.selection.clone(), &mut |change| {
        bands.observe(change);
        if allocations > 0 {
            analysis.observe(change);
        }
    })?;
    let has_same_stacks = (0..input.info.stacks.len()).all(|id| {
        let site = SiteId(u32::try_from(id).unwrap_or(u32::MAX));
        input.info.stacks.frames(site).eq(second.info.stacks.frames(site))
    });
    if !bands.is_complete() || !has_same_stacks {
        bail!("{}: the file changed while it was read; try again", input.name);
    }
    let (series, at_peak) = bands.finish();
    let largest = analysis.finish();
    Ok(PlotData { input, scan, series, overlays, usage, at_peak, largest })
}

impl PlotData {
    /// Returns the file in the form that reports take.
    pub(crate) fn analyzed_file(&self) -> AnalyzedFile<'_> {
        self.input.analyzed_file(None)
    }
}
