//! A worker: a named thread of the agent that exits when the feed is closed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::thread::CapabilitySet;

use super::{AgentState, capabilities};
use crate::threads::Worker;

/// How often the exit of a worker is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running worker.
pub(crate) struct AgentThread(Worker);

impl AgentThread {
    /// Starts it without any capabilities. It must exit soon after the feed is closed, and not
    /// before.
    pub(crate) fn spawn(
        name: &'static str,
        shared: &Arc<AgentState>,
        work: impl FnOnce(&Arc<AgentState>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        Self::spawn_with(CapabilitySet::empty(), name, shared, work)
    }

    /// Starts a worker that needs capabilities.
    pub(crate) fn spawn_with(
        caps: CapabilitySet,
        name: &'static str,
        shared: &Arc<AgentState>,
        work: impl FnOnce(&Arc<AgentState>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::clone(shared);
        let run = move || {
            let outcome = capabilities::keep_only(caps).and_then(|()| work(&shared));
            outcome.with_context(|| format!("the thread `{name}` failed"))
        };
        Worker::spawn(name, run).map(Self)
    }

    /// Whether it has exited.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Returns the reason of an exit before the feed was closed.
    pub(crate) fn failure(self) -> anyhow::Error {
        self.0.failure()
    }

    /// Waits for its exit until `deadline`. A panic, or a thread that does not exit, is an error.
    pub(crate) fn join_until(self, deadline: Instant) -> Result<()> {
        while !self.0.is_finished() {
            if Instant::now() >= deadline {
                bail!("thread `{}` did not stop; exiting without it", self.0.name());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.0.join()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::config::Config;

    #[test]
    fn worker_that_does_not_exit_is_an_error() {
        let shared = AgentState::new(Config::default());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let worker = AgentThread::spawn("slow", &shared, move |_| {
            let _ = wait.recv();
            Ok(())
        });
        let error = worker.unwrap().join_until(Instant::now()).unwrap_err().to_string();
        assert_eq!(error, "thread `slow` did not stop; exiting without it");
        drop(release);
    }

    #[test]
    fn worker_failure_has_name_and_reason() {
        let shared = AgentState::new(Config::default());
        let worker = AgentThread::spawn("http", &shared, |_| bail!("no port")).unwrap();
        assert_eq!(format!("{:#}", worker.failure()), "the thread `http` failed: no port");
    }
}
