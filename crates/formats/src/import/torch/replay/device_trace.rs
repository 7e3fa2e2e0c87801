//! One trace and the state at its end: of a device, or of the host.

use engine::model::caching_allocator;
use engine::model::{BlockState, CachePool, DeviceId, MemoryKind, PoolSizeClass, SiteId, StreamId};
use std::collections::BTreeMap;

use super::super::pickle::value::{RunItem, Value, ValueRun};
use super::super::snapshot::builder::SnapshotBuilder;
use super::super::snapshot::state::{RawBlock, RawSegment};
use super::super::snapshot::trace_entries::NO_SITE;
use super::super::warnings::Warnings;

/// Data of one device, or of the host.
pub(crate) struct DeviceTrace {
    pub(crate) kind: MemoryKind,
    pub(crate) device: Option<DeviceId>,
    pub(crate) entries: ValueRun,
    /// Segments at the end; none if the file has no segments.
    pub(crate) segments: Option<Vec<caching_allocator::Segment>>,
    /// Stack of each segment, if known.
    pub(crate) segment_sites: Vec<Option<SiteId>>,
    /// Whether sizes are the requested ones: not those of the caching allocator.
    pub(crate) plain_sizes: bool,
}

/// Returns the traces of a snapshot: devices by number, then the host.
pub(crate) fn device_traces(
    builder: &mut SnapshotBuilder<'_>,
    segments_only: Option<Value>,
) -> Vec<DeviceTrace> {
    let state = builder.state.unwrap_or_default();
    let segments = segments_only.or(state.segments);
    let traces = traces(builder, state.traces);
    let raw = raw_segments(builder, segments);
    // A profile has no addresses of blocks, and its last device is the CPU.
    let profile = builder.is_profile;
    let cpu = if profile { traces.len().checked_sub(1).map(|last| last as u64) } else { None };
    let mut device_traces: BTreeMap<u64, DeviceTrace> = BTreeMap::new();
    let known = segments.is_some();
    let device_trace = |number: u64| -> DeviceTrace {
        let is_cpu = Some(number) == cpu;
        DeviceTrace {
            kind: if is_cpu { MemoryKind::Pageable } else { MemoryKind::Torch },
            device: u16::try_from(number).ok().filter(|_| !is_cpu).map(DeviceId),
            entries: ValueRun { item: RunItem::Entry, first: 0, count: 0 },
            segments: known.then(Vec::new),
            segment_sites: Vec::new(),
            plain_sizes: profile,
        }
    };
    for (number, entries) in (0..).zip(&traces) {
        device_traces.entry(number).or_insert_with(|| device_trace(number)).entries = *entries;
    }
    for segment in raw {
        let number = segment.device.unwrap_or(0);
        let device_trace = device_traces.entry(number).or_insert_with(|| device_trace(number));
        add_segment(device_trace, &segment, &builder.blocks, &mut builder.warnings);
    }
    let mut device_traces: Vec<DeviceTrace> = device_traces.into_values().collect();
    device_traces.extend(host_device_traces(builder, state.host_segments, state.host_traces));
    device_traces
}

/// Returns pinned memory of the host: one entry for each trace, with the state in the first.
fn host_device_traces(
    builder: &mut SnapshotBuilder<'_>,
    segments: Option<Value>,
    list: Option<Value>,
) -> Vec<DeviceTrace> {
    let mut traces = traces(builder, list);
    // A single trace that is not inside a list of traces.
    if let Some(Value::List(run)) = list
        && run.item == RunItem::Entry
    {
        traces.push(run);
    }
    let raw = raw_segments(builder, segments);
    if traces.is_empty() && !raw.is_empty() {
        traces.push(ValueRun { item: RunItem::Entry, first: 0, count: 0 });
    }
    let mut device_traces: Vec<DeviceTrace> = traces
        .into_iter()
        .map(|entries| DeviceTrace {
            kind: MemoryKind::Pinned,
            device: None,
            entries,
            segments: None,
            segment_sites: Vec::new(),
            plain_sizes: true,
        })
        .collect();
    if let (Some(device_trace), true) = (device_traces.first_mut(), segments.is_some()) {
        device_trace.segments = Some(Vec::new());
        for segment in raw {
            add_segment(
                device_trace,
                &RawSegment { device: None, ..segment },
                &builder.blocks,
                &mut builder.warnings,
            );
        }
    }
    device_traces
}

fn traces(builder: &SnapshotBuilder<'_>, value: Option<Value>) -> Vec<ValueRun> {
    match value {
        Some(Value::Traces(at)) => builder.traces.get(at as usize).cloned().unwrap_or_default(),
        _ => Vec::new(),
    }
}

fn raw_segments(builder: &SnapshotBuilder<'_>, value: Option<Value>) -> Vec<RawSegment> {
    match value {
        Some(Value::List(run)) if run.item == RunItem::Segment => {
            builder.segments.get(run.range()).unwrap_or_default().to_vec()
        }
        _ => Vec::new(),
    }
}

fn add_segment(
    device_trace: &mut DeviceTrace,
    segment: &RawSegment,
    all: &[RawBlock],
    warnings: &mut Warnings,
) {
    let mut next = segment.address;
    let mut sum = 0_u64;
    let mut contiguous = true;
    let raw = all.get(segment.blocks.range()).unwrap_or_default();
    let blocks: Box<[caching_allocator::Block]> = raw
        .iter()
        .map(|block| {
            let address = block.address.unwrap_or(next);
            contiguous &= address == next;
            next = address.saturating_add(block.size);
            sum = sum.saturating_add(block.size);
            caching_allocator::Block {
                address,
                bytes: block.size,
                requested: block.requested,
                state: block.state,
                site: site(block.site),
            }
        })
        .collect();
    if !device_trace.plain_sizes && (!contiguous || sum != segment.size) {
        warnings.odd_blocks += 1;
    }
    let size_class = segment.size_class;
    device_trace.segments.get_or_insert_default().push(caching_allocator::Segment {
        device: device_trace.device,
        pool: CachePool {
            id: segment.pool,
            size_class: if device_trace.plain_sizes { PoolSizeClass::Whole } else { size_class },
        },
        stream: segment.stream.map(StreamId),
        address: segment.address,
        bytes: segment.size,
        expandable: segment.expandable,
        blocks,
    });
    device_trace.segment_sites.push(site(segment.site));
}

/// Returns a stack, if there is one.
pub(crate) fn site(site: u32) -> Option<SiteId> {
    (site != NO_SITE).then_some(SiteId(site))
}

impl DeviceTrace {
    /// Whether it has an entry or a segment.
    pub(crate) fn has_memory(&self) -> bool {
        self.entries.count > 0 || self.segments.as_ref().is_some_and(|all| !all.is_empty())
    }

    /// Returns the allocated blocks at the end.
    pub(crate) fn live(&self) -> impl Iterator<Item = &caching_allocator::Block> {
        let segments = self.segments.iter().flatten();
        segments
            .flat_map(|segment| &segment.blocks)
            .filter(|block| block.state == BlockState::Allocated)
    }

    /// Returns the stream of the segment that contains an address at the end.
    pub(crate) fn stream_at(&self, address: u64) -> Option<StreamId> {
        let segments = self.segments.iter().flatten();
        let mut containing = segments.filter(|segment| {
            address >= segment.address && address - segment.address < segment.bytes
        });
        containing.next().and_then(|segment| segment.stream)
    }
}
