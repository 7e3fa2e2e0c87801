//! Threads whose end is detected, with the reason.

use std::any::Any;
use std::panic;
use std::thread::{self, Builder, JoinHandle};

use anyhow::{Context, Result, anyhow};
use formats::sanitize::sanitize;

use crate::io::output;

/// A thread that runs until it is asked to stop.
pub(crate) struct Worker {
    name: &'static str,
    thread: JoinHandle<Result<()>>,
}

impl Worker {
    /// Starts it.
    pub(crate) fn spawn(
        name: &'static str,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let thread = Builder::new().name(name.into()).spawn(work);
        let thread = thread.with_context(|| format!("cannot start the thread `{name}`"))?;
        Ok(Self { name, thread })
    }

    /// Returns its name.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// Whether it has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end. A panic is an error with its message.
    pub(crate) fn join(self) -> Result<()> {
        let panicked = |panic: Box<dyn Any + Send>| {
            Err(anyhow!("the thread `{}` panicked: {}", self.name, message(&*panic)))
        };
        self.thread.join().unwrap_or_else(panicked)
    }

    /// Returns the reason of an unexpected end.
    pub(crate) fn failure(self) -> anyhow::Error {
        let name = self.name;
        self.join().err().unwrap_or_else(|| anyhow!("the thread `{name}` ended without an error"))
    }
}

/// Logs a panic as one message, which never blocks on a reader. With `RUST_BACKTRACE`, the default
/// report with a backtrace is printed instead.
pub(crate) fn report_panics() {
    let default_hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        if std::env::var_os("RUST_BACKTRACE").is_some() {
            return default_hook(info);
        }
        let location = info.location().map_or_else(String::new, |at| format!(" at {at}"));
        let current = thread::current();
        let (name, reason) = (current.name().unwrap_or("?"), message(info.payload()));
        output::log(&format!("the thread `{name}` panicked{location}: {reason}"));
    }));
}

/// Returns the message of a panic.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    sanitize(capture::panic_message(panic)).into_owned()
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
