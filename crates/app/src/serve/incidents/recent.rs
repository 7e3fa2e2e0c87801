//! The last events, so that an incident can be looked at as a recording. Bounded by number and by
//! bytes; an event costs a copy into memory that is there already.
//!
//! Events are kept in chunks. What hands them to the writer shares the chunks, so that the engine
//! thread copies no more than the one that is being filled; a chunk that falls out is used again.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::event::{Event, What};

use super::before::Before;

/// Events in a chunk.
const CHUNK: usize = 1024;

/// The last events.
pub(crate) struct Recent {
    full: VecDeque<Chunk>,
    /// What is being filled.
    last: Vec<Event>,
    last_extra: usize,
    /// Bytes of all full chunks.
    bytes: usize,
    /// A chunk that fell out, to be filled again.
    spare: Option<Vec<Event>>,
    /// What was known when the oldest event happened.
    before: Before,
    most_chunks: usize,
    most_bytes: usize,
    forgotten: u64,
}

struct Chunk {
    events: Arc<Vec<Event>>,
    bytes: usize,
}

/// The last events at one moment.
#[derive(Clone, Default)]
pub(crate) struct Excerpt {
    /// What has to be known to understand them.
    pub(crate) before: Vec<Event>,
    chunks: Vec<Arc<Vec<Event>>>,
    /// Events from before them that were seen, and are not here.
    pub(crate) forgotten: u64,
}

impl Recent {
    pub(crate) fn new(events: usize, bytes: u64) -> Self {
        Self {
            full: VecDeque::new(),
            last: Vec::with_capacity(CHUNK.min(events.max(1))),
            last_extra: 0,
            bytes: 0,
            spare: None,
            before: Before::default(),
            most_chunks: (events / CHUNK).max(1),
            most_bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            forgotten: 0,
        }
    }

    /// Remembers an event. Launches and copies are sums that come many times a second and tell nothing
    /// about memory; what sites look like is asked of the ledger when it is needed.
    pub(crate) fn push(&mut self, event: &Event) {
        if matches!(event.what, What::Work(_) | What::Site(_)) {
            return;
        }
        self.last_extra += extra(&event.what);
        self.last.push(event.clone());
        let bytes = self.last.len() * size_of::<Event>() + self.last_extra;
        if self.last.len() >= CHUNK || bytes > self.most_bytes / 8 {
            self.close(bytes);
        }
    }

    fn close(&mut self, bytes: usize) {
        let next = self.spare.take().unwrap_or_else(|| Vec::with_capacity(CHUNK));
        let events = Arc::new(std::mem::replace(&mut self.last, next));
        self.last_extra = 0;
        self.bytes += bytes;
        self.full.push_back(Chunk { events, bytes });
        while self.full.len() > self.most_chunks || self.bytes > self.most_bytes {
            let Some(oldest) = self.full.pop_front() else { return };
            self.bytes = self.bytes.saturating_sub(oldest.bytes);
            self.forgotten += oldest.events.len() as u64;
            for event in &*oldest.events {
                self.before.note(event);
            }
            // A writer may still read it; then it goes when that is done.
            if let Ok(mut events) = Arc::try_unwrap(oldest.events) {
                events.clear();
                self.spare = Some(events);
            }
        }
    }

    /// The events so far.
    pub(crate) fn excerpt(&self) -> Excerpt {
        let mut chunks: Vec<_> = self.full.iter().map(|chunk| Arc::clone(&chunk.events)).collect();
        chunks.push(Arc::new(self.last.clone()));
        let first = chunks.iter().flat_map(|chunk| chunk.iter()).next();
        let at = first.map(|event| event.at).unwrap_or_default();
        Excerpt { before: self.before.events(at), chunks, forgotten: self.forgotten }
    }

    /// Bytes that are in use.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.last.len() * size_of::<Event>() + self.last_extra
    }
}

impl Excerpt {
    /// The events, the oldest first.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Event> {
        self.chunks.iter().flat_map(|chunk| chunk.iter())
    }
}

/// What an event takes beside itself.
fn extra(what: &What) -> usize {
    match what {
        What::Process(facts) => facts.name.len(),
        What::ThreadName(name) => name.len(),
        What::Gpus(gpus) => size_of_val::<[_]>(gpus),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use engine::event::{ContextChange, Free, FreeBy, ProcessFacts};
    use engine::ids::{ContextId, DeviceId, GpuId, Key, Pid};

    use super::super::made::{allocate, event};
    use super::*;

    fn free(at: u64) -> Event {
        event(at, What::Free(Free { key: Key::address(at), by: FreeBy::Free, stream: None }))
    }

    #[test]
    fn the_last_events_are_kept_in_order_and_the_older_ones_are_counted() {
        let mut recent = Recent::new(4 * CHUNK, 1 << 30);
        let all: Vec<Event> =
            (0..10_000).map(|at| if at % 2 == 0 { allocate(at) } else { free(at) }).collect();
        all.iter().for_each(|event| recent.push(event));
        let excerpt = recent.excerpt();
        let kept: Vec<Event> = excerpt.events().cloned().collect();
        assert!(kept.len() >= 4 * CHUNK && kept.len() <= 5 * CHUNK, "{}", kept.len());
        assert_eq!(kept, all[all.len() - kept.len()..]);
        assert_eq!(excerpt.forgotten, (all.len() - kept.len()) as u64);
    }

    #[test]
    fn bytes_are_bounded_however_long_names_are() {
        let mut recent = Recent::new(1_000_000, 1 << 20);
        for at in 0..20_000 {
            recent.push(&event(at, What::ThreadName("x".repeat(4000).into())));
            assert!(recent.bytes() <= (1 << 20) + (1 << 18), "{}", recent.bytes());
        }
        assert!(recent.excerpt().events().count() > 100);
    }

    #[test]
    fn what_was_known_before_the_oldest_event_is_told() {
        let mut recent = Recent::new(CHUNK, 1 << 30);
        let facts = ProcessFacts { start: 5, uid: 3, name: "old".into(), before_trace: false };
        recent.push(&event(1, What::Process(facts.clone())));
        recent.push(&event(2, What::Gpus([Some(GpuId(4))].into())));
        let learned = ContextChange::Learned { context: ContextId(1), device: DeviceId(0) };
        recent.push(&event(3, What::Context(learned)));
        (10..10_000).for_each(|at| recent.push(&allocate(at)));
        let before: Vec<What> =
            recent.excerpt().before.into_iter().map(|event| event.what).collect();
        assert_eq!(
            before,
            [
                What::Process(ProcessFacts { before_trace: true, ..facts }),
                What::Gpus([Some(GpuId(4))].into()),
                What::Context(learned),
            ]
        );
        recent.push(&event(20_000, What::Exit));
        (20_001..30_000).for_each(|at| recent.push(&Event { pid: Pid(8), ..allocate(at) }));
        assert!(recent.excerpt().before.is_empty(), "who ended before is not told");
    }

    #[test]
    fn an_excerpt_does_not_change_when_more_events_come() {
        let mut recent = Recent::new(2 * CHUNK, 1 << 30);
        (0..3000).for_each(|at| recent.push(&allocate(at)));
        let excerpt = recent.excerpt();
        let before: Vec<Event> = excerpt.events().cloned().collect();
        (3000..30_000).for_each(|at| recent.push(&allocate(at)));
        assert_eq!(excerpt.events().cloned().collect::<Vec<_>>(), before);
    }

    /// Printed for whoever asks; the bound is far above what it takes, for slow machines.
    #[test]
    fn an_event_costs_far_less_than_a_microsecond() {
        let mut recent = Recent::new(100_000, 32 << 20);
        let events: Vec<Event> = (0..1000).map(allocate).collect();
        let begin = std::time::Instant::now();
        const ROUNDS: u32 = 2000;
        for _ in 0..ROUNDS {
            events.iter().for_each(|event| recent.push(event));
        }
        let each = begin.elapsed().as_nanos() as f64 / f64::from(ROUNDS * 1000);
        println!("{each:.0} ns an event of {} bytes", size_of::<Event>());
        assert!(each < 1000.0, "{each:.0} ns an event");
    }
}
