//! State at the snapshot: segments, blocks, settings, and the outermost dictionary.

use engine::model::{BlockState, PoolSizeClass};

use super::super::pickle::strings::KnownString;
use super::super::pickle::value::{RunItem, Value, ValueRun};
use super::builder::{SnapshotBuilder, site_of};
use super::entry::size_of_memory;
use super::trace_entries::NO_SITE;

/// A block of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawBlock {
    /// Absent in files of profiles and of torch 2.0: their blocks are consecutive.
    pub(crate) address: Option<u64>,
    pub(crate) size: u64,
    pub(crate) requested: u64,
    pub(crate) state: BlockState,
    pub(crate) site: u32,
}

/// History of a block in files of torch 2.0; the first item is the current one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockHistory {
    pub(crate) requested: u64,
    pub(crate) site: u32,
}

/// A segment of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSegment {
    pub(crate) device: Option<u64>,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: Option<u64>,
    pub(crate) size_class: PoolSizeClass,
    pub(crate) pool: (u64, u64),
    pub(crate) expandable: bool,
    pub(crate) site: u32,
    pub(crate) blocks: ValueRun,
}

/// Parts of a snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SnapshotState {
    pub(crate) segments: Option<Value>,
    pub(crate) traces: Option<Value>,
    pub(crate) host_segments: Option<Value>,
    pub(crate) host_traces: Option<Value>,
}

/// Reads a block of a segment.
pub(crate) fn block(builder: &mut SnapshotBuilder<'_>, items: &[Value]) -> Value {
    let (mut address, mut size, mut requested, mut state) = (None, None, None, BlockState::Free);
    let (mut site, mut native, mut history) = (None, None, None);
    for field in fields(items) {
        match field {
            (KnownString::Address, value) => address = value.pointer(),
            (KnownString::Size, value) => size = Some(value),
            (KnownString::RequestedSize, value) => requested = Some(value),
            (KnownString::State, Value::Text(word)) => {
                state = match KnownString::of(word) {
                    Some(KnownString::ActiveAllocated) => BlockState::Allocated,
                    Some(KnownString::ActivePendingFree | KnownString::ActiveAwaitingFree) => {
                        BlockState::PendingFree
                    }
                    _ => BlockState::Free,
                };
            }
            (KnownString::Frames, Value::Site(known)) => site = Some(known),
            (KnownString::CppFrames, Value::Site(known)) => native = Some(known),
            (KnownString::History, Value::List(run)) if run.item == RunItem::History => {
                history = builder.histories.get(run.first as usize).copied();
            }
            _ => {}
        }
    }
    let size = size_of_memory(builder, size);
    let requested = requested.map(|value| size_of_memory(builder, Some(value)));
    let history_size = history.map(|history| history.requested);
    let site = match (site, native) {
        (None, None) => history.map_or(NO_SITE, |history| history.site),
        (site, native) => site_of(builder, site, native),
    };
    // The last requested size of a free block is stale.
    let requested = match state {
        BlockState::Free => 0,
        _ => requested.or(history_size).unwrap_or(size).min(size),
    };
    let first = index(builder.blocks.len());
    builder.blocks.push(RawBlock { address, size, requested, state, site });
    // The history of this block was used.
    builder.histories.clear();
    Value::Items(ValueRun { item: RunItem::Block, first, count: 1 })
}

/// Reads one item of a block's history.
pub(crate) fn history(builder: &mut SnapshotBuilder<'_>, items: &[Value]) -> Value {
    let (mut requested, mut site, mut native) = (None, None, None);
    for field in fields(items) {
        match field {
            (KnownString::RealSize, value) => requested = Some(value),
            (KnownString::Frames, Value::Site(known)) => site = Some(known),
            (KnownString::CppFrames, Value::Site(known)) => native = Some(known),
            _ => {}
        }
    }
    let requested = size_of_memory(builder, requested);
    let site = site_of(builder, site, native);
    let first = index(builder.histories.len());
    builder.histories.push(BlockHistory { requested, site });
    Value::Items(ValueRun { item: RunItem::History, first, count: 1 })
}

/// Reads a segment.
pub(crate) fn segment(builder: &mut SnapshotBuilder<'_>, items: &[Value]) -> Value {
    let mut segment = RawSegment {
        device: None,
        address: 0,
        size: 0,
        stream: None,
        size_class: PoolSizeClass::Whole,
        pool: (0, 0),
        expandable: false,
        site: NO_SITE,
        blocks: ValueRun { item: RunItem::Block, first: 0, count: 0 },
    };
    for field in fields(items) {
        match field {
            (KnownString::Device, value) => segment.device = value.number(),
            (KnownString::Address, value) => segment.address = value.pointer().unwrap_or(0),
            (KnownString::TotalSize, value) => segment.size = size_of_memory(builder, Some(value)),
            (KnownString::Stream, value) => segment.stream = value.pointer(),
            (KnownString::SegmentType, Value::Text(word)) => {
                segment.size_class = match KnownString::of(word) {
                    Some(KnownString::Small) => PoolSizeClass::Small,
                    Some(KnownString::Large) => PoolSizeClass::Large,
                    _ => PoolSizeClass::Whole,
                };
            }
            (KnownString::SegmentPoolId, Value::Pair(pair)) => {
                segment.pool = builder.pairs.get(pair as usize).copied().unwrap_or_default();
            }
            (KnownString::IsExpandable, Value::Bool(yes)) => segment.expandable = yes,
            (KnownString::Frames, Value::Site(site)) => segment.site = site,
            (KnownString::Blocks, Value::List(run)) if run.item == RunItem::Block => {
                segment.blocks = run;
            }
            _ => {}
        }
    }
    let first = index(builder.segments.len());
    builder.segments.push(segment);
    Value::Items(ValueRun { item: RunItem::Segment, first, count: 1 })
}

/// Reads the outermost dictionary.
pub(crate) fn snapshot(builder: &mut SnapshotBuilder<'_>, items: &[Value]) -> Value {
    let mut state = SnapshotState::default();
    for (key, value) in fields(items) {
        match key {
            KnownString::Segments => state.segments = Some(value),
            KnownString::DeviceTraces => state.traces = Some(value),
            KnownString::HostSegments => state.host_segments = Some(value),
            KnownString::HostTraces => state.host_traces = Some(value),
            _ => {}
        }
    }
    builder.state = Some(state);
    Value::Snapshot
}

/// Reads the settings of the allocator.
pub(crate) fn settings(builder: &mut SnapshotBuilder<'_>, items: &[Value]) -> Value {
    for field in fields(items) {
        match field {
            (KnownString::Conf | KnownString::AllocConf, Value::Text(text)) => {
                builder.settings.text = builder.strings.get(text).to_owned();
            }
            // -1 and the highest number stand for no limit.
            (KnownString::MaxSplitSize, value) => {
                builder.settings.max_split_bytes = value.number().filter(|&limit| limit < 1 << 62);
            }
            (KnownString::GcThreshold, Value::Float(ratio)) => {
                let is_valid = ratio.is_finite() && (0.0..=1.0).contains(&ratio);
                builder.settings.garbage_collection_threshold = is_valid.then_some(ratio);
            }
            (KnownString::ExpandableSegments, Value::Bool(yes)) => {
                builder.settings.expandable_segments = Some(yes);
            }
            _ => {}
        }
    }
    Value::Settings
}

/// Reads the rounding of sizes: `"1"` is for requests from 1 MiB, `"2"` from 2 MiB, and so on.
pub(crate) fn divisions(builder: &mut SnapshotBuilder<'_>, items: &[Value]) -> Value {
    let mut found = false;
    for pair in items.chunks_exact(2) {
        let [Value::Text(key), value] = *pair else { return Value::Ignored };
        let Ok(from) = builder.strings.get(key).parse::<u64>() else { return Value::Ignored };
        let step = from.checked_ilog2().and_then(|step| usize::try_from(step).ok());
        let slot = step.and_then(|step| builder.settings.roundup_divisions.get_mut(step));
        if let (Some(slot), Some(divisions)) = (slot, value.number()) {
            *slot = divisions;
            found = true;
        }
    }
    if found { Value::Divisions } else { Value::Ignored }
}

/// Returns the entries of a dictionary whose keys are known.
pub(crate) fn fields(items: &[Value]) -> impl Iterator<Item = (KnownString, Value)> {
    items.chunks_exact(2).filter_map(|pair| match *pair {
        [Value::Text(key), value] => Some((KnownString::of(key)?, value)),
        _ => None,
    })
}

fn index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
