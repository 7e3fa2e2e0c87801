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

pub(crate) use store::{AlertStore, AlertView};

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use engine::alert::{Alert, AlertEvaluator};
use engine::metrics::MetricSet;
use engine::model::Timestamp;
use formats::WallClock;

use super::{AgentState, Worker};
use crate::config::alerts::AlertsConfig;
use crate::incidents::IncidentNotice;
use notifier::Notifier;

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
            AlertWorker::new(&shared.config.alerts, notifiers).run(shared);
            Ok(())
        })?);
    }
    Ok(threads)
}

/// Rules and receivers.
struct AlertWorker {
    evaluator: AlertEvaluator,
    notifiers: Vec<Notifier>,
}

impl AlertWorker {
    fn new(config: &AlertsConfig, notifiers: Vec<Notifier>) -> Self {
        let evaluator = AlertEvaluator::new(config.rules(), config.keep_firing_for.nanos());
        Self { evaluator, notifiers }
    }

    fn run(mut self, shared: &AgentState) {
        let mut seen = 0;
        let mut has_dropped = false;
        loop {
            // Incidents are written by then.
            let is_closed = shared.feed.is_closed();
            if let Some(published) = shared.feed.newer(seen, POLL_INTERVAL) {
                seen = published.sequence;
                let now = published.snapshot.at;
                self.evaluate(&published.metrics, now, &published.context.clock, &shared.alerts);
                self.announce(&shared.incidents.take_notices(), now, &shared.alerts);
            }
            if !has_dropped && self.evaluator.dropped_alerts() > 0 {
                has_dropped = true;
                tracing::warn!("too many alerts: some are not reported");
            }
            if is_closed {
                return;
            }
        }
    }

    /// Evaluates the rules at one time.
    fn evaluate(
        &mut self,
        metrics: &MetricSet,
        now: Timestamp,
        clock: &WallClock,
        store: &AlertStore,
    ) {
        self.evaluator.evaluate(metrics, now);
        let firing = self.evaluator.firing();
        let resolved: Vec<&Alert> = self.evaluator.resolved().collect();
        for notifier in &mut self.notifiers {
            notifier.notify(&firing, &resolved, now, clock, store);
        }
        let all = firing.into_iter().chain(resolved);
        store.show(all.map(|alert| AlertView::new(alert, clock)).collect());
    }

    /// Sends messages about incidents.
    fn announce(&mut self, notices: &[IncidentNotice], now: Timestamp, store: &AlertStore) {
        for notifier in &mut self.notifiers {
            for notice in notices {
                notifier.notify_incident(notice, now, store);
            }
        }
    }
}
