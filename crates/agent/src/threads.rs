//! Threads whose end is detected, with the reason.

use std::any::Any;
use std::thread::{Builder, JoinHandle};

use anyhow::{Context, Result, anyhow};
use formats::sanitize::sanitize;

/// A thread that runs until it is asked to stop.
pub struct Worker {
    name: &'static str,
    thread: JoinHandle<Result<()>>,
}

impl Worker {
    /// Starts it.
    pub fn spawn(
        name: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let thread = Builder::new().name(name.into()).spawn(work);
        let thread = thread.with_context(|| format!("cannot start the thread `{name}`"))?;
        Ok(Self { name, thread })
    }

    /// Returns its name.
    pub const fn name(&self) -> &'static str {
        self.name
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
    use anyhow::bail;

    use super::*;

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
}
