//! Finds the names of sites on a thread of its own: files are read and tables are built, and the
//! ring must be emptied meanwhile.

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

/// Sites that wait for names at a time, and as many that have them.
pub(super) const QUEUE: usize = 1024;

/// A site that needs names.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) site: SiteId,
    /// The driver's function; none of blocks of a cache, which the stack has all of.
    pub(crate) function: Option<&'static str>,
    /// `None`: the stack was lost.
    pub(crate) native: Option<Arc<NativeStack>>,
    pub(crate) python: Option<Arc<PythonStack>>,
}

/// A native stack, wherever the process has its files mapped.
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
    pub(crate) cut: bool,
    /// Why there are none, where there should be.
    pub(crate) missing: Option<Unknown>,
}

/// The thread.
#[derive(Debug)]
pub(crate) struct Naming {
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Result<SiteFacts, (SiteId, String)>>,
    thread: Option<JoinHandle<()>>,
    waiting: usize,
    /// Why names are missing, once.
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
    /// Starts it with room for that number of sites on each side.
    pub(crate) fn start(registry: Registry, room: usize) -> std::io::Result<Self> {
        let (jobs, work) = sync_channel::<Job>(room);
        let (told, done) = sync_channel(room);
        let run = move || {
            let mut symbols = Symbols::new(registry.clone());
            for job in work {
                let site = job.site;
                // Files are hostile: one that makes a parser panic costs the names of its sites.
                let named = contain(|| Ok(name(&mut symbols, job))).map_err(|why| {
                    symbols = Symbols::new(registry.clone());
                    (site, why)
                });
                if told.send(named).is_err() {
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

    /// Asks for the names of a site. False if there is no room now.
    pub(crate) fn ask(&mut self, job: Job) -> bool {
        let Some(jobs) = &self.jobs else { return true };
        match jobs.try_send(job) {
            Ok(()) => self.waiting += 1,
            Err(TrySendError::Full(_)) => return false,
            // The thread is gone, and with it the names.
            Err(TrySendError::Disconnected(_)) => self.jobs = None,
        }
        true
    }

    /// What was found since the last call.
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

    /// Why names are missing, the first time.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        match std::mem::replace(&mut self.failure, Failure::Reported) {
            Failure::New(why) => Some(why),
            before => {
                self.failure = before;
                None
            }
        }
    }

    /// Waits for the next site that was asked for. `None` if no site is pending, or not in time.
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
        // Names that nobody waits for are not worth waiting for.
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
    let missing = [python.cut.then_some(Unknown::Deep), missing];
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
    fn full_queue_refuses_sites_until_names_are_taken() {
        let job = |site| {
            let site = SiteId(site);
            Job { site, function: Some("cuMemAlloc_v2"), native: None, python: None }
        };
        let mut naming = Naming::start(Native::new().registry(), 2).unwrap();
        // Two in each queue, and one in the hands of the thread.
        let accepted = (0..1000).filter(|site| naming.ask(job(*site))).count();
        assert!((2..=5).contains(&accepted), "{accepted}");
        let until = Instant::now() + Duration::from_secs(60);
        for _ in 0..accepted {
            assert!(naming.next(until).is_some());
        }
        assert!(naming.next(until).is_none(), "nothing more was asked for");
        assert!(naming.ask(job(1000)));
        assert_eq!(naming.next(until).map(|facts| facts.site), Some(SiteId(1000)));
    }
}
