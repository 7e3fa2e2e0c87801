//! A configured receiver: what is due, and how it is sent.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use engine::alert::Alert;
use engine::model::Timestamp;
use formats::WallClock;
use formats::sanitize::sanitize;

use super::notification::Notification;
use super::throttle::{NotificationThrottle, RateLimit};
use super::{AlertStore, log, slack};
use crate::config::alerts::{PayloadFormat, ReceiverConfig, ReceiverType};
use crate::delivery::child_program;
use crate::delivery::http_client::{HttpClient, RequestError};
use crate::delivery::{DeliveryOptions, DeliveryQueue};
use crate::incidents::IncidentNotice;
use crate::{AgentState, Worker};

/// Maximum number of queued messages for a slow receiver; more are dropped and counted.
const QUEUE_MESSAGES: usize = 64;

/// Sends notifications to one receiver.
pub(super) struct Notifier {
    receiver: ReceiverConfig,
    throttle: NotificationThrottle,
    /// None: notifications are logged.
    queue: Option<DeliveryQueue<Notification>>,
    host: Arc<str>,
}

impl Notifier {
    /// Starts the thread of a webhook or a command.
    pub(super) fn start(
        receiver: ReceiverConfig,
        host: &Arc<str>,
        shared: &Arc<AgentState>,
    ) -> Result<(Self, Option<Worker>)> {
        let delivery = match receiver.kind {
            ReceiverType::Log => None,
            ReceiverType::Webhook => Some(webhook(&receiver, shared)?),
            ReceiverType::Command => Some(command(&receiver, shared)?),
        };
        let (queue, thread) = delivery.unzip();
        let repeats = receiver.repeat_interval;
        let throttle = NotificationThrottle::new(RateLimit {
            repeat_every: (!repeats.0.is_zero()).then(|| repeats.nanos()),
            at_most: receiver.rate_limit,
            per: receiver.rate_limit_window.nanos(),
        });
        Ok((Self { receiver, throttle, queue, host: Arc::clone(host) }, thread))
    }

    /// Sends what is due.
    pub(super) fn notify(
        &mut self,
        firing: &[&Alert],
        resolved: &[&Alert],
        now: Timestamp,
        clock: &WallClock,
        store: &AlertStore,
    ) {
        let accepted =
            |alert: &&&Alert| self.receiver.accepts(alert.rule.name, alert.rule.severity);
        let firing: Vec<&Alert> = firing.iter().filter(accepted).copied().collect();
        let resolved: Vec<&Alert> = resolved.iter().filter(accepted).copied().collect();
        let (due, suppressed) = self.throttle.due_notifications(&firing, &resolved, now);
        store.notified.count(self.name(), "suppressed", suppressed);
        for due in due {
            let notification = Notification {
                is_repeated: due.is_repeated,
                suppressed: due.suppressed,
                ..Notification::new(&due.alert, clock, &self.host)
            };
            self.deliver(notification, store);
        }
    }

    /// Sends a message about an incident.
    pub(super) fn notify_incident(
        &mut self,
        notice: &IncidentNotice,
        now: Timestamp,
        store: &AlertStore,
    ) {
        let notification = Notification::of_incident(notice, &self.host);
        if !self.receiver.accepts(notification.rule, notification.severity) {
            return;
        }
        match self.throttle.admit(now) {
            true => self.deliver(notification, store),
            false => store.notified.count(self.name(), "suppressed", 1),
        }
    }

    fn deliver(&self, notification: Notification, store: &AlertStore) {
        match &self.queue {
            Some(queue) => queue.push(notification),
            None => {
                log::notify(&notification);
                store.notified.count(self.name(), "sent", 1);
            }
        }
    }

    /// Name of the receiver in counts.
    const fn name(&self) -> &'static str {
        match self.receiver.kind {
            ReceiverType::Log => "log",
            ReceiverType::Webhook => "webhook",
            ReceiverType::Command => "command",
        }
    }
}

/// A queue and the thread that empties it.
type Delivery = (DeliveryQueue<Notification>, Worker);

fn webhook(receiver: &ReceiverConfig, shared: &Arc<AgentState>) -> Result<Delivery> {
    let endpoint = receiver.endpoint();
    let endpoint = endpoint.map_err(|reason| anyhow!("[[alerts.receiver]]: {reason}"))?;
    let client = HttpClient::new(endpoint)?;
    let options = DeliveryOptions {
        thread: "alert-webhook",
        receiver: "webhook",
        operation: format!("send alerts to {}", client.shown()),
        capacity: QUEUE_MESSAGES,
        max_retry_time: receiver.max_retry_time(),
        counts: |shared| &shared.alerts.notified,
    };
    let format = receiver.format.unwrap_or(PayloadFormat::Json);
    DeliveryQueue::start(shared, options, move |notification: &Notification, timeout| {
        let body = match format {
            PayloadFormat::Slack => slack::message(notification).to_string().into_bytes(),
            PayloadFormat::Json => serde_json::to_vec(notification).unwrap_or_default(),
        };
        let headers = [("Content-Type", "application/json")];
        client.post(&headers, &body, timeout).map(|_| ())
    })
}

fn command(receiver: &ReceiverConfig, shared: &Arc<AgentState>) -> Result<Delivery> {
    let (command, limit) = (receiver.command.clone(), receiver.timeout());
    let program = command.first().map(|program| sanitize(program).into_owned());
    let program = program.unwrap_or_default();
    let options = DeliveryOptions {
        thread: "alert-command",
        receiver: "command",
        operation: format!("run {program}"),
        capacity: QUEUE_MESSAGES,
        max_retry_time: Duration::ZERO,
        counts: |shared| &shared.alerts.notified,
    };
    let state = Arc::clone(shared);
    DeliveryQueue::start(shared, options, move |notification: &Notification, timeout| {
        let input = serde_json::to_string(notification).unwrap_or_default();
        let environment = notification.environment();
        let limit = limit.min(timeout);
        let (outcome, stderr) =
            child_program::run(&command, environment, &input, limit, &state.feed);
        if let Some(stderr) = stderr {
            let (rule, state) = (notification.rule, notification.state.name());
            tracing::info!("{program} ({rule} {state}): {stderr}");
        }
        outcome.map_err(RequestError::permanent)
    })
}
