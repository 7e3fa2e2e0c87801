//! `vramscope kernels`: launches by kernel, copies by direction, failed calls.

use anyhow::Result;
use engine::snapshot::View;

use capture::session::Tensors;

use super::live::{Format, Subject};
use super::trace::{Settings, watch, work_options};
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: &cli::Kernels) -> Result<Outcome> {
    let format = Format::of(&options.format);
    watch(&Settings {
        target: &options.target,
        interval: options.interval,
        duration: options.duration,
        format: Some(format),
        output: options.output.as_deref(),
        record: None,
        force: options.force,
        limit: None,
        work: Some(work_options(&options.work)),
        subject: Subject::Work,
        objects: false,
        stacks: Some(cli::Stacks::Off),
        tensors: Tensors::Off,
        stack_depth: None,
        view: View {
            top: options.top.unwrap_or(if format == Format::Json { 1000 } else { 10 }),
            ..View::default()
        },
    })
}
