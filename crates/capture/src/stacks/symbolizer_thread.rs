//! Symbolizes sites in a separate thread: reading files takes long, and the ring must be drained at
//! the same time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use engine::model::event::SiteFrames;
use engine::model::ids::SiteId;
use engine::model::stack::{Frame, UnknownReason};

use super::merge::{PythonRun, merge};
use super::native::{FrameLocation, GeneratedCode, ModuleRegistry, NativeSymbolizer, StackEnd};
use crate::threads::contain;

/// Maximum number of sites in the queue, and of results.
pub(super) const QUEUE_CAPACITY: usize = 1024;

/// A site to symbolize.
#[derive(Debug)]
pub(crate) struct SymbolizeJob {
    pub(crate) site: SiteId,
    /// The driver function; `None` for tensors, whose stacks are complete.
    pub(crate) function: Option<&'static str>,
    /// `None`: the stack was lost.
    pub(crate) native: Option<Arc<NativeStack>>,
    pub(crate) python: Option<Arc<PythonStack>>,
    /// Code that the program generates.
    pub(crate) generated: Arc<GeneratedCode>,
}

/// A native stack, independent of where the process mapped its files.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NativeStack {
    pub(crate) locations: Vec<FrameLocation>,
    pub(crate) end: StackEnd,
}

/// A Python stack.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct PythonStack {
    pub(crate) runs: Vec<PythonRun>,
    /// There are more frames.
    pub(crate) truncated: bool,
    /// Why frames are missing, if so.
    pub(crate) missing: Option<UnknownReason>,
}

/// Handle of the symbolizer thread.
#[derive(Debug)]
pub(crate) struct SymbolizerThread {
    jobs: Option<SyncSender<SymbolizeJob>>,
    results: Receiver<Result<SiteFrames, (SiteId, String)>>,
    thread: Option<JoinHandle<()>>,
    pending: usize,
    failure: Failure,
}

/// The first panic of a job; it is reported once.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Failure {
    None,
    New(String),
    Reported,
}

impl SymbolizerThread {
    /// Starts the thread with queues of this size.
    pub(crate) fn start(registry: ModuleRegistry, capacity: usize) -> std::io::Result<Self> {
        let (jobs, queue) = sync_channel::<SymbolizeJob>(capacity);
        let (sender, results) = sync_channel(capacity);
        let run = move || {
            let mut symbols = NativeSymbolizer::new(registry.clone());
            for job in queue {
                let site = job.site;
                // Files are not trusted: one that makes a parser panic costs only its own symbols.
                let result = contain(|| Ok(symbolize(&mut symbols, job))).map_err(|reason| {
                    symbols = NativeSymbolizer::new(registry.clone());
                    (site, reason)
                });
                if sender.send(result).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("symbolizer".into()).spawn(run)?;
        Ok(Self {
            jobs: Some(jobs),
            results,
            thread: Some(thread),
            pending: 0,
            failure: Failure::None,
        })
    }

    /// Submits a site. Returns false if the queue is full.
    pub(crate) fn submit(&mut self, job: SymbolizeJob) -> bool {
        let Some(jobs) = &self.jobs else { return true };
        match jobs.try_send(job) {
            Ok(()) => self.pending += 1,
            Err(TrySendError::Full(_)) => return false,
            // The thread has ended: no more symbols.
            Err(TrySendError::Disconnected(_)) => self.jobs = None,
        }
        true
    }

    /// Returns whether results are outstanding.
    pub(crate) const fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// Returns the results since the last call.
    pub(crate) fn drain(&mut self) -> Vec<SiteFrames> {
        let mut sites = Vec::new();
        while let Ok(result) = self.results.try_recv() {
            sites.push(self.received(result));
        }
        sites
    }

    fn received(&mut self, result: Result<SiteFrames, (SiteId, String)>) -> SiteFrames {
        self.pending = self.pending.saturating_sub(1);
        result.unwrap_or_else(|(site, reason)| {
            if self.failure == Failure::None {
                self.failure = Failure::New(reason);
            }
            let unknown = Frame { unknown: Some(UnknownReason::Unreadable), ..Frame::default() };
            SiteFrames { site, frames: [unknown].into() }
        })
    }

    /// Returns once why symbols are missing.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        match std::mem::replace(&mut self.failure, Failure::Reported) {
            Failure::New(reason) => Some(reason),
            before => {
                self.failure = before;
                None
            }
        }
    }

    /// Waits for the next submitted site. Returns `None` if none is pending, or after `deadline`.
    pub(crate) fn next(&mut self, deadline: Instant) -> Option<SiteFrames> {
        if self.pending == 0 {
            return None;
        }
        let timeout = deadline.saturating_duration_since(Instant::now());
        let result = self.results.recv_timeout(timeout).ok()?;
        Some(self.received(result))
    }
}

impl Drop for SymbolizerThread {
    fn drop(&mut self) {
        self.jobs = None;
        // Does not wait for pending symbols, which are no longer needed.
        if self.pending == 0
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn symbolize(symbols: &mut NativeSymbolizer, job: SymbolizeJob) -> SiteFrames {
    let driver_call = job.function.map(|function| Frame {
        function: function.into(),
        module: Some("libcuda.so.1".into()),
        ..Frame::default()
    });
    let mut frames: Vec<_> = driver_call.into_iter().collect();
    let (locations, missing) = match &job.native {
        Some(stack) => (&stack.locations[..], stack.end.unknown_reason()),
        None => (&[][..], Some(UnknownReason::NotRecorded)),
    };
    let native = locations.iter().map(|location| symbols.frames(location, true, &job.generated));
    let native: Vec<_> = native.collect();
    let python = job.python.as_deref().cloned().unwrap_or_default();
    frames.extend(merge(&native, python.runs, python.missing));
    let missing = [python.truncated.then_some(UnknownReason::Truncated), missing];
    frames.extend(
        missing
            .into_iter()
            .flatten()
            .map(|unknown| Frame { unknown: Some(unknown), ..Frame::default() }),
    );
    SiteFrames { site: job.site, frames: frames.into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::model::ids::Pid;

    use super::super::native::{AddressSpace, NativeUnwinder};
    use super::*;

    #[test]
    fn full_queue_rejects_sites_until_drained() {
        let space = AddressSpace::new(Pid(1));
        let job = |site| SymbolizeJob {
            site: SiteId(site),
            function: Some("cuMemAlloc_v2"),
            native: None,
            python: None,
            generated: Arc::clone(&space.generated),
        };
        let mut symbolizer = SymbolizerThread::start(NativeUnwinder::new().registry(), 2).unwrap();
        // Two in each queue, and one in the thread.
        let accepted = (0..1000).filter(|site| symbolizer.submit(job(*site))).count();
        assert!((2..=5).contains(&accepted), "{accepted}");
        let deadline = Instant::now() + Duration::from_mins(1);
        for _ in 0..accepted {
            assert!(symbolizer.next(deadline).is_some());
        }
        assert!(symbolizer.next(deadline).is_none(), "nothing more was submitted");
        assert!(symbolizer.submit(job(1000)));
        assert_eq!(symbolizer.next(deadline).map(|frames| frames.site), Some(SiteId(1000)));
    }
}
