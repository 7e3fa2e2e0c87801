//! Command line: clap structs and the dispatch to the verbs.

mod choice;
mod files;
mod inspect;
mod packaging;
#[cfg(test)]
mod page;
mod plot;
mod serve;
mod shared;
mod top;
mod trace;

use anyhow::Result;
use clap::error::ContextKind;
use clap::{CommandFactory, Parser, Subcommand};
use formats::sanitize::sanitize;

use crate::io::output;
use crate::{Outcome, commands};

pub(crate) use files::{
    AnalysisArg, DiffArgs, DiffFormat, ExportArgs, ExportFormat, FileFilterArgs, ReplayArgs,
    ReportArgs, ReportFormat, SmiArgs,
};
pub(crate) use inspect::{AdviseArgs, DoctorArgs, ExplainArgs, MarkArgs, ProgramArgs};
pub(crate) use packaging::{CompletionsArgs, DemoArgs, ManArgs};
pub(crate) use plot::PlotArgs;
pub(crate) use serve::ServeArgs;
pub(crate) use shared::{FailOnLeakArgs, LaunchArgs};
pub(crate) use shared::{GroupByArg, LiveFormat};
pub(crate) use top::TopArgs;
pub(crate) use trace::{KernelsArgs, RecordArgs, RunArgs, TraceArgs};
pub(crate) use trace::{LiveArgs, TargetArgs};

const ABOUT: &str = "Trace the GPU memory of every process on this host with eBPF: who holds it, \
    which line allocated it, what leaks. No restart, no code change.";

#[derive(Parser)]
#[command(name = "vramscope", bin_name = "vramscope", version, about = ABOUT, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    #[command(flatten)]
    output: output::Settings,
}

/// Verbs. Aliases are the words that people try first.
#[derive(Subcommand)]
enum Verb {
    /// Show what fills the GPU and what leaks, live, by process
    #[command(after_help = trace::TRACE_EXAMPLES, aliases = ["watch", "monitor", "live", "attach"])]
    Trace(Box<TraceArgs>),
    /// Show GPUs, processes, sites and call stacks on the whole screen
    #[command(after_help = top::EXAMPLES, aliases = ["tui", "ui"])]
    Top(Box<TopArgs>),
    /// Run a program and show its live GPU memory, without root and without probes
    #[command(after_help = trace::RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Count kernel launches, memory copies and failed driver calls
    #[command(after_help = trace::KERNELS_EXAMPLES)]
    Kernels(Box<KernelsArgs>),
    /// Record every event to a file
    #[command(after_help = trace::RECORD_EXAMPLES, aliases = ["rec", "capture"])]
    Record(Box<RecordArgs>),
    /// Print the last report of a recorded trace again
    #[command(after_help = files::REPLAY_EXAMPLES)]
    Replay(Box<ReplayArgs>),
    /// Analyze a recording or a file of another tool: leaks, peak, usage, fragmentation
    #[command(after_help = files::REPORT_EXAMPLES, aliases = ["analyze", "show", "info"])]
    Report(Box<ReportArgs>),
    /// Compare two files by call site
    #[command(after_help = files::DIFF_EXAMPLES, aliases = ["compare"])]
    Diff(DiffArgs),
    /// Convert a file to another tool's format
    #[command(after_help = files::EXPORT_EXAMPLES, aliases = ["convert"])]
    Export(ExportArgs),
    /// Plot memory over time as SVG, PNG or an HTML report
    #[command(after_help = plot::EXAMPLES, aliases = ["chart", "graph", "draw"])]
    Plot(Box<PlotArgs>),
    /// Run the monitoring agent: metrics, alerts, out-of-memory snapshots
    #[command(after_help = serve::EXAMPLES, aliases = ["agent", "daemon"])]
    Serve(Box<ServeArgs>),
    /// Suggest how to free GPU memory, one step per process
    #[command(after_help = inspect::ADVISE_EXAMPLES, aliases = ["advice"])]
    Advise(Box<AdviseArgs>),
    /// Show which Python references keep the GPU memory of a program alive
    #[command(after_help = inspect::WHY_EXAMPLES)]
    Why(ProgramArgs),
    /// Make a program free GPU memory, through functions that it registered
    #[command(after_help = inspect::RECLAIM_EXAMPLES)]
    Reclaim(ProgramArgs),
    /// Explain where the driver-reported memory of a process goes
    #[command(after_help = inspect::EXPLAIN_EXAMPLES)]
    Explain(Box<ExplainArgs>),
    /// Label a time in all running traces, such as the start of an epoch
    #[command(after_help = inspect::MARK_EXAMPLES)]
    Mark(MarkArgs),
    /// Check whether this host can trace, and what is missing
    #[command(after_help = inspect::DOCTOR_EXAMPLES, alias = "check")]
    Doctor(DoctorArgs),
    /// Answer one question about a file; the same as `report FILE QUESTION`
    #[command(hide = true, aliases = ["leak", "suspects"])]
    Leaks(Box<ReportArgs>),
    /// The same for the peak
    #[command(hide = true)]
    Peak(Box<ReportArgs>),
    /// Write the HTML report of a file; the same as `report FILE --html -o NAME.html`
    #[command(hide = true, aliases = ["html"])]
    Page(Box<ReportArgs>),
    /// Show a recorded demo: no GPU and no root needed
    Demo(DemoArgs),
    /// Print the completion script of a shell
    #[command(after_help = packaging::COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print a man page, or write all of them to a directory
    #[command(after_help = packaging::MAN_EXAMPLES)]
    Man(ManArgs),
}

/// Prints help, the version or a usage error. Errors quote arguments, so these are escaped first.
fn explain_error(error: &clap::Error) -> Outcome {
    let escaped =
        std::env::args_os().map(|argument| sanitize(&argument.to_string_lossy()).into_owned());
    match Cli::try_parse_from(escaped) {
        Err(mut error) => {
            // The tip to pass a misspelled option to CMD misleads.
            error.remove(ContextKind::Suggested);
            // All of them with their aliases; the help is easier to read.
            error.remove(ContextKind::ValidSubcommand);
            drop(error.print());
        }
        Ok(_) => output::log(&error.render().to_string()),
    }
    Outcome::Code(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Parses the command line and runs the verb.
pub(crate) fn run() -> Result<Outcome> {
    let Cli { verb, output } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return Ok(explain_error(&error)),
    };
    output::set(output);
    match verb {
        Verb::Leaks(options) => commands::file::report::run_question(&options, AnalysisArg::Leaks),
        Verb::Page(mut options) => commands::file::report::run_page(&mut options),
        Verb::Peak(options) => commands::file::report::run_question(&options, AnalysisArg::Peak),
        Verb::Replay(options) => commands::file::replay::run(&options),
        Verb::Report(options) => commands::file::report::run(&options),
        Verb::Diff(options) => commands::file::diff::run(&options),
        Verb::Export(options) => commands::file::export::run(&options),
        Verb::Plot(options) => commands::file::plot::run(&options),
        Verb::Advise(options) => commands::advise::run(&options),
        Verb::Top(options) => commands::top::run(&options),
        Verb::Completions(options) => {
            commands::packaging::completions::run(Cli::command(), &options)
        }
        Verb::Man(options) => commands::packaging::man::run(Cli::command(), &options),
        Verb::Explain(options) => commands::explain::run(&options),
        Verb::Trace(options) => commands::trace::run_verb(&options),
        Verb::Run(options) => commands::trace::run::run(*options),
        Verb::Kernels(options) => commands::trace::kernels::run(&options),
        Verb::Record(options) => commands::trace::record::run(&options),
        Verb::Serve(options) => commands::serve::run(&options),
        Verb::Why(options) => commands::program::why::run(&options),
        Verb::Reclaim(options) => commands::program::reclaim::run(&options),
        Verb::Mark(options) => commands::mark::run(&options),
        Verb::Doctor(options) => commands::doctor::run(&options),
        Verb::Demo(options) => commands::demo::run(&options),
    }
}
