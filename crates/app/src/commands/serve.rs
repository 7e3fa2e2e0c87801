//! `vramscope serve`: the engine thread of the agent. It applies events to the ledger and publishes
//! a snapshot every second to the agent's workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, anyhow, bail};
use capture::hooks::function_name;
use capture::session::{ActivityOptions, Notice, SessionOptions, StackMode, Target, TensorMode};
use engine::ledger::Ledger;
use engine::metrics::{CollectorInput, GpuInfo, MetricsCollector, SeriesLimits};
use engine::model::event::Event;
use engine::model::units::Timestamp;
use engine::snapshot::SnapshotOptions;
use formats::WallClock;
use formats::export::ReportContext;
use formats::recording::FunctionTable;
use formats::report::verdict::short_location;
use rustix::thread::CapabilitySet;

use crate::io::output;
use crate::live::pipeline::{LiveTrace, PipelineMessage, end_capture};
use crate::live::report_loop::{gpu_names, log_notice};
use crate::serve::budget::{AgentUsage, Budget, DegradationStep};
use crate::serve::config::{self, ByteSize, Config, trace};
use crate::serve::{
    AgentState, AgentThread, LogQueue, PublishedSnapshot, SelfUsage, actions, alerts, api,
    capabilities, exporters, incidents, kubernetes, metrics_input,
};
use crate::{Outcome, cli};

/// Time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// Time until a signal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time to flush log messages at shutdown.
const SHUTDOWN_LOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for the agent's threads to exit; Docker kills after 10 seconds.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);

/// Lists of the snapshots; totals are always complete.
const SNAPSHOT_OPTIONS: SnapshotOptions =
    SnapshotOptions { top: 10, top_sites: 200, ..SnapshotOptions::DEFAULT };

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
    config.check_state().map_err(|reason| anyhow!(reason))?;
    config.make_state().map_err(|reason| anyhow!(reason))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let euid = rustix::process::geteuid().as_raw();
    if let Some(warning) =
        actions::missing_capability_warning(&config.actions, capabilities::can_signal(), euid)
    {
        output::log(&warning);
    }
    capabilities::init_process(capabilities::kill_capability(!config.actions.allow.is_empty()))?;
    let messages = LogQueue::install()?;
    let outcome = serve(config, &messages, &interrupted);
    if let Err(error) = &outcome {
        output::log(&format!("error: {}", output::error_chain(error)));
    }
    messages.finish(SHUTDOWN_LOG_TIMEOUT);
    Ok(outcome.unwrap_or(Outcome::Incomplete))
}

fn serve(config: Config, messages: &LogQueue, interrupted: &AtomicBool) -> Result<Outcome> {
    let shared = AgentState::new(config);
    let mut workers = vec![api::start(&shared)?, alerts::start(&shared)?];
    workers.extend(exporters::start(&shared)?);
    workers.extend(kubernetes::start(&shared)?);
    let (collector, writer) = incidents::IncidentCollector::start(&shared)?;
    workers.push(writer);
    let options = session_options(&shared.config);
    let live = LiveTrace::start_after(options, capabilities::keep_tracing)?;
    for warning in live.plan.iter().flat_map(|plan| &plan.warnings) {
        output::log(warning);
    }
    // The capture thread has the capabilities it needs; this thread needs none.
    capabilities::keep_only(CapabilitySet::empty())?;
    let mut agent =
        AgentEngine::new(&live.gpus, live.counts_activity, Arc::clone(&shared), collector);
    let mut outcome = agent.run(&live, &mut workers, messages, interrupted);
    if let Err(error) = &outcome {
        agent.fail(error, live.complete_until());
    }
    let (remaining, complete_until) = live.finish();
    outcome = outcome.and(agent.end(remaining, complete_until));
    shared.feed.close();
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    for worker in workers {
        if let Err(error) = worker.join_until(deadline) {
            output::log(&format!("error: {}", output::error_chain(&error)));
            outcome = Err(error);
        }
    }
    Ok(if outcome.is_ok() { Outcome::Success } else { Outcome::Incomplete })
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
    if let Some(stacks) = options.stacks {
        trace.stacks = match stacks {
            cli::StackModeArg::Off => trace::StackModeConfig::Off,
            cli::StackModeArg::Fp => trace::StackModeConfig::Fp,
            cli::StackModeArg::Full => trace::StackModeConfig::Full,
        };
    }
    if let Some(torch) = options.torch.torch {
        trace.torch = match torch {
            cli::TensorModeArg::Totals => trace::TensorModeConfig::Totals,
            cli::TensorModeArg::Full => trace::TensorModeConfig::Full,
        };
    }
    Ok(config)
}

fn session_options(config: &Config) -> SessionOptions {
    let trace = &config.trace;
    SessionOptions {
        target: Target::All,
        drivers: trace.drivers.clone(),
        ring_bytes: SessionOptions::RING_BYTES,
        table_entries: None,
        thread_entries: None,
        attach_mode: None,
        activity: trace.kernels.then_some(ActivityOptions {
            check_every_launch: false,
            table_entries: None,
            baseline: false,
        }),
        objects: trace.objects,
        stacks: match trace.stacks {
            trace::StackModeConfig::Off => StackMode::Off,
            trace::StackModeConfig::Fp => StackMode::FramePointer,
            trace::StackModeConfig::Full => StackMode::Full,
        },
        tensors: match trace.torch {
            trace::TensorModeConfig::Off => TensorMode::Off,
            trace::TensorModeConfig::Totals => TensorMode::Totals,
            trace::TensorModeConfig::Full => TensorMode::Full,
        },
        stack_ring_bytes: SessionOptions::STACK_RING_BYTES,
        logs: config.kubernetes.log_dir.clone(),
        empty_probes: false,
    }
}

/// The engine thread of the agent.
struct AgentEngine {
    shared: Arc<AgentState>,
    ledger: Ledger,
    metrics: MetricsCollector,
    gpus: Vec<GpuInfo>,
    context: Arc<ReportContext>,
    collector: incidents::IncidentCollector,
    budget: Budget,
    start: (Instant, SystemTime),
    sequence: u64,
    events: u64,
    /// Probes are attached to a driver.
    tracing: bool,
    /// Time at which capture ended early.
    capture_ended: Option<Timestamp>,
    /// The capture thread failed.
    capture_failed: bool,
    /// The agent exits because of an error.
    has_failed: bool,
    usage: SelfUsage,
}

impl AgentEngine {
    fn new(
        gpus: &[capture::gpus::GpuInfo],
        counts_activity: bool,
        shared: Arc<AgentState>,
        collector: incidents::IncidentCollector,
    ) -> Self {
        let clock = WallClock::now(capture::monotonic());
        let gpus = gpu_names(gpus);
        let context = ReportContext {
            source: None,
            clock,
            function: function_name,
            recorded: FunctionTable::default(),
            gpus,
        };
        let ledger = Ledger::new().without_ended_history();
        let trace = &shared.config.trace;
        let first = match trace.stacks {
            trace::StackModeConfig::Full => DegradationStep::FramePointerStacks,
            trace::StackModeConfig::Fp => DegradationStep::NoStacks,
            trace::StackModeConfig::Off => DegradationStep::MergedSites,
        };
        let budget = Budget::new(trace.max_cpu, trace.max_memory.map(|size| size.0), first);
        let config::MetricsConfig {
            max_processes: processes,
            max_containers: containers,
            max_sites: sites,
            max_suspects: suspects,
        } = shared.config.metrics;
        Self {
            shared,
            metrics: MetricsCollector::new(SeriesLimits { processes, containers, sites, suspects }),
            gpus: metrics_input::gpus(&context),
            ledger: if counts_activity { ledger.with_activity() } else { ledger },
            context: Arc::new(context),
            collector,
            budget,
            start: (Instant::now(), SystemTime::now()),
            sequence: 0,
            events: 0,
            tracing: false,
            capture_ended: None,
            capture_failed: false,
            has_failed: false,
            usage: SelfUsage::default(),
        }
    }

    fn run(
        &mut self,
        live: &LiveTrace,
        workers: &mut Vec<AgentThread>,
        messages: &LogQueue,
        interrupted: &AtomicBool,
    ) -> Result<()> {
        let mut next = Instant::now();
        while !interrupted.load(Ordering::Relaxed) {
            let due = self.collector.due().map_or(next, |due| due.min(next));
            if Instant::now() >= due {
                self.apply_budget(live);
                self.publish();
                next = (next + SNAPSHOT_INTERVAL).max(Instant::now());
                // An agent without one of its workers must not keep running: restart it.
                if let Some(ended) = workers.iter().position(AgentThread::is_finished) {
                    return Err(workers.swap_remove(ended).failure());
                }
                if let Some(error) = messages.failure() {
                    return Err(error);
                }
            }
            let Some(message) = live.next(due.min(Instant::now() + POLL_INTERVAL)) else {
                continue;
            };
            self.handle(message)?;
        }
        Ok(())
    }

    /// Handles a message of the capture thread.
    fn handle(&mut self, message: PipelineMessage) -> Result<()> {
        match message {
            PipelineMessage::Events(events) => self.apply(&events),
            PipelineMessage::Gpus(gpus) => {
                let gpus = gpu_names(&gpus);
                self.context =
                    Arc::new(ReportContext { gpus, ..ReportContext::clone(&self.context) });
                self.gpus = metrics_input::gpus(&self.context);
            }
            PipelineMessage::Notice(notice) => {
                self.tracing |= matches!(notice, Notice::Attached { .. });
                log_notice(&notice);
            }
            PipelineMessage::Failed(error) => {
                self.capture_failed = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Publishes that the agent is not ready and, if capture failed, not exact, then logs why it
    /// exits.
    fn fail(&mut self, error: &anyhow::Error, complete_until: Timestamp) {
        self.has_failed = true;
        self.capture_ended = self.capture_failed.then_some(complete_until);
        self.publish();
        output::log(&format!(
            "error: {}; the agent exits, to be restarted",
            output::error_chain(error)
        ));
    }

    fn apply(&mut self, events: &[Event]) {
        self.events += events.len() as u64;
        for event in events {
            self.ledger.apply(event);
            self.collector.event(event, &self.ledger);
        }
    }

    /// Applies degradation steps if the agent exceeds its budget.
    fn apply_budget(&mut self, live: &LiveTrace) {
        let http_cpu = &self.shared.http_cpu;
        let usage = SelfUsage::now(self.start.0.elapsed(), http_cpu.used_seconds());
        let change = self.budget.observe(usage);
        http_cpu.allow(self.budget.http_share());
        if let Some(change) = change {
            output::log(&change.message);
            let has = |step| change.steps.contains(&step);
            live.limit_stacks(
                match (has(DegradationStep::NoStacks), has(DegradationStep::FramePointerStacks)) {
                    (true, _) => StackMode::Off,
                    (false, true) => StackMode::FramePointer,
                    (false, false) => StackMode::Full,
                },
            );
            if has(DegradationStep::MergedSites) {
                self.ledger.merge_sites();
            }
        }
        self.usage = usage;
    }

    /// Returns the resource usage of the agent.
    fn agent_usage(&self) -> AgentUsage {
        let started = self.start.1.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        AgentUsage {
            cpu_seconds: self.usage.cpu_seconds,
            cpu_percent: self.budget.cpu_percent(),
            memory: self.usage.memory,
            started: started.as_secs_f64(),
            tracing: self.tracing && !self.has_failed,
            events: self.events,
            steps: self.budget.steps().to_vec(),
        }
    }

    /// Handles the remaining messages of the capture thread and hands over pending incidents before
    /// the feed closes.
    fn end(&mut self, remaining: Vec<PipelineMessage>, complete_until: Timestamp) -> Result<()> {
        let mut outcome = Ok(());
        for message in remaining {
            if let Err(error) = self.handle(message) {
                self.fail(&error, complete_until);
                outcome = Err(error);
            }
        }
        if self.collector.flush() {
            self.publish();
        }
        outcome
    }

    /// Follows changes of the system clock while the agent runs.
    fn set_clock(&mut self) {
        if let Some(clock) = self.context.clock.corrected(capture::monotonic()) {
            output::log("system clock changed; timestamps follow it");
            self.context = Arc::new(ReportContext { clock, ..ReportContext::clone(&self.context) });
        }
    }

    fn publish(&mut self) {
        self.sequence += 1;
        self.set_clock();
        let own = self.agent_usage();
        let now = self.capture_ended.unwrap_or_else(capture::monotonic);
        let mut snapshot = self.ledger.snapshot(now, &SNAPSHOT_OPTIONS);
        if let Some(at) = self.capture_ended {
            end_capture(&mut snapshot, at);
        }
        self.shared.pods.name(&mut snapshot);
        let metrics = self.metrics.observe(&CollectorInput {
            snapshot: &snapshot,
            gpus: &self.gpus,
            agent: &metrics_input::own(&own, self.ledger.dropped_ended(), &self.shared),
            location: short_location,
        });
        let published = self.shared.feed.publish(PublishedSnapshot {
            sequence: self.sequence,
            snapshot,
            context: Arc::clone(&self.context),
            metrics,
            own,
        });
        self.collector.on_snapshot(&published, &self.ledger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(state: &std::path::Path) -> (AgentEngine, AgentThread) {
        let config = Config { state_dir: state.into(), ..Config::default() };
        let shared = AgentState::new(config);
        let (collector, writer) = incidents::IncidentCollector::start(&shared).unwrap();
        (AgentEngine::new(&[], false, shared, collector), writer)
    }

    #[test]
    fn failures_and_notices_at_the_end_are_not_dropped() {
        let state = tempfile::tempdir().unwrap();
        let (mut agent, writer) = agent(state.path());
        let attached = Notice::Attached { path: "/x".into(), functions: 1, stepped: 0 };
        agent.end(vec![PipelineMessage::Notice(attached)], Timestamp(7)).unwrap();
        assert!(agent.agent_usage().tracing);
        let failed = PipelineMessage::Failed(anyhow!("the ring is gone"));
        let error = agent.end(vec![failed], Timestamp(7)).unwrap_err();
        assert_eq!(error.to_string(), "the ring is gone");
        let published = agent.shared.feed.newest().unwrap();
        assert!(!published.own.tracing && !published.snapshot.uncertainty.exact());
        assert_eq!(published.snapshot.uncertainty.capture_ended, Some(Timestamp(7)));
        agent.shared.feed.close();
        writer.join_until(Instant::now() + SHUTDOWN_TIMEOUT).unwrap();
    }
}
