//! `vramscope report`: runs one analysis on one file.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use engine::analysis::Measure;
use engine::analysis::groups::Groups;
use engine::analysis::leakage::Leakage;
use engine::analysis::summary::Summary;
use engine::analysis::suspects::Suspects;
use engine::analysis::usage::Usage;
use engine::analysis::watermark::Watermark;
use engine::change::Change;
use formats::export::analysis::{self, Answer, Subject};
use formats::export::page::Opens;
use formats::import::Source;

use super::input::Input;
use super::limit::Limit;
use super::picture::{self, Wanted};
use super::{fragmentation, input, limit, overlay};
use crate::cli::{Analysis, Format, Report};
use crate::output::Results;
use crate::{Outcome, output};

/// Sites listed in text output without `--top`.
const TOP: usize = 10;

/// Sites that the summary lists per process without `--top`.
const SUMMARY_TOP: usize = 10;

/// Points of a text chart.
const POINTS: usize = 288;

/// Runs the verb.
pub(crate) fn run(options: &Report) -> Result<Outcome> {
    check(options)?;
    let source = input::recognise(&options.file)?;
    let inputs: Vec<&Path> = [Some(&options.file), options.overlay.smi_log.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut out = output::results_from(&inputs, options.output.as_deref(), options.force)?;
    let outcome = if options.format == Format::Html {
        page(options, source, &mut out)?
    } else {
        analyze(options, source, &mut out)?
    };
    out.finish()?;
    Ok(options.limit.outcome(outcome))
}

/// Runs the analysis and writes text, JSON or TSV.
fn analyze(options: &Report, source: Source, out: &mut Results) -> Result<Outcome> {
    let measure = source.measure();
    let mut analysis = Question::new(options, measure);
    // A leak threshold applies to every analysis.
    let mut limit = options.limit.fail_on_leak.map(|limit| Limit::new(limit, measure));
    let input = input::read(&options.file, input::only(&options.part), &mut |change, _| {
        analysis.change(change);
        if let Some(limit) = &mut limit {
            limit.change(change);
        }
    })?;
    analysis.write(options, &input, out)?;
    Ok(limit.map_or(Outcome::Fine, |limit| limit.judge(&input.facts)))
}

/// Writes the HTML report of the whole file; the analysis selects the initial view.
fn page(options: &Report, source: Source, out: &mut Results) -> Result<Outcome> {
    let request =
        Wanted { path: &options.file, only: input::only(&options.part), overlay: &options.overlay };
    let opens = match options.analysis {
        Analysis::Leaks => Opens::Leaks,
        Analysis::Peak => Opens::Peak,
        Analysis::Fragmentation => Opens::Segments,
        Analysis::Suspects => Opens::Growing,
        Analysis::Summary | Analysis::Usage => Opens::Sites,
    };
    picture::write_page(&request, opens, &mut *out.writer)?;
    out.writer.flush()?;
    limit::evaluate_file(options.limit.fail_on_leak, &options.file, request.only, source.measure())
}

/// Rejects options that do not apply to the analysis.
fn check(options: &Report) -> Result<()> {
    let selected = options.analysis;
    let needs = |given: bool, option: &str, analysis: Analysis, name: &str| {
        if given && selected != analysis {
            bail!("{option} requires --analysis {name}");
        }
        Ok(())
    };
    if options.format == Format::Html && (options.top.is_some() || options.max_points.is_some()) {
        bail!("--top and --max-points cannot be combined with --format html");
    }
    needs(options.max_points.is_some(), "--max-points", Analysis::Usage, "usage")?;
    needs(options.overlay.smi_log.is_some(), "--smi-log", Analysis::Usage, "usage")?;
    needs(options.would_fit.is_some(), "--would-fit", Analysis::Fragmentation, "fragmentation")
}

/// An analysis that observes the changes of a file.
enum Question {
    Summary(Summary),
    Leakage(Groups),
    Watermark(Watermark),
    Usage(Usage),
    Suspects(Suspects),
    /// Needs no changes, only the other data of the file.
    Fragmentation,
}

impl Question {
    fn new(options: &Report, measure: Measure) -> Self {
        match options.analysis {
            Analysis::Summary => Self::Summary(Summary::new(measure)),
            Analysis::Leaks => Self::Leakage(Groups::new(measure)),
            Analysis::Peak => Self::Watermark(Watermark::new(measure)),
            Analysis::Usage => Self::Usage(Usage::new(measure, points(options))),
            Analysis::Suspects => Self::Suspects(Suspects::new(measure)),
            Analysis::Fragmentation => Self::Fragmentation,
        }
    }

    fn change(&mut self, change: &Change) {
        match self {
            Self::Summary(summary) => summary.change(change),
            Self::Leakage(groups) => groups.change(change),
            Self::Watermark(watermark) => watermark.change(change),
            Self::Usage(usage) => usage.change(change),
            Self::Suspects(suspects) => suspects.change(change),
            Self::Fragmentation => {}
        }
    }

    fn write(self, options: &Report, input: &Input, out: &mut Results) -> Result<()> {
        let top = options.top.or(match options.format {
            Format::Text => Some(TOP),
            Format::Json | Format::Tsv | Format::Html => None,
        });
        let subject = input.subject(top);
        let mut write = |result: Answer<'_>| write(options.format, out, &subject, result);
        match self {
            Self::Summary(summary) => {
                let top = options.top.unwrap_or(SUMMARY_TOP);
                write(Answer::Summary(&summary.finish(top)))
            }
            Self::Leakage(groups) => write(Answer::Leakage(&Leakage::of(&groups))),
            Self::Watermark(watermark) => write(Answer::Watermark(&watermark.finish())),
            Self::Usage(usage) => {
                let report = usage.finish();
                let overlays = overlay::read(&options.overlay, &report, input)?;
                write(Answer::Usage(&report, &overlays))
            }
            Self::Suspects(suspects) => write(Answer::Suspects(&input.facts.findings(suspects))),
            Self::Fragmentation => {
                let view = fragmentation::describe(&input.facts, options.would_fit);
                if options.would_fit.is_some() && view.would_fit.is_empty() {
                    output::complain(
                        "the file has no free-block data, so --would-fit cannot be answered",
                    );
                }
                write(Answer::Fragmentation(&view))
            }
        }
    }
}

fn points(options: &Report) -> Option<usize> {
    options.max_points.or(match options.format {
        Format::Text => Some(POINTS),
        Format::Json | Format::Tsv | Format::Html => None,
    })
}

fn write(
    format: Format,
    out: &mut Results,
    subject: &Subject<'_>,
    result: Answer<'_>,
) -> Result<()> {
    let writer = &mut out.writer;
    match format {
        Format::Text => analysis::write_text(writer, subject, result, out.style)?,
        Format::Json => analysis::json::write(writer, subject, result)?,
        Format::Tsv => analysis::write_tsv(writer, subject, result)?,
        // The HTML report covers the whole file and is written by `page`.
        Format::Html => {}
    }
    Ok(())
}
