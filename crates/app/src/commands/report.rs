//! `vramscope report`: one question about one file.

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

/// Sites that are listed for people where nothing else is asked for.
const TOP: usize = 10;

/// Sites that the summary lists for each process where nothing else is asked for.
const SUMMARY_TOP: usize = 10;

/// Points that a chart in characters needs.
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
        answer(options, source, &mut out)?
    };
    out.finish()?;
    Ok(options.limit.outcome(outcome))
}

/// The answer to a question as text or a table.
fn answer(options: &Report, source: Source, out: &mut Results) -> Result<Outcome> {
    let measure = source.measure();
    let mut question = Question::new(options, measure);
    // Limits on leaks hold for every question.
    let mut limit = options.limit.fail_on_leak.map(|limit| Limit::new(limit, measure));
    let input = input::read(&options.file, input::only(&options.part), &mut |change, _| {
        question.change(change);
        if let Some(limit) = &mut limit {
            limit.change(change);
        }
    })?;
    question.answer(options, &input, out)?;
    Ok(limit.map_or(Outcome::Fine, |limit| limit.judge(&input.facts)))
}

/// Everything that the file tells, as a page that opens with what was asked for.
fn page(options: &Report, source: Source, out: &mut Results) -> Result<Outcome> {
    let wanted =
        Wanted { path: &options.file, only: input::only(&options.part), overlay: &options.overlay };
    let opens = match options.analysis {
        Analysis::Leaks => Opens::Leaks,
        Analysis::Peak => Opens::Peak,
        Analysis::Fragmentation => Opens::Segments,
        Analysis::Suspects => Opens::Growing,
        Analysis::Summary | Analysis::Usage => Opens::Sites,
    };
    picture::write_page(&wanted, opens, &mut *out.writer)?;
    out.writer.flush()?;
    limit::of_file(options.limit.fail_on_leak, &options.file, wanted.only, source.measure())
}

/// Options that mean nothing for the question are mistakes.
fn check(options: &Report) -> Result<()> {
    let asked = options.analysis;
    let needs = |given: bool, option: &str, analysis: Analysis, name: &str| {
        if given && asked != analysis {
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

/// An analysis that is fed.
enum Question {
    Summary(Summary),
    Leakage(Groups),
    Watermark(Watermark),
    Usage(Usage),
    Suspects(Suspects),
    /// Of what the file tells besides changes.
    Rest,
}

impl Question {
    fn new(options: &Report, measure: Measure) -> Self {
        match options.analysis {
            Analysis::Summary => Self::Summary(Summary::new(measure)),
            Analysis::Leaks => Self::Leakage(Groups::new(measure)),
            Analysis::Peak => Self::Watermark(Watermark::new(measure)),
            Analysis::Usage => Self::Usage(Usage::new(measure, points(options))),
            Analysis::Suspects => Self::Suspects(Suspects::new(measure)),
            Analysis::Fragmentation => Self::Rest,
        }
    }

    fn change(&mut self, change: &Change) {
        match self {
            Self::Summary(summary) => summary.change(change),
            Self::Leakage(groups) => groups.change(change),
            Self::Watermark(watermark) => watermark.change(change),
            Self::Usage(usage) => usage.change(change),
            Self::Suspects(suspects) => suspects.change(change),
            Self::Rest => {}
        }
    }

    fn answer(self, options: &Report, input: &Input, out: &mut Results) -> Result<()> {
        let top = options.top.or(match options.format {
            Format::Text => Some(TOP),
            Format::Json | Format::Tsv | Format::Html => None,
        });
        let subject = input.subject(top);
        let mut write = |answer: Answer<'_>| write(options.format, out, &subject, answer);
        match self {
            Self::Summary(summary) => {
                let top = options.top.unwrap_or(SUMMARY_TOP);
                write(Answer::Summary(&summary.finish(top)))
            }
            Self::Leakage(groups) => write(Answer::Leakage(&Leakage::of(&groups))),
            Self::Watermark(watermark) => write(Answer::Watermark(&watermark.finish())),
            Self::Usage(usage) => {
                let courses = usage.finish();
                let overlays = overlay::read(&options.overlay, &courses, input)?;
                write(Answer::Usage(&courses, &overlays))
            }
            Self::Suspects(suspects) => write(Answer::Suspects(&input.facts.findings(suspects))),
            Self::Rest => {
                let answer = fragmentation::answer(&input.facts, options.would_fit);
                if options.would_fit.is_some() && answer.would_fit.is_empty() {
                    output::complain(
                        "the file has no free-block data, so --would-fit cannot be answered",
                    );
                }
                write(Answer::Fragmentation(&answer))
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
    answer: Answer<'_>,
) -> Result<()> {
    let writer = &mut out.writer;
    match format {
        Format::Text => analysis::write_text(writer, subject, answer, out.style)?,
        Format::Json => analysis::json::write(writer, subject, answer)?,
        Format::Tsv => analysis::write_tsv(writer, subject, answer)?,
        // The page is of the whole file.
        Format::Html => {}
    }
    Ok(())
}
