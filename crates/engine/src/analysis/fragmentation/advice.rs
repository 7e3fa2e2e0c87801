//! What could be done about it, each with the figures that say so. Advice depends on what is
//! already set.

use std::collections::BTreeSet;

use super::{Device, LARGE_PAGE, part};
use crate::cache::{Block, BlockState, CacheSettings, Part, Segment};
use crate::ids::DeviceId;
use crate::units::Bytes;

/// Less than this part of the reserve is not worth a setting.
const WORTH: f64 = 0.1;
/// Less than one segment is not either.
const WORTH_BYTES: u64 = LARGE_PAGE;
/// From this part on, the program itself holds the memory.
const FULL: f64 = 0.9;
/// From this part on, the cache itself is the question.
const MOSTLY_CACHE: f64 = 0.25;
/// The part of the memory from which on the cache should give segments back.
const COLLECT_FROM: f64 = 0.8;
/// Sizes that are worth keeping large blocks for, in MiB. The allocator wants more than 20.
const SPLIT_LIMITS: [u64; 6] = [32, 64, 128, 256, 512, 1024];
/// Steps in a doubling that make sizes meet, and waste an eighth at most.
const DIVISIONS: u64 = 8;
/// So many sizes among blocks are many.
const MANY_SIZES: usize = 16;

/// Something to do, and why.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Advice {
    /// The device that it is about.
    pub device: Option<DeviceId>,
    /// What to do, with the figures behind it.
    pub what: Suggestion,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Suggestion {
    /// The memory is in use: no setting of the allocator gets it back.
    NotFragmentation {
        /// What the program holds, and what streams may still use.
        used_bytes: u64,
        /// What the cache holds.
        reserved_bytes: u64,
    },
    /// Let segments grow in place, so that gaps between them do not arise.
    ExpandableSegments {
        /// What lies in gaps.
        stuck_bytes: u64,
        /// What the cache holds.
        reserved_bytes: u64,
    },
    /// Do not split blocks from this size on. For when segments cannot be expandable.
    MaxSplitSize {
        /// The value to set.
        mib: u64,
        /// What lies in gaps of segments of that size or more, all of whose blocks in use are
        /// smaller.
        avoided_bytes: u64,
        /// What lies in gaps in all.
        stuck_bytes: u64,
    },
    /// Round requests up to steps, so that a freed block fits the next request.
    RoundupPower2Divisions {
        /// The value to set.
        divisions: u64,
        /// Different sizes of large blocks in use.
        sizes: u64,
        /// Large blocks in use.
        blocks: u64,
        /// What lies in gaps.
        stuck_bytes: u64,
    },
    /// Rounding to steps takes more than it saves: use more steps.
    FinerRounding {
        /// The value to set.
        divisions: u64,
        /// What rounding takes.
        rounding_bytes: u64,
        /// What the program holds.
        active_bytes: u64,
    },
    /// Let the cache give segments back by itself.
    GarbageCollectionThreshold {
        /// The value to set, in percent.
        percent: u32,
        /// What it could give back.
        releasable_bytes: u64,
        /// What it holds.
        reserved_bytes: u64,
    },
    /// Call `torch.cuda.empty_cache()` where other programs or libraries need the memory.
    EmptyCache {
        /// What it gives back.
        releasable_bytes: u64,
    },
}

impl Suggestion {
    /// What to add to `PYTORCH_CUDA_ALLOC_CONF`, if it is a setting.
    #[must_use]
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

    /// Why, in one sentence with the figures.
    #[must_use]
    pub fn reason(&self) -> String {
        let percent = |some: u64, all: u64| format!("{:.0} %", 100.0 * part(some, all));
        match *self {
            Self::NotFragmentation { used_bytes, reserved_bytes } => format!(
                "{} of {} that the cache holds is in use ({}): this is not fragmentation, the \
                 program needs less memory or a larger device",
                Bytes(used_bytes),
                Bytes(reserved_bytes),
                percent(used_bytes, reserved_bytes)
            ),
            Self::ExpandableSegments { stuck_bytes, reserved_bytes } => format!(
                "{} of {} lies in gaps of partly used segments ({}); segments that grow in place \
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
                "{blocks} large blocks have {sizes} different sizes and {} lies in gaps; sizes that \
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
                "{} of {} is unused cache ({}); with a threshold it goes back by itself",
                Bytes(releasable_bytes),
                Bytes(reserved_bytes),
                percent(releasable_bytes, reserved_bytes)
            ),
            Self::EmptyCache { releasable_bytes } => format!(
                "{} is cache, not fragmentation: torch.cuda.empty_cache() gives it back to other \
                 libraries and programs",
                Bytes(releasable_bytes)
            ),
        }
    }
}

/// Advice for every device, the most useful first.
pub(super) fn advise(
    segments: &[Segment],
    devices: &[Device],
    settings: &CacheSettings,
) -> Vec<Advice> {
    let mut all = Vec::new();
    // The host's cache has none of these settings.
    for device in devices.iter().filter(|device| device.device.is_some()) {
        let own: Vec<&Segment> =
            segments.iter().filter(|segment| segment.device == device.device).collect();
        let about = of_device(device, &own, settings);
        all.extend(about.into_iter().map(|what| Advice { device: device.device, what }));
    }
    all
}

fn of_device(device: &Device, segments: &[&Segment], settings: &CacheSettings) -> Vec<Suggestion> {
    let reserved = device.reserved_bytes;
    let worth = |bytes: u64, of: u64| bytes >= WORTH_BYTES && part(bytes, of) >= WORTH;
    let mut found = Vec::new();
    let used = device.active_bytes.saturating_add(device.pending_bytes);
    if reserved > 0 && part(used, reserved) >= FULL {
        let what = Suggestion::NotFragmentation { used_bytes: used, reserved_bytes: reserved };
        found.push(what);
    }
    let stuck = device.stuck_bytes;
    let expandable = settings.expandable_segments == Some(true)
        || segments.iter().any(|segment| segment.expandable);
    if worth(stuck, reserved) && !expandable {
        let figures =
            Suggestion::ExpandableSegments { stuck_bytes: stuck, reserved_bytes: reserved };
        found.push(figures);
        found.extend(max_split(segments, stuck, settings));
        found.extend(divisions(segments, stuck, settings));
    }
    let rounding = device.active_bytes.saturating_sub(device.requested_bytes);
    if worth(rounding, device.active_bytes) {
        found.extend(finer(rounding, device.active_bytes, settings));
    }
    let releasable = device.releasable_bytes;
    if worth(releasable, reserved) {
        found.push(Suggestion::EmptyCache { releasable_bytes: releasable });
        let collects = settings.garbage_collection_threshold.is_some_and(|part| part > 0.0);
        if part(releasable, reserved) >= MOSTLY_CACHE && !collects && !expandable {
            found.push(Suggestion::GarbageCollectionThreshold {
                percent: (COLLECT_FROM * 100.0) as u32,
                releasable_bytes: releasable,
                reserved_bytes: reserved,
            });
        }
    }
    found
}

/// The limit that would have kept most of the gaps from arising: large segments that only blocks
/// under the limit are keeping would not have been split for them.
fn max_split(segments: &[&Segment], stuck: u64, settings: &CacheSettings) -> Option<Suggestion> {
    if settings.max_split_bytes.is_some() {
        return None;
    }
    let avoided_by = |mib: u64| {
        let limit = mib << 20;
        let kept = segments.iter().filter(|segment| {
            segment.bytes >= limit
                && used(segment).next().is_some()
                && used(segment).all(|block| block.bytes < limit)
        });
        kept.flat_map(|segment| &segment.blocks)
            .filter(|block| block.state == BlockState::Free)
            .fold(0_u64, |sum, block| sum.saturating_add(block.bytes))
    };
    // The last of equals: a higher limit restricts less.
    let candidates = SPLIT_LIMITS.into_iter().map(|mib| (avoided_by(mib), mib));
    let (avoided_bytes, mib) = candidates.max_by_key(|&(avoided, mib)| (avoided, mib))?;
    (avoided_bytes >= WORTH_BYTES && avoided_bytes >= stuck / 2)
        .then_some(Suggestion::MaxSplitSize { mib, avoided_bytes, stuck_bytes: stuck })
}

fn divisions(segments: &[&Segment], stuck: u64, settings: &CacheSettings) -> Option<Suggestion> {
    if settings.roundup_divisions.iter().any(|&divisions| divisions > 1) {
        return None;
    }
    let large = segments.iter().filter(|segment| segment.pool.part == Part::Large);
    let sizes: Vec<u64> =
        large.flat_map(|segment| used(segment)).map(|block| block.bytes).collect();
    let different: BTreeSet<u64> = sizes.iter().copied().collect();
    (different.len() >= MANY_SIZES && different.len() >= sizes.len() / 2).then_some(
        Suggestion::RoundupPower2Divisions {
            divisions: DIVISIONS,
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

/// Twice the steps of the coarsest rounding in use.
fn finer(rounding: u64, active: u64, settings: &CacheSettings) -> Option<Suggestion> {
    let coarsest = settings.roundup_divisions.iter().copied().filter(|&steps| steps > 1).min()?;
    Some(Suggestion::FinerRounding {
        divisions: coarsest.next_power_of_two().saturating_mul(2),
        rounding_bytes: rounding,
        active_bytes: active,
    })
}
