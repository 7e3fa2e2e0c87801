//! `vramscope serve`: the agent. This is its engine thread: events into the ledger, a snapshot a second
//! to the parts of the agent.

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
use formats::WallClock;
use formats::export::Names;
use formats::export::verdict::short_place;
use formats::recording::Functions;
use rustix::thread::CapabilitySet;

use super::live::{gpu_names, tell};
use crate::pipeline::{Live, Message};
use crate::serve::budget::{Budget, Standing, Step};
use crate::serve::config::{self, Config, Size, trace};
use crate::serve::{
    Messages, Part, Published, Shared, Usage, actions, alerts, figures, http, incidents,
    kubernetes, onward, rights,
};
use crate::{Outcome, cli, output};

/// Between two snapshots.
const TICK: Duration = Duration::from_secs(1);

/// How soon a signal is noticed.
const ATTENTION: Duration = Duration::from_millis(50);

/// How long messages may take at the end.
const GRACE: Duration = Duration::from_secs(1);

/// What snapshots list: totals are never cut.
const VIEW: View = View { top: 10, top_sites: 200, ..View::DEFAULT };

/// Runs the verb.
pub(crate) fn run(options: &cli::Serve) -> Result<Outcome> {
    let config = settings(options)?;
    let wrong = config.check();
    if !wrong.is_empty() {
        bail!("{}", wrong.join("\n  "));
    }
    if options.check {
        output::complain("the settings are fine");
        return Ok(Outcome::Fine);
    }
    config.check_state().map_err(|why| anyhow!(why))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let own = rustix::process::geteuid().as_raw();
    if let Some(warning) = actions::powerless(&config.actions, rights::may_signal(), own) {
        output::complain(&warning);
    }
    rights::begin(rights::to_signal(!config.actions.allow.is_empty()))?;
    let messages = Messages::divert()?;
    let outcome = serve(config, &interrupted);
    if let Err(error) = &outcome {
        output::complain(&format!("error: {}", output::reasons(error)));
    }
    messages.finish(GRACE);
    Ok(outcome.unwrap_or(Outcome::Incomplete))
}

fn serve(config: Config, interrupted: &AtomicBool) -> Result<Outcome> {
    let shared = Shared::new(config);
    let mut parts = vec![http::start(&shared)?, alerts::start(&shared)?];
    parts.extend(onward::start(&shared)?);
    parts.extend(kubernetes::start(&shared)?);
    let (desk, writer) = incidents::Desk::start(&shared)?;
    parts.push(writer);
    let options = session_options(&shared.config);
    let live = Live::start_after(options, rights::trace)?;
    for warning in &live.plan.warnings {
        output::complain(warning);
    }
    // The capture thread has what it needs; this one only counts.
    rights::only(CapabilitySet::empty())?;
    let mut agent = Agent::new(&live, Arc::clone(&shared), desk);
    let outcome = agent.run(&live, &parts, interrupted);
    agent.end(live.finish());
    shared.feed.close();
    for part in parts {
        if let Err(name) = part.join() {
            output::complain(&format!("the part `{name}` of the agent failed"));
        }
    }
    outcome.map(|()| Outcome::Fine)
}

/// The settings of the file, with what the command line says in their place.
fn settings(options: &cli::Serve) -> Result<Config> {
    let mut config = options.config.as_deref().map(Config::read).transpose()?.unwrap_or_default();
    let http = &mut config.http;
    http.listen = options.listen.unwrap_or(http.listen);
    http.token_file = options.token_file.clone().or(http.token_file.take());
    let incidents = &mut config.incidents;
    incidents.state = options.state.clone().unwrap_or_else(|| incidents.state.clone());
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
        logs: config.kubernetes.logs.clone(),
        empty_probes: false,
    }
}

/// The engine thread of the agent.
struct Agent {
    shared: Arc<Shared>,
    ledger: Ledger,
    board: Board,
    gpus: Vec<Gpu>,
    names: Arc<Names>,
    desk: incidents::Desk,
    budget: Budget,
    began: (Instant, SystemTime),
    sequence: u64,
    events: u64,
    /// Probes are on a driver.
    tracing: bool,
    usage: Usage,
}

impl Agent {
    fn new(live: &Live, shared: Arc<Shared>, desk: incidents::Desk) -> Self {
        let clock = WallClock::now(capture::monotonic());
        let gpus = gpu_names(&live.gpus);
        let names = Names { clock, function: function_name, recorded: Functions::default(), gpus };
        let ledger = Ledger::new().forgetting_ended();
        let trace = &shared.config.trace;
        let first = match trace.stacks {
            trace::Stacks::Full => Step::CheapStacks,
            trace::Stacks::Fp => Step::NoStacks,
            trace::Stacks::Off => Step::CoarseSites,
        };
        let budget = Budget::new(trace.max_cpu, trace.max_memory.map(|size| size.0), first);
        let config::Metrics { processes, containers, sites, suspects } = shared.config.metrics;
        Self {
            shared,
            board: Board::new(Limits { processes, containers, sites, suspects }),
            gpus: figures::gpus(&names),
            ledger: if live.counts_work { ledger.following_work() } else { ledger },
            names: Arc::new(names),
            desk,
            budget,
            began: (Instant::now(), SystemTime::now()),
            sequence: 0,
            events: 0,
            tracing: false,
            usage: Usage::default(),
        }
    }

    fn run(&mut self, live: &Live, parts: &[Part], interrupted: &AtomicBool) -> Result<()> {
        let mut next = Instant::now();
        while !interrupted.load(Ordering::Relaxed) {
            let due = self.desk.due().map_or(next, |due| due.min(next));
            if Instant::now() >= due {
                self.keep_to_budget(live);
                self.publish();
                next = (next + TICK).max(Instant::now());
                // Half an agent is worse than one that is started again.
                if let Some(name) = parts.iter().find_map(Part::over) {
                    bail!("the part `{name}` of the agent ended by itself; start the agent again");
                }
            }
            let Some(message) = live.next(due.min(Instant::now() + ATTENTION)) else { continue };
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
                Message::Failed(error) => return Err(anyhow!(error)),
            }
        }
        Ok(())
    }

    fn apply(&mut self, events: &[Event]) {
        self.events += events.len() as u64;
        for event in events {
            self.ledger.apply(event);
            self.desk.event(event, &self.ledger);
        }
    }

    /// Gives something up where the agent takes too much.
    fn keep_to_budget(&mut self, live: &Live) {
        let answering = &self.shared.answering;
        let usage = Usage::now(self.began.0.elapsed(), answering.used_seconds());
        let change = self.budget.observe(usage);
        answering.allow(self.budget.for_answers());
        if let Some(change) = change {
            output::complain(&change.words);
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

    /// What the agent takes.
    fn standing(&self) -> Standing {
        let started = self.began.1.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Standing {
            cpu_seconds: self.usage.cpu_seconds,
            cpu_percent: self.budget.cpu_percent(),
            memory: self.usage.memory,
            started: started.as_secs_f64(),
            tracing: self.tracing,
            events: self.events,
            steps: self.budget.steps().to_vec(),
        }
    }

    /// What was still on its way is applied, and what was noticed of it handed over, before nothing is
    /// published any more.
    fn end(&mut self, rest: Vec<Message>) {
        for message in rest {
            if let Message::Events(events) = message {
                self.apply(&events);
            }
        }
        if self.desk.hurry() {
            self.publish();
        }
    }

    /// The clock of the host may be set while the agent runs.
    fn set_clock(&mut self) {
        if let Some(clock) = self.names.clock.corrected(capture::monotonic()) {
            output::complain("the clock of this host was set: times follow it from now on");
            self.names = Arc::new(Names { clock, ..Names::clone(&self.names) });
        }
    }

    fn publish(&mut self) {
        self.sequence += 1;
        self.set_clock();
        let own = self.standing();
        let mut snapshot = self.ledger.snapshot(capture::monotonic(), &VIEW);
        self.shared.pods.name(&mut snapshot);
        let figures = self.board.observe(&Input {
            snapshot: &snapshot,
            gpus: &self.gpus,
            own: &figures::own(&own, self.ledger.unlisted_ends(), &self.shared),
            place: short_place,
        });
        let published = self.shared.feed.publish(Published {
            sequence: self.sequence,
            snapshot,
            names: Arc::clone(&self.names),
            figures,
            own,
        });
        self.desk.published(&published, &self.ledger);
    }
}
