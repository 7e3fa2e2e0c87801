//! Threads and queues of a live trace.
//!
//! The *capture thread* owns the session: it reads the ring and sends batches of events through a
//! bounded channel. The *engine thread* (the caller) applies them to the ledger. If the engine is
//! too slow, the channel fills and the capture thread waits, so that events are lost only in the
//! kernel ring, which counts them.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use capture::gpus::GpuInfo;
use capture::in_process::{CollectorDir, Waker};
use capture::plan::AttachPlan;
use capture::session::{Notice, RecordMark, Session, SessionOptions, StackMode};
use engine::model::{Event, Timestamp};
use formats::export::CaptureSource;

use crate::io::output;
use crate::live::requests::{self, Request};
use crate::threads::Worker;

/// Maximum time between two reads, for what does not wake the capture thread: counters of launches
/// and copies, driver-reported usage, symbols.
const MAX_WAIT: Duration = Duration::from_millis(250);

/// Maximum number of batches between the two threads.
const QUEUE_BATCHES: usize = 64;

/// Stack modes that a running trace can be limited to.
const STACK_MODES: [StackMode; 3] = [StackMode::Off, StackMode::FramePointer, StackMode::Full];

/// A message of the capture thread.
pub(crate) enum PipelineMessage {
    /// Events in order.
    Events(Vec<Event>),
    /// GPUs found after the start: the driver was missing or slow.
    Gpus(Vec<GpuInfo>),
    /// A notice for the user.
    Notice(Notice),
    /// A request of a traced program; all calls before it were sent.
    Request(Request),
    /// The capture thread ended early; nothing follows.
    Failed(anyhow::Error),
}

/// A running trace.
pub(crate) struct LiveTrace {
    messages: Receiver<PipelineMessage>,
    controls: Arc<Controls>,
    /// Ends a wait of the capture thread.
    waker: Waker,
    /// The capture thread; None after its end was noticed.
    thread: Cell<Option<Worker>>,
    /// How the probes are attached; None for in-process tracing.
    pub(crate) plan: Option<AttachPlan>,
    /// How calls are captured.
    pub(crate) source: CaptureSource,
    /// The GPUs of this host.
    pub(crate) gpus: Vec<GpuInfo>,
    /// Whether launches and copies are counted.
    pub(crate) counts_activity: bool,
}

/// State shared with the capture thread.
struct Controls {
    stop: AtomicBool,
    /// Maximum stack mode, as an index of [`STACK_MODES`].
    stacks: AtomicUsize,
    /// Time of the latest sent events: nothing is missing up to then.
    complete_until: AtomicU64,
}

impl LiveTrace {
    /// Starts the capture thread and returns when the probes are attached.
    pub(crate) fn start(options: SessionOptions) -> Result<Self> {
        Self::start_after(options, || Ok(()))
    }

    /// The same; the capture thread first calls `prepare`.
    pub(crate) fn start_after(
        options: SessionOptions,
        prepare: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let counts_activity = options.activity.is_some();
        Self::start_session(counts_activity, move || {
            prepare()?;
            Ok((Session::start(&options)?, None))
        })
    }

    /// Starts the capture thread for processes that load the in-process library.
    pub(crate) fn start_in_process(options: SessionOptions, mut dir: CollectorDir) -> Result<Self> {
        let counts_activity = options.activity.is_some();
        let listener = dir.take_listener();
        Self::start_session(counts_activity, move || {
            let session = Session::start_in_process(&options, dir)?;
            let requests = listener.map(|listener| requests::serve(listener, session.waker()));
            let requests = requests.transpose()?;
            Ok((session, requests))
        })
    }

    fn start_session(
        counts_activity: bool,
        start: impl FnOnce() -> Result<(Session, Option<Receiver<Request>>)> + Send + 'static,
    ) -> Result<Self> {
        if let Some(warning) = capture::fault::warning() {
            output::log(&warning);
        }
        let (sender, messages) = sync_channel(QUEUE_BATCHES);
        let (ready, started) = sync_channel(1);
        let controls = Arc::new(Controls {
            stop: AtomicBool::new(false),
            stacks: AtomicUsize::new(STACK_MODES.len()),
            complete_until: AtomicU64::new(capture::monotonic().0),
        });
        let shared = Arc::clone(&controls);
        let run = move || match start() {
            Ok((session, requests)) => {
                let (plan, gpus) = (session.plan().cloned(), session.gpus().to_vec());
                let _ = ready.send(Ok((plan, gpus, session.waker())));
                capture_loop(session, requests, &sender, &shared)
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                Ok(())
            }
        };
        let thread = Worker::spawn("capture", run)?;
        let Ok(outcome) = started.recv() else { return Err(thread.failure()) };
        let (plan, gpus, waker) = outcome?;
        plan.iter().flat_map(|plan: &AttachPlan| &plan.warnings).for_each(|it| output::warn(it));
        let thread = Cell::new(Some(thread));
        let source = if plan.is_some() { CaptureSource::Probes } else { CaptureSource::InProcess };
        Ok(Self { messages, controls, waker, thread, plan, source, gpus, counts_activity })
    }

    /// Returns the next message, if one arrives before `deadline`.
    pub(crate) fn next(&self, deadline: Instant) -> Option<PipelineMessage> {
        let wait = deadline.saturating_duration_since(Instant::now());
        match self.messages.recv_timeout(wait) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                let failed =
                    self.thread.take().map(|thread| PipelineMessage::Failed(thread.failure()));
                if failed.is_none() {
                    // Its end was already reported; do not spin.
                    std::thread::sleep(wait);
                }
                failed
            }
        }
    }

    /// Returns the time up to which every event was sent.
    pub(crate) fn complete_until(&self) -> Timestamp {
        Timestamp(self.controls.complete_until.load(Ordering::Acquire))
    }

    /// Limits the stack mode from now on; it never exceeds the mode of the start.
    pub(crate) fn limit_stacks(&self, max: StackMode) {
        let limit = STACK_MODES.iter().position(|limit| *limit == max).unwrap_or(STACK_MODES.len());
        self.controls.stacks.store(limit, Ordering::Relaxed);
        self.waker.wake();
    }

    /// Detaches the probes and returns the remaining messages, and the time up to which nothing is
    /// missing.
    pub(crate) fn finish(self) -> (Vec<PipelineMessage>, Timestamp) {
        self.controls.stop.store(true, Ordering::Release);
        self.waker.wake();
        let mut remaining: Vec<PipelineMessage> = self.messages.iter().collect();
        if let Some(Err(error)) = self.thread.take().map(Worker::join) {
            remaining.push(PipelineMessage::Failed(error));
        }
        let complete_until = self.complete_until();
        (remaining, complete_until)
    }
}

/// Requests of programs that wait until the calls before them were read.
struct WaitingRequests {
    requests: Option<Receiver<Request>>,
    marked: Vec<(RecordMark, Request)>,
}

impl WaitingRequests {
    /// Marks the position of new requests in the records.
    fn mark(&mut self, session: &mut Session) -> Result<()> {
        for mut request in self.requests.iter().flat_map(Receiver::try_iter) {
            request.at = capture::monotonic();
            self.marked.push((session.mark()?, request));
        }
        Ok(())
    }

    /// Returns the requests whose turn it is.
    fn drain(&mut self, session: &Session) -> impl Iterator<Item = Request> {
        let ready = self.marked.extract_if(.., |(mark, _)| session.has_read(*mark));
        ready.map(|(_, request)| request)
    }
}

/// Reads events until it is stopped, or the receiver is gone.
fn capture_loop(
    mut session: Session,
    requests: Option<Receiver<Request>>,
    sender: &SyncSender<PipelineMessage>,
    controls: &Controls,
) -> Result<()> {
    let mut limit = STACK_MODES.len();
    let mut has_gpus = !session.gpus().is_empty();
    let mut waiting = WaitingRequests { requests, marked: Vec::new() };
    loop {
        capture::fault::point();
        let requested = controls.stacks.load(Ordering::Relaxed);
        if requested != limit {
            limit = requested;
            session.limit_stacks(STACK_MODES.get(limit).copied().unwrap_or(StackMode::Full));
        }
        waiting.mark(&mut session)?;
        let is_last = controls.stop.load(Ordering::Acquire);
        let start = capture::monotonic();
        // A program waits for the answer to its request.
        let timeout = if waiting.marked.is_empty() { MAX_WAIT } else { Duration::ZERO };
        let outcome = if is_last { session.finish() } else { session.poll(timeout) };
        let mut messages = Vec::new();
        if !has_gpus && !session.gpus().is_empty() {
            has_gpus = true;
            messages.push(PipelineMessage::Gpus(session.gpus().to_vec()));
        }
        messages.extend(session.notices().into_iter().map(PipelineMessage::Notice));
        let mut complete_until = start;
        let failure = match outcome {
            Ok(events) => {
                complete_until = events.last().map_or(start, |event| event.time.max(start));
                messages
                    .extend(Some(events).filter(|it| !it.is_empty()).map(PipelineMessage::Events));
                None
            }
            Err(error) => Some(error),
        };
        messages.extend(waiting.drain(&session).map(PipelineMessage::Request));
        if messages.into_iter().any(|message| sender.send(message).is_err()) {
            return Ok(());
        }
        if let Some(error) = failure {
            bail!(error);
        }
        controls.complete_until.store(complete_until.0, Ordering::Release);
        if is_last {
            return Ok(());
        }
    }
}
