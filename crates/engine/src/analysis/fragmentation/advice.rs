//! Recommended allocator settings, each with the values that support it. Takes the current settings
//! into account.
#![allow(clippy::cast_possible_truncation, reason = "a constant percentage")]

use std::collections::BTreeSet;

use super::{DeviceFragmentation, LARGE_PAGE, ratio};
use crate::model::{AllocatorSettings, Block, BlockState, Bytes, DeviceId, PoolSizeClass, Segment};

/// Ignore a problem that affects less than this share of the reserved memory.
const MIN_FRAGMENTED_RATIO: f64 = 0.1;
/// Ignore a problem smaller than one segment.
const MIN_FRAGMENTED_BYTES: u64 = LARGE_PAGE;
/// From this share on, the memory is in use rather than fragmented.
const FULL_RATIO: f64 = 0.9;
/// Share of releasable memory from which on a garbage collection threshold is suggested.
const MIN_CACHE_RATIO: f64 = 0.25;
/// Suggested garbage collection threshold, as a share of the memory.
const GC_THRESHOLD: f64 = 0.8;
/// Candidates for `max_split_size_mb`. The allocator requires more than 20.
const SPLIT_LIMITS: [u64; 6] = [32, 64, 128, 256, 512, 1024];
/// Suggested divisions per power of two: sizes match often, and at most an eighth is lost to
/// rounding.
const ROUNDUP_DIVISIONS: u64 = 8;
/// From this number on, the sizes of blocks count as diverse.
const MIN_DISTINCT_SIZES: usize = 16;

/// A recommended change, and the reason for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FragmentationAdvice {
    /// Device it applies to.
    pub device: Option<DeviceId>,
    /// Recommended change, with the values that support it.
    pub suggestion: Suggestion,
}

/// A recommended change.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Suggestion {
    /// The memory is in use: no allocator setting helps.
    NotFragmentation {
        /// Memory held by the program or still in use by a stream.
        used_bytes: u64,
        /// Memory held by the cache.
        reserved_bytes: u64,
    },
    /// Let segments grow in place, which avoids gaps between segments.
    ExpandableSegments {
        /// Memory in gaps.
        stuck_bytes: u64,
        /// Memory held by the cache.
        reserved_bytes: u64,
    },
    /// Do not split blocks of this size or larger. For programs that cannot use expandable
    /// segments.
    MaxSplitSize {
        /// Suggested value.
        mib: u64,
        /// Memory in gaps of segments of at least that size whose blocks in use are all smaller.
        avoided_bytes: u64,
        /// Memory in gaps, in total.
        stuck_bytes: u64,
    },
    /// Round up request sizes, so that freed blocks fit later requests.
    RoundupPower2Divisions {
        /// Suggested value.
        divisions: u64,
        /// Distinct sizes of large blocks in use.
        sizes: u64,
        /// Large blocks in use.
        blocks: u64,
        /// Memory in gaps.
        stuck_bytes: u64,
    },
    /// Rounding costs more than it saves: use more divisions.
    FinerRounding {
        /// Suggested value.
        divisions: u64,
        /// Memory lost to rounding.
        rounding_bytes: u64,
        /// Memory held by the program.
        active_bytes: u64,
    },
    /// Let the cache free segments automatically.
    GarbageCollectionThreshold {
        /// Suggested value, in percent.
        percent: u32,
        /// Memory that it could free.
        releasable_bytes: u64,
        /// Memory held by the cache.
        reserved_bytes: u64,
    },
    /// Call `torch.cuda.empty_cache()` when other programs or libraries need the memory.
    EmptyCache {
        /// Memory that it frees.
        releasable_bytes: u64,
    },
}

impl Suggestion {
    /// Setting to add to `PYTORCH_CUDA_ALLOC_CONF`, if there is one.
    pub fn setting(&self) -> Option<String> {
        match *self {
            Self::ExpandableSegments { .. } => Some("expandable_segments:True".to_owned()),
            Self::MaxSplitSize { mib, .. } => Some(format!("max_split_size_mb:{mib}")),
            Self::RoundupPower2Divisions { divisions, .. }
            | Self::FinerRounding { divisions, .. } => {
                Some(format!("roundup_power2_divisions:{divisions}"))
            }
            Self::GarbageCollectionThreshold { percent, .. } => {
                Some(format!("garbage_collection_threshold:0.{percent:02}"))
            }
            Self::NotFragmentation { .. } | Self::EmptyCache { .. } => None,
        }
    }

    /// Reason in one sentence, with values.
    pub fn reason(&self) -> String {
        let percent = |some: u64, all: u64| format!("{:.0} %", 100.0 * ratio(some, all));
        match *self {
            Self::NotFragmentation { used_bytes, reserved_bytes } => format!(
                "{} of {} that the cache holds is in use ({}): this is not fragmentation, the \
                 program needs less memory or a larger device",
                Bytes(used_bytes),
                Bytes(reserved_bytes),
                percent(used_bytes, reserved_bytes)
            ),
            Self::ExpandableSegments { stuck_bytes, reserved_bytes } => format!(
                "{} of {} is in gaps of partly used segments ({}); segments that grow in place \
                 do not leave such gaps between them",
                Bytes(stuck_bytes),
                Bytes(reserved_bytes),
                percent(stuck_bytes, reserved_bytes)
            ),
            Self::MaxSplitSize { mib, avoided_bytes, stuck_bytes } => format!(
                "{} of {} in gaps is in segments of {mib} MiB or more that only smaller blocks keep; \
                 for when expandable segments cannot be used",
                Bytes(avoided_bytes),
                Bytes(stuck_bytes)
            ),
            Self::RoundupPower2Divisions { sizes, blocks, stuck_bytes, .. } => format!(
                "{blocks} large blocks have {sizes} different sizes and {} is in gaps; sizes that \
                 are rounded to steps fit each other's gaps",
                Bytes(stuck_bytes)
            ),
            Self::FinerRounding { rounding_bytes, active_bytes, .. } => format!(
                "rounding takes {} of {} in use ({}); more steps take less",
                Bytes(rounding_bytes),
                Bytes(active_bytes),
                percent(rounding_bytes, active_bytes)
            ),
            Self::GarbageCollectionThreshold { releasable_bytes, reserved_bytes, .. } => format!(
                "{} of {} is unused cache ({}); with a threshold it is freed automatically",
                Bytes(releasable_bytes),
                Bytes(reserved_bytes),
                percent(releasable_bytes, reserved_bytes)
            ),
            Self::EmptyCache { releasable_bytes } => format!(
                "{} is cache, not fragmentation: torch.cuda.empty_cache() frees it for other \
                 libraries and programs",
                Bytes(releasable_bytes)
            ),
        }
    }
}

/// Returns the advice for each device, most useful first.
pub(super) fn advise(
    segments: &[Segment],
    devices: &[DeviceFragmentation],
    settings: &AllocatorSettings,
) -> Vec<FragmentationAdvice> {
    let mut all = Vec::new();
    // These settings do not exist for the cache of host memory.
    for device in devices.iter().filter(|device| device.device.is_some()) {
        let own: Vec<&Segment> =
            segments.iter().filter(|segment| segment.device == device.device).collect();
        let suggestions = for_device(device, &own, settings);
        all.extend(
            suggestions
                .into_iter()
                .map(|suggestion| FragmentationAdvice { device: device.device, suggestion }),
        );
    }
    all
}

fn for_device(
    device: &DeviceFragmentation,
    segments: &[&Segment],
    settings: &AllocatorSettings,
) -> Vec<Suggestion> {
    let reserved = device.reserved_bytes;
    let is_significant = |bytes: u64, of: u64| {
        bytes >= MIN_FRAGMENTED_BYTES && ratio(bytes, of) >= MIN_FRAGMENTED_RATIO
    };
    let mut found = Vec::new();
    let used = device.active_bytes.saturating_add(device.pending_bytes);
    if reserved > 0 && ratio(used, reserved) >= FULL_RATIO {
        let suggestion =
            Suggestion::NotFragmentation { used_bytes: used, reserved_bytes: reserved };
        found.push(suggestion);
    }
    let stuck = device.stuck_bytes;
    let expandable = settings.expandable_segments == Some(true)
        || segments.iter().any(|segment| segment.expandable);
    if is_significant(stuck, reserved) && !expandable {
        let suggestion =
            Suggestion::ExpandableSegments { stuck_bytes: stuck, reserved_bytes: reserved };
        found.push(suggestion);
        found.extend(max_split(segments, stuck, settings));
        found.extend(divisions(segments, stuck, settings));
    }
    let rounding = device.active_bytes.saturating_sub(device.requested_bytes);
    if is_significant(rounding, device.active_bytes) {
        found.extend(finer(rounding, device.active_bytes, settings));
    }
    let releasable = device.releasable_bytes;
    if is_significant(releasable, reserved) {
        found.push(Suggestion::EmptyCache { releasable_bytes: releasable });
        let collects = settings.garbage_collection_threshold.is_some_and(|ratio| ratio > 0.0);
        if ratio(releasable, reserved) >= MIN_CACHE_RATIO && !collects && !expandable {
            found.push(Suggestion::GarbageCollectionThreshold {
                percent: (GC_THRESHOLD * 100.0) as u32,
                releasable_bytes: releasable,
                reserved_bytes: reserved,
            });
        }
    }
    found
}

/// Returns the split limit that would have avoided most gaps: large segments whose blocks in use
/// are all below the limit would not have been split for them.
fn max_split(
    segments: &[&Segment],
    stuck: u64,
    settings: &AllocatorSettings,
) -> Option<Suggestion> {
    if settings.max_split_bytes.is_some() {
        return None;
    }
    let avoided_by = |mib: u64| {
        let limit = mib << 20;
        let avoidable = segments.iter().filter(|segment| {
            segment.bytes >= limit
                && used(segment).next().is_some()
                && used(segment).all(|block| block.bytes < limit)
        });
        avoidable
            .flat_map(|segment| &segment.blocks)
            .filter(|block| block.state == BlockState::Free)
            .fold(0_u64, |sum, block| sum.saturating_add(block.bytes))
    };
    // Prefer the highest of equally good limits: it restricts least.
    let candidates = SPLIT_LIMITS.into_iter().map(|mib| (avoided_by(mib), mib));
    let (avoided_bytes, mib) = candidates.max_by_key(|&(avoided, mib)| (avoided, mib))?;
    (avoided_bytes >= MIN_FRAGMENTED_BYTES && avoided_bytes >= stuck / 2)
        .then_some(Suggestion::MaxSplitSize { mib, avoided_bytes, stuck_bytes: stuck })
}

fn divisions(
    segments: &[&Segment],
    stuck: u64,
    settings: &AllocatorSettings,
) -> Option<Suggestion> {
    if settings.roundup_divisions.iter().any(|&divisions| divisions > 1) {
        return None;
    }
    let large = segments.iter().filter(|segment| segment.pool.size_class == PoolSizeClass::Large);
    let sizes: Vec<u64> =
        large.flat_map(|segment| used(segment)).map(|block| block.bytes).collect();
    let different: BTreeSet<u64> = sizes.iter().copied().collect();
    (different.len() >= MIN_DISTINCT_SIZES && different.len() >= sizes.len() / 2).then_some(
        Suggestion::RoundupPower2Divisions {
            divisions: ROUNDUP_DIVISIONS,
            sizes: different.len() as u64,
            blocks: sizes.len() as u64,
            stuck_bytes: stuck,
        },
    )
}

/// Blocks of a segment that are in use.
fn used(segment: &Segment) -> impl Iterator<Item = &Block> {
    segment.blocks.iter().filter(|block| block.state != BlockState::Free)
}

/// Suggests twice the divisions of the coarsest rounding in use.
fn finer(rounding: u64, active: u64, settings: &AllocatorSettings) -> Option<Suggestion> {
    let coarsest = settings.roundup_divisions.iter().copied().filter(|&steps| steps > 1).min()?;
    Some(Suggestion::FinerRounding {
        divisions: coarsest.next_power_of_two().saturating_mul(2),
        rounding_bytes: rounding,
        active_bytes: active,
    })
}
