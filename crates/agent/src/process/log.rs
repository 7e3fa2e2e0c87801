//! The log: one line per message, with its time and level. A separate thread writes it, so a full
//! pipe or a log driver that hangs never blocks the engine.

use std::fmt::{Debug, Write as _};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use formats::sanitize::{self, sanitize};
use rustix::thread::CapabilitySet;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, registry};

use super::{capabilities, fault};
use crate::config::log::{LogConfig, LogFormat};
use crate::process::threads::Worker;

/// Maximum number of queued messages; more are dropped and counted.
const QUEUE_MESSAGES: usize = 256;

/// Interval of fault points while there is nothing to write.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The log of this process and the thread that writes it.
pub(crate) struct Log {
    queue: Arc<Queue>,
    /// None after its exit was noticed.
    thread: Mutex<Option<Worker>>,
}

struct Queue {
    lines: SyncSender<String>,
    format: LogFormat,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Queued and not written yet.
    waiting: AtomicU64,
    /// Dropped because the queue was full.
    dropped: AtomicU64,
}

impl Log {
    /// Sends all log messages of this process to a new queue.
    pub(crate) fn install(config: &LogConfig) -> Result<Self> {
        let log = Self::start(config.resolved_format(), io::stderr())?;
        let layer = QueueLayer(Arc::clone(&log.queue)).with_filter(config.level.0.clone());
        registry().with(layer).try_init().context("cannot set up the log")?;
        Ok(log)
    }

    fn start(format: LogFormat, to: impl Write + Send + 'static) -> Result<Self> {
        let (lines, received) = sync_channel(QUEUE_MESSAGES);
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        let thread = Worker::spawn("log", move || {
            // It needs no capabilities; failing to drop them does not affect logging.
            let _ = capabilities::keep_only(CapabilitySet::empty());
            write_lines(&received, format, to, &shared);
            Ok(())
        })?;
        let queue = Arc::new(Queue { lines, format, counts });
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the reason why the log thread exited, if it did.
    pub(crate) fn failure(&self) -> Option<anyhow::Error> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        Some(thread.take_if(|thread| thread.is_finished())?.failure())
    }

    /// Waits until all messages are written, at most `timeout`.
    pub(crate) fn finish(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while self.queue.counts.waiting.load(Ordering::Relaxed) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Queue {
    fn push(&self, line: String) {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.lines.try_send(line) {
            self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
            match error {
                TrySendError::Full(_) => drop(self.counts.dropped.fetch_add(1, Ordering::Relaxed)),
                // The log thread has failed and the agent is about to exit: write the last messages
                // directly.
                TrySendError::Disconnected(line) => drop(writeln!(io::stderr(), "{line}")),
            }
        }
    }
}

fn write_lines(lines: &Receiver<String>, format: LogFormat, mut to: impl Write, counts: &Counts) {
    loop {
        fault::point();
        let line = match lines.recv_timeout(POLL_INTERVAL) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Nothing can be done about a closed stderr.
        let _ = writeln!(to, "{line}");
        let dropped = counts.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let text = format!("{dropped} log messages dropped (reader too slow)");
            let _ = writeln!(to, "{}", format.line(Level::WARN, &text, Map::new()));
        }
        counts.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

struct QueueLayer(Arc<Queue>);

impl<S: Subscriber> Layer<S> for QueueLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields { message, others } = fields;
        self.0.push(self.0.format.line(*event.metadata().level(), &message, others));
    }
}

/// The message and the other fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: impl Into<Value>) {
        self.others.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.add(field, sanitize(&text)),
        }
    }
}

impl LogFormat {
    /// Returns one message. Its text may quote files, processes and clients, so it is escaped.
    fn line(self, level: Level, message: &str, fields: Map<String, Value>) -> String {
        let message = sanitize::message(message);
        let time = || jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        let mut line = match self {
            Self::Json => {
                let mut all = Map::new();
                all.insert("time".into(), time().into());
                all.insert("level".into(), level.as_str().to_lowercase().into());
                all.insert("message".into(), message.into());
                all.extend(fields);
                return Value::Object(all).to_string();
            }
            // The journal has its own times, and reads the level from this prefix.
            Self::Journald => format!("<{}>{message}", priority(level)),
            Self::Auto | Self::Text => format!("{} {level:<5} {message}", time()),
        };
        for (name, value) in fields {
            // Writing to a string cannot fail.
            let _ = write!(line, " {name}={value}");
        }
        line
    }
}

/// Syslog priority of a level.
const fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[cfg(test)]
mod tests {
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
        let log = Log::start(LogFormat::Text, reader.clone()).unwrap();
        for number in 0..1000 {
            log.queue.push(format!("message {number}"));
        }
        log.finish(Duration::from_millis(50));
        assert!(locked.is_empty());
        drop(locked);
        log.finish(Duration::from_secs(20));
        let text = String::from_utf8(reader.0.lock().unwrap().clone()).unwrap();
        let written = text.lines().filter(|line| line.starts_with("message ")).count() as u64;
        let dropped: u64 = text
            .lines()
            .filter_map(|line| line.split_once(" WARN  ")?.1.split_once(" log messages dropped"))
            .map(|(count, _)| count.parse::<u64>().unwrap())
            .sum();
        assert_eq!(written + dropped, 1000, "{text}");
        assert!(written >= QUEUE_MESSAGES as u64, "{written}");
    }

    /// Returns the lines that one format makes of events.
    fn logged(format: LogFormat, level: &str, events: impl FnOnce()) -> Vec<String> {
        let reader = SlowReader::default();
        let log = Log::start(format, reader.clone()).unwrap();
        let filter = level.parse::<tracing_subscriber::filter::Targets>().unwrap();
        let layer = QueueLayer(Arc::clone(&log.queue)).with_filter(filter);
        tracing::subscriber::with_default(registry().with(layer), events);
        log.finish(Duration::from_secs(20));
        let text = String::from_utf8(reader.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn formats_have_level_message_and_fields() {
        let events = || {
            tracing::error!(pid = 7, process = "a\x1b[2J", "no \"disk\"\x07");
            tracing::debug!("hidden");
        };
        let text = logged(LogFormat::Text, "info", events);
        let [line] = &text[..] else { panic!("{text:?}") };
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok(), "{time}");
        assert_eq!(rest, "ERROR no \"disk\"\\u{7} pid=7 process=\"a\\\\u{1b}[2J\"");
        let journal = logged(LogFormat::Journald, "info", events);
        assert_eq!(journal, ["<3>no \"disk\"\\u{7} pid=7 process=\"a\\\\u{1b}[2J\""]);
        let json: Value =
            serde_json::from_str(&logged(LogFormat::Json, "info", events)[0]).unwrap();
        assert_eq!((&json["level"], &json["pid"]), (&"error".into(), &7.into()));
        assert_eq!(json["message"], "no \"disk\"\\u{7}");
        assert_eq!(json["process"], "a\\u{1b}[2J");
        assert_eq!(logged(LogFormat::Text, "debug", events).len(), 2);
        assert_eq!(logged(LogFormat::Text, "off", events).len(), 0);
    }

    #[test]
    fn further_lines_of_a_message_are_indented() {
        let text = logged(LogFormat::Text, "info", || tracing::info!("a\nvramscope: b"));
        assert_eq!(text.len(), 2);
        assert_eq!(text[1], "  vramscope: b");
    }
}
