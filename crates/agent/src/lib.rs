//! The agent. The engine thread publishes a snapshot every second; workers read it, each on its own
//! thread. Events come from a [`Source`]: the agent never sees probes.
#![forbid(unsafe_code)]

mod alerts;
mod api;
pub mod config;
mod delivery;
mod exporters;
mod files;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod incidents;
mod kubernetes;
mod process;
mod publish;
mod source;

pub use delivery::http_client::{HttpClient, RequestError};
pub use process::capabilities;
pub use process::threads::{Worker, panic_message};
pub use source::{Message, Program, Source, WriteHtml};

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Result;
use formats::sanitize::error_chain;
use rustix::thread::CapabilitySet;

use config::Config;
use process::fault;
use process::log::Log;
pub(crate) use process::outcome_counter::OutcomeCounter;
pub(crate) use process::self_usage::SelfUsage;
use publish::engine_loop::EngineLoop;
pub(crate) use publish::snapshot_feed::{PublishedSnapshot, SnapshotFeed};

/// Time to flush log messages at shutdown.
const SHUTDOWN_LOG_TIMEOUT: Duration = Duration::from_secs(1);

/// Time for the agent's threads to exit; Docker kills after 10 seconds.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(8);

/// State that the workers of the agent share.
#[derive(Default)]
pub(crate) struct AgentState {
    /// Configuration.
    pub(crate) config: Config,
    /// Snapshots published by the engine thread.
    pub(crate) feed: SnapshotFeed,
    /// Current alerts.
    pub(crate) alerts: alerts::AlertStore,
    /// Recent incidents and their counts.
    pub(crate) incidents: incidents::IncidentStore,
    /// Pod names from the kubelet.
    pub(crate) pods: kubernetes::PodDirectory,
    /// Number of served requests.
    pub(crate) requests: api::RequestCounts,
    /// CPU share of HTTP responses.
    pub(crate) http_cpu: api::CpuShare,
    /// Exports by exporter and outcome: `sent`, `failed`, or `dropped` for an older one.
    pub(crate) exports: OutcomeCounter,
}

impl AgentState {
    pub(crate) fn new(config: Config) -> Arc<Self> {
        Arc::new(Self { config, ..Self::default() })
    }
}

/// Runs the agent until it is interrupted. `start` starts the trace, after everything that can be
/// wrong with the configuration was checked. Returns whether all went well; errors are in the log.
///
/// # Errors
/// The log cannot be set up.
pub fn run(
    config: Config,
    program: Program,
    interrupted: &AtomicBool,
    start: impl FnOnce(&Config) -> Result<Box<dyn Source>>,
) -> Result<bool> {
    fault::set_point(program.fault_point);
    let log = Log::install(&config.log)?;
    let outcome = serve(config, &program, &log, interrupted, start);
    if let Err(error) = &outcome {
        tracing::error!("{}", error_chain(error.as_ref()));
    }
    log.finish(SHUTDOWN_LOG_TIMEOUT);
    Ok(outcome.unwrap_or(false))
}

fn serve(
    config: Config,
    program: &Program,
    log: &Log,
    interrupted: &AtomicBool,
    start: impl FnOnce(&Config) -> Result<Box<dyn Source>>,
) -> Result<bool> {
    let shared = AgentState::new(config);
    let mut workers = vec![api::start(&shared)?];
    workers.extend(alerts::start(&shared)?);
    workers.extend(exporters::start(&shared)?);
    workers.extend(kubernetes::start(&shared)?);
    let (collector, writer) = incidents::IncidentCollector::start(&shared, program.write_html)?;
    workers.push(writer);
    let source = start(&shared.config)?;
    // The threads of the source have the capabilities they need; this thread needs none.
    capabilities::keep_only(CapabilitySet::empty())?;
    let mut engine = EngineLoop::new(&*source, program, Arc::clone(&shared), collector);
    let mut outcome = engine.run(&*source, &mut workers, log, interrupted);
    if let Err(error) = &outcome {
        engine.fail(error, source.complete_until());
    }
    let (remaining, complete_until) = source.finish();
    outcome = outcome.and(engine.end(remaining, complete_until));
    shared.feed.close();
    let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
    for worker in workers {
        if let Err(error) = worker.join_until(deadline) {
            tracing::error!("{}", error_chain(error.as_ref()));
            outcome = Err(error);
        }
    }
    Ok(outcome.is_ok())
}

/// Logs a message of the program that the agent runs in.
pub fn log_message(is_warning: bool, message: &str) {
    if is_warning {
        tracing::warn!("{message}");
    } else {
        tracing::info!("{message}");
    }
}
