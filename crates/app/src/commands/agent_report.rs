//! The state of a running agent, printed like the last report of a trace: the agent has observed its
//! host for longer, so it has evidence that a new trace does not have.

use std::path::Path;

use anyhow::{Result, bail};
use engine::snapshot::Snapshot;
use engine::view::View;
use formats::export::ReportContext;
use formats::import::agent::{AgentState, snapshot};
use formats::report::live::text::TextStyle;
use formats::report::live::text::overview::LastOptions;
use formats::report::view::{gpu_facts, write_leak};

use super::agent_query::AgentClient;
use crate::Outcome;
use crate::cli::LiveFormat;
use crate::files::leak_gate;
use crate::io::output::{self, ResultOutput};
use crate::live::print::{self, LiveView, no_such_leak};
use crate::live::process_filter::ProcessFilter;
use crate::parse_units::LeakThreshold;

/// What to print.
pub(crate) struct AgentReport<'a> {
    pub(crate) url: &'a str,
    pub(crate) token_file: Option<&'a Path>,
    pub(crate) filter: ProcessFilter,
    pub(crate) view: LiveView,
    pub(crate) format: LiveFormat,
    pub(crate) top: usize,
    pub(crate) leak: Option<usize>,
    pub(crate) stack_depth: Option<usize>,
    pub(crate) fail_on_leak: Option<LeakThreshold>,
}

impl AgentReport<'_> {
    /// Asks the agent and prints its state.
    pub(crate) fn print(&self, out: &mut ResultOutput) -> Result<Outcome> {
        let client = AgentClient::new(self.url, self.token_file)?;
        let AgentState { mut snapshot, context, .. } =
            client.get("/api/v1/snapshot", |answer| snapshot(answer, output::clock))?;
        self.filter.apply(&mut snapshot);
        if snapshot.processes.is_empty() && !self.filter.is_empty() {
            bail!("{}: the agent knows no such process with GPU memory", self.url);
        }
        let more =
            format!("vramscope trace --agent {}{} --leak 1", self.url, self.filter.arguments());
        let last = LastOptions { top: self.top, leak: None, more: &more };
        let stack_depth = self.stack_depth.unwrap_or(out.style.stack_depth);
        let style = TextStyle { last: true, stack_depth, ..out.style };
        if let Some(number) = self.leak.filter(|_| self.format == LiveFormat::Text) {
            return print_leak(out, &snapshot, &context, number, style);
        }
        print::print(&mut *out.writer, self.view, self.format, &snapshot, &context, style, &last)?;
        Ok(self.fail_on_leak.map_or(Outcome::Success, |threshold| {
            let facts = gpu_facts(&context.gpus);
            leak_gate::evaluate(&snapshot, &facts, threshold)
        }))
    }
}

/// Prints one leak with its evidence and its call stack.
fn print_leak(
    out: &mut ResultOutput,
    snapshot: &Snapshot,
    context: &ReportContext,
    number: usize,
    style: TextStyle,
) -> Result<Outcome> {
    let facts = gpu_facts(&context.gpus);
    let view = View::of(snapshot, &facts);
    if !write_leak(&mut *out.writer, &view, number, style)? {
        bail!("{}", no_such_leak(number, view.leaks.len()));
    }
    Ok(Outcome::Success)
}
