//! Allocator state at the end of the file: segments and their blocks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use engine::model::{BlockState, PoolSizeClass, Segment};
use serde_json::{Value, json};

use super::HtmlReport;
use super::packed_data::{NumberPacker, PackedData};
use super::strings::StringTable;
use crate::report::analysis::{FragmentationView, pool_name, pool_pid};
use crate::sanitize::sanitize_up_to;

/// Maximum number of drawn blocks; segments beyond that are summed, smallest first.
const MAX_BLOCKS: usize = 100_000;

pub(super) fn add_segments(
    report: &HtmlReport<'_>,
    strings: &mut StringTable<'_>,
    packed: &mut PackedData,
) -> Value {
    let all = &report.file.info.segments;
    let mut shown: Vec<&Segment> = all.iter().collect();
    shown.sort_by_key(|segment| (Reverse(segment.bytes), segment.address));
    let mut room = MAX_BLOCKS;
    shown.retain(|segment| {
        let fits = segment.blocks.len() <= room;
        room -= if fits { segment.blocks.len() } else { 0 };
        fits
    });
    let hidden: u64 = sum(all.iter()).saturating_sub(sum(shown.iter().copied()));
    // Order pools by size, largest first.
    let pool = |segment: &Segment| (segment.device, segment.pool, segment.stream);
    let mut pool_bytes: BTreeMap<_, u64> = BTreeMap::new();
    for segment in &shown {
        let bytes = pool_bytes.entry(pool(segment)).or_default();
        *bytes = bytes.saturating_add(segment.bytes);
    }
    shown.sort_by_key(|segment| {
        let pool = pool(segment);
        (segment.device, Reverse(pool_bytes.get(&pool).copied()), pool, segment.address)
    });
    let mut numbers = NumberPacker::default();
    let rows: Vec<Value> = shown.iter().map(|one| row(one, strings, &mut numbers)).collect();
    json!({
        "rows": rows,
        "total": all.len(),
        "hidden_bytes": hidden,
        "part": packed.add(numbers),
        "pools": pools(report.fragmentation),
        "advice": advice(report.fragmentation),
    })
}

fn sum<'a>(segments: impl Iterator<Item = &'a Segment>) -> u64 {
    segments.fold(0, |sum, segment| sum.saturating_add(segment.bytes))
}

fn row(segment: &Segment, strings: &mut StringTable<'_>, numbers: &mut NumberPacker) -> Value {
    for block in &segment.blocks {
        let state = match block.state {
            BlockState::Allocated => 0,
            BlockState::PendingFree => 1,
            BlockState::Free => 2,
        };
        numbers.put(block.address.saturating_sub(segment.address));
        numbers.put(block.bytes);
        numbers.put(block.requested);
        numbers.put(state);
        numbers.put(strings.site(block.site) as u64);
    }
    let part = match segment.pool.size_class {
        PoolSizeClass::Whole => "",
        PoolSizeClass::Small => "small",
        PoolSizeClass::Large => "large",
    };
    json!({
        "device": segment.device.map(|device| device.0),
        "pool": [segment.pool.id.0, segment.pool.id.1],
        "part": part,
        "stream": segment.stream.map(|stream| format!("{:#x}", stream.0)),
        "address": format!("{:#x}", segment.address),
        "bytes": segment.bytes,
        "expandable": segment.expandable,
        "blocks": segment.blocks.len(),
    })
}

fn pools(view: &FragmentationView) -> Value {
    let row = view.pools.iter().map(|pool| {
        json!({
            "device": pool.device.map(|device| device.0),
            "pid": pool_pid(pool).map(|pid| pid.0),
            "pool": pool_name(pool),
            "stream": pool.stream.map(|stream| format!("{:#x}", stream.0)),
            "reserved_bytes": pool.reserved_bytes,
            "active_bytes": pool.active_bytes,
            "requested_bytes": pool.requested_bytes,
            "largest_free_bytes": pool.largest_free_bytes,
            "internal": pool.internal,
            "external": pool.external,
            "releasable_bytes": pool.releasable_bytes,
            "stuck_bytes": pool.stuck_bytes,
        })
    });
    row.collect()
}

fn advice(view: &FragmentationView) -> Value {
    let row = view.advice.iter().map(|advice| {
        json!({"what": sanitize_up_to(&advice.action, 500), "why": sanitize_up_to(&advice.reason, 500)})
    });
    row.collect()
}
