//! `vramscope serve`: runs the agent on a live trace of all processes.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use agent::config::{ByteSize, Choice, Config};
use agent::{Message, Program, Source, capabilities};
use anyhow::{Result, bail};
use capture::session::{ActivityOptions, Notice, SessionOptions, Target};
use engine::model::{StackMode, Timestamp};
use formats::export::GpuLabel;
use formats::report::html::InitialView;

use crate::files::input::Selection;
use crate::files::plot_data::{self, PlotRequest};
use crate::io::output;
use crate::live::notice::log_notice;
use crate::live::pipeline::{LiveTrace, PipelineMessage};
use crate::live::state::gpu_names;
use crate::{Outcome, cli};

/// Runs the verb.
pub(crate) fn run(options: &cli::ServeArgs) -> Result<Outcome> {
    let config = configuration(options)?;
    let problems = config.check();
    if !problems.is_empty() {
        bail!("{}", problems.join("\n  "));
    }
    if options.check_config {
        output::log("configuration OK");
        return Ok(Outcome::Success);
    }
    config.make_state()?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    capabilities::init_process()?;
    let program = Program {
        clock: capture::monotonic,
        function_name: capture::hooks::function_name,
        write_html,
        fault_point: capture::fault::point,
    };
    output::redirect_log(agent::log_message);
    let is_complete = agent::run(config, program, &interrupted, start)?;
    Ok(if is_complete { Outcome::Success } else { Outcome::Incomplete })
}

/// Reads the configuration file; options of the command line take precedence.
fn configuration(options: &cli::ServeArgs) -> Result<Config> {
    let mut config = options.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    let http = &mut config.http;
    http.listen = options.listen.unwrap_or(http.listen);
    http.token_file = options.token_file.clone().or(http.token_file.take());
    config.state_dir = options.state_dir.clone().unwrap_or(config.state_dir);
    let trace = &mut config.trace;
    trace.drivers.extend(options.driver.iter().cloned());
    trace.max_cpu = options.max_cpu.or(trace.max_cpu);
    trace.max_memory = options.max_memory.map(ByteSize).or(trace.max_memory);
    trace.stacks = options.stacks.map_or(trace.stacks, Choice);
    trace.allocators = options.allocators.allocators.map_or(trace.allocators, Choice);
    Ok(config)
}

/// Starts the trace. Its threads keep the capabilities that probes need.
fn start(config: &Config) -> Result<Box<dyn Source>> {
    let trace = &config.trace;
    let options = SessionOptions {
        drivers: trace.drivers.clone(),
        activity: trace.kernels.then(ActivityOptions::default),
        objects: trace.objects,
        stacks: trace.stacks.0,
        allocators: trace.allocators.0,
        logs: config.kubernetes.log_dir.clone(),
        ..SessionOptions::new(Target::All)
    };
    Ok(Box::new(LiveTrace::start_after(options, capabilities::keep_tracing)?))
}

impl Source for LiveTrace {
    fn gpus(&self) -> Vec<GpuLabel> {
        gpu_names(&self.gpus)
    }

    fn counts_activity(&self) -> bool {
        self.counts_activity
    }

    fn next(&self, deadline: Instant) -> Option<Message> {
        loop {
            if let Some(message) = message(Self::next(self, deadline)?) {
                return Some(message);
            }
        }
    }

    fn complete_until(&self) -> Timestamp {
        Self::complete_until(self)
    }

    fn limit_stacks(&self, max: StackMode) {
        Self::limit_stacks(self, max);
    }

    fn finish(self: Box<Self>) -> (Vec<Message>, Timestamp) {
        let (remaining, complete_until) = Self::finish(*self);
        (remaining.into_iter().filter_map(message).collect(), complete_until)
    }
}

/// Returns a message as the agent sees it; notices are logged.
fn message(message: PipelineMessage) -> Option<Message> {
    match message {
        PipelineMessage::Events(events) => Some(Message::Events(events)),
        PipelineMessage::Gpus(gpus) => Some(Message::Gpus(gpu_names(&gpus))),
        PipelineMessage::Notice(notice) => {
            log_notice(&notice);
            matches!(notice, Notice::Attached { .. }).then_some(Message::Attached)
        }
        // Only in-process tracing has requests.
        PipelineMessage::Request(_) => None,
        PipelineMessage::Failed(error) => Some(Message::Failed(error)),
    }
}

/// Writes the HTML report of an incident's recording.
fn write_html(path: &Path, initial_view: InitialView, out: &mut dyn Write) -> Result<()> {
    let overlay = cli::SmiArgs { smi_log: None, smi_offset: None };
    let request = PlotRequest { path, selection: Selection::default(), overlay: &overlay };
    plot_data::write_page(&request, initial_view, out)
}
