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
use engine::snapshot::View;
use formats::export::analysis::{self, Answer, Subject};
use formats::export::page::Opens;
use formats::import::Source;
use formats::import::gather::Only;
use formats::plain::plain;

use super::input::Input;
use super::limit::Limit;
use super::picture::{self, Wanted};
use super::replay::final_report;
use super::{fragmentation, input, limit, overlay, print};
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
    let inputs: Vec<&Path> = [Some(&options.file), options.overlay.smi.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut out = output::results_from(&inputs, options.output.as_deref(), options.force)?;
    let outcome = if let Some(subject) = again(options)? {
        last_report(options, source, subject, &mut out)?
    } else if options.format == Format::Html {
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
        Analysis::Leakage => Opens::Leaks,
        Analysis::Watermark => Opens::Peak,
        Analysis::Fragmentation => Opens::Segments,
        Analysis::Suspects => Opens::Growing,
        Analysis::Summary | Analysis::Usage | Analysis::Trace | Analysis::Kernels => Opens::Sites,
    };
    picture::write_page(&wanted, opens, &mut *out.writer)?;
    out.writer.flush()?;
    limit::of_file(options.limit.fail_on_leak, &options.file, wanted.only, source.measure())
}

/// Which report of a live verb a question asks for.
fn again(options: &Report) -> Result<Option<print::Subject>> {
    let format = match options.format {
        Format::Text => print::Format::Text,
        Format::Json | Format::Tsv | Format::Html => print::Format::Json,
    };
    Ok(match options.analysis {
        Analysis::Trace => Some(print::Subject::by(options.by.unwrap_or_default(), format)?),
        Analysis::Kernels => Some(print::Subject::Work),
        _ => None,
    })
}

/// The last report of the trace that was recorded.
fn last_report(
    options: &Report,
    source: Source,
    subject: print::Subject,
    out: &mut Results,
) -> Result<Outcome> {
    if source != Source::Recording {
        bail!(
            "the last report of a trace is only in a recording; this is a file of {}",
            source.name()
        );
    }
    let (format, top) = match options.format {
        Format::Text => (print::Format::Text, 10),
        Format::Json => (print::Format::Json, 1000),
        Format::Tsv | Format::Html => bail!("the last report of a trace is text or json"),
    };
    let sites = top.min(100);
    let view = View {
        top: options.top.unwrap_or(top),
        top_sites: options.top.unwrap_or(sites),
        ..View::default()
    };
    out.style.stack_depth = options.stack_depth.unwrap_or(out.style.stack_depth);
    let (path, style) = (&options.file, out.style);
    let warnings = final_report(path, subject, format, &view, style, &mut *out.writer)?;
    for warning in warnings {
        output::complain(&plain(&warning.text));
    }
    limit::of_file(options.limit.fail_on_leak, path, Only::default(), source.measure())
}

/// Options that mean nothing for the question are mistakes.
fn check(options: &Report) -> Result<()> {
    let asked = options.analysis;
    let needs = |given: bool, option: &str, analysis: Analysis, name: &str| {
        if given && asked != analysis {
            bail!("{option} goes with --analysis {name}; add that, or leave {option} out");
        }
        Ok(())
    };
    let part = options.part.process.is_some() || options.part.device.is_some();
    if part && matches!(asked, Analysis::Trace | Analysis::Kernels) {
        bail!(
            "--process and --device do not go with the last report of a trace, which is of \
             everything; leave them out, or ask for --analysis summary"
        );
    }
    needs(options.by.is_some(), "--by", Analysis::Trace, "trace")?;
    needs(options.stack_depth.is_some(), "--stack-depth", Analysis::Trace, "trace")?;
    if options.stack_depth.is_some() && options.format != Format::Text {
        bail!("--stack-depth goes with --format text; JSON has every frame");
    }
    if options.format == Format::Html && (options.top.is_some() || options.points.is_some()) {
        bail!("--top and --points do not go with html: a page has everything; leave them out");
    }
    needs(options.points.is_some(), "--points", Analysis::Usage, "usage")?;
    needs(options.overlay.smi.is_some(), "--smi", Analysis::Usage, "usage")?;
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
            Analysis::Leakage => Self::Leakage(Groups::new(measure)),
            Analysis::Watermark => Self::Watermark(Watermark::new(measure)),
            Analysis::Usage => Self::Usage(Usage::new(measure, points(options))),
            Analysis::Suspects => Self::Suspects(Suspects::new(measure)),
            Analysis::Fragmentation | Analysis::Trace | Analysis::Kernels => Self::Rest,
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
                    output::complain("the file tells no free blocks: nobody knows what would fit");
                }
                write(Answer::Fragmentation(&answer))
            }
        }
    }
}

fn points(options: &Report) -> Option<usize> {
    options.points.or(match options.format {
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
