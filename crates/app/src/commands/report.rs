//! `vramscope report`: one question about one file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use engine::analysis::Measure;
use engine::analysis::groups::Groups;
use engine::analysis::leakage::Leakage;
use engine::analysis::summary::Summary;
use engine::analysis::suspects::Suspects;
use engine::analysis::usage::{Courses, Usage};
use engine::analysis::watermark::Watermark;
use engine::change::Change;
use engine::snapshot::View;
use engine::units::{Bytes, Moment};
use formats::export::analysis::{self, Answer, Overlay, Subject};
use formats::import::gather::Only;
use formats::import::{Source, smi};
use formats::plain::plain;

use super::input::Input;
use super::replay::final_report;
use super::{fragmentation, input, print};
use crate::cli::{Analysis, By, Format, Report};
use crate::output::Results;
use crate::{Outcome, output};

/// Sites that are listed for people where nothing else is asked for.
const TOP: (usize, usize) = (10, 100);

/// Sites that the summary lists for each process where nothing else is asked for.
const SUMMARY_TOP: usize = 10;

/// Points that a chart needs: in characters, and in a browser.
const POINTS: (usize, usize) = (288, 4000);

/// Runs the verb.
pub(crate) fn run(options: &Report) -> Result<Outcome> {
    check(options)?;
    let source = input::recognise(&options.file)?;
    let inputs: Vec<&Path> = [Some(&options.file), options.smi.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut out = output::results_from(&inputs, options.output.as_deref(), options.force)?;
    if let Some(subject) = again(options)? {
        let outcome = last_report(options, source, subject, &mut out)?;
        out.finish()?;
        return Ok(outcome);
    }
    let measure = source.measure();
    let mut question = Question::new(options, measure);
    // Limits on leaks hold for every question.
    let mut limit = options.fail_on_leak.map(|limit| (limit, Groups::new(measure)));
    let input = input::read(&options.file, input::only(&options.part), &mut |change, _| {
        question.change(change);
        if let Some((_, groups)) = &mut limit {
            groups.change(change);
        }
    })?;
    question.answer(options, &input, &mut out)?;
    out.finish()?;
    Ok(match limit {
        Some((limit, groups)) => judge(limit, &Leakage::of(&groups)),
        None => Outcome::Fine,
    })
}

/// Which report of a live verb a question asks for.
fn again(options: &Report) -> Result<Option<print::Subject>> {
    Ok(match options.analysis {
        Analysis::Trace => Some(by(options)?),
        Analysis::Kernels => Some(print::Subject::Work),
        _ => None,
    })
}

fn by(options: &Report) -> Result<print::Subject> {
    match options.by {
        None | Some(By::Process) => Ok(print::Subject::Memory),
        Some(By::Site) if options.format == Format::Text => Ok(print::Subject::Sites),
        Some(By::Site) => {
            bail!("--by site does not go with JSON, which has processes and sites; leave it out")
        }
    }
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
    let Some(limit) = options.fail_on_leak else { return Ok(Outcome::Fine) };
    let mut groups = Groups::new(source.measure());
    input::read(path, Only::default(), &mut |change, _| groups.change(change))?;
    Ok(judge(limit, &Leakage::of(&groups)))
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
    needs(options.points.is_some(), "--points", Analysis::Usage, "usage")?;
    needs(options.smi.is_some(), "--smi", Analysis::Usage, "usage")?;
    needs(options.would_fit.is_some(), "--would-fit", Analysis::Fragmentation, "fragmentation")
}

fn judge(limit: Bytes, leakage: &Leakage) -> Outcome {
    let leaked = Bytes(leakage.avoidable().bytes);
    if leaked <= limit {
        return Outcome::Fine;
    }
    output::complain(&format!("{leaked} of device memory were never freed, more than {limit}"));
    Outcome::Findings
}

/// An analysis that is fed.
enum Question {
    Summary(Summary),
    Leakage(Groups),
    /// With memory over time, where there is a picture.
    Watermark(Watermark, Option<Usage>),
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
            Analysis::Watermark => {
                let picture = options.format == Format::Html;
                let usage = picture.then(|| Usage::new(measure, points(options)));
                Self::Watermark(Watermark::new(measure), usage)
            }
            Analysis::Usage => Self::Usage(Usage::new(measure, points(options))),
            Analysis::Suspects => Self::Suspects(Suspects::new(measure)),
            Analysis::Fragmentation | Analysis::Trace | Analysis::Kernels => Self::Rest,
        }
    }

    fn change(&mut self, change: &Change) {
        match self {
            Self::Summary(summary) => summary.change(change),
            Self::Leakage(groups) => groups.change(change),
            Self::Watermark(watermark, usage) => {
                watermark.change(change);
                if let Some(usage) = usage {
                    usage.change(change);
                }
            }
            Self::Usage(usage) => usage.change(change),
            Self::Suspects(suspects) => suspects.change(change),
            Self::Rest => {}
        }
    }

    fn answer(self, options: &Report, input: &Input, out: &mut Results) -> Result<()> {
        let top = options.top.or(match options.format {
            Format::Text => Some(TOP.0),
            Format::Html => Some(TOP.1),
            Format::Json | Format::Tsv => None,
        });
        let subject =
            Subject { path: &input.name, imported: &input.imported, facts: &input.facts, top };
        let mut write = |answer: Answer<'_>| write(options.format, out, &subject, answer);
        match self {
            Self::Summary(summary) => {
                let top = options.top.unwrap_or(SUMMARY_TOP);
                write(Answer::Summary(&summary.finish(top)))
            }
            Self::Leakage(groups) => write(Answer::Leakage(&Leakage::of(&groups))),
            Self::Watermark(watermark, usage) => {
                let courses = usage.map(Usage::finish);
                write(Answer::Watermark(&watermark.finish(), courses.as_ref()))
            }
            Self::Usage(usage) => {
                let courses = usage.finish();
                write(Answer::Usage(&courses, &overlays(options, &courses, input)?))
            }
            Self::Suspects(suspects) => write(Answer::Suspects(&suspects.finish())),
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
        Format::Text => Some(POINTS.0),
        Format::Html => Some(POINTS.1),
        Format::Json | Format::Tsv => None,
    })
}

/// What `nvidia-smi` saw over time, each GPU beside the device whose changes are most like its own.
fn overlays(options: &Report, courses: &Courses, input: &Input) -> Result<Vec<Overlay>> {
    let Some(path) = &options.smi else { return Ok(Vec::new()) };
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let log = smi::parse(&text).with_context(|| path.display().to_string())?;
    // A given offset is between the clocks; moments have their own zero.
    let offset = options.smi_offset.map(|ahead| {
        let (moment, utc) = input.facts.clock.unwrap_or_default();
        let zero = i64::try_from(moment.0).unwrap_or(i64::MAX);
        zero.saturating_sub(utc).saturating_sub(ahead)
    });
    let mut found = Vec::new();
    for gpu in &log.gpus {
        let aligned = courses.totals.iter().map(|total| {
            let points: Vec<_> = total.points.iter().map(|point| (point.at, point.bytes)).collect();
            (total.device, smi::align(gpu, &points, offset))
        });
        let aligned: Vec<_> = aligned.collect();
        let best = aligned.iter().filter_map(|(device, fit)| fit.ok().map(|fit| (*device, fit)));
        let best = best.max_by(|one, other| one.1.score.total_cmp(&other.1.score));
        let Some((device, fit)) = best else {
            if let Some((_, Err(why))) = aligned.into_iter().next() {
                output::complain(&format!("{}, GPU {}: {why}", path.display(), plain(&gpu.gpu)));
            }
            continue;
        };
        let name = format!("nvidia-smi, GPU {} (score {:.2})", gpu.gpu, fit.score);
        let moment = |at: i64| Moment(u64::try_from(at.saturating_add(fit.offset)).unwrap_or(0));
        let points = gpu.points.iter().map(|(at, bytes)| (moment(*at), *bytes)).collect();
        found.push(Overlay { name, device, points });
    }
    Ok(found)
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
        Format::Html => analysis::write_html(writer, subject, answer)?,
    }
    Ok(())
}
