//! Entries of a trace.

use super::super::pickle::strings::{KnownString, StringId};
use super::super::pickle::value::{RunItem, Value, ValueRun};
use super::builder::{SnapshotBuilder, site_of};
use super::state::fields;
use super::trace_entries::{
    COMPLETED, EXPANDABLE, NO_SITE, NO_STREAM, NO_TIME, TraceAction, TraceEntry,
};

/// Fields of an entry.
#[derive(Default)]
pub(crate) struct EntryFields {
    action: Option<StringId>,
    address: Option<u64>,
    free: Option<u64>,
    size: Option<Value>,
    stream: Option<u64>,
    time: Option<u64>,
    site: Option<u32>,
    native: Option<u32>,
    category: Option<StringId>,
}

impl EntryFields {
    /// Sets the field of a key.
    #[inline]
    pub(crate) fn set(&mut self, key: KnownString, value: Value) {
        match (key, value) {
            (KnownString::Action, Value::Text(action)) => self.action = Some(action),
            (KnownString::Addr, value) => self.address = value.pointer(),
            (KnownString::Size, value) => self.size = Some(value),
            (KnownString::Stream, value) => self.stream = value.pointer(),
            (KnownString::TimeUs, value) => self.time = value.number(),
            (KnownString::Frames, Value::Site(site)) => self.site = Some(site),
            (KnownString::CppFrames, Value::Site(site)) => self.native = Some(site),
            (KnownString::DeviceFree, value) => self.free = value.number(),
            (KnownString::Category, Value::Text(category)) => self.category = Some(category),
            _ => {}
        }
    }
}

/// Reads an entry and adds it to the others.
pub(crate) fn read(builder: &mut SnapshotBuilder<'_>, items: &[Value]) -> Value {
    let mut entry = EntryFields::default();
    for (key, value) in fields(items) {
        entry.set(key, value);
    }
    keep(builder, &entry)
}

/// Adds an entry to the others.
pub(crate) fn keep(builder: &mut SnapshotBuilder<'_>, entry: &EntryFields) -> Value {
    let first = builder.entries.len();
    add(builder, entry);
    Value::Items(ValueRun { item: RunItem::Entry, first, count: builder.entries.len() - first })
}

fn add(builder: &mut SnapshotBuilder<'_>, entry: &EntryFields) {
    let Some(name) = entry.action else {
        builder.warnings.unusable += 1;
        return;
    };
    let (action, flags) = match KnownString::of(name) {
        Some(KnownString::Alloc) => (TraceAction::Alloc, 0),
        Some(KnownString::FreeRequested) => (TraceAction::FreeRequested, 0),
        // Older files have one entry for both.
        Some(KnownString::Free) => (TraceAction::FreeRequested, COMPLETED),
        Some(KnownString::FreeCompleted) => (TraceAction::FreeCompleted, 0),
        Some(KnownString::SegmentAlloc) => (TraceAction::Reserved, 0),
        Some(KnownString::SegmentFree) => (TraceAction::Returned, 0),
        Some(KnownString::SegmentMap) => (TraceAction::Reserved, EXPANDABLE),
        Some(KnownString::SegmentUnmap) => (TraceAction::Returned, EXPANDABLE),
        Some(KnownString::Oom) => (TraceAction::Oom, 0),
        Some(KnownString::Snapshot | KnownString::Annotate) => return,
        _ => {
            builder.warnings.unknown_action(name);
            return;
        }
    };
    let address = if action == TraceAction::Oom { entry.free.or(Some(0)) } else { entry.address };
    let Some(address) = address else {
        builder.warnings.unusable += 1;
        return;
    };
    builder.used += 1;
    if action == TraceAction::FreeCompleted
        && let Some(last) = builder.entries.last_mut()
        && last.action == TraceAction::FreeRequested
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
    builder.entries.push(TraceEntry { address, size, time, site, stream, action, flags });
}

fn site(builder: &mut SnapshotBuilder<'_>, entry: &EntryFields) -> u32 {
    let site = match entry.native {
        None => entry.site.unwrap_or(NO_SITE),
        native => site_of(builder, entry.site, native),
    };
    let Some(category) = entry.category else { return site };
    builder.is_profile = true;
    let known = (site != NO_SITE).then_some(site);
    let stacks = builder.sink.stacks();
    builder.frames.with_category(known, category, &builder.strings, stacks).0
}

/// Returns a size, or 0 if it is larger than any address space.
pub(crate) fn size_of_memory(builder: &mut SnapshotBuilder<'_>, size: Option<Value>) -> u64 {
    // No machine has more address space than this.
    const MAX_ADDRESS: u64 = 1 << 57;
    match size.map(Value::number) {
        Some(Some(size)) if size <= MAX_ADDRESS => size,
        None => 0,
        _ => {
            builder.warnings.nonsense += 1;
            0
        }
    }
}
