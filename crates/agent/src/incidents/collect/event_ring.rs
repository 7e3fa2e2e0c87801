//! The last events, from which an incident's recording is written. Bounded by number and bytes;
//! storing an event costs one copy into preallocated memory.
//! | Events are kept in chunks. The writer shares full chunks, so the engine thread copies only the
//! chunk that is being filled. Chunks that leave the ring are reused.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::model::{Event, EventKind};

use super::prior_state::PriorState;

/// Events per chunk.
const CHUNK_EVENTS: usize = 1024;

/// Ring of the last events.
pub(crate) struct EventRing {
    full: VecDeque<EventChunk>,
    /// The chunk that is being filled.
    last: Vec<Event>,
    last_extra: usize,
    /// Total bytes of full chunks.
    bytes: usize,
    /// A chunk that left the ring, to be reused.
    spare: Option<Vec<Event>>,
    /// State before the oldest event.
    before: PriorState,
    max_chunks: usize,
    max_bytes: usize,
    dropped: u64,
}

struct EventChunk {
    events: Arc<Vec<Event>>,
    bytes: usize,
}

/// The last events at one time.
#[derive(Clone, Default)]
pub(crate) struct EventWindow {
    /// State that is needed to interpret them.
    pub(crate) before: Vec<Event>,
    chunks: Vec<Arc<Vec<Event>>>,
    /// Earlier events that were seen but are not included.
    pub(crate) dropped: u64,
}

impl EventRing {
    pub(crate) fn new(events: usize, bytes: u64) -> Self {
        Self {
            full: VecDeque::new(),
            last: Vec::with_capacity(CHUNK_EVENTS.min(events.max(1))),
            last_extra: 0,
            bytes: 0,
            spare: None,
            before: PriorState::default(),
            max_chunks: (events / CHUNK_EVENTS).max(1),
            max_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            dropped: 0,
        }
    }

    /// Stores an event. Launches and copies are frequent totals that are not needed for memory, and
    /// the frames of sites are read from the ledger when needed; both are skipped.
    pub(crate) fn push(&mut self, event: &Event) {
        if matches!(event.kind, EventKind::Activity(_) | EventKind::Site(_)) {
            return;
        }
        self.last_extra += extra(&event.kind);
        self.last.push(event.clone());
        let bytes = self.last.len() * size_of::<Event>() + self.last_extra;
        if self.last.len() >= CHUNK_EVENTS || bytes > self.max_bytes / 8 {
            self.close(bytes);
        }
    }

    fn close(&mut self, bytes: usize) {
        let next = self.spare.take().unwrap_or_else(|| Vec::with_capacity(CHUNK_EVENTS));
        let events = Arc::new(std::mem::replace(&mut self.last, next));
        self.last_extra = 0;
        self.bytes += bytes;
        self.full.push_back(EventChunk { events, bytes });
        while self.full.len() > self.max_chunks || self.bytes > self.max_bytes {
            let Some(oldest) = self.full.pop_front() else { return };
            self.bytes = self.bytes.saturating_sub(oldest.bytes);
            self.dropped += oldest.events.len() as u64;
            for event in &*oldest.events {
                self.before.observe(event);
            }
            // The writer may still read it; then it is freed afterwards.
            if let Ok(mut events) = Arc::try_unwrap(oldest.events) {
                events.clear();
                self.spare = Some(events);
            }
        }
    }

    /// Returns the events so far.
    pub(crate) fn window(&self) -> EventWindow {
        let mut chunks: Vec<_> = self.full.iter().map(|chunk| Arc::clone(&chunk.events)).collect();
        chunks.push(Arc::new(self.last.clone()));
        let first = chunks.iter().flat_map(|chunk| chunk.iter()).next();
        let at = first.map(|event| event.time).unwrap_or_default();
        EventWindow { before: self.before.events(at), chunks, dropped: self.dropped }
    }

    /// Used bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.last.len() * size_of::<Event>() + self.last_extra
    }
}

impl EventWindow {
    /// Returns the events, oldest first.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Event> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

/// Heap bytes of an event.
fn extra(kind: &EventKind) -> usize {
    match kind {
        EventKind::Process(info) => info.name.len(),
        EventKind::Identity(identity) => {
            let text = |text: &Option<Box<str>>| text.as_ref().map_or(0, |text| text.len());
            size_of_val(&**identity) + text(&identity.program) + text(&identity.user)
        }
        EventKind::ThreadName(text) | EventKind::KeptBy(_, text) => text.len(),
        EventKind::Gpus(gpus) => size_of_val::<[_]>(gpus),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use engine::model::{
        AllocationKey, ContextCall, ContextId, DeviceId, Free, FreeFunction, GpuId, Pid,
        ProcessInfo,
    };

    use super::super::test_events::{allocate, event};
    use super::*;

    fn free(at: u64) -> Event {
        event(
            at,
            EventKind::Free(Free {
                key: AllocationKey::address(at),
                by: FreeFunction::Free,
                stream: None,
            }),
        )
    }

    #[test]
    fn last_events_are_kept_and_older_ones_counted() {
        let mut ring = EventRing::new(4 * CHUNK_EVENTS, 1 << 30);
        let all: Vec<Event> =
            (0..10_000).map(|at| if at % 2 == 0 { allocate(at) } else { free(at) }).collect();
        all.iter().for_each(|event| ring.push(event));
        let window = ring.window();
        let kept: Vec<Event> = window.events().cloned().collect();
        assert!(kept.len() >= 4 * CHUNK_EVENTS && kept.len() <= 5 * CHUNK_EVENTS, "{}", kept.len());
        assert_eq!(kept, all[all.len() - kept.len()..]);
        assert_eq!(window.dropped, (all.len() - kept.len()) as u64);
    }

    #[test]
    fn bytes_are_bounded_with_long_names() {
        let mut ring = EventRing::new(1_000_000, 1 << 20);
        for at in 0..20_000 {
            ring.push(&event(at, EventKind::ThreadName("x".repeat(4000).into())));
            assert!(ring.bytes() <= (1 << 20) + (1 << 18), "{}", ring.bytes());
        }
        assert!(ring.window().events().count() > 100);
    }

    #[test]
    fn state_before_the_oldest_event_is_kept() {
        let mut ring = EventRing::new(CHUNK_EVENTS, 1 << 30);
        let info = ProcessInfo { start: 5, uid: 3, name: "old".into(), before_trace: false };
        ring.push(&event(1, EventKind::Process(info.clone())));
        ring.push(&event(2, EventKind::Gpus([Some(GpuId(4))].into())));
        let discovered = ContextCall::Learned { context: ContextId(1), device: DeviceId(0) };
        ring.push(&event(3, EventKind::Context(discovered)));
        (10..10_000).for_each(|at| ring.push(&allocate(at)));
        let before: Vec<EventKind> =
            ring.window().before.into_iter().map(|event| event.kind).collect();
        assert_eq!(
            before,
            [
                EventKind::Process(ProcessInfo { before_trace: true, ..info }),
                EventKind::Gpus([Some(GpuId(4))].into()),
                EventKind::Context(discovered),
            ]
        );
        ring.push(&event(20_000, EventKind::Exit));
        (20_001..30_000).for_each(|at| ring.push(&Event { pid: Pid(8), ..allocate(at) }));
        assert!(ring.window().before.is_empty(), "exited processes are dropped");
    }

    #[test]
    fn window_does_not_change_with_later_events() {
        let mut ring = EventRing::new(2 * CHUNK_EVENTS, 1 << 30);
        (0..3000).for_each(|at| ring.push(&allocate(at)));
        let window = ring.window();
        let before: Vec<Event> = window.events().cloned().collect();
        (3000..30_000).for_each(|at| ring.push(&allocate(at)));
        assert_eq!(window.events().cloned().collect::<Vec<_>>(), before);
    }

    /// The cost is printed; the limit is far above it, for slow machines.
    #[test]
    fn storing_an_event_takes_less_than_a_microsecond() {
        let mut ring = EventRing::new(100_000, 32 << 20);
        let events: Vec<Event> = (0..1000).map(allocate).collect();
        let begin = std::time::Instant::now();
        const ROUNDS: u32 = 2000;
        for _ in 0..ROUNDS {
            events.iter().for_each(|event| ring.push(event));
        }
        let each = begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS * 1000);
        println!("{each:.0} ns per event of {} bytes", size_of::<Event>());
        assert!(each < 1000.0, "{each:.0} ns per event");
    }
}
