//! Built-in alerts, for hosts without Prometheus: rules over published metrics, and notifications
//! when one fires.

mod log;
mod notification;
mod notifier;
mod slack;
mod store;
#[cfg(test)]
mod tests;
mod throttle;
mod worker;

pub(crate) use store::{AlertStore, AlertView};

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::{AgentState, Worker};
use notifier::Notifier;
use worker::AlertWorker;

/// Maximum wait for a snapshot before checking whether the feed is closed.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Starts the worker that evaluates rules, and one for each receiver. Fails if a token cannot be
/// read.
pub(crate) fn start(shared: &Arc<AgentState>) -> Result<Vec<Worker>> {
    let config = &shared.config.alerts;
    let (mut notifiers, mut threads) = (Vec::new(), Vec::new());
    if config.enabled {
        let host = notification::host();
        for receiver in config.receivers() {
            let (notifier, thread) = Notifier::start(receiver, &host, shared)?;
            notifiers.push(notifier);
            threads.extend(thread);
        }
        threads.push(Worker::of_agent("alerts", shared, move |shared| {
            run(shared, AlertWorker::new(&shared.config.alerts, notifiers));
            Ok(())
        })?);
    }
    Ok(threads)
}

fn run(shared: &AgentState, mut worker: AlertWorker) {
    let mut seen = 0;
    let mut dropped = 0;
    loop {
        // Incidents are written by then.
        let is_closed = shared.feed.is_closed();
        if let Some(published) = shared.feed.newer(seen, POLL_INTERVAL) {
            seen = published.sequence;
            let now = published.snapshot.at;
            worker.evaluate(&published.metrics, now, &published.context.clock, &shared.alerts);
            worker.announce(&shared.incidents.take_notices(), now, &shared.alerts);
        }
        if dropped == 0 && worker.dropped() > 0 {
            dropped = worker.dropped();
            tracing::warn!("too many alerts: some are not reported");
        }
        if is_closed {
            return;
        }
    }
}
