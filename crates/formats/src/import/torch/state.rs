//! The state at the snapshot: segments, blocks, settings, and the whole of it.

use engine::cache::{BlockState, Part};

use super::entry::size_of_memory;
use super::events::NO_SITE;
use super::meaning::{Meaning, site_of};
use super::value::{Run, Thing, Value};
use super::words::Word;

/// A block, as it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Files of profiles and of torch 2.0 have none: blocks follow each other.
    pub(super) address: Option<u64>,
    pub(super) size: u64,
    pub(super) requested: u64,
    pub(super) state: BlockState,
    pub(super) site: u32,
}

/// What torch 2.0 tells of a block's past; the first is about now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    pub(super) requested: u64,
    pub(super) site: u32,
}

/// A segment, as it is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) device: Option<u64>,
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) stream: Option<u64>,
    pub(super) part: Part,
    pub(super) pool: (u64, u64),
    pub(super) expandable: bool,
    pub(super) site: u32,
    pub(super) blocks: Run,
}

/// The parts of a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Whole {
    pub(super) segments: Option<Value>,
    pub(super) traces: Option<Value>,
    pub(super) host_segments: Option<Value>,
    pub(super) host_traces: Option<Value>,
}

/// A block of a segment.
pub(super) fn block(meaning: &mut Meaning<'_>, items: &[Value]) -> Value {
    let (mut address, mut size, mut requested, mut state) = (None, None, None, BlockState::Free);
    let (mut site, mut native, mut past) = (None, None, None);
    for pair in items.chunks_exact(2) {
        let [Value::Text(key), value] = *pair else { continue };
        match (Word::of(key), value) {
            (Some(Word::Address), value) => address = value.pointer(),
            (Some(Word::Size), value) => size = Some(value),
            (Some(Word::RequestedSize), value) => requested = Some(value),
            (Some(Word::State), Value::Text(word)) => {
                state = match Word::of(word) {
                    Some(Word::ActiveAllocated) => BlockState::Allocated,
                    Some(Word::ActivePendingFree | Word::ActiveAwaitingFree) => {
                        BlockState::PendingFree
                    }
                    _ => BlockState::Free,
                };
            }
            (Some(Word::Frames), Value::Site(known)) => site = Some(known),
            (Some(Word::CppFrames), Value::Site(known)) => native = Some(known),
            (Some(Word::History), Value::List(run)) if run.of == Thing::Past => {
                past = meaning.pasts.get(run.first as usize).copied();
            }
            _ => {}
        }
    }
    let size = size_of_memory(meaning, size);
    let requested = requested.map(|value| size_of_memory(meaning, Some(value)));
    let past_size = past.map(|past| past.requested);
    let site = match (site, native) {
        (None, None) => past.map_or(NO_SITE, |past| past.site),
        (site, native) => site_of(meaning, site, native),
    };
    // What a free block was asked for last is stale.
    let requested = match state {
        BlockState::Free => 0,
        _ => requested.or(past_size).unwrap_or(size).min(size),
    };
    let first = place(meaning.blocks.len());
    meaning.blocks.push(Block { address, size, requested, state, site });
    // The past of this block was used.
    meaning.pasts.clear();
    Value::Items(Run { of: Thing::Block, first, count: 1 })
}

/// One item of a block's past.
pub(super) fn past(meaning: &mut Meaning<'_>, items: &[Value]) -> Value {
    let (mut requested, mut site, mut native) = (None, None, None);
    for pair in items.chunks_exact(2) {
        let [Value::Text(key), value] = *pair else { continue };
        match (Word::of(key), value) {
            (Some(Word::RealSize), value) => requested = Some(value),
            (Some(Word::Frames), Value::Site(known)) => site = Some(known),
            (Some(Word::CppFrames), Value::Site(known)) => native = Some(known),
            _ => {}
        }
    }
    let requested = size_of_memory(meaning, requested);
    let site = site_of(meaning, site, native);
    let first = place(meaning.pasts.len());
    meaning.pasts.push(Past { requested, site });
    Value::Items(Run { of: Thing::Past, first, count: 1 })
}

/// A segment.
pub(super) fn segment(meaning: &mut Meaning<'_>, items: &[Value]) -> Value {
    let mut segment = Segment {
        device: None,
        address: 0,
        size: 0,
        stream: None,
        part: Part::Whole,
        pool: (0, 0),
        expandable: false,
        site: NO_SITE,
        blocks: Run { of: Thing::Block, first: 0, count: 0 },
    };
    for pair in items.chunks_exact(2) {
        let [Value::Text(key), value] = *pair else { continue };
        match (Word::of(key), value) {
            (Some(Word::Device), value) => segment.device = value.number(),
            (Some(Word::Address), value) => segment.address = value.pointer().unwrap_or(0),
            (Some(Word::TotalSize), value) => segment.size = size_of_memory(meaning, Some(value)),
            (Some(Word::Stream), value) => segment.stream = value.pointer(),
            (Some(Word::SegmentType), Value::Text(word)) => {
                segment.part = match Word::of(word) {
                    Some(Word::Small) => Part::Small,
                    Some(Word::Large) => Part::Large,
                    _ => Part::Whole,
                };
            }
            (Some(Word::SegmentPoolId), Value::Pair(pair)) => {
                segment.pool = meaning.pairs.get(pair as usize).copied().unwrap_or_default();
            }
            (Some(Word::IsExpandable), Value::Bool(yes)) => segment.expandable = yes,
            (Some(Word::Frames), Value::Site(site)) => segment.site = site,
            (Some(Word::Blocks), Value::List(run)) if run.of == Thing::Block => {
                segment.blocks = run
            }
            _ => {}
        }
    }
    let first = place(meaning.segments.len());
    meaning.segments.push(segment);
    Value::Items(Run { of: Thing::Segment, first, count: 1 })
}

/// The outermost dictionary.
pub(super) fn whole(meaning: &mut Meaning<'_>, items: &[Value]) -> Value {
    let mut whole = Whole::default();
    for pair in items.chunks_exact(2) {
        let [Value::Text(key), value] = *pair else { continue };
        match Word::of(key) {
            Some(Word::Segments) => whole.segments = Some(value),
            Some(Word::DeviceTraces) => whole.traces = Some(value),
            Some(Word::HostSegments) => whole.host_segments = Some(value),
            Some(Word::HostTraces) => whole.host_traces = Some(value),
            _ => {}
        }
    }
    meaning.whole = Some(whole);
    Value::Whole
}

/// Settings of the allocator.
pub(super) fn settings(meaning: &mut Meaning<'_>, items: &[Value]) -> Value {
    for pair in items.chunks_exact(2) {
        let [Value::Text(key), value] = *pair else { continue };
        match (Word::of(key), value) {
            (Some(Word::Conf | Word::AllocConf), Value::Text(text)) => {
                meaning.settings.text = meaning.words.get(text).to_owned();
            }
            // -1 and the highest number stand for no limit.
            (Some(Word::MaxSplitSize), value) => {
                meaning.settings.max_split_bytes = value.number().filter(|&limit| limit < 1 << 62);
            }
            (Some(Word::GcThreshold), Value::Float(part)) => {
                let sane = part.is_finite() && (0.0..=1.0).contains(&part);
                meaning.settings.garbage_collection_threshold = sane.then_some(part);
            }
            (Some(Word::ExpandableSegments), Value::Bool(yes)) => {
                meaning.settings.expandable_segments = Some(yes);
            }
            _ => {}
        }
    }
    Value::Settings
}

/// How sizes are rounded: `"1"` is for requests from 1 MiB, `"2"` from 2 MiB, and so on.
pub(super) fn divisions(meaning: &mut Meaning<'_>, items: &[Value]) -> Value {
    let mut found = false;
    for pair in items.chunks_exact(2) {
        let [Value::Text(key), value] = *pair else { return Value::Ignored };
        let Ok(from) = meaning.words.get(key).parse::<u64>() else { return Value::Ignored };
        let step = from.checked_ilog2().and_then(|step| usize::try_from(step).ok());
        let slot = step.and_then(|step| meaning.settings.roundup_divisions.get_mut(step));
        if let (Some(slot), Some(divisions)) = (slot, value.number()) {
            *slot = divisions;
            found = true;
        }
    }
    if found { Value::Divisions } else { Value::Ignored }
}

fn place(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
