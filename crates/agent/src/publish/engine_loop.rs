//! The engine thread: it applies events to the ledger and publishes a snapshot every second to the
//! agent's workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use engine::ledger::Ledger;
use engine::metrics::{CollectorInput, GpuInfo, MetricsCollector};
use engine::model::{Event, StackMode, Timestamp};
use engine::snapshot::SnapshotOptions;
use formats::WallClock;
use formats::export::ReportContext;
use formats::report::verdict::short_location;
use formats::sanitize::error_chain;

use super::metrics_input;
use crate::incidents::IncidentCollector;
use crate::process::budget::{AgentUsage, Budget, DegradationStep};
use crate::process::log::Log;
use crate::source::{Message, Program, Source};
use crate::{AgentState, PublishedSnapshot, SelfUsage, Worker};

/// Time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);

/// Time until a signal is noticed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Lists of the snapshots; totals are always complete.
const SNAPSHOT_OPTIONS: SnapshotOptions =
    SnapshotOptions { top: 10, top_sites: 200, ..SnapshotOptions::DEFAULT };

/// The ledger of the agent, and what is needed to publish it.
pub(crate) struct EngineLoop {
    shared: Arc<AgentState>,
    clock: fn() -> Timestamp,
    ledger: Ledger,
    metrics: MetricsCollector,
    gpus: Vec<GpuInfo>,
    context: Arc<ReportContext>,
    collector: IncidentCollector,
    budget: Budget,
    start: (Instant, SystemTime),
    sequence: u64,
    events: u64,
    /// Probes are attached to a driver.
    tracing: bool,
    /// Time at which the source ended early.
    source_ended: Option<Timestamp>,
    /// The source failed.
    source_failed: bool,
    /// The agent exits because of an error.
    has_failed: bool,
    usage: SelfUsage,
}

impl EngineLoop {
    pub(crate) fn new(
        source: &dyn Source,
        program: &Program,
        shared: Arc<AgentState>,
        collector: IncidentCollector,
    ) -> Self {
        let context = ReportContext {
            function: program.function_name,
            gpus: source.gpus(),
            ..ReportContext::new(WallClock::now((program.clock)()))
        };
        let ledger = Ledger::new().without_ended_history();
        let trace = &shared.config.trace;
        let first = match trace.stacks.0 {
            StackMode::Full => DegradationStep::FramePointerStacks,
            StackMode::FramePointer => DegradationStep::NoStacks,
            StackMode::Off => DegradationStep::MergedSites,
        };
        let budget = Budget::new(trace.max_cpu, trace.max_memory.map(|size| size.0), first);
        let limits = shared.config.metrics.limits();
        Self {
            shared,
            clock: program.clock,
            metrics: MetricsCollector::new(limits),
            gpus: metrics_input::gpus(&context),
            ledger: if source.counts_activity() { ledger.with_activity() } else { ledger },
            context: Arc::new(context),
            collector,
            budget,
            start: (Instant::now(), SystemTime::now()),
            sequence: 0,
            events: 0,
            tracing: false,
            source_ended: None,
            source_failed: false,
            has_failed: false,
            usage: SelfUsage::default(),
        }
    }

    /// Runs until it is interrupted, or a thread of the agent fails.
    pub(crate) fn run(
        &mut self,
        source: &dyn Source,
        workers: &mut Vec<Worker>,
        log: &Log,
        interrupted: &AtomicBool,
    ) -> Result<()> {
        let mut next = Instant::now();
        while !interrupted.load(Ordering::Relaxed) {
            let due = self.collector.due().map_or(next, |due| due.min(next));
            if Instant::now() >= due {
                self.apply_budget(source);
                self.publish();
                next = (next + SNAPSHOT_INTERVAL).max(Instant::now());
                // An agent without one of its workers must not keep running: restart it.
                if let Some(ended) = workers.iter().position(Worker::is_finished) {
                    return Err(workers.swap_remove(ended).failure());
                }
                if let Some(error) = log.failure() {
                    return Err(error);
                }
            }
            let Some(message) = source.next(due.min(Instant::now() + POLL_INTERVAL)) else {
                continue;
            };
            self.handle(message)?;
        }
        Ok(())
    }

    fn handle(&mut self, message: Message) -> Result<()> {
        match message {
            Message::Events(events) => self.apply(&events),
            Message::Gpus(gpus) => {
                self.context =
                    Arc::new(ReportContext { gpus, ..ReportContext::clone(&self.context) });
                self.gpus = metrics_input::gpus(&self.context);
            }
            Message::Attached => self.tracing = true,
            Message::Failed(error) => {
                self.source_failed = true;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Publishes that the agent is not ready and, if the source failed, not exact, then logs why it
    /// exits.
    pub(crate) fn fail(&mut self, error: &anyhow::Error, complete_until: Timestamp) {
        self.has_failed = true;
        self.source_ended = self.source_failed.then_some(complete_until);
        self.publish();
        tracing::error!("{}; the agent exits, to be restarted", error_chain(error.as_ref()));
    }

    fn apply(&mut self, events: &[Event]) {
        self.events += events.len() as u64;
        for event in events {
            self.ledger.apply(event);
            self.collector.event(event, &self.ledger);
        }
    }

    /// Applies degradation steps if the agent exceeds its budget.
    fn apply_budget(&mut self, source: &dyn Source) {
        let http_cpu = &self.shared.http_cpu;
        let usage = SelfUsage::now(self.start.0.elapsed(), http_cpu.used_seconds());
        let change = self.budget.observe(usage);
        http_cpu.allow(self.budget.http_share());
        if let Some(change) = change {
            tracing::warn!("{}", change.message);
            let has = |step| change.steps.contains(&step);
            source.limit_stacks(
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

    /// Handles the remaining messages of the source, and publishes the final state with pending
    /// incidents before the feed closes.
    pub(crate) fn end(&mut self, remaining: Vec<Message>, complete_until: Timestamp) -> Result<()> {
        let mut outcome = Ok(());
        for message in remaining {
            if let Err(error) = self.handle(message) {
                self.fail(&error, complete_until);
                outcome = Err(error);
            }
        }
        self.collector.flush();
        self.publish();
        outcome
    }

    /// Follows changes of the system clock while the agent runs.
    fn set_clock(&mut self) {
        if let Some(clock) = self.context.clock.corrected((self.clock)()) {
            tracing::warn!("system clock changed; timestamps follow it");
            self.context = Arc::new(ReportContext { clock, ..ReportContext::clone(&self.context) });
        }
    }

    fn publish(&mut self) {
        self.sequence += 1;
        self.set_clock();
        let own = self.agent_usage();
        let now = self.source_ended.unwrap_or_else(self.clock);
        let mut snapshot = self.ledger.snapshot(now, &SNAPSHOT_OPTIONS);
        if let Some(at) = self.source_ended {
            snapshot.mark_capture_ended(at);
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
    use anyhow::anyhow;
    use formats::export::GpuLabel;

    use super::*;
    use crate::config::Config;

    /// A source without a device.
    struct NoEvents;

    impl Source for NoEvents {
        fn gpus(&self) -> Vec<GpuLabel> {
            Vec::new()
        }

        fn counts_activity(&self) -> bool {
            false
        }

        fn next(&self, _: Instant) -> Option<Message> {
            None
        }

        fn complete_until(&self) -> Timestamp {
            Timestamp(7)
        }

        fn limit_stacks(&self, _: StackMode) {}

        fn finish(self: Box<Self>) -> (Vec<Message>, Timestamp) {
            (Vec::new(), Timestamp(7))
        }
    }

    const PROGRAM: Program = Program {
        clock: || Timestamp(9),
        function_name: |_| "cuMemAlloc_v2",
        write_html: |_, _, _| Ok(()),
        fault_point: || (),
    };

    fn engine(state: &std::path::Path) -> (EngineLoop, Worker) {
        let config = Config { state_dir: state.into(), ..Config::default() };
        let shared = AgentState::new(config);
        let (collector, writer) = IncidentCollector::start(&shared, PROGRAM.write_html).unwrap();
        (EngineLoop::new(&NoEvents, &PROGRAM, shared, collector), writer)
    }

    #[test]
    fn failures_and_attaches_at_the_end_are_not_dropped() {
        let state = tempfile::tempdir().unwrap();
        let (mut engine, writer) = engine(state.path());
        engine.end(vec![Message::Attached], Timestamp(7)).unwrap();
        assert!(engine.shared.feed.newest().unwrap().own.tracing);
        let failed = Message::Failed(anyhow!("the ring is gone"));
        let error = engine.end(vec![failed], Timestamp(7)).unwrap_err();
        assert_eq!(error.to_string(), "the ring is gone");
        let published = engine.shared.feed.newest().unwrap();
        assert!(!published.own.tracing && !published.snapshot.uncertainty.exact());
        assert_eq!(published.snapshot.uncertainty.capture_ended, Some(Timestamp(7)));
        engine.shared.feed.close();
        writer.join_until(Instant::now() + Duration::from_secs(8)).unwrap();
    }
}
