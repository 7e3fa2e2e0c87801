//! Verdicts on sites whose memory, tensors or objects are live: live memory is not necessarily
//! leaked. Created by [`crate::leak`], in the same way for live traces and for files.

use std::cmp::Reverse;
use std::sync::Arc;

use crate::model::named::named_enum;
use crate::model::{
    AllocationKey, Allocator, Bytes, CallStack, DeviceId, MemoryKind, Nanos, ObjectKind, Pid,
    SamplingInterval, SiteName, Tid, Timestamp,
};

named_enum! {
    /// Behavior of a site's live memory over time.
    pub enum Verdict {
        /// Grows without bound, and old allocations are still live.
        Leak => "leak",
        /// Grew and is stable.
        Plateau => "plateau",
        /// Live memory is constantly replaced and bounded: a cache, or reused buffers.
        Cache => "cache",
        /// Grows, but ever more slowly, or the program has just started.
        RampUp => "ramp_up",
        /// Grew at once, and is shrinking or gone.
        Burst => "burst",
        /// Rises and falls back to the same level.
        Periodic => "periodic",
        /// Too short, or too few changes.
        NotEnoughData => "not_enough_data",
    }
}

named_enum! {
    /// Confidence in a verdict.
    pub enum Confidence {
        /// There is little evidence, but it points this way.
        Possible => "possible",
        /// Most of the evidence points this way.
        Likely => "likely",
        /// All of the evidence points this way, and there is much of it.
        Certain => "certain",
    }
}

/// Resource that a verdict is about. Resources are classified separately and never added together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Resource {
    /// Driver memory of one kind.
    Memory(MemoryKind),
    /// Blocks of an allocator inside the process.
    Blocks(Allocator),
    /// CUDA objects: quantities are counts, not bytes.
    Objects(ObjectKind),
}

impl Resource {
    /// Whether quantities are bytes.
    pub const fn is_bytes(self) -> bool {
        !matches!(self, Self::Objects(_))
    }
}

/// Values that support a verdict. Quantities are bytes or object counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Evidence {
    /// Live quantity.
    pub live: u64,
    /// Number of live allocations or objects.
    pub live_count: u64,
    /// Length of each window.
    pub window: Nanos,
    /// Minimum of the live quantity in each window since the site was first seen, oldest first.
    pub window_min: Vec<u64>,
    /// Peak of the live quantity.
    pub peak: u64,
    /// Minimum and maximum of the live quantity in the second half of that time.
    pub level: (u64, u64),
    /// How often it rose and returned to its lowest level.
    pub returns: u32,
    /// Number of steps from window to window.
    pub steps: u32,
    /// Of those: in which it grew.
    pub growing_steps: u32,
    /// Of those: in which it shrank.
    pub shrinking_steps: u32,
    /// Current growth per hour.
    pub growth_per_hour: u64,
    /// Allocations or objects created.
    pub created: u64,
    /// Of those: freed by the program.
    pub freed: u64,
    /// Time since the site was first seen.
    pub observed: Nanos,
    /// At least half of the live allocations are this old. Ages are exact to one window.
    pub median_age: Option<Nanos>,
    /// No live allocation is older than this.
    pub oldest: Option<Nanos>,
    /// Mean age of live allocations.
    pub mean_age: Nanos,
    /// Mean lifetime of freed allocations.
    pub mean_life: Option<Nanos>,
    /// At least half of the freed allocations lived no longer than this. Exact to a factor of two.
    pub median_life: Option<Nanos>,
    /// Longest lifetime of a freed allocation.
    pub longest_life: Option<Nanos>,
    /// Live quantity older than 99 % of the freed allocations' lifetimes; with fewer than 20 frees,
    /// older than all of them.
    pub overdue: u64,
    /// Set if it grows like a leak, but not long enough to be called one: the time until it can be,
    /// if it continues.
    pub time_to_verdict: Option<Nanos>,
    /// Quantity that the program freed only when it ended, or after the growth if it still frees; the
    /// other values are from before. 0 if
    /// nothing was.
    pub freed_at_end: u64,
    /// Whether that goes on: the program has not ended.
    pub is_freeing: bool,
    /// Time until the device is full at this growth, if its free memory is known.
    pub time_until_full: Option<Nanos>,
    /// For growing memory of PyTorch's cache: its tensors, if known.
    pub tensors: Option<CacheTensors>,
    /// Largest sampling interval, if the quantities are estimates from sampled blocks.
    pub sampling: Option<SamplingInterval>,
    /// Python references that keep it alive, if they were searched: `__main__.history (dict, 1233
    /// entries)`. Free of control characters.
    pub kept_by: Option<Arc<str>>,
}

/// Tensors of PyTorch's cache on one device. Quantities are bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheTensors {
    /// Live tensors, as counted by PyTorch.
    pub live: u64,
    /// Peak of the live tensors since the trace began.
    pub peak: u64,
    /// Device memory held by the cache.
    pub cache: u64,
    /// Growth per hour of the tensor sites that leak.
    pub growth_per_hour: u64,
    /// Growth per hour of the cache itself.
    pub cache_growth_per_hour: u64,
    /// Whether the total of all tensors is bounded: see [`crate::leak`].
    pub bounded: bool,
    /// Memory of the cache that no tensor used at any time in the last quarter of the time.
    pub unused: u64,
    /// Number of stream captures of the process that failed. Such a capture can keep its memory.
    pub failed_captures: u64,
    /// Whether most of this memory was allocated during stream captures: private pools of graphs,
    /// from which other tensors cannot be allocated.
    pub during_capture: bool,
}

impl CacheTensors {
    /// Whether tensor sites that leak make up at least two thirds of the growth of the cache.
    pub const fn explain_growth(&self) -> bool {
        self.growth_per_hour > 0 && self.growth_per_hour >= self.cache_growth_per_hour / 3 * 2
    }

    /// Whether the tensors, which do not grow, once used two thirds of the cache. Memory of private
    /// pools is not shared with other tensors, so their size does not explain it.
    pub const fn explain_size(&self) -> bool {
        self.bounded && !self.during_capture && self.peak >= self.cache / 3 * 2
    }

    /// Whether the tensors account for the size of the cache. If not, it is classified like other
    /// memory.
    pub const fn account_for_cache(&self) -> bool {
        self.explain_growth() || self.explain_size()
    }
}

/// Verdict on one site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SiteVerdict {
    /// Process; `None` for merged processes that ended earlier.
    pub pid: Option<Pid>,
    /// Name of the process (untrusted).
    pub process: Box<str>,
    /// Site.
    pub site: SiteName,
    /// Frames, innermost first, if known.
    pub frames: CallStack,
    /// Resource that was classified.
    pub resource: Resource,
    /// Device with most of it, if known.
    pub device: Option<DeviceId>,
    /// Thread that allocated all of it, if there is just one.
    pub thread: Option<(Tid, Box<str>)>,
    /// The verdict.
    pub verdict: Verdict,
    /// Confidence in the verdict.
    pub confidence: Confidence,
    /// Values that support it.
    pub evidence: Evidence,
}

/// Sorts suspects: by confidence, then by growth.
pub(crate) fn sort_suspects(suspects: &mut [SiteVerdict]) {
    suspects.sort_by_key(|one| {
        let rank = (one.confidence, one.resource.is_bytes(), one.evidence.growth_per_hour);
        (Reverse(rank), one.pid, one.site, one.resource)
    });
}

/// Sorts other verdicts, largest first.
pub(crate) fn sort_others(others: &mut [SiteVerdict]) {
    others.sort_by_key(|one| {
        let rank = (one.resource.is_bytes(), one.evidence.live, one.evidence.created);
        (Reverse(rank), one.pid, one.site, one.resource)
    });
}

/// Something far outside of the baseline of its site or process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anomaly {
    /// Time.
    pub at: Timestamp,
    /// Process.
    pub pid: Pid,
    /// Name of the process (untrusted).
    pub process: Box<str>,
    /// Thread, for an allocation.
    pub tid: Option<Tid>,
    /// Name of the thread (untrusted).
    pub thread: Box<str>,
    /// Allocation site.
    pub site: SiteName,
    /// Frames, innermost first, if known.
    pub frames: CallStack,
    /// Device.
    pub device: Option<DeviceId>,
    /// Memory kind.
    pub kind: MemoryKind,
    /// What was anomalous.
    pub details: AnomalyKind,
}

/// Kind of anomaly, with its values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AnomalyKind {
    /// An allocation much larger than others.
    Size {
        /// Key of the allocation.
        key: AllocationKey,
        /// Size.
        bytes: Bytes,
        /// Baseline: 90th percentile for a process, largest size for a site.
        baseline: Bytes,
        /// Number of allocations that it is based on.
        of: u64,
        /// Whether this is the baseline of the site; otherwise that of the process.
        of_site: bool,
        /// Whether it is still live.
        live: bool,
    },
    /// Growth in a short time that is much greater than usual.
    Growth {
        /// Growth in bytes.
        bytes: Bytes,
        /// Length of the interval.
        within: Nanos,
        /// Baseline: 90th percentile of the growth in such intervals.
        baseline: Bytes,
    },
}
