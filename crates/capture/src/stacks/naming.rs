//! Finds the names of sites on a thread of its own: files are read and tables are built, and the
//! ring must be emptied meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::event::SiteFacts;
use engine::ids::SiteId;
use engine::stack::{Frame, Unknown};

use super::mixed::{Run, mix};
use super::native::{Code, End, Registry, Symbols};

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
    jobs: Option<Sender<Job>>,
    done: Receiver<SiteFacts>,
    thread: Option<JoinHandle<()>>,
    waiting: usize,
}

impl Naming {
    pub(crate) fn start(registry: Registry) -> std::io::Result<Self> {
        let (jobs, work) = channel::<Job>();
        let (told, done) = channel();
        let run = move || {
            let mut symbols = Symbols::new(registry);
            for job in work {
                if told.send(name(&mut symbols, job)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("vramscope-names".into()).spawn(run)?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread), waiting: 0 })
    }

    pub(crate) fn ask(&mut self, job: Job) {
        if self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok()) {
            self.waiting += 1;
        }
    }

    /// What was found since the last call.
    pub(crate) fn take(&mut self) -> Vec<SiteFacts> {
        let found: Vec<_> = self.done.try_iter().collect();
        self.waiting -= found.len().min(self.waiting);
        found
    }

    /// The same for everything that is still asked for, or for as much as can be had in that time.
    pub(crate) fn take_all(&mut self, patience: Duration) -> Vec<SiteFacts> {
        let until = Instant::now() + patience;
        let mut found = self.take();
        while self.waiting > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(facts) = self.done.recv_timeout(left) else { break };
            self.waiting -= 1;
            found.push(facts);
        }
        found
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
