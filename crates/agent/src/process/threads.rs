//! Threads whose end is detected, with the reason.

use std::any::Any;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use formats::sanitize::sanitize;
use rustix::thread::CapabilitySet;

use super::capabilities;
use crate::AgentState;

/// How often the exit of a thread is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A thread that runs until it is asked to stop.
pub struct Worker {
    name: &'static str,
    thread: JoinHandle<Result<()>>,
    /// At shutdown it is not waited for any longer: it may wait for a receiver that hangs.
    is_abandonable: bool,
}

impl Worker {
    /// Starts it.
    pub fn spawn(
        name: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let thread = Builder::new().name(name.into()).spawn(work);
        let thread = thread.with_context(|| format!("cannot start the thread `{name}`"))?;
        Ok(Self { name, thread, is_abandonable: false })
    }

    /// Starts a worker of the agent, without any capabilities. It must exit soon after the feed is
    /// closed, and not before.
    pub(crate) fn of_agent(
        name: &'static str,
        shared: &Arc<AgentState>,
        work: impl FnOnce(&Arc<AgentState>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::clone(shared);
        Self::spawn(name, move || {
            let no_capabilities = capabilities::keep_only(CapabilitySet::empty());
            let outcome = no_capabilities.and_then(|()| work(&shared));
            outcome.with_context(|| format!("the thread `{name}` failed"))
        })
    }

    /// The same; it may wait for a receiver that hangs.
    pub(crate) fn abandonable(
        name: &'static str,
        shared: &Arc<AgentState>,
        work: impl FnOnce(&Arc<AgentState>) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        Ok(Self { is_abandonable: true, ..Self::of_agent(name, shared, work)? })
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end. A panic is an error with its message.
    pub fn join(self) -> Result<()> {
        let panicked = |panic: Box<dyn Any + Send>| {
            Err(anyhow!("the thread `{}` panicked: {}", self.name, panic_message(&*panic)))
        };
        self.thread.join().unwrap_or_else(panicked)
    }

    /// Waits for its end until `deadline`. A panic, or a thread that does not end, is an error.
    pub(crate) fn join_until(self, deadline: Instant) -> Result<()> {
        while !self.is_finished() {
            if Instant::now() >= deadline && self.is_abandonable {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("thread `{}` did not stop; exiting without it", self.name);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.join()
    }

    /// Returns the reason of an unexpected end.
    pub fn failure(self) -> anyhow::Error {
        let name = self.name;
        self.join().err().unwrap_or_else(|| anyhow!("the thread `{name}` ended without an error"))
    }
}

/// Returns the message of a panic, sanitized.
#[must_use]
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    sanitize(text.unwrap_or("no message")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn failure(work: impl FnOnce() -> Result<()> + Send + 'static) -> String {
        Worker::spawn("worker", work).unwrap().failure().to_string()
    }

    #[test]
    fn failure_holds_the_reason_of_the_end() {
        assert_eq!(
            failure(|| panic!("a\x1b[31m{}", 1)),
            "the thread `worker` panicked: a\\u{1b}[31m1"
        );
        assert_eq!(failure(|| panic!("static")), "the thread `worker` panicked: static");
        assert_eq!(
            failure(|| std::panic::panic_any(7)),
            "the thread `worker` panicked: no message"
        );
        assert_eq!(failure(|| bail!("no disk")), "no disk");
        assert_eq!(failure(|| Ok(())), "the thread `worker` ended without an error");
    }

    #[test]
    fn worker_that_does_not_exit_is_an_error() {
        let shared = AgentState::new(Config::default());
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let worker = Worker::of_agent("slow", &shared, move |_| {
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
        let worker = Worker::of_agent("http", &shared, |_| bail!("no port")).unwrap();
        assert_eq!(format!("{:#}", worker.failure()), "the thread `http` failed: no port");
    }
}
