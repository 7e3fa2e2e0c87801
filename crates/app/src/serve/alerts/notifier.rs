//! A configured receiver: what is due, and the thread that sends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use engine::alert::Alert;
use engine::model::units::Timestamp;
use formats::WallClock;
use rustix::thread::CapabilitySet;

use super::alertmanager::{ALERT_TTL, AlertmanagerSync};
use super::command::CommandRunner;
use super::notification::Notification;
use super::throttle::{NotificationThrottle, RateLimit};
use super::webhook::WebhookSender;
use super::{AlertStore, log, payload};
use crate::serve::config::DurationValue;
use crate::serve::config::alerts::{PayloadFormat, ReceiverConfig, ReceiverType};
use crate::serve::{AgentState, capabilities};
use crate::threads;

/// Maximum number of queued messages for a slow receiver; more are dropped and counted.
const QUEUE_MESSAGES: usize = 64;

/// Default of `rate_limit`.
const DEFAULT_RATE_LIMIT: u32 = 20;

/// Sends notifications to one receiver.
pub(super) struct Notifier {
    receiver: ReceiverConfig,
    name: &'static str,
    mode: NotifierMode,
    worker: Option<NotifierThread>,
    host: Arc<str>,
    /// URL of the agent's alerts.
    source: String,
}

/// How due messages are selected.
enum NotifierMode {
    Throttled(NotificationThrottle),
    Sync(AlertmanagerSync),
}

/// A message in the format of its receiver.
pub(super) struct OutgoingMessage {
    /// Description for log messages.
    pub(super) label: String,
    /// Payload of a webhook, or standard input of a command.
    pub(super) body: String,
    /// The notification, for a command's environment.
    pub(super) notification: Option<Notification>,
}

impl Notifier {
    /// Starts the thread of a webhook or a command.
    pub(super) fn start(
        receiver: ReceiverConfig,
        host: &Arc<str>,
        shared: &Arc<AgentState>,
    ) -> Result<Self> {
        let worker = match receiver.kind {
            ReceiverType::Log => None,
            ReceiverType::Webhook => {
                let sender = WebhookSender::new(&receiver)
                    .map_err(|reason| anyhow!("[[alerts.receiver]]: {reason}"))?;
                Some(NotifierThread::start("alert-webhook", shared, move |inbox, shared, stop| {
                    sender.run(inbox, &shared.alerts, stop);
                })?)
            }
            ReceiverType::Command => {
                let runner = CommandRunner::new(&receiver);
                Some(NotifierThread::start("alert-command", shared, move |inbox, shared, stop| {
                    runner.run(inbox, &shared.alerts, stop);
                })?)
            }
        };
        let source = format!("http://{}/api/v1/alerts", shared.config.http.listen);
        Ok(Self::with(receiver, worker, Arc::clone(host), source))
    }

    fn with(
        receiver: ReceiverConfig,
        worker: Option<NotifierThread>,
        host: Arc<str>,
        source: String,
    ) -> Self {
        let mode = match receiver.format {
            Some(PayloadFormat::Alertmanager) => NotifierMode::Sync(AlertmanagerSync::default()),
            _ => NotifierMode::Throttled(NotificationThrottle::new(RateLimit {
                repeat_every: receiver.repeat_interval().map(DurationValue::nanos),
                at_most: receiver.rate_limit.unwrap_or(DEFAULT_RATE_LIMIT) as usize,
                per: receiver.rate_limit_window().nanos(),
            })),
        };
        let name = match receiver.kind {
            ReceiverType::Log => "log",
            ReceiverType::Webhook => "webhook",
            ReceiverType::Command => "command",
        };
        Self { receiver, name, mode, worker, host, source }
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
            |alert: &&&Alert| self.receiver.accepts(&alert.rule.name, alert.rule.severity);
        let firing: Vec<&Alert> = firing.iter().filter(accepted).copied().collect();
        let resolved: Vec<&Alert> = resolved.iter().filter(accepted).copied().collect();
        match &mut self.mode {
            NotifierMode::Sync(sync) => {
                let Some(alerts) = sync.due(&firing, &resolved, now) else { return };
                let valid_until = clock.precise(Timestamp(now.0.saturating_add(ALERT_TTL.0)));
                let notifications: Vec<_> = alerts
                    .iter()
                    .map(|alert| Notification::new(alert, clock, &self.host))
                    .collect();
                let body = payload::alertmanager(&notifications, &valid_until, &self.source);
                let label = format!("{} alerts", notifications.len());
                self.deliver(OutgoingMessage { label, body, notification: None }, store);
            }
            NotifierMode::Throttled(throttle) => {
                let (due, suppressed) = throttle.due_notifications(&firing, &resolved, now);
                for _ in 0..suppressed {
                    store.count(self.name, "suppressed");
                }
                for due in due {
                    let notification = Notification {
                        is_repeated: due.is_repeated,
                        suppressed: due.suppressed,
                        ..Notification::new(&due.alert, clock, &self.host)
                    };
                    self.deliver(self.message(notification), store);
                }
            }
        }
    }

    fn message(&self, notification: Notification) -> OutgoingMessage {
        let body = match self.receiver.format {
            Some(PayloadFormat::Slack) => payload::slack(&notification),
            _ => payload::json(&notification),
        };
        let label = format!("{} {}", notification.rule, notification.state.name());
        OutgoingMessage { label, body, notification: Some(notification) }
    }

    fn deliver(&self, message: OutgoingMessage, store: &AlertStore) {
        match (&self.worker, &message.notification) {
            (Some(worker), _) => {
                if !worker.offer(message) {
                    store.count(self.name, "dropped");
                }
            }
            (None, Some(notification)) => {
                log::notify(notification);
                store.count(self.name, "sent");
            }
            (None, None) => (),
        }
    }

    /// Returns the reason why its thread exited, if it did.
    pub(super) fn failure(&mut self) -> Option<anyhow::Error> {
        let ended = self.worker.take_if(|worker| worker.thread.is_finished())?;
        Some(ended.thread.failure())
    }

    /// Signals that no more messages follow.
    pub(super) fn close(&self) {
        if let Some(worker) = &self.worker {
            worker.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until all messages are sent, until `end` at most.
    pub(super) fn finish(self, end: Instant) {
        if let Some(worker) = self.worker {
            worker.finish(end);
        }
    }
}

/// A thread that sends messages, with a queue.
struct NotifierThread {
    queue: SyncSender<OutgoingMessage>,
    stop: Arc<AtomicBool>,
    thread: threads::Worker,
}

impl NotifierThread {
    fn start(
        name: &'static str,
        shared: &Arc<AgentState>,
        work: impl FnOnce(&Receiver<OutgoingMessage>, &AgentState, &AtomicBool) + Send + 'static,
    ) -> Result<Self> {
        let (queue, inbox) = sync_channel(QUEUE_MESSAGES);
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stop_flag) = (Arc::clone(shared), Arc::clone(&stop));
        let thread = threads::Worker::spawn(name, move || {
            // Commands inherit the capabilities of this thread.
            capabilities::keep_only(CapabilitySet::empty())?;
            work(&inbox, &shared, &stop_flag);
            Ok(())
        })?;
        Ok(Self { queue, stop, thread })
    }

    /// Queues a message. Returns whether there was room.
    fn offer(&self, message: OutgoingMessage) -> bool {
        match self.queue.try_send(message) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// Waits for the thread; one that is still busy at `end` is abandoned.
    fn finish(self, end: Instant) {
        drop(self.queue);
        while !self.thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
