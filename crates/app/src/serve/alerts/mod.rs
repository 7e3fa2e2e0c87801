//! Built-in alerts, for hosts without Prometheus: rules over published metrics, and notifications
//! when one fires.

mod alertmanager;
mod command;
mod log;
mod notification;
mod notifier;
mod payload;
mod store;
mod throttle;
mod webhook;
mod worker;

#[cfg(test)]
mod tests;

pub(crate) use store::{AlertStore, AlertView};

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::{AgentState, AgentThread};
use crate::io::output;
use notifier::Notifier;
use worker::AlertWorker;

/// Maximum wait for a snapshot before checking whether the feed is closed.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Time to deliver queued messages at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Starts the worker that evaluates rules and notifies receivers. Fails if a token cannot be read.
pub(crate) fn start(shared: &Arc<AgentState>) -> Result<AgentThread> {
    let config = &shared.config.alerts;
    let mut notifiers = Vec::new();
    if config.enabled {
        let host = notification::host();
        for receiver in config.receivers() {
            notifiers.push(Notifier::start(receiver, &host, shared)?);
        }
    }
    AgentThread::spawn("alerts", shared, move |shared| run(shared, notifiers))
}

fn run(shared: &Arc<AgentState>, notifiers: Vec<Notifier>) -> Result<()> {
    let config = &shared.config.alerts;
    if !config.enabled {
        // A worker that exits ends the agent, so wait for the feed to close.
        while !shared.feed.is_closed() {
            let _ = shared.feed.newer(u64::MAX, POLL_INTERVAL);
        }
        return Ok(());
    }
    let mut worker = AlertWorker::new(config, notifiers);
    let mut seen = 0;
    let mut dropped = 0;
    loop {
        if let Some(error) = worker.failure() {
            return Err(error);
        }
        let Some(published) = shared.feed.newer(seen, POLL_INTERVAL) else {
            if shared.feed.is_closed() {
                break;
            }
            continue;
        };
        seen = published.sequence;
        let now = published.snapshot.at;
        worker.evaluate(&published.metrics, now, &published.context.clock, &shared.alerts);
        if dropped == 0 && worker.dropped() > 0 {
            dropped = worker.dropped();
            output::log("too many alerts: some are not reported");
        }
    }
    worker.finish(SHUTDOWN_TIMEOUT);
    Ok(())
}
