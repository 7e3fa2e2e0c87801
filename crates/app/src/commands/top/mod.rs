//! `vramscope top`: chooses the source and starts the view.

mod in_process;

use std::time::Duration;

use anyhow::{Result, bail};
use capture::session::{DriverReports, SessionOptions, Target};
use engine::model::{Pid, StackMode};

use super::trace::{self, exit_status};
use crate::Outcome;
use crate::cli::{LaunchArgs, TopArgs};
use crate::io::output;
use crate::live::pipeline::LiveTrace;
use crate::top::source::Source;
use crate::top::source::agents::AgentsSource;
use crate::top::source::driver::DriverSource;
use crate::top::source::live::LiveSource;
use crate::top::source::replay::ReplaySource;
use crate::top::{Theme, TopOptions, run as show, run_once};

/// How long `--once` observes.
const OBSERVE: Duration = Duration::from_secs(2);

/// Speed of a recording that is read to its end.
const TO_THE_END: f64 = 1e9;

/// Address of an agent on this host, as `serve` listens by default.
const LOCAL_AGENT: &str = "http://127.0.0.1:9754";

/// Runs the verb.
pub(crate) fn run(options: &TopArgs) -> Result<Outcome> {
    if !options.once && !output::is_terminal() {
        let other = match options.command[..] {
            [] => "--once prints one screen as text",
            _ => "`vramscope run -- CMD` prints reports",
        };
        bail!("standard output is not a terminal; {other}");
    }
    let view = TopOptions {
        interval: options.interval,
        speed: if options.once { TO_THE_END } else { options.speed },
        theme: Theme::of(options.theme),
        is_ascii: options.ascii,
        duration: options.duration,
        filter: options.filter.clone().unwrap_or_default(),
        columns: options.columns.clone(),
    };
    if !options.command.is_empty() {
        return exit_status::own_failure_outcome(in_process::run(options, &view));
    }
    let source = source(options)?;
    if options.once {
        let view = TopOptions { interval: view.interval.min(OBSERVE / 2), ..view };
        return run_once(source, &view, options.duration.unwrap_or(OBSERVE), options.json);
    }
    show(source, &view)
}

fn source(options: &TopArgs) -> Result<Box<dyn Source>> {
    match &options.file {
        Some(file) => Ok(Box::new(ReplaySource::open(file)?)),
        None => host_source(options),
    }
}

/// Returns the agents, or else probes; without the permissions for them, the agent of this host, or
/// else the driver's own values.
fn host_source(options: &TopArgs) -> Result<Box<dyn Source>> {
    if !options.agent.is_empty() {
        let token = options.token_file.as_deref();
        return Ok(Box::new(AgentsSource::connect(&options.agent, token)?));
    }
    let failure = match LiveTrace::start(session_options(options, target(options))?) {
        Ok(live) => return Ok(Box::new(LiveSource::new(live))),
        Err(failure) => failure,
    };
    if !options.pid.is_empty() || !options.driver.is_empty() {
        return Err(failure);
    }
    let local = [LOCAL_AGENT.to_owned()];
    if let Ok(agent) = AgentsSource::connect(&local, None) {
        return Ok(Box::new(agent));
    }
    let reports = DriverReports::open();
    if reports.gpus().is_empty() {
        return Err(failure);
    }
    let reason = failure.to_string();
    let reason = reason.split(';').next().unwrap_or_default();
    let missing = format!(
        "driver values only: no sites and no leaks; use sudo, `vramscope serve` as a service or \
         `vramscope top -- CMD` ({reason})"
    );
    Ok(Box::new(DriverSource::new(reports, missing)))
}

/// Returns the processes that the options select.
fn target(options: &TopArgs) -> Target {
    let pids: Vec<Pid> = options.pid.iter().copied().map(Pid).collect();
    match pids[..] {
        [] => Target::All,
        _ => Target::Processes { pids, follow: true },
    }
}

fn session_options(options: &TopArgs, target: Target) -> Result<SessionOptions> {
    let launches = LaunchArgs::default();
    Ok(SessionOptions {
        drivers: options.driver.clone(),
        activity: trace::activity_if_enabled(options.kernels, &launches)?,
        objects: true,
        stacks: StackMode::Full,
        allocators: trace::allocators(options.allocators.allocators, StackMode::Full),
        ..SessionOptions::new(target)
    })
}
