//! A configured receiver: what is due, and the thread that sends it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use engine::alert::Alert;
use engine::units::Moment;
use formats::WallClock;
use rustix::thread::CapabilitySet;

use super::command::Runner;
use super::notice::Notice;
use super::sync::{Sync, VALID};
use super::teller::{Pace, Teller};
use super::webhook::Sender;
use super::{Board, log, shapes};
use crate::serve::config::Span;
use crate::serve::config::alerts::{Action, Format, Kind};
use crate::serve::{Shared, rights};
use crate::threads;

/// Maximum number of queued messages for a slow receiver; more are dropped and counted.
const QUEUE: usize = 64;

/// Default of `rate_limit`.
const AT_MOST: u32 = 20;

/// Sends notifications to one receiver.
pub(super) struct Outlet {
    receiver: Action,
    name: &'static str,
    mode: Mode,
    worker: Option<Worker>,
    host: Arc<str>,
    /// URL of the agent's alerts.
    source: String,
}

/// How due messages are selected.
enum Mode {
    Teller(Teller),
    Sync(Sync),
}

/// A message in the format of its receiver.
pub(super) struct Message {
    /// Description for log messages.
    pub(super) label: String,
    /// Payload of a webhook, or standard input of a command.
    pub(super) body: String,
    /// The notification, for a command's environment.
    pub(super) notice: Option<Notice>,
}

impl Outlet {
    /// Starts the thread of a webhook or a command.
    pub(super) fn start(receiver: Action, host: &Arc<str>, shared: &Arc<Shared>) -> Result<Self> {
        let worker = match receiver.kind {
            Kind::Log => None,
            Kind::Webhook => {
                let sender =
                    Sender::new(&receiver).map_err(|why| anyhow!("[[alerts.receiver]]: {why}"))?;
                Some(Worker::start("alert-webhook", shared, move |inbox, shared, stop| {
                    sender.run(inbox, &shared.alerts, stop);
                })?)
            }
            Kind::Command => {
                let runner = Runner::new(&receiver);
                Some(Worker::start("alert-command", shared, move |inbox, shared, stop| {
                    runner.run(inbox, &shared.alerts, stop);
                })?)
            }
        };
        let source = format!("http://{}/api/v1/alerts", shared.config.http.listen);
        Ok(Self::with(receiver, worker, Arc::clone(host), source))
    }

    fn with(receiver: Action, worker: Option<Worker>, host: Arc<str>, source: String) -> Self {
        let mode = match receiver.format {
            Some(Format::Alertmanager) => Mode::Sync(Sync::default()),
            _ => Mode::Teller(Teller::new(Pace {
                repeat_every: receiver.repeat_interval().map(Span::nanos),
                at_most: receiver.rate_limit.unwrap_or(AT_MOST) as usize,
                per: receiver.rate_limit_window().nanos(),
            })),
        };
        let name = match receiver.kind {
            Kind::Log => "log",
            Kind::Webhook => "webhook",
            Kind::Command => "command",
        };
        Self { receiver, name, mode, worker, host, source }
    }

    /// Sends what is due.
    pub(super) fn tell(
        &mut self,
        firing: &[&Alert],
        resolved: &[&Alert],
        now: Moment,
        clock: &WallClock,
        store: &Board,
    ) {
        let accepted =
            |alert: &&&Alert| self.receiver.accepts(&alert.rule.name, alert.rule.severity);
        let firing: Vec<&Alert> = firing.iter().filter(accepted).copied().collect();
        let resolved: Vec<&Alert> = resolved.iter().filter(accepted).copied().collect();
        match &mut self.mode {
            Mode::Sync(sync) => {
                let Some(alerts) = sync.due(&firing, &resolved, now) else { return };
                let valid_until = clock.precise(Moment(now.0.saturating_add(VALID.0)));
                let notices: Vec<_> =
                    alerts.iter().map(|alert| Notice::new(alert, clock, &self.host)).collect();
                let body = shapes::alertmanager(&notices, &valid_until, &self.source);
                let label = format!("{} alerts", notices.len());
                self.deliver(Message { label, body, notice: None }, store);
            }
            Mode::Teller(throttle) => {
                let (due, suppressed) = throttle.due(&firing, &resolved, now);
                for _ in 0..suppressed {
                    store.count(self.name, "suppressed");
                }
                for due in due {
                    let notice = Notice {
                        is_repeated: due.is_repeated,
                        suppressed: due.suppressed,
                        ..Notice::new(&due.alert, clock, &self.host)
                    };
                    self.deliver(self.message(notice), store);
                }
            }
        }
    }

    fn message(&self, notice: Notice) -> Message {
        let body = match self.receiver.format {
            Some(Format::Slack) => shapes::slack(&notice),
            _ => shapes::json(&notice),
        };
        let label = format!("{} {}", notice.rule, notice.state.name());
        Message { label, body, notice: Some(notice) }
    }

    fn deliver(&self, message: Message, store: &Board) {
        match (&self.worker, &message.notice) {
            (Some(worker), _) => {
                if !worker.offer(message) {
                    store.count(self.name, "dropped");
                }
            }
            (None, Some(notice)) => {
                log::tell(notice);
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
struct Worker {
    queue: SyncSender<Message>,
    stop: Arc<AtomicBool>,
    thread: threads::Worker,
}

impl Worker {
    fn start(
        name: &'static str,
        shared: &Arc<Shared>,
        work: impl FnOnce(&Receiver<Message>, &Shared, &AtomicBool) + Send + 'static,
    ) -> Result<Self> {
        let (queue, inbox) = sync_channel(QUEUE);
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stop_flag) = (Arc::clone(shared), Arc::clone(&stop));
        let thread = threads::Worker::spawn(name, move || {
            // Commands inherit the capabilities of this thread.
            rights::only(CapabilitySet::empty())?;
            work(&inbox, &shared, &stop_flag);
            Ok(())
        })?;
        Ok(Self { queue, stop, thread })
    }

    /// Queues a message. Returns whether there was room.
    fn offer(&self, message: Message) -> bool {
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
