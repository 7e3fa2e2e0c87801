//! `vramscope report`: runs one analysis on one file.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use engine::analysis::MemoryScope;
use engine::analysis::groups::GroupTable;
use engine::analysis::leaks::LeakReport;
use engine::analysis::peak::PeakAnalysis;
use engine::analysis::summary::SummaryAnalysis;
use engine::analysis::suspects::SuspectAnalysis;
use engine::analysis::usage::UsageAnalysis;
use engine::model::change::AllocationChange;
use formats::import::SourceFormat;
use formats::report::analysis;
use formats::report::analysis::{AnalysisResult, AnalyzedFile};
use formats::report::html::InitialView;

use crate::Outcome;
use crate::cli::{AnalysisArg, ReportArgs, ReportFormat};
use crate::files::input::InputFile;
use crate::files::leak_gate::LeakGate;
use crate::files::plot_data;
use crate::files::plot_data::PlotRequest;
use crate::files::{fragmentation, input, leak_gate, smi_overlay};
use crate::io::output;
use crate::io::output::ResultOutput;

/// Sites listed in text output without `--top`.
const DEFAULT_TOP: usize = 10;

/// Sites that the summary lists per process without `--top`.
const DEFAULT_SUMMARY_TOP: usize = 10;

/// Points of a text chart.
const TEXT_CHART_POINTS: usize = 288;

/// Runs the verb.
pub(crate) fn run(options: &ReportArgs) -> Result<Outcome> {
    check(options)?;
    let source = input::detect(&options.file)?;
    let inputs: Vec<&Path> = [Some(&options.file), options.overlay.smi_log.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut out = output::results_from(&inputs, options.output.as_deref(), options.force)?;
    let outcome = if options.format == ReportFormat::Html {
        page(options, source, &mut out)?
    } else {
        analyze(options, source, &mut out)?
    };
    out.finish()?;
    Ok(options.limit.outcome(outcome))
}

/// Runs the analysis and writes text, JSON or TSV.
fn analyze(options: &ReportArgs, source: SourceFormat, out: &mut ResultOutput) -> Result<Outcome> {
    let scope = source.scope();
    let mut analysis = RunningAnalysis::new(options, scope);
    // A leak threshold applies to every analysis.
    let mut gate = options.limit.fail_on_leak.map(|threshold| LeakGate::new(threshold, scope));
    let input =
        input::read(&options.file, input::change_filter(&options.filter), &mut |change, _| {
            analysis.change(change);
            if let Some(gate) = &mut gate {
                gate.observe(change);
            }
        })?;
    analysis.write(options, &input, out)?;
    Ok(gate.map_or(Outcome::Success, |gate| gate.evaluate(&input.info)))
}

/// Writes the HTML report of the whole file; the analysis selects the initial view.
fn page(options: &ReportArgs, source: SourceFormat, out: &mut ResultOutput) -> Result<Outcome> {
    let request = PlotRequest {
        path: &options.file,
        filter: input::change_filter(&options.filter),
        overlay: &options.overlay,
    };
    let initial_view = match options.analysis {
        AnalysisArg::Leaks => InitialView::Leaks,
        AnalysisArg::Peak => InitialView::Peak,
        AnalysisArg::Fragmentation => InitialView::Segments,
        AnalysisArg::Suspects => InitialView::Growing,
        AnalysisArg::Summary | AnalysisArg::Usage => InitialView::Sites,
    };
    plot_data::write_page(&request, initial_view, &mut *out.writer)?;
    out.writer.flush()?;
    leak_gate::evaluate_file(
        options.limit.fail_on_leak,
        &options.file,
        request.filter,
        source.scope(),
    )
}

/// Rejects options that do not apply to the analysis.
fn check(options: &ReportArgs) -> Result<()> {
    let selected = options.analysis;
    let needs = |is_set: bool, option: &str, analysis: AnalysisArg, name: &str| {
        if is_set && selected != analysis {
            bail!("{option} requires --analysis {name}");
        }
        Ok(())
    };
    if options.format == ReportFormat::Html
        && (options.top.is_some() || options.max_points.is_some())
    {
        bail!("--top and --max-points cannot be combined with --format html");
    }
    needs(options.max_points.is_some(), "--max-points", AnalysisArg::Usage, "usage")?;
    needs(options.overlay.smi_log.is_some(), "--smi-log", AnalysisArg::Usage, "usage")?;
    needs(options.would_fit.is_some(), "--would-fit", AnalysisArg::Fragmentation, "fragmentation")
}

/// An analysis that observes the changes of a file.
enum RunningAnalysis {
    Summary(SummaryAnalysis),
    Leaks(GroupTable),
    Peak(PeakAnalysis),
    Usage(UsageAnalysis),
    Suspects(SuspectAnalysis),
    /// Needs no changes, only the other data of the file.
    Fragmentation,
}

impl RunningAnalysis {
    fn new(options: &ReportArgs, scope: MemoryScope) -> Self {
        match options.analysis {
            AnalysisArg::Summary => Self::Summary(SummaryAnalysis::new(scope)),
            AnalysisArg::Leaks => Self::Leaks(GroupTable::new(scope)),
            AnalysisArg::Peak => Self::Peak(PeakAnalysis::new(scope)),
            AnalysisArg::Usage => Self::Usage(UsageAnalysis::new(scope, points(options))),
            AnalysisArg::Suspects => Self::Suspects(SuspectAnalysis::new(scope)),
            AnalysisArg::Fragmentation => Self::Fragmentation,
        }
    }

    fn change(&mut self, change: &AllocationChange) {
        match self {
            Self::Summary(summary) => summary.observe(change),
            Self::Leaks(groups) => groups.observe(change),
            Self::Peak(peak) => peak.observe(change),
            Self::Usage(usage) => usage.observe(change),
            Self::Suspects(suspects) => suspects.observe(change),
            Self::Fragmentation => {}
        }
    }

    fn write(self, options: &ReportArgs, input: &InputFile, out: &mut ResultOutput) -> Result<()> {
        let top = options.top.or(match options.format {
            ReportFormat::Text => Some(DEFAULT_TOP),
            ReportFormat::Json | ReportFormat::Tsv | ReportFormat::Html => None,
        });
        let file = input.analyzed_file(top);
        let mut write = |result: AnalysisResult<'_>| write(options.format, out, &file, result);
        match self {
            Self::Summary(summary) => {
                let top = options.top.unwrap_or(DEFAULT_SUMMARY_TOP);
                write(AnalysisResult::Summary(&summary.finish(top)))
            }
            Self::Leaks(groups) => write(AnalysisResult::Leaks(&LeakReport::of(&groups))),
            Self::Peak(peak) => write(AnalysisResult::Peak(&peak.finish())),
            Self::Usage(usage) => {
                let report = usage.finish();
                let overlays = smi_overlay::read(&options.overlay, &report, input)?;
                write(AnalysisResult::Usage(&report, &overlays))
            }
            Self::Suspects(suspects) => {
                write(AnalysisResult::Suspects(&input.info.findings(suspects)))
            }
            Self::Fragmentation => {
                let view = fragmentation::describe(&input.info, options.would_fit);
                if options.would_fit.is_some() && view.would_fit.is_empty() {
                    output::log(
                        "the file has no free-block data, so --would-fit cannot be answered",
                    );
                }
                write(AnalysisResult::Fragmentation(&view))
            }
        }
    }
}

fn points(options: &ReportArgs) -> Option<usize> {
    options.max_points.or(match options.format {
        ReportFormat::Text => Some(TEXT_CHART_POINTS),
        ReportFormat::Json | ReportFormat::Tsv | ReportFormat::Html => None,
    })
}

fn write(
    format: ReportFormat,
    out: &mut ResultOutput,
    file: &AnalyzedFile<'_>,
    result: AnalysisResult<'_>,
) -> Result<()> {
    let writer = &mut out.writer;
    match format {
        ReportFormat::Text => analysis::write_text(writer, file, result, out.style)?,
        ReportFormat::Json => analysis::json::write(writer, file, result)?,
        ReportFormat::Tsv => analysis::write_tsv(writer, file, result)?,
        // The HTML report covers the whole file and is written by `page`.
        ReportFormat::Html => {}
    }
    Ok(())
}
