//! An agent in this process that is fed with a recording, as if its programs ran now.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use agent::{Message, Program, Source};
use engine::model::{Event, StackMode, Timestamp};
use formats::export::GpuLabel;
use formats::recording::{RecordingReader, RecordingRow};

use super::http;

/// Events of a recording, moved to the present.
struct Recorded {
    gpus: Vec<GpuLabel>,
    events: RefCell<VecDeque<Event>>,
}

impl Recorded {
    fn open(path: &Path) -> Self {
        let mut reader = RecordingReader::open(path, |_| None).unwrap();
        let (mut gpus, mut events, mut start) = (Vec::new(), VecDeque::new(), Timestamp(0));
        while let Some(row) = reader.next_row().unwrap() {
            match row {
                RecordingRow::Gpu(gpu) => gpus.push(gpu),
                RecordingRow::Clock(clock) => start = clock.start(),
                RecordingRow::Event(event) => events.push_back(event),
                _ => {}
            }
        }
        let now = capture::monotonic();
        let moved = |time: Timestamp| Timestamp(time.0.wrapping_sub(start.0).wrapping_add(now.0));
        for event in &mut events {
            (event.entry_time, event.time) = (moved(event.entry_time), moved(event.time));
        }
        Self { gpus, events: RefCell::new(events) }
    }
}

impl Source for Recorded {
    fn gpus(&self) -> Vec<GpuLabel> {
        self.gpus.clone()
    }

    fn counts_activity(&self) -> bool {
        false
    }

    fn next(&self, deadline: Instant) -> Option<Message> {
        let mut events = self.events.borrow_mut();
        let now = capture::monotonic();
        let due = events.iter().position(|event| event.time > now).unwrap_or(events.len());
        if due > 0 {
            return Some(Message::Events(events.drain(..due).collect()));
        }
        let next = events.front().map_or(u64::MAX, |event| event.time.0 - now.0);
        let rest = deadline.saturating_duration_since(Instant::now());
        std::thread::sleep(rest.min(Duration::from_nanos(next)));
        None
    }

    fn complete_until(&self) -> Timestamp {
        capture::monotonic()
    }

    fn limit_stacks(&self, _: StackMode) {}

    fn finish(self: Box<Self>) -> (Vec<Message>, Timestamp) {
        (Vec::new(), capture::monotonic())
    }
}

/// Starts an agent for the rest of the process; returns its address.
pub fn start(recording: &Path, state_dir: &Path) -> String {
    static IS_INTERRUPTED: AtomicBool = AtomicBool::new(false);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = free.local_addr().unwrap();
    drop(free);
    let mut config = agent::config::Config::default();
    (config.http.listen, config.state_dir) = (listen, state_dir.to_owned());
    config.make_state().unwrap();
    let program = Program {
        clock: capture::monotonic,
        function_name: capture::hooks::function_name,
        write_html: |_, _, _| anyhow::bail!("not in this test"),
        fault_point: || (),
    };
    let recording = recording.to_owned();
    std::thread::spawn(move || {
        let open = |_: &_| Ok(Box::new(Recorded::open(&recording)) as Box<dyn Source>);
        agent::run(config, program, &IS_INTERRUPTED, open).unwrap()
    });
    let address = listen.to_string();
    super::until("the agent", String::new, || {
        http::get(&address, "/readyz", "").is_ok().then_some(())
    });
    address
}
