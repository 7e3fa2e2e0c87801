//! Entries of a trace.

use super::events::{Action, COMPLETED, EXPANDABLE, Event, NO_SITE, NO_STREAM, NO_TIME};
use super::meaning::{Meaning, site_of};
use super::value::{Run, Thing, Value};
use super::words::{Word, WordId};

/// Fields of an entry.
#[derive(Default)]
pub(super) struct Entry {
    action: Option<WordId>,
    address: Option<u64>,
    free: Option<u64>,
    size: Option<Value>,
    stream: Option<u64>,
    time: Option<u64>,
    site: Option<u32>,
    native: Option<u32>,
    category: Option<WordId>,
}

impl Entry {
    /// Sets the field of a key.
    #[inline]
    pub(super) fn set(&mut self, key: Word, value: Value) {
        match (key, value) {
            (Word::Action, Value::Text(action)) => self.action = Some(action),
            (Word::Addr, value) => self.address = value.pointer(),
            (Word::Size, value) => self.size = Some(value),
            (Word::Stream, value) => self.stream = value.pointer(),
            (Word::TimeUs, value) => self.time = value.number(),
            (Word::Frames, Value::Site(site)) => self.site = Some(site),
            (Word::CppFrames, Value::Site(site)) => self.native = Some(site),
            (Word::DeviceFree, value) => self.free = value.number(),
            (Word::Category, Value::Text(category)) => self.category = Some(category),
            _ => {}
        }
    }
}

/// Reads an entry and adds it to the others.
pub(super) fn read(builder: &mut Meaning<'_>, items: &[Value]) -> Value {
    let mut entry = Entry::default();
    for pair in items.chunks_exact(2) {
        let [Value::Text(key), value] = *pair else { continue };
        if let Some(word) = Word::of(key) {
            entry.set(word, value);
        }
    }
    keep(builder, &entry)
}

/// Adds an entry to the others.
pub(super) fn keep(builder: &mut Meaning<'_>, entry: &Entry) -> Value {
    let first = builder.events.len();
    add(builder, entry);
    Value::Items(Run { of: Thing::Entry, first, count: builder.events.len() - first })
}

fn add(builder: &mut Meaning<'_>, entry: &Entry) {
    let Some(name) = entry.action else {
        builder.notes.unusable += 1;
        return;
    };
    let (action, flags) = match Word::of(name) {
        Some(Word::Alloc) => (Action::Alloc, 0),
        Some(Word::FreeRequested) => (Action::FreeRequested, 0),
        // Older files have one entry for both.
        Some(Word::Free) => (Action::FreeRequested, COMPLETED),
        Some(Word::FreeCompleted) => (Action::FreeCompleted, 0),
        Some(Word::SegmentAlloc) => (Action::Reserved, 0),
        Some(Word::SegmentFree) => (Action::Returned, 0),
        Some(Word::SegmentMap) => (Action::Reserved, EXPANDABLE),
        Some(Word::SegmentUnmap) => (Action::Returned, EXPANDABLE),
        Some(Word::Oom) => (Action::Oom, 0),
        Some(Word::Snapshot | Word::Annotate) => return,
        _ => {
            builder.notes.unknown_action(name);
            return;
        }
    };
    let address = if action == Action::Oom { entry.free.or(Some(0)) } else { entry.address };
    let Some(address) = address else {
        builder.notes.unusable += 1;
        return;
    };
    builder.used += 1;
    if action == Action::FreeCompleted
        && let Some(last) = builder.events.last_mut()
        && last.action == Action::FreeRequested
        && last.address == address
        && last.time == entry.time.unwrap_or(NO_TIME)
    {
        last.flags |= COMPLETED;
        return;
    }
    let size = size_of_memory(builder, entry.size);
    let site = site(builder, entry);
    let stream = entry.stream.map_or(NO_STREAM, |stream| builder.streams.index(stream));
    let time = entry.time.unwrap_or(NO_TIME);
    builder.events.push(Event { address, size, time, site, stream, action, flags });
}

fn site(builder: &mut Meaning<'_>, entry: &Entry) -> u32 {
    let site = match entry.native {
        None => entry.site.unwrap_or(NO_SITE),
        native => site_of(builder, entry.site, native),
    };
    let Some(category) = entry.category else { return site };
    builder.is_profile = true;
    let known = (site != NO_SITE).then_some(site);
    let stacks = builder.sink.stacks();
    builder.frames.with_category(known, category, &builder.words, stacks).0
}

/// Returns a size, or 0 if it is larger than any address space.
pub(super) fn size_of_memory(builder: &mut Meaning<'_>, size: Option<Value>) -> u64 {
    // No machine has more address space than this.
    const MOST: u64 = 1 << 57;
    match size.map(Value::number) {
        Some(Some(size)) if size <= MOST => size,
        None => 0,
        _ => {
            builder.notes.nonsense += 1;
            0
        }
    }
}
