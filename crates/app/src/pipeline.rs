//! Threads and queues of a live trace.
//!
//! The *capture thread* owns the session: it reads the ring and sends batches of events through a
//! bounded channel. The *engine thread* (the caller) applies them to the ledger. When the engine
//! cannot follow, the channel fills, the capture thread waits, and the kernel ring is the one place
//! that may lose; it counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use capture::gpus::Gpu;
use capture::plan::Plan;
use capture::session::{Notice, Options, Session, Stacks};
use engine::event::Event;

/// How long the ring may fill before it is read. It is read at once when it is a quarter full.
const POLL: Duration = Duration::from_millis(10);

/// Batches in flight between the two threads.
const QUEUE: usize = 64;

/// What stacks can be limited to, while a trace runs.
const LIMITS: [Stacks; 3] = [Stacks::Off, Stacks::Pointers, Stacks::Full];

/// What the capture thread sends.
pub(crate) enum Message {
    /// Things that happened, in order.
    Events(Vec<Event>),
    /// Things the user should know.
    Notice(Notice),
    /// Capture broke; nothing follows.
    Failed(capture::Error),
}

/// A trace that runs.
pub(crate) struct Live {
    messages: Receiver<Message>,
    stop: Arc<AtomicBool>,
    /// The most that is taken of stacks, as a number of [`LIMITS`].
    stacks: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
    /// How the probes are attached.
    pub(crate) plan: Plan,
    /// The GPUs of this host.
    pub(crate) gpus: Vec<Gpu>,
    /// Whether launches and copies are counted.
    pub(crate) counts_work: bool,
}

impl Live {
    /// Starts the capture thread and returns when the probes are attached.
    pub(crate) fn start(options: Options) -> Result<Self> {
        Self::start_after(options, || Ok(()))
    }

    /// The same; the capture thread first prepares.
    pub(crate) fn start_after(
        options: Options,
        prepare: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (sender, messages) = sync_channel(QUEUE);
        let (ready, started) = sync_channel(1);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let stacks = Arc::new(AtomicUsize::new(LIMITS.len()));
        let limit = Arc::clone(&stacks);
        let counts_work = options.work.is_some();
        let start = move || -> Result<Session> {
            prepare()?;
            Ok(Session::start(&options)?)
        };
        let run = move || match start() {
            Ok(session) => {
                let _ = ready.send(Ok((session.plan().clone(), session.gpus().to_vec())));
                capture_loop(session, &sender, &stopped, &limit);
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        };
        let thread = std::thread::Builder::new().name("capture".into()).spawn(run)?;
        let (plan, gpus) =
            started.recv().map_err(|_| anyhow!("the capture thread died at its start"))??;
        Ok(Self { messages, stop, stacks, thread: Some(thread), plan, gpus, counts_work })
    }

    /// The next message, if one comes before `deadline`.
    pub(crate) fn next(&self, deadline: Instant) -> Option<Message> {
        let wait = deadline.saturating_duration_since(Instant::now());
        match self.messages.recv_timeout(wait) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // Nothing will come; do not spin.
                std::thread::sleep(wait);
                None
            }
        }
    }

    /// From now on no more than these stacks are taken, of what was asked for at the start.
    pub(crate) fn limit_stacks(&self, most: Stacks) {
        let limit = LIMITS.iter().position(|limit| *limit == most).unwrap_or(LIMITS.len());
        self.stacks.store(limit, Ordering::Relaxed);
    }

    /// Detaches the probes, then hands over what was still on its way.
    pub(crate) fn finish(mut self) -> Vec<Message> {
        self.stop.store(true, Ordering::Release);
        let rest: Vec<Message> = self.messages.iter().collect();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        rest
    }
}

fn capture_loop(
    mut session: Session,
    sender: &SyncSender<Message>,
    stop: &AtomicBool,
    stacks: &AtomicUsize,
) {
    let mut limit = LIMITS.len();
    loop {
        let wanted = stacks.load(Ordering::Relaxed);
        if wanted != limit {
            limit = wanted;
            let most = LIMITS.get(limit).copied().unwrap_or(Stacks::Full);
            if let Err(error) = session.limit_stacks(most) {
                let _ = sender.send(Message::Failed(error));
                return;
            }
        }
        let last = stop.load(Ordering::Acquire);
        let outcome = if last { session.finish() } else { session.poll(POLL) };
        for notice in session.notices() {
            if sender.send(Message::Notice(notice)).is_err() {
                return;
            }
        }
        let message = match outcome {
            Ok(events) if events.is_empty() => None,
            Ok(events) => Some(Message::Events(events)),
            Err(error) => {
                let _ = sender.send(Message::Failed(error));
                return;
            }
        };
        if message.is_some_and(|message| sender.send(message).is_err()) || last {
            return;
        }
    }
}
