//! Symbolizes sites in a separate thread: reading files takes long, and the ring must be drained at
//! the same time.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use engine::event::SiteFacts;
use engine::ids::SiteId;
use engine::stack::{Frame, Unknown};

use super::mixed::{Run, mix};
use super::native::{Code, End, Registry, Symbols};
use crate::threads::contain;

/// Maximum number of sites in the queue, and of results.
pub(super) const QUEUE: usize = 1024;

/// A site to symbolize.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) site: SiteId,
    /// The driver function; `None` for tensors, whose stacks are complete.
    pub(crate) function: Option<&'static str>,
    /// `None`: the stack was lost.
    pub(crate) native: Option<Arc<NativeStack>>,
    pub(crate) python: Option<Arc<PythonStack>>,
}

/// A native stack, independent of where the process mapped its files.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct NativeStack {
    pub(crate) codes: Vec<Code>,
    pub(crate) end: End,
}

/// A Python stack.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct PythonStack {
    pub(crate) runs: Vec<Run>,
    /// There are more frames.
    pub(crate) truncated: bool,
    /// Why frames are missing, if so.
    pub(crate) missing: Option<Unknown>,
}

/// Handle of the symbolizer thread.
#[derive(Debug)]
pub(crate) struct Naming {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Result<SiteFacts, (SiteId, String)>>,
    thread: Option<JoinHandle<()>>,
    waiting: usize,
    failure: Failure,
}

/// The first panic of a job; it is reported once.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Failure {
    None,
    New(String),
    Reported,
}

impl Naming {
    /// Starts the thread with queues of this size.
    pub(crate) fn start(registry: Registry, room: usize) -> std::io::Result<Self> {
        let (jobs, work) = sync_channel::<Job>(room);
        let (results, done) = sync_channel(room);
        let run = move || {
            let mut symbols = Symbols::new(registry.clone());
            for job in work {
                let site = job.site;
                // Files are not trusted: one that makes a parser panic costs only its own symbols.
                let named = contain(|| Ok(name(&mut symbols, job))).map_err(|why| {
                    symbols = Symbols::new(registry.clone());
                    (site, why)
                });
                if results.send(named).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("vramscope-names".into()).spawn(run)?;
        Ok(Self {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            waiting: 0,
            failure: Failure::None,
        })
    }

    /// Submits a site. Returns false if the queue is full.
    pub(crate) fn ask(&mut self, job: Job) -> bool {
        let Some(jobs) = &self.jobs else { return true };
        match jobs.try_send(job) {
            Ok(()) => self.waiting += 1,
            Err(TrySendError::Full(_)) => return false,
            // The thread has ended: no more symbols.
            Err(TrySendError::Disconnected(_)) => self.jobs = None,
        }
        true
    }

    /// Returns the results since the last call.
    pub(crate) fn take(&mut self) -> Vec<SiteFacts> {
        let mut found = Vec::new();
        while let Ok(named) = self.done.try_recv() {
            found.push(self.received(named));
        }
        found
    }

    fn received(&mut self, named: Result<SiteFacts, (SiteId, String)>) -> SiteFacts {
        self.waiting = self.waiting.saturating_sub(1);
        named.unwrap_or_else(|(site, why)| {
            if self.failure == Failure::None {
                self.failure = Failure::New(why);
            }
            let unknown = Frame { unknown: Some(Unknown::Unreadable), ..Frame::default() };
            SiteFacts { site, frames: [unknown].into() }
        })
    }

    /// Returns once why symbols are missing.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        match std::mem::replace(&mut self.failure, Failure::Reported) {
            Failure::New(why) => Some(why),
            before => {
                self.failure = before;
                None
            }
        }
    }

    /// Waits for the next submitted site. Returns `None` if none is pending, or after `until`.
    pub(crate) fn next(&mut self, until: Instant) -> Option<SiteFacts> {
        if self.waiting == 0 {
            return None;
        }
        let left = until.saturating_duration_since(Instant::now());
        let named = self.done.recv_timeout(left).ok()?;
        Some(self.received(named))
    }
}

impl Drop for Naming {
    fn drop(&mut self) {
        self.jobs = None;
        // Does not wait for pending symbols, which are no longer needed.
        if self.waiting == 0
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn name(symbols: &mut Symbols, job: Job) -> SiteFacts {
    let called = job.function.map(|function| Frame {
        function: function.into(),
        module: Some("libcuda.so.1".into()),
        ..Frame::default()
    });
    let mut frames: Vec<_> = called.into_iter().collect();
    let (codes, missing) = match &job.native {
        Some(stack) => (&stack.codes[..], stack.end.missing()),
        None => (&[][..], Some(Unknown::NotTold)),
    };
    let native: Vec<_> = codes.iter().map(|code| symbols.frames(code, true)).collect();
    let python = job.python.as_deref().cloned().unwrap_or_default();
    frames.extend(mix(&native, python.runs, python.missing));
    let missing = [python.truncated.then_some(Unknown::Deep), missing];
    frames.extend(
        missing
            .into_iter()
            .flatten()
            .map(|unknown| Frame { unknown: Some(unknown), ..Frame::default() }),
    );
    SiteFacts { site: job.site, frames: frames.into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::native::Native;
    use super::*;

    #[test]
    fn full_queue_rejects_sites_until_drained() {
        let job = |site| {
            let site = SiteId(site);
            Job { site, function: Some("cuMemAlloc_v2"), native: None, python: None }
        };
        let mut naming = Naming::start(Native::new().registry(), 2).unwrap();
        // Two in each queue, and one in the thread.
        let accepted = (0..1000).filter(|site| naming.ask(job(*site))).count();
        assert!((2..=5).contains(&accepted), "{accepted}");
        let until = Instant::now() + Duration::from_secs(60);
        for _ in 0..accepted {
            assert!(naming.next(until).is_some());
        }
        assert!(naming.next(until).is_none(), "nothing more was submitted");
        assert!(naming.ask(job(1000)));
        assert_eq!(naming.next(until).map(|facts| facts.site), Some(SiteId(1000)));
    }
}
