//! Messages of the agent: a thread of their own writes them, so that nobody waits for whoever should read
//! them. A full pipe, or a log driver that hangs, would hold up the engine otherwise.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::thread::CapabilitySet;

use super::rights;
use crate::threads::Worker;
use crate::{fault, output};

/// Messages that may wait; beyond, they are dropped, and counted.
const QUEUE: usize = 256;

/// See the module.
pub(crate) struct Messages {
    queue: SyncSender<String>,
    counts: Arc<Counts>,
    /// Until its end was noticed.
    thread: Mutex<Option<Worker>>,
}

#[derive(Default)]
struct Counts {
    /// Handed over, and not written yet.
    waiting: AtomicU64,
    /// There was no room for them.
    dropped: AtomicU64,
}

impl Messages {
    /// From now on messages of this process go through it.
    pub(crate) fn divert() -> Result<Arc<Self>> {
        let messages = Arc::new(Self::start(io::stderr())?);
        let kept = Arc::clone(&messages);
        output::divert(move |line| kept.tell(line));
        Ok(messages)
    }

    fn start(to: impl Write + Send + 'static) -> Result<Self> {
        let (queue, lines) = sync_channel(QUEUE);
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        let thread = Worker::spawn("messages", move || {
            // It keeps no right; one that cannot be given up does not make messages worse.
            let _ = rights::only(CapabilitySet::empty());
            write(&lines, to, &shared);
            Ok(())
        })?;
        Ok(Self { queue, counts, thread: Mutex::new(Some(thread)) })
    }

    fn tell(&self, line: String) {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        let refused = self.queue.try_send(line);
        if let Err(refused) = refused {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            match refused {
                TrySendError::Full(_) => drop(self.counts.dropped.fetch_add(1, Ordering::Relaxed)),
                // The agent is about to end for it; its last messages may be worth waiting for.
                TrySendError::Disconnected(line) => drop(writeln!(io::stderr(), "{line}")),
            }
        }
    }

    /// Why the thread that writes ended, if it did.
    pub(crate) fn failure(&self) -> Option<anyhow::Error> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        Some(thread.take_if(|thread| thread.is_finished())?.failure())
    }

    /// Waits until everything is written, but not for longer than that.
    pub(crate) fn finish(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.counts.waiting.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn write(lines: &Receiver<String>, mut to: impl Write, counts: &Counts) {
    for line in lines {
        fault::point();
        // A closed stderr is nobody's problem.
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

    /// A reader that takes nothing while it is locked.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<Vec<u8>>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nobody_waits_for_whoever_does_not_read_and_what_is_dropped_is_counted() {
        let reader = Slow::default();
        let held = reader.0.lock().unwrap();
        let messages = Messages::start(reader.clone()).unwrap();
        for number in 0..1000 {
            messages.tell(format!("message {number}"));
        }
        messages.finish(Duration::from_millis(50));
        assert!(held.is_empty());
        drop(held);
        messages.finish(Duration::from_secs(20));
        let text = String::from_utf8(reader.0.lock().unwrap().clone()).unwrap();
        let whole = text.lines().filter(|line| line.starts_with("message ")).count() as u64;
        let dropped: u64 = text
            .lines()
            .filter_map(|line| {
                line.strip_prefix("vramscope: ")?.split_once(" log messages dropped")
            })
            .map(|(count, _)| count.parse::<u64>().unwrap())
            .sum();
        assert_eq!(whole + dropped, 1000, "{text}");
        assert!(whole >= QUEUE as u64, "{whole}");
    }
}
