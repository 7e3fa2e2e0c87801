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
pub(crate) struct AgentThread {
    worker: Worker,
    /// At shutdown it is not waited for any longer: it may wait for a receiver that hangs.
    is_abandonable: bool,
}

impl AgentThread {
    /// Starts it without any capabilities. It must exit soon after the feed is closed, and not
    /// before.
    pub(crate) fn spawn(
        name: &'static str,
        shared: &Arc<AgentState>,
        work: impl FnOnce(&Arc<AgentState>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::clone(shared);
        let run = move || {
            let no_capabilities = capabilities::keep_only(CapabilitySet::empty());
            let outcome = no_capabilities.and_then(|()| work(&shared));
            outcome.with_context(|| format!("the thread `{name}` failed"))
        };
        Ok(Self { worker: Worker::spawn(name, run)?, is_abandonable: false })
    }

    /// Starts a worker that may wait for a receiver that hangs.
    pub(crate) fn spawn_abandonable(
        name: &'static str,
        shared: &Arc<AgentState>,
        work: impl FnOnce(&Arc<AgentState>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        Ok(Self { is_abandonable: true, ..Self::spawn(name, shared, work)? })
    }

    /// Whether it has exited.
    pub(crate) fn is_finished(&self) -> bool {
        self.worker.is_finished()
    }

    /// Returns the reason of an exit before the feed was closed.
    pub(crate) fn failure(self) -> anyhow::Error {
        self.worker.failure()
    }

    /// Waits for its exit until `deadline`. A panic, or a thread that does not exit, is an error.
    pub(crate) fn join_until(self, deadline: Instant) -> Result<()> {
        while !self.worker.is_finished() {
            if Instant::now() >= deadline && self.is_abandonable {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("thread `{}` did not stop; exiting without it", self.worker.name());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.worker.join()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

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
