//! Where frames come from. A source runs on its own thread, so keys are answered whatever it does.

pub(crate) mod agents;
pub(crate) mod driver;
pub(crate) mod live;
pub(crate) mod replay;

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use engine::model::Pid;
use engine::snapshot::{ListScope, SnapshotOptions};

use super::frame::TopFrame;

/// Sites and allocations that a frame lists of the process that is looked at.
const MAX_SITES: usize = 10_000;
const MAX_ALLOCATIONS: usize = 1000;

/// Kernels per process, and sites of tensors of all processes.
const MAX_ROWS: usize = 100;

/// Which details the view needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Details {
    /// None besides processes and verdicts.
    #[default]
    Nothing,
    /// Sites and allocations of a process of a host.
    Process(usize, Pid),
}

impl Details {
    /// Returns the options of a snapshot of host number `host`.
    pub(crate) fn snapshot_options(self, host: usize) -> SnapshotOptions {
        let plain = SnapshotOptions {
            top: MAX_ROWS,
            top_sites: MAX_ROWS,
            lists: ListScope::None,
            ..SnapshotOptions::DEFAULT
        };
        match self {
            Self::Process(of, pid) if of == host => SnapshotOptions {
                top: MAX_ALLOCATIONS,
                top_sites: MAX_SITES,
                lists: ListScope::Process(pid),
                ..plain
            },
            Self::Nothing | Self::Process(..) => plain,
        }
    }
}

/// What the view asks its source for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Request {
    pub(crate) details: Details,
    pub(crate) interval: Duration,
    /// Of a recording: how much faster than recorded.
    pub(crate) speed: f64,
    /// Of a recording: stop here.
    pub(crate) is_paused: bool,
    stop: bool,
}

/// A request that the source is woken by.
#[derive(Clone)]
pub(crate) struct RequestCell(Arc<(Mutex<Request>, Condvar)>);

impl RequestCell {
    pub(crate) fn new(interval: Duration, speed: f64) -> Self {
        let details = Details::Nothing;
        let request = Request { details, interval, speed, is_paused: false, stop: false };
        Self(Arc::new((Mutex::new(request), Condvar::new())))
    }

    pub(crate) fn get(&self) -> Request {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the request and wakes the source.
    pub(crate) fn update(&self, change: impl FnOnce(&mut Request)) {
        let mut request = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *request;
        change(&mut request);
        if *request != before {
            self.0.1.notify_all();
        }
    }

    /// Whether the source should end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.get().stop
    }

    /// Waits until a time, or until the request differs from `known`.
    pub(crate) fn wait(&self, known: &Request, until: Instant) -> Request {
        let mut request = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            if *request != *known || now >= until {
                return *request;
            }
            let waited = self.0.1.wait_timeout(request, until - now);
            request = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A source of frames: live probes, agents, a recording, or the driver's own values. In-process
/// tracing is a live source as well.
pub(crate) trait Source: Send {
    /// Describes the source in a few words, for the first line.
    fn name(&self) -> String;

    /// Returns the next frame, at the latest after the interval of the request. `None`: there will
    /// be no other one. Returns early if the request changes.
    fn next(&mut self, requests: &RequestCell) -> Result<Option<TopFrame>>;

    /// Whether frames are replayed, so that they have a speed.
    fn is_replay(&self) -> bool {
        false
    }
}

/// A source on its thread.
pub(crate) struct RunningSource {
    pub(crate) name: String,
    pub(crate) is_replay: bool,
    pub(crate) requests: RequestCell,
    frames: Receiver<Result<TopFrame>>,
    thread: Option<JoinHandle<()>>,
}

impl RunningSource {
    /// Starts the thread.
    pub(crate) fn start(mut source: Box<dyn Source>, requests: RequestCell) -> Result<Self> {
        let (name, is_replay) = (source.name(), source.is_replay());
        let (sender, frames) = sync_channel(2);
        let cell = requests.clone();
        let run = move || {
            while !cell.is_stopped() {
                capture::fault::point();
                let frame = match source.next(&cell) {
                    Ok(Some(frame)) => Ok(frame),
                    Ok(None) => return,
                    Err(error) => Err(error),
                };
                let failed = frame.is_err();
                if !send(&sender, frame, &cell) || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("top-source".into()).spawn(run);
        let thread = Some(thread.context("cannot start a thread")?);
        Ok(Self { name, is_replay, requests, frames, thread })
    }

    /// Returns the frames that have arrived since the last call, and whether the source has ended.
    pub(crate) fn arrived(&self) -> (Vec<Result<TopFrame>>, bool) {
        let mut all = Vec::new();
        loop {
            match self.frames.try_recv() {
                Ok(frame) => all.push(frame),
                Err(std::sync::mpsc::TryRecvError::Empty) => return (all, false),
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return (all, true),
            }
        }
    }

    /// Waits for a frame; `None` if there will be none.
    pub(crate) fn wait(&self) -> Option<Result<TopFrame>> {
        self.frames.recv().ok()
    }
}

/// Sends a frame unless the source is stopped; a full channel means that the view is stopped.
fn send(
    sender: &SyncSender<Result<TopFrame>>,
    mut frame: Result<TopFrame>,
    cell: &RequestCell,
) -> bool {
    loop {
        frame = match sender.try_send(frame) {
            Ok(()) => return true,
            Err(TrySendError::Disconnected(_)) => return false,
            Err(TrySendError::Full(frame)) if cell.is_stopped() => {
                drop(frame);
                return false;
            }
            Err(TrySendError::Full(frame)) => frame,
        };
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for RunningSource {
    /// Ends the thread, so that probes are detached before the process goes on.
    fn drop(&mut self) {
        self.requests.update(|request| request.stop = true);
        // A request to an agent can take some seconds; nothing depends on its answer.
        let deadline = Instant::now() + Duration::from_secs(2);
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < deadline {
                let _ = self.frames.try_recv();
                std::thread::sleep(Duration::from_millis(5));
            }
            if thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}
