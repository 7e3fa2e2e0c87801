//! Options that several verbs have.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use engine::model::{AllocatorMode, StackMode};
use formats::report::live::text::TextStyle;
use serde::Serialize;

use super::choice::{Choice, choice};
use crate::Outcome;
use crate::io::output::{self, ResultOutput};
use crate::parse_units::{self, LeakThreshold};

/// Default exit code of a failed check: commands rarely use it, and it is not an error of vramscope.
const CHECK_FAILED: u8 = 3;

/// Leaks that make a verb fail.
#[derive(Args)]
pub(crate) struct FailOnLeakArgs {
    /// Fail if anything leaks: exit with status 3 if a site is a leak suspect, or if a process
    /// without a caching allocator exited with more than SIZE (default 0) not freed; with
    /// `suspects`: only for suspects
    #[arg(
        long,
        value_name = "SIZE|suspects",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0",
        value_parser = parse_units::leak_limit
    )]
    pub(crate) fail_on_leak: Option<LeakThreshold>,
    /// With --fail-on-leak: exit with CODE instead of 3 if there is a leak
    #[arg(
        long,
        value_name = "CODE",
        default_value_t = CHECK_FAILED,
        hide_default_value = true,
        requires = "fail_on_leak",
        value_parser = clap::value_parser!(u8).range(1..)
    )]
    pub(crate) leak_exit_code: u8,
}

impl FailOnLeakArgs {
    /// Returns the outcome, with the exit code of the option for findings.
    pub(crate) fn outcome(&self, outcome: Outcome) -> Outcome {
        if outcome == Outcome::Findings { Outcome::Code(self.leak_exit_code) } else { outcome }
    }
}

/// Options for the format of live reports.
#[derive(Args)]
pub(crate) struct FormatOptions {
    /// Output format; json prints one object per line
    #[arg(long, value_enum, default_value = "text")]
    format: LiveFormat,
    /// Same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl FormatOptions {
    /// Returns the format.
    pub(crate) fn get(&self) -> LiveFormat {
        if self.json { LiveFormat::Json } else { self.format }
    }

    /// Prints a value as JSON, or as the text that `write` makes of it.
    pub(crate) fn print(
        &self,
        value: &impl Serialize,
        write: impl FnOnce(&mut dyn Write, TextStyle) -> Result<()>,
    ) -> Result<()> {
        let mut out = output::results();
        match self.get() {
            LiveFormat::Json => writeln!(out.writer, "{}", serde_json::to_string(value)?)?,
            LiveFormat::Text => write(&mut *out.writer, out.style)?,
        }
        out.finish()
    }
}

/// Output format of live reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum LiveFormat {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Where the result of a verb that reads files goes.
#[derive(Args)]
pub(crate) struct OutputArgs {
    /// Write the result to FILE; - is standard output
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

impl OutputArgs {
    /// Opens the destination, which must be none of the inputs.
    pub(crate) fn open(&self, inputs: &[&Path]) -> Result<ResultOutput> {
        if self.force && self.output.is_none() {
            bail!("--force requires --output: nothing else is overwritten");
        }
        output::results_from(inputs, self.output.as_deref(), self.force)
    }
}

/// When live reports are printed.
#[derive(Args)]
pub(crate) struct TimeArgs {
    /// Time between reports, such as 500ms, 2s, 1m
    #[arg(
        short,
        long,
        value_name = "DURATION",
        default_value = "2s",
        value_parser = parse_units::interval
    )]
    pub(crate) interval: Duration,
    /// Stop after this long
    #[arg(short, long, value_name = "DURATION", value_parser = parse_units::time)]
    pub(crate) duration: Option<Duration>,
}

/// Grouping of a report.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum GroupByArg {
    /// By process and thread
    #[default]
    Process,
    /// By allocation site
    Site,
    /// By the library that allocated the memory
    Library,
    /// By user
    User,
    /// By job: Slurm, Ray, PBS, LSF
    Job,
    /// By process tree
    Tree,
}

/// How call stacks are shown.
#[derive(Args)]
pub(crate) struct WrapperArgs {
    /// Treat function NAME as a wrapper: name its caller instead (may be repeated)
    #[arg(long, value_name = "NAME")]
    pub(crate) wrapper: Vec<String>,
}

/// How call stacks are collected.
#[derive(Args)]
pub(crate) struct StackArgs {
    /// How to collect call stacks: off, fp (frame pointers) or full (unwind tables and Python
    /// frames)
    #[arg(long, value_name = "MODE", value_parser = choice(STACK_MODES))]
    pub(crate) stacks: Option<StackMode>,
}

pub(super) const STACK_MODES: &[Choice<StackMode>] = &[
    (StackMode::Off.name(), "No stacks", StackMode::Off),
    (
        StackMode::FramePointer.name(),
        "Frame pointers: cheap; truncated where code has none",
        StackMode::FramePointer,
    ),
    (StackMode::Full.name(), "Unwind tables and Python frames", StackMode::Full),
];

/// Whether CUDA objects are tracked.
#[derive(Args)]
pub(crate) struct ObjectArgs {
    /// Do not track streams, events, graphs, modules and other CUDA objects
    #[arg(long)]
    pub(crate) no_objects: bool,
}

/// Whether blocks of allocators in processes are tracked.
#[derive(Args)]
pub(crate) struct AllocatorArgs {
    /// Track PyTorch tensors and blocks of other allocators [default: auto; sampled without MODE]
    #[arg(
        long,
        visible_alias = "torch",
        value_name = "MODE",
        value_parser = choice(ALLOCATOR_MODES),
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "sampled"
    )]
    pub(crate) allocators: Option<AllocatorMode>,
}

const ALLOCATOR_MODES: &[Choice<AllocatorMode>] = &[
    (
        AllocatorMode::WhileGrowing.name(),
        "As sampled; PyTorch while the memory of a process grows",
        AllocatorMode::WhileGrowing,
    ),
    (
        AllocatorMode::Sampled.name(),
        "By call site, always; call stacks are sampled if there are too many",
        AllocatorMode::Sampled,
    ),
    (AllocatorMode::Full.name(), "The same with all call stacks", AllocatorMode::Full),
    (
        AllocatorMode::Totals.name(),
        "Totals per process and device, no call sites",
        AllocatorMode::Totals,
    ),
    (AllocatorMode::Off.name(), "Not at all", AllocatorMode::Off),
];

/// How launches are counted and checked.
#[derive(Args, Default)]
pub(crate) struct LaunchArgs {
    /// Which launches to check for errors: sampled, or all (slower) [default: sampled]
    #[arg(long, value_name = "MODE", value_parser = choice(CHECKED_LAUNCHES))]
    pub(crate) check_launches: Option<bool>,
    /// Entries of the BPF maps for launches and copies
    #[arg(long, hide = true, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) activity_table_size: Option<u32>,
    /// Attach launch probes that do nothing (baseline for benchmarks)
    #[arg(long, hide = true)]
    pub(crate) empty_launch_probes: bool,
}

/// Whether every launch is checked.
const CHECKED_LAUNCHES: &[Choice<bool>] = &[
    ("sampled", "New kernels and shapes, and one in 64 of the rest", false),
    ("all", "All launches", true),
];
