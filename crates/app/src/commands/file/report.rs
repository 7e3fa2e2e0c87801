//! `vramscope report`: answers one question about a file; by default verdict, peak and holders.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use engine::analysis::groups::GroupTable;
use engine::analysis::leaks::LeakReport;
use engine::analysis::peak::PeakAnalysis;
use engine::analysis::phases::PhaseAnalysis;
use engine::analysis::summary::SummaryAnalysis;
use engine::analysis::usage::UsageAnalysis;
use engine::ledger::FileLedger;
use engine::model::AllocationChange;
use engine::view::View;
use formats::import::{FileState, SourceFormat};
use formats::report::analysis::{self, AnalysisResult, FragmentationView};
use formats::report::html::InitialView;
use formats::report::live::text::TextStyle;
use formats::report::view::gpu_facts;

use crate::Outcome;
use crate::cli::{AnalysisArg, LiveFormat, ReportArgs, ReportFormat, SmiArgs};
use crate::commands::agent_report::AgentReport;
use crate::files::input::{InputFile, Selection};
use crate::files::leak_gate::LeakGate;
use crate::files::plot_data::{self, PlotRequest};
use crate::files::{input, leak_gate, smi_overlay};
use crate::io::output::{self, ResultOutput};
use crate::io::output_file::shown;
use crate::live::print::{LiveView, no_such_leak};

/// Rows of lists in text output without `--top`.
const DEFAULT_TOP: usize = 10;

/// Points of a text chart.
const TEXT_CHART_POINTS: usize = 288;

/// Runs the verb.
pub(crate) fn run(options: &ReportArgs) -> Result<Outcome> {
    let question = options.question.or(options.analysis).or(options.by);
    let question = question.unwrap_or(AnalysisArg::Summary);
    run_question(options, question)
}

/// Answers one question.
pub(crate) fn run_question(options: &ReportArgs, question: AnalysisArg) -> Result<Outcome> {
    let format = match (options.json, options.html) {
        (true, _) => ReportFormat::Json,
        (_, true) => ReportFormat::Html,
        _ => options.format,
    };
    let request = ReportRequest { options, question, format };
    request.check()?;
    if let Some(url) = options.file.to_str().filter(|file| is_url(file)) {
        return agent_report(url, &request);
    }
    let source = input::detect(&options.file)?;
    let inputs: Vec<&Path> = [Some(&options.file), options.overlay.smi_log.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    let mut out = options.output.open(&inputs)?;
    let outcome = if format == ReportFormat::Html {
        request.page(source, &mut out)?
    } else {
        request.analyze(source, &mut out)?
    };
    out.finish()?;
    Ok(options.limit.outcome(outcome))
}

/// Whether this is the address of an agent instead of a file.
fn is_url(file: &str) -> bool {
    file.starts_with("http://") || file.starts_with("https://")
}

/// Prints what a running agent knows.
fn agent_report(url: &str, request: &ReportRequest<'_>) -> Result<Outcome> {
    let ReportRequest { options, question, format } = *request;
    if format == ReportFormat::Html {
        bail!("{url}: open this address in a browser: it is the agent's live page");
    }
    let is_answered = matches!(question, AnalysisArg::Summary | AnalysisArg::Leaks);
    if !is_answered || format == ReportFormat::Tsv {
        bail!("{url}: an agent answers only `leaks`, as text or JSON; see also `top --agent`");
    }
    let report = AgentReport {
        url,
        token_file: options.token_file.as_deref(),
        filter: options.filter.processes(),
        view: LiveView::Overview,
        format: match format {
            ReportFormat::Json => LiveFormat::Json,
            _ => LiveFormat::Text,
        },
        top: options.top.unwrap_or(DEFAULT_TOP),
        leak: options.leak,
        stack_depth: options.stack_depth,
        fail_on_leak: options.limit.fail_on_leak,
    };
    let mut out = options.output.open(&[])?;
    let outcome = report.print(&mut out)?;
    out.finish()?;
    Ok(options.limit.outcome(outcome))
}

/// Writes the HTML report of a file, by default next to where the user is: `run.arrows` becomes
/// `run.html`.
pub(crate) fn run_page(options: &mut ReportArgs) -> Result<Outcome> {
    options.html = true;
    if options.output.output.is_some() {
        return run(options);
    }
    let page = Path::new(options.file.file_name().unwrap_or_default()).with_extension("html");
    options.output.output = Some(page.clone());
    let outcome = run(options)?;
    output::log(&format!("wrote {}", shown(&page)));
    Ok(outcome)
}

/// Prints memory over time as text.
pub(crate) fn print_usage(file: &Path, selection: Selection<'_>, overlay: &SmiArgs) -> Result<()> {
    let scope = input::detect(file)?.scope();
    let mut usage = UsageAnalysis::new(scope, Some(TEXT_CHART_POINTS));
    let input = input::read(file, selection, &mut |change| usage.observe(change))?;
    let report = usage.finish();
    let overlays = smi_overlay::read(overlay, &report, &input)?;
    let mut out = output::results();
    let result = AnalysisResult::Usage(&report, &overlays);
    let analyzed = input.analyzed_file(Some(DEFAULT_TOP));
    analysis::write_text(&mut out.writer, &analyzed, result, "", out.style)?;
    out.finish()
}

/// A question about a file.
struct ReportRequest<'a> {
    options: &'a ReportArgs,
    question: AnalysisArg,
    format: ReportFormat,
}

impl ReportRequest<'_> {
    /// Runs the analysis and writes text, JSON or TSV.
    fn analyze(&self, source: SourceFormat, out: &mut ResultOutput) -> Result<Outcome> {
        let options = self.options;
        let scope = source.scope();
        let top = options.top.unwrap_or(DEFAULT_TOP);
        // A leak threshold applies to every question.
        let mut gate = options.limit.fail_on_leak.map(|threshold| LeakGate::new(threshold, scope));
        let mut read = |observe: &mut dyn FnMut(&AllocationChange)| {
            let selection = input::selection(&options.filter);
            input::read(&options.file, selection, &mut |change| {
                observe(change);
                gate.iter_mut().for_each(|gate| gate.observe(change));
            })
        };
        let input;
        match self.question {
            AnalysisArg::Summary => {
                let (mut summary, mut peak) =
                    (SummaryAnalysis::new(scope), PeakAnalysis::new(scope));
                let mut suspects = FileLedger::new(scope);
                input = read(&mut |change| {
                    summary.observe(change);
                    peak.observe(change);
                    suspects.observe(change);
                })?;
                let (summary, peak) = (summary.finish(top), peak.finish());
                let state = input.info.end_state(suspects);
                self.write(out, &input, AnalysisResult::Summary(&summary, &peak, &state))?;
            }
            AnalysisArg::Leaks => {
                let (mut groups, mut suspects) = (GroupTable::new(scope), FileLedger::new(scope));
                input = read(&mut |change| {
                    groups.observe(change);
                    suspects.observe(change);
                })?;
                let state = input.info.end_state(suspects);
                self.write(out, &input, AnalysisResult::Leaks(&LeakReport::of(&groups), &state))?;
            }
            AnalysisArg::Sites => {
                let mut summary = SummaryAnalysis::new(scope);
                input = read(&mut |change| summary.observe(change))?;
                let top = self.top().unwrap_or(usize::MAX);
                self.write(out, &input, AnalysisResult::Sites(&summary.finish(top)))?;
            }
            AnalysisArg::Libraries => {
                let mut summary = SummaryAnalysis::new(scope);
                input = read(&mut |change| summary.observe(change))?;
                self.write(out, &input, AnalysisResult::Libraries(&summary.finish(usize::MAX)))?;
            }
            AnalysisArg::Peak => {
                let mut peak = PeakAnalysis::new(scope);
                input = read(&mut |change| peak.observe(change))?;
                self.write(out, &input, AnalysisResult::Peak(&peak.finish()))?;
            }
            AnalysisArg::Usage => {
                let mut usage = UsageAnalysis::new(scope, self.points());
                input = read(&mut |change| usage.observe(change))?;
                let report = usage.finish();
                let overlays = smi_overlay::read(&options.overlay, &report, &input)?;
                self.write(out, &input, AnalysisResult::Usage(&report, &overlays))?;
            }
            AnalysisArg::Marks => {
                // Phases are known once the file was read, so it is read twice.
                let selection = input::selection(&options.filter);
                let phases = input::read(&options.file, selection, &mut |_| ())?.info.phases();
                let mut usage = PhaseAnalysis::new(scope, phases);
                input = read(&mut |change| usage.observe(change))?;
                self.write(out, &input, AnalysisResult::Marks(&usage.finish()))?;
            }
            AnalysisArg::Fragmentation => {
                input = read(&mut |_| ())?;
                let view = FragmentationView::of(&input.info, options.would_fit);
                if options.would_fit.is_some() && view.would_fit.is_empty() {
                    output::log(
                        "the file has no free-block data, so --would-fit cannot be answered",
                    );
                }
                self.write(out, &input, AnalysisResult::Fragmentation(&view))?;
            }
        }
        Ok(gate.map_or(Outcome::Success, |gate| gate.evaluate(&input.info)))
    }

    /// Writes the HTML report of the whole file; the question selects the initial view.
    fn page(&self, source: SourceFormat, out: &mut ResultOutput) -> Result<Outcome> {
        let options = self.options;
        let request = PlotRequest {
            path: &options.file,
            selection: input::selection(&options.filter),
            overlay: &options.overlay,
        };
        let initial_view = match self.question {
            AnalysisArg::Leaks => InitialView::Growing,
            AnalysisArg::Peak => InitialView::Peak,
            AnalysisArg::Fragmentation => InitialView::Segments,
            AnalysisArg::Summary
            | AnalysisArg::Usage
            | AnalysisArg::Sites
            | AnalysisArg::Libraries
            | AnalysisArg::Marks => InitialView::Sites,
        };
        plot_data::write_page(&request, initial_view, &mut *out.writer)?;
        out.writer.flush()?;
        leak_gate::evaluate_file(
            options.limit.fail_on_leak,
            &options.file,
            request.selection,
            source.scope(),
        )
    }

    /// Rejects options that do not apply to the question.
    fn check(&self) -> Result<()> {
        let Self { options, question, format } = *self;
        let needs = |is_set: bool, option: &str, wanted: AnalysisArg, name: &str| {
            if is_set && question != wanted {
                bail!("{option} requires the question `{name}`");
            }
            Ok(())
        };
        if format == ReportFormat::Html && (options.top.is_some() || options.max_points.is_some()) {
            bail!("--top and --max-points cannot be combined with --format html");
        }
        let with_leaks = matches!(question, AnalysisArg::Summary | AnalysisArg::Leaks);
        if options.leak.is_some() && (format != ReportFormat::Text || !with_leaks) {
            bail!("--leak requires --format text and no other question than `leaks`");
        }
        needs(options.max_points.is_some(), "--max-points", AnalysisArg::Usage, "usage")?;
        needs(options.overlay.smi_log.is_some(), "--smi-log", AnalysisArg::Usage, "usage")?;
        let wanted = AnalysisArg::Fragmentation;
        needs(options.would_fit.is_some(), "--would-fit", wanted, "fragmentation")
    }

    /// Returns the maximum number of points of a series.
    fn points(&self) -> Option<usize> {
        let is_text = self.format == ReportFormat::Text;
        self.options.max_points.or(is_text.then_some(TEXT_CHART_POINTS))
    }

    /// Returns the maximum number of rows per list.
    fn top(&self) -> Option<usize> {
        self.options.top.or((self.format == ReportFormat::Text).then_some(DEFAULT_TOP))
    }

    fn write(
        &self,
        out: &mut ResultOutput,
        input: &InputFile,
        result: AnalysisResult<'_>,
    ) -> Result<()> {
        let file = input.analyzed_file(self.top());
        let writer = &mut out.writer;
        match (self.options.leak.zip(result.state()), self.format) {
            (Some((number, state)), _) => self.write_leak(out, state, number)?,
            (None, ReportFormat::Text) => {
                let filter = self.options.filter.arguments();
                analysis::write_text(writer, &file, result, &filter, out.style)?;
            }
            (None, ReportFormat::Json) => analysis::json::write(writer, &file, result)?,
            (None, ReportFormat::Tsv) => analysis::write_tsv(writer, &file, result)?,
            // The HTML report covers the whole file and is written by `page`.
            (None, ReportFormat::Html) => {}
        }
        Ok(())
    }

    /// Writes one leak with its evidence and stack.
    fn write_leak(&self, out: &mut ResultOutput, state: &FileState, number: usize) -> Result<()> {
        let stack_depth = self.options.stack_depth.unwrap_or(out.style.stack_depth);
        let style = TextStyle { stack_depth, ..out.style };
        if !analysis::write_leak(&mut out.writer, state, number, style)? {
            let facts = gpu_facts(&state.gpus);
            bail!("{}", no_such_leak(number, View::of(&state.snapshot, &facts).leaks.len()));
        }
        Ok(())
    }
}
