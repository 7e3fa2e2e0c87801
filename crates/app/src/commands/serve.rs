//! `vramscope serve`: the engine thread of the agent. It applies events to the ledger and publishes
//! a snapshot every second to the agent's workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, anyhow, bail};
use capture::hooks::function_name;
use capture::session::{Notice, Options, Stacks, Target, Tensors, Work};
use engine::event::Event;
use engine::ledger::Ledger;
use engine::metrics::{Board, Gpu, Input, Limits};
use engine::snapshot::View;
use engine::units::Moment;
use formats::WallClock;
use formats::export::Names;
use formats::export::verdict::short_place;
use formats::recording::Functions;
use rustix::thread::CapabilitySet;

use super::live::{gpu_names, tell};
use crate::pipeline::{Live, Message, end_capture};
use crate::serve::budget::{Budget, Standing, Step};
use crate::serve::config::{self, Config, Size, trace};
use crate::serve::{
    Messages, Part, Published, Shared, Usage, actions, alerts, figures, http, incidents,
    kubernetes, onward, rights,
};
use crate::{Outcome, cli, output};

/// Time between two snapshots.
const TICK: Duration = Duration::from_secs(1);

/// Time until a signal is noticed.
const ATTENTION: Duration = Duration::from_millis(50);

/// Time to flush log messages at shutdown.
const GRACE: Duration = Duration::from_secs(1);

/// Time for the agent's threads to exit; Docker kills after 10 seconds.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);

/// Lists of the snapshots; totals are always complete.
const VIEW: View = View { top: 10, top_sites: 200, ..View::DEFAULT };

/// Runs the verb.
pub(crate) fn run(options: &cli::Serve) -> Result<Outcome> {
    let config = configuration(options)?;
    let problems = config.check();
    if !problems.is_empty() {
        bail!("{}", problems.join("\n  "));
    }
    if options.check_config {
        output::complain("configuration OK");
        return Ok(Outcome::Fine);
    }
    config.check_state().map_err(|why| anyhow!(why))?;
    config.make_state().map_err(|why| anyhow!(why))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let euid = rustix::process::geteuid().as_raw();
    if let Some(warning) = actions::powerless(&config.actions, rights::may_signal(), euid) {
        output::complain(&warning);
    }
    rights::begin(rights::to_signal(!config.actions.allow.is_empty()))?;
    let messages = Messages::divert()?;
    let outcome = serve(config, &messages, &interrupted);
    if let Err(error) = &outcome {
        output::complain(&format!("error: {}", output::reasons(error)));
    }
    messages.finish(GRACE);
    Ok(outcome.unwrap_or(Outcome::Incomplete))
}

fn serve(config: Config, messages: &Messages, interrupted: &AtomicBool) -> Result<Outcome> {
    let shared = Shared::new(config);
    let mut workers = vec![http::start(&shared)?, alerts::start(&shared)?];
    workers.extend(onward::start(&shared)?);
    workers.extend(kubernetes::start(&shared)?);
    let (collector, writer) = incidents::Desk::start(&shared)?;
    workers.push(writer);
    let options = session_options(&shared.config);
    let live = Live::start_after(options, rights::trace)?;
    for warning in &live.plan.warnings {
        output::complain(warning);
    }
    // The capture thread has the capabilities it needs; this thread needs none.
    rights::only(CapabilitySet::empty())?;
    let mut agent = Agent::new(&live.gpus, live.counts_work, Arc::clone(&shared), collector);
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
            output::complain(&format!("error: {}", output::reasons(&error)));
            outcome = Err(error);
        }
    }
    Ok(if outcome.is_ok() { Outcome::Fine } else { Outcome::Incomplete })
}

/// Reads the configuration file; options of the command line take precedence.
fn configuration(options: &cli::Serve) -> Result<Config> {
    let mut config = options.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    let http = &mut config.http;
    http.listen = options.listen.unwrap_or(http.listen);
    http.token_file = options.token_file.clone().or(http.token_file.take());
    config.state_dir = options.state_dir.clone().unwrap_or(config.state_dir);
    let trace = &mut config.trace;
    trace.drivers.extend(options.driver.iter().cloned());
    trace.max_cpu = options.max_cpu.or(trace.max_cpu);
    trace.max_memory = options.max_memory.map(Size).or(trace.max_memory);
    if let Some(stacks) = options.stacks {
        trace.stacks = match stacks {
            cli::Stacks::Off => trace::Stacks::Off,
            cli::Stacks::Fp => trace::Stacks::Fp,
            cli::Stacks::Full => trace::Stacks::Full,
        };
    }
    if let Some(torch) = options.torch.torch {
        trace.torch = match torch {
            cli::TorchHow::Totals => trace::Torch::Totals,
            cli::TorchHow::Full => trace::Torch::Full,
        };
    }
    Ok(config)
}

fn session_options(config: &Config) -> Options {
    let trace = &config.trace;
    Options {
        target: Target::Everybody,
        drivers: trace.drivers.clone(),
        ring_bytes: Options::RING_BYTES,
        table_entries: None,
        thread_entries: None,
        tier: None,
        work: trace.kernels.then_some(Work {
            check_every_launch: false,
            table_entries: None,
            baseline: false,
        }),
        objects: trace.objects,
        stacks: match trace.stacks {
            trace::Stacks::Off => Stacks::Off,
            trace::Stacks::Fp => Stacks::Pointers,
            trace::Stacks::Full => Stacks::Full,
        },
        tensors: match trace.torch {
            trace::Torch::Off => Tensors::Off,
            trace::Torch::Totals => Tensors::Totals,
            trace::Torch::Full => Tensors::Full,
        },
        stack_ring_bytes: Options::STACK_RING_BYTES,
        logs: config.kubernetes.log_dir.clone(),
        empty_probes: false,
    }
}

/// The engine thread of the agent.
struct Agent {
    shared: Arc<Shared>,
    ledger: Ledger,
    metrics: Board,
    gpus: Vec<Gpu>,
    names: Arc<Names>,
    collector: incidents::Desk,
    budget: Budget,
    start: (Instant, SystemTime),
    sequence: u64,
    events: u64,
    /// Probes are attached to a driver.
    tracing: bool,
    /// Time at which capture ended early.
    capture_ended: Option<Moment>,
    /// The capture thread failed.
    capture_failed: bool,
    /// The agent exits because of an error.
    has_failed: bool,
    usage: Usage,
}

impl Agent {
    fn new(
        gpus: &[capture::gpus::Gpu],
        counts_work: bool,
        shared: Arc<Shared>,
        collector: incidents::Desk,
    ) -> Self {
        let clock = WallClock::now(capture::monotonic());
        let gpus = gpu_names(gpus);
        let names = Names { clock, function: function_name, recorded: Functions::default(), gpus };
        let ledger = Ledger::new().forgetting_ended();
        let trace = &shared.config.trace;
        let first = match trace.stacks {
            trace::Stacks::Full => Step::CheapStacks,
            trace::Stacks::Fp => Step::NoStacks,
            trace::Stacks::Off => Step::CoarseSites,
        };
        let budget = Budget::new(trace.max_cpu, trace.max_memory.map(|size| size.0), first);
        let config::Metrics {
            max_processes: processes,
            max_containers: containers,
            max_sites: sites,
            max_suspects: suspects,
        } = shared.config.metrics;
        Self {
            shared,
            metrics: Board::new(Limits { processes, containers, sites, suspects }),
            gpus: figures::gpus(&names),
            ledger: if counts_work { ledger.following_work() } else { ledger },
            names: Arc::new(names),
            collector,
            budget,
            start: (Instant::now(), SystemTime::now()),
            sequence: 0,
            events: 0,
            tracing: false,
            capture_ended: None,
            capture_failed: false,
            has_failed: false,
            usage: Usage::default(),
        }
    }

    fn run(
        &mut self,
        live: &Live,
        workers: &mut Vec<Part>,
        messages: &Messages,
        interrupted: &AtomicBool,
    ) -> Result<()> {
        let mut next = Instant::now();
        while !interrupted.load(Ordering::Relaxed) {
            let due = self.collector.due().map_or(next, |due| due.min(next));
            if Instant::now() >= due {
                self.apply_budget(live);
                self.publish();
                next = (next + TICK).max(Instant::now());
                // An agent without one of its workers must not keep running: restart it.
                if let Some(ended) = workers.iter().position(Part::is_finished) {
                    return Err(workers.swap_remove(ended).failure());
                }
                if let Some(error) = messages.failure() {
                    return Err(error);
                }
            }
            let Some(message) = live.next(due.min(Instant::now() + ATTENTION)) else { continue };
            self.handle(message)?;
        }
        Ok(())
    }

    /// Handles a message of the capture thread.
    fn handle(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Events(events) => self.apply(&events),
            Message::Gpus(gpus) => {
                let gpus = gpu_names(&gpus);
                self.names = Arc::new(Names { gpus, ..Names::clone(&self.names) });
                self.gpus = figures::gpus(&self.names);
            }
            Message::Notice(notice) => {
                self.tracing |= matches!(notice, Notice::Attached { .. });
                tell(&notice);
            }
            Message::Failed(error) => {
                self.capture_failed = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Logs why the agent exits, and publishes that it is not ready and, if capture failed, not
    /// exact.
    fn fail(&mut self, error: &anyhow::Error, complete_until: Moment) {
        output::complain(&format!(
            "error: {}; the agent exits, to be restarted",
            output::reasons(error)
        ));
        self.has_failed = true;
        self.capture_ended = self.capture_failed.then_some(complete_until);
        self.publish();
    }

    fn apply(&mut self, events: &[Event]) {
        self.events += events.len() as u64;
        for event in events {
            self.ledger.apply(event);
            self.collector.event(event, &self.ledger);
        }
    }

    /// Applies degradation steps if the agent exceeds its budget.
    fn apply_budget(&mut self, live: &Live) {
        let http_cpu = &self.shared.http_cpu;
        let usage = Usage::now(self.start.0.elapsed(), http_cpu.used_seconds());
        let change = self.budget.observe(usage);
        http_cpu.allow(self.budget.for_answers());
        if let Some(change) = change {
            output::complain(&change.message);
            let has = |step| change.steps.contains(&step);
            live.limit_stacks(match (has(Step::NoStacks), has(Step::CheapStacks)) {
                (true, _) => Stacks::Off,
                (false, true) => Stacks::Pointers,
                (false, false) => Stacks::Full,
            });
            if has(Step::CoarseSites) {
                self.ledger.put_sites_together();
            }
        }
        self.usage = usage;
    }

    /// Returns the resource usage of the agent.
    fn agent_usage(&self) -> Standing {
        let started = self.start.1.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Standing {
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
    fn end(&mut self, remaining: Vec<Message>, complete_until: Moment) -> Result<()> {
        let mut outcome = Ok(());
        for message in remaining {
            if let Err(error) = self.handle(message) {
                self.fail(&error, complete_until);
                outcome = Err(error);
            }
        }
        if self.collector.hurry() {
            self.publish();
        }
        outcome
    }

    /// Follows changes of the system clock while the agent runs.
    fn set_clock(&mut self) {
        if let Some(clock) = self.names.clock.corrected(capture::monotonic()) {
            output::complain("system clock changed; timestamps follow it");
            self.names = Arc::new(Names { clock, ..Names::clone(&self.names) });
        }
    }

    fn publish(&mut self) {
        self.sequence += 1;
        self.set_clock();
        let own = self.agent_usage();
        let now = self.capture_ended.unwrap_or_else(capture::monotonic);
        let mut snapshot = self.ledger.snapshot(now, &VIEW);
        if let Some(at) = self.capture_ended {
            end_capture(&mut snapshot, at);
        }
        self.shared.pods.name(&mut snapshot);
        let metrics = self.metrics.observe(&Input {
            snapshot: &snapshot,
            gpus: &self.gpus,
            own: &figures::own(&own, self.ledger.unlisted_ends(), &self.shared),
            place: short_place,
        });
        let published = self.shared.feed.publish(Published {
            sequence: self.sequence,
            snapshot,
            names: Arc::clone(&self.names),
            metrics,
            own,
        });
        self.collector.published(&published, &self.ledger);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(state: &std::path::Path) -> (Agent, Part) {
        let config = Config { state_dir: state.into(), ..Config::default() };
        let shared = Shared::new(config);
        let (collector, writer) = incidents::Desk::start(&shared).unwrap();
        (Agent::new(&[], false, shared, collector), writer)
    }

    #[test]
    fn failures_and_notices_at_the_end_are_not_dropped() {
        let state = tempfile::tempdir().unwrap();
        let (mut agent, writer) = agent(state.path());
        let attached = Notice::Attached { path: "/x".into(), functions: 1, stepped: 0 };
        agent.end(vec![Message::Notice(attached)], Moment(7)).unwrap();
        assert!(agent.agent_usage().tracing);
        let failed = Message::Failed(anyhow!("the ring is gone"));
        let error = agent.end(vec![failed], Moment(7)).unwrap_err();
        assert_eq!(error.to_string(), "the ring is gone");
        let published = agent.shared.feed.newest().unwrap();
        assert!(!published.own.tracing && !published.snapshot.certainty.exact());
        assert_eq!(published.snapshot.certainty.capture_ended, Some(Moment(7)));
        agent.shared.feed.close();
        writer.join_until(Instant::now() + SHUTDOWN_TIMEOUT).unwrap();
    }
}
