//! A configured receiver: what it has sent, and the thread that sends.

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

/// Messages that may wait for a slow receiver; beyond, they are dropped, and counted.
const QUEUE: usize = 64;

/// Messages in the time `per`, unless the configuration says otherwise.
const AT_MOST: u32 = 20;

/// See the module.
pub(super) struct Outlet {
    action: Action,
    name: &'static str,
    mode: Mode,
    worker: Option<Worker>,
    host: Arc<str>,
    /// Where the agent's own alerts can be read.
    source: String,
}

/// Who decides what is due.
enum Mode {
    Teller(Teller),
    Sync(Sync),
}

/// A message in the form that its receiver gets.
pub(super) struct Message {
    /// For messages about the message.
    pub(super) about: String,
    /// What is sent, or written to a command.
    pub(super) body: String,
    /// The facts, for a command's environment.
    pub(super) notice: Option<Notice>,
}

impl Outlet {
    /// Starts the thread of a webhook or a command.
    pub(super) fn start(action: Action, host: &Arc<str>, shared: &Arc<Shared>) -> Result<Self> {
        let worker = match action.kind {
            Kind::Log => None,
            Kind::Webhook => {
                let sender =
                    Sender::new(&action).map_err(|why| anyhow!("[[alerts.receiver]]: {why}"))?;
                Some(Worker::start("alert-webhook", shared, move |inbox, shared, stop| {
                    sender.run(inbox, &shared.alerts, stop);
                })?)
            }
            Kind::Command => {
                let runner = Runner::new(&action);
                Some(Worker::start("alert-command", shared, move |inbox, shared, stop| {
                    runner.run(inbox, &shared.alerts, stop);
                })?)
            }
        };
        let source = format!("http://{}/api/v1/alerts", shared.config.http.listen);
        Ok(Self::with(action, worker, Arc::clone(host), source))
    }

    fn with(action: Action, worker: Option<Worker>, host: Arc<str>, source: String) -> Self {
        let mode = match action.format {
            Some(Format::Alertmanager) => Mode::Sync(Sync::default()),
            _ => Mode::Teller(Teller::new(Pace {
                repeat_every: action.repeat_interval().map(Span::nanos),
                at_most: action.rate_limit.unwrap_or(AT_MOST) as usize,
                per: action.rate_limit_window().nanos(),
            })),
        };
        let name = match action.kind {
            Kind::Log => "log",
            Kind::Webhook => "webhook",
            Kind::Command => "command",
        };
        Self { action, name, mode, worker, host, source }
    }

    /// Tells what is due.
    pub(super) fn tell(
        &mut self,
        firing: &[&Alert],
        over: &[&Alert],
        now: Moment,
        clock: &WallClock,
        board: &Board,
    ) {
        let wanted = |alert: &&&Alert| self.action.wants(&alert.rule.name, alert.rule.severity);
        let firing: Vec<&Alert> = firing.iter().filter(wanted).copied().collect();
        let over: Vec<&Alert> = over.iter().filter(wanted).copied().collect();
        match &mut self.mode {
            Mode::Sync(sync) => {
                let Some(alerts) = sync.due(&firing, &over, now) else { return };
                let valid_until = clock.precise(Moment(now.0.saturating_add(VALID.0)));
                let notices: Vec<_> =
                    alerts.iter().map(|alert| Notice::new(alert, clock, &self.host)).collect();
                let body = shapes::alertmanager(&notices, &valid_until, &self.source);
                let about = format!("{} alerts", notices.len());
                self.hand_over(Message { about, body, notice: None }, board);
            }
            Mode::Teller(teller) => {
                let (due, held_back) = teller.due(&firing, &over, now);
                for _ in 0..held_back {
                    board.count(self.name, "suppressed");
                }
                for due in due {
                    let notice = Notice {
                        is_repeated: due.is_repeated,
                        held_back: due.held_back,
                        ..Notice::new(&due.alert, clock, &self.host)
                    };
                    self.hand_over(self.message(notice), board);
                }
            }
        }
    }

    fn message(&self, notice: Notice) -> Message {
        let body = match self.action.format {
            Some(Format::Slack) => shapes::slack(&notice),
            _ => shapes::json(&notice),
        };
        let about = format!("{} {}", notice.rule, notice.state.name());
        Message { about, body, notice: Some(notice) }
    }

    fn hand_over(&self, message: Message, board: &Board) {
        match (&self.worker, &message.notice) {
            (Some(worker), _) => {
                if !worker.offer(message) {
                    board.count(self.name, "dropped");
                }
            }
            (None, Some(notice)) => {
                log::tell(notice);
                board.count(self.name, "sent");
            }
            (None, None) => (),
        }
    }

    /// Why its thread ended, if it did.
    pub(super) fn failure(&mut self) -> Option<anyhow::Error> {
        let ended = self.worker.take_if(|worker| worker.thread.is_finished())?;
        Some(ended.thread.failure())
    }

    /// Nothing follows.
    pub(super) fn close(&self) {
        if let Some(worker) = &self.worker {
            worker.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until everything is told, but not longer than that.
    pub(super) fn finish(self, end: Instant) {
        if let Some(worker) = self.worker {
            worker.finish(end);
        }
    }
}

/// A thread that tells, with a queue in front of it.
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
        let (shared, told) = (Arc::clone(shared), Arc::clone(&stop));
        let thread = threads::Worker::spawn(name, move || {
            // A command that is run has the rights of this thread.
            rights::only(CapabilitySet::empty())?;
            work(&inbox, &shared, &told);
            Ok(())
        })?;
        Ok(Self { queue, stop, thread })
    }

    /// Whether there was room for it.
    fn offer(&self, message: Message) -> bool {
        match self.queue.try_send(message) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// A thread that still waits for somebody ends with the agent.
    fn finish(self, end: Instant) {
        drop(self.queue);
        while !self.thread.is_finished() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
