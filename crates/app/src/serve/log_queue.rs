//! Log messages of the agent. A separate thread writes them, so a full pipe or a log driver that
//! hangs never blocks the engine.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::thread::CapabilitySet;

use super::capabilities;
use crate::fault;
use crate::io::output;
use crate::threads::Worker;

/// Maximum number of queued messages; more are dropped and counted.
const QUEUE_MESSAGES: usize = 256;

/// A queue of log messages and the thread that writes them.
pub(crate) struct LogQueue {
    queue: SyncSender<String>,
    counts: Arc<LogCounts>,
    /// None after its exit was noticed.
    thread: Mutex<Option<Worker>>,
}

#[derive(Default)]
struct LogCounts {
    /// Queued and not written yet.
    waiting: AtomicU64,
    /// Dropped because the queue was full.
    dropped: AtomicU64,
}

impl LogQueue {
    /// Redirects all log messages of this process to a new queue.
    pub(crate) fn install() -> Result<Arc<Self>> {
        let messages = Arc::new(Self::start(io::stderr())?);
        let queue = Arc::clone(&messages);
        output::redirect_log(move |line| queue.push(line));
        Ok(messages)
    }

    fn start(to: impl Write + Send + 'static) -> Result<Self> {
        let (queue, lines) = sync_channel(QUEUE_MESSAGES);
        let counts = Arc::new(LogCounts::default());
        let shared = Arc::clone(&counts);
        let thread = Worker::spawn("messages", move || {
            // It needs no capabilities; failing to drop them does not affect logging.
            let _ = capabilities::keep_only(CapabilitySet::empty());
            write(&lines, to, &shared);
            Ok(())
        })?;
        Ok(Self { queue, counts, thread: Mutex::new(Some(thread)) })
    }

    fn push(&self, line: String) {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        let sent = self.queue.try_send(line);
        if let Err(error) = sent {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => drop(self.counts.dropped.fetch_add(1, Ordering::Relaxed)),
                // The log thread has failed and the agent is about to exit: write the last messages
                // directly.
                TrySendError::Disconnected(line) => drop(writeln!(io::stderr(), "{line}")),
            }
        }
    }

    /// Returns the reason why the log thread exited, if it did.
    pub(crate) fn failure(&self) -> Option<anyhow::Error> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        Some(thread.take_if(|thread| thread.is_finished())?.failure())
    }

    /// Waits until all messages are written, at most `timeout`.
    pub(crate) fn finish(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while self.counts.waiting.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn write(lines: &Receiver<String>, mut to: impl Write, counts: &LogCounts) {
    for line in lines {
        fault::point();
        // Nothing can be done about a closed stderr.
        let _ = writeln!(to, "{line}");
        let dropped = counts.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let _ = writeln!(to, "vramscope: {dropped} log messages dropped (reader too slow)");
        }
        counts.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A reader that blocks while it is locked.
    #[derive(Clone, Default)]
    struct SlowReader(Arc<Mutex<Vec<u8>>>);

    impl Write for SlowReader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn slow_reader_does_not_block_and_drops_are_counted() {
        let reader = SlowReader::default();
        let locked = reader.0.lock().unwrap();
        let messages = LogQueue::start(reader.clone()).unwrap();
        for number in 0..1000 {
            messages.push(format!("message {number}"));
        }
        messages.finish(Duration::from_millis(50));
        assert!(locked.is_empty());
        drop(locked);
        messages.finish(Duration::from_secs(20));
        let text = String::from_utf8(reader.0.lock().unwrap().clone()).unwrap();
        let written = text.lines().filter(|line| line.starts_with("message ")).count() as u64;
        let dropped: u64 = text
            .lines()
            .filter_map(|line| {
                line.strip_prefix("vramscope: ")?.split_once(" log messages dropped")
            })
            .map(|(count, _)| count.parse::<u64>().unwrap())
            .sum();
        assert_eq!(written + dropped, 1000, "{text}");
        assert!(written >= QUEUE_MESSAGES as u64, "{written}");
    }
}
